"""A recurrent model of characters that is trained, and then completes what several people type at once.

Run ``python examples/char_sessions.py``: a GRU learns the Zen of Python. Each typist has a session, whose state is that
of the GRU after the characters so far. The calls of all sessions share batches.
"""

from __future__ import annotations

import argparse
import asyncio
import codecs
import contextlib
import importlib
import io
from typing import Any

import numpy as np

import flowmx as mx
from flowmx.gluon import HybridBlock, Trainer, nn, rnn
from flowmx.gluon.loss import SoftmaxCrossEntropyLoss

PROMPTS = ("Beautiful is", "Errors should", "Now is better", "Although never", "In the face of")
UNITS, LAYERS = 128, 1


def zen() -> str:
    """Return the Zen of Python, which the module ``this`` prints."""
    with contextlib.redirect_stdout(io.StringIO()):
        return codecs.decode(importlib.import_module("this").s, "rot13")


class Characters(HybridBlock):
    """A recurrent model that returns the logits of the next characters and the next state.

    Args:
        size: the number of different characters.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size, 32)
        self.gru = rnn.GRU(UNITS, LAYERS, layout="NTC", input_size=32)
        self.decoder = nn.Dense(size, flatten=False, in_units=UNITS)

    def hybrid_forward(self, F: Any, characters: Any, state: Any) -> tuple[Any, Any]:
        outputs, (state,) = self.gru(self.embedding(characters), [state])
        return self.decoder(outputs), state


async def train(net: HybridBlock, tokens: np.ndarray, steps: int, seed: int, length: int = 64) -> float:
    """Train on random parts of a text; return the last loss."""
    trainer, loss_of = Trainer(net.collect_params(), "adam", {"learning_rate": 5e-3}), SoftmaxCrossEntropyLoss()
    random, latest = np.random.default_rng(seed), float("nan")
    for step in range(1, steps + 1):
        starts = random.integers(0, len(tokens) - length, 16)
        parts = tokens[starts[:, None] + np.arange(length + 1)]
        with mx.autograd.record():
            logits, _ = net(mx.nd.array(parts[:, :-1]), mx.nd.zeros((LAYERS, len(parts), UNITS)))
            loss = loss_of(logits, mx.nd.array(parts[:, 1:]))
        loss.backward()
        trainer.step(len(parts))
        if step % 50 == 0 or step == steps:
            mean = loss.mean()
            latest = float((await mean).asscalar())
            print(f"step {step}: loss {latest:.3f}")
    return latest


async def complete(predictor: mx.serve.Predictor, letters: str, prompt: str, length: int) -> str:
    """Type a prompt, and return it with the characters that the model adds."""
    text = prompt
    async with predictor.session(prompt) as session:
        results = [logits async for logits in session.stream([letters.index(letter)] for letter in prompt)]
        logits = results[-1]
        for _ in range(length):
            text += letters[int(logits[0].argmax())]
            logits = await session([letters.index(text[-1])])
    print(f"{session.steps} calls: {text!r}")
    return text


async def main(options: argparse.Namespace) -> list[str]:
    """Train a model, and serve it; return the completed prompts."""
    text = zen()
    letters = "".join(sorted(set(text)))
    mx.random.seed(options.seed)
    net = Characters(len(letters))
    net.initialize(mx.init.Xavier())
    net.hybridize()
    await train(net, np.array([letters.index(letter) for letter in text]), options.steps, options.seed)
    states = {"hidden": mx.serve.State((LAYERS, UNITS), axis=1)}
    async with mx.serve.Predictor(net, (1,), states=states, max_batch=8) as predictor:
        return await asyncio.gather(*(complete(predictor, letters, prompt, options.length) for prompt in PROMPTS))


def parser() -> argparse.ArgumentParser:
    """Build the parser of this example's options."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--steps", type=int, default=300, help="the number of updates")
    arguments.add_argument("--length", type=int, default=30, help="the number of characters to add to each prompt")
    arguments.add_argument("--seed", type=int, default=0)
    return arguments


if __name__ == "__main__":
    mx.run(main(parser().parse_args()))
