"""A language model that learns from the texts it writes, while it writes (REINFORCE).

Run ``python examples/generate_while_training.py``: writers request texts one after another, and a trainer rewards the
letter e in them. Both use the same network on one event loop. ``trainer.step()`` updates the weights, ``swap`` numbers
the new version, and running requests continue. Each token carries the version that computed it, so that a text may have
tokens of several versions.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import NamedTuple

import numpy as np
from char_generator import Characters, network, train, zen

import flowmx as mx
from flowmx.generation import Completion, Generator, PagedDecoder
from flowmx.gluon import HybridBlock, Trainer


class Sample(NamedTuple):
    """A prompt and its text."""

    prompt: list[int]
    completion: Completion

    @property
    def reward(self) -> float:
        """The share of the letter e."""
        return self.completion.text.count("e") / len(self.completion.text)

    @property
    def tokens(self) -> list[int]:
        """The tokens of the prompt and the text."""
        return [*self.prompt, *(token.number for token in self.completion.tokens)]


def reinforce(net: HybridBlock, trainer: Trainer, samples: list[Sample]) -> None:
    """Make texts of more reward than the mean more probable, and the others less."""
    tokens = np.array([sample.tokens for sample in samples])
    rewards = np.array([sample.reward for sample in samples])
    advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
    with mx.autograd.record():
        logits = net(mx.nd.array(tokens[:, :-1], dtype="int32"))
        logprobs = mx.nd.pick(mx.nd.log_softmax(logits), mx.nd.array(tokens[:, 1:]))
        loss = -(logprobs.mean(axis=1) * mx.nd.array(advantages))
    loss.backward()
    trainer.step(len(samples))


async def keep_writing(generator: Generator, prompt: list[int], length: int, samples: asyncio.Queue[Sample]) -> None:
    """Request texts until cancelled."""
    while True:
        await samples.put(Sample(prompt, await generator(prompt, max_tokens=length)))


async def learn(generator: Generator, net: HybridBlock, samples: asyncio.Queue[Sample], updates: int) -> list[float]:
    """Update the model with the texts of the writers; return the mean reward before each update."""
    trainer = Trainer(net.collect_params(), "adam", {"learning_rate": 1e-3})
    rewards = []
    for _ in range(updates):
        batch = [await samples.get() for _ in range(16)]
        reinforce(net, trainer, batch)
        version = await generator.swap(policy="step")
        rewards.append(float(np.mean([sample.reward for sample in batch])))
        tokens = batch[0].completion.tokens
        print(
            f"version {version}: reward {rewards[-1]:.3f}; versions {tokens[0].version} to {tokens[-1].version} "
            f"wrote {batch[0].completion.text!r}"
        )
    return rewards


async def main(options: argparse.Namespace) -> list[float]:
    """Train on a text and then on rewards; return the mean reward before each update."""
    text = zen()
    characters = Characters(text)
    net = network(characters, options.seed)
    await train(net, np.array(characters.encode(text)), options.steps, options.seed)
    samples: asyncio.Queue[Sample] = asyncio.Queue(maxsize=16)
    async with Generator(PagedDecoder(net, pages=128), characters) as generator, asyncio.TaskGroup() as group:
        prompts = [characters.encode(letter) for letter in "TheBSFCRN" * 2]
        writers = [group.create_task(keep_writing(generator, prompt, options.length, samples)) for prompt in prompts]
        rewards = await learn(generator, net, samples, options.updates)
        for writer in writers:
            writer.cancel()
    return rewards


def parser() -> argparse.ArgumentParser:
    """Build the parser of this example's options."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--steps", type=int, default=100, help="the number of updates with the text")
    arguments.add_argument("--updates", type=int, default=40, help="the number of updates with rewards")
    arguments.add_argument("--length", type=int, default=24, help="the number of characters of each text")
    arguments.add_argument("--seed", type=int, default=0)
    return arguments


if __name__ == "__main__":
    mx.run(main(parser().parse_args()))
