"""A tiny language model on characters that is trained, and then writes several texts at once.

Run ``python examples/char_generator.py``: a Llama of two layers learns the Zen of Python, and a ``Generator`` continues
several prompts. All prompts share each decode step; their tokens are printed as they come.
"""

from __future__ import annotations

import argparse
import asyncio
import codecs
import contextlib
import importlib
import io
from collections.abc import Sequence

import numpy as np

import flowmx as mx
from flowmx.generation import Generator, PagedDecoder
from flowmx.gluon import HybridBlock, Trainer
from flowmx.gluon.loss import SoftmaxCrossEntropyLoss
from flowmx.gluon.model_zoo.text import LlamaLM

PROMPTS = ("Beautiful ", "Simple ", "Errors should ", "Now is ")


def zen() -> str:
    """Return the Zen of Python, which the module ``this`` prints."""
    with contextlib.redirect_stdout(io.StringIO()):
        return codecs.decode(importlib.import_module("this").s, "rot13")


class CharacterStream:
    """The text of tokens, each of which is a character."""

    def __init__(self, letters: Sequence[str]) -> None:
        self.letters = letters

    def push(self, token: int) -> str:
        """Return the character of a token."""
        return self.letters[token]


class Characters:
    """A tokenizer whose tokens are the characters of a text."""

    end_tokens: frozenset[int] = frozenset()

    def __init__(self, text: str) -> None:
        self.letters = sorted(set(text))
        self.numbers = {letter: number for number, letter in enumerate(self.letters)}

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Return the tokens of a text."""
        return [self.numbers[letter] for letter in text]

    def token_text(self, number: int) -> str:
        """Return the character of a token."""
        return self.letters[number]

    def stream(self) -> CharacterStream:
        """Return a converter from tokens to text."""
        return CharacterStream(self.letters)


def network(characters: Characters, seed: int) -> HybridBlock:
    """Return an untrained model."""
    mx.random.seed(seed)
    net = LlamaLM(vocab_size=len(characters.letters), units=64, num_layers=2, num_heads=4, hidden_units=128)
    net.initialize(mx.init.Normal(0.1))
    net.hybridize()
    return net


async def train(net: HybridBlock, tokens: np.ndarray, steps: int, seed: int, length: int = 48) -> float:
    """Train on random parts of a text; return the last loss."""
    trainer, loss_of = Trainer(net.collect_params(), "adam", {"learning_rate": 3e-3}), SoftmaxCrossEntropyLoss()
    random, latest = np.random.default_rng(seed), float("nan")
    for step in range(1, steps + 1):
        starts = random.integers(0, len(tokens) - length, 16)
        parts = tokens[starts[:, None] + np.arange(length + 1)]
        with mx.autograd.record():
            loss = loss_of(net(mx.nd.array(parts[:, :-1], dtype="int32")), mx.nd.array(parts[:, 1:]))
        loss.backward()
        trainer.step(len(parts))
        if step % 50 == 0 or step == steps:
            mean = loss.mean()
            latest = float((await mean).asscalar())
            print(f"step {step}: loss {latest:.3f}")
    return latest


async def write(generator: Generator, prompt: str, length: int) -> str:
    """Generate a text, and print each token as it comes."""
    text = ""
    async for token in generator(prompt, max_tokens=length, temperature=0.5, seed=0):
        text += token.text
        print(f"{prompt!r} + {token.text!r}")
    return text


async def main(options: argparse.Namespace) -> dict[str, str]:
    """Train a model; return the texts that it writes."""
    text = zen()
    characters = Characters(text)
    net = network(characters, options.seed)
    await train(net, np.array(characters.encode(text)), options.steps, options.seed)
    async with Generator(PagedDecoder(net, pages=64), characters) as generator:
        texts = await asyncio.gather(*(write(generator, prompt, options.length) for prompt in PROMPTS))
    return dict(zip(PROMPTS, texts, strict=True))


def parser() -> argparse.ArgumentParser:
    """Build the parser of this example's options."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--steps", type=int, default=300, help="the number of updates")
    arguments.add_argument("--length", type=int, default=40, help="the number of characters of each text")
    arguments.add_argument("--seed", type=int, default=0)
    return arguments


if __name__ == "__main__":
    for prompt_, text_ in mx.run(main(parser().parse_args())).items():
        print(f"{prompt_}{text_}")
