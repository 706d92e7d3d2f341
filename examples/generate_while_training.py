"""An assistant that learns from thumbs-up feedback, while it answers (REINFORCE).

Run ``python examples/generate_while_training.py``: readers request texts one after another, and give a thumbs-up to
those with a word that they like. A trainer makes such texts more probable. Both use the same network on one event loop.
``trainer.step()`` updates the weights, ``swap`` numbers the new version, and running requests continue. Each token
carries the version that computed it, so that a text may have tokens of several versions.

The defaults take about 5 seconds of processor time. At the end it prints the share of texts with a thumbs-up at the
beginning and at the end, the speed, and the lag of the event loop.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from typing import NamedTuple

import numpy as np
from char_generator import Characters, network, train, zen

import flowmx as mx
from flowmx.generation import Completion, Generator, PagedDecoder
from flowmx.gluon import HybridBlock, Trainer

BATCH = 16
"""The number of texts of an update."""


class Sample(NamedTuple):
    """A prompt, its text, and whether the reader gave a thumbs-up."""

    prompt: list[int]
    completion: Completion
    is_liked: bool

    @property
    def tokens(self) -> list[int]:
        """The tokens of the prompt and the text."""
        return [*self.prompt, *(token.number for token in self.completion.tokens)]


class Figures(NamedTuple):
    """The measurements of a run.

    Attributes:
        likes: the share of texts with a thumbs-up before each update.
        tokens: the number of generated tokens.
        versions: the mean number of versions of the weights that wrote a text.
        seconds: the duration.
        lag: the 99th percentile of the lag of the event loop in seconds.
    """

    likes: list[float]
    tokens: int
    versions: float
    seconds: float
    lag: float

    def __str__(self) -> str:
        first, last = np.mean(self.likes[:4]), np.mean(self.likes[-4:])
        return (
            f"thumbs-up: {first:.0%} of the texts before the first 4 updates, {last:.0%} before the last 4\n"
            f"{len(self.likes)} updates and {self.tokens} tokens in {self.seconds:.1f} s, "
            f"{self.tokens / self.seconds:.0f} tokens per second; {self.versions:.1f} versions wrote a text; "
            f"the event loop was at most {1000 * self.lag:.1f} ms late in 99 % of the checks"
        )


def reinforce(net: HybridBlock, trainer: Trainer, samples: list[Sample]) -> None:
    """Make texts with a thumbs-up more probable, and the others less."""
    tokens = np.array([sample.tokens for sample in samples])
    rewards = np.array([float(sample.is_liked) for sample in samples])
    advantages = (rewards - rewards.mean()) / (rewards.std() + 0.1)
    with mx.autograd.record():
        logits = net(mx.nd.array(tokens[:, :-1], dtype="int32"))
        logprobs = mx.nd.pick(mx.nd.log_softmax(logits), mx.nd.array(tokens[:, 1:]))
        loss = -(logprobs.mean(axis=1) * mx.nd.array(advantages))
    loss.backward()
    trainer.step(len(samples))


async def keep_reading(
    generator: Generator, prompt: list[int], options: argparse.Namespace, samples: asyncio.Queue[Sample]
) -> None:
    """Request texts, and give feedback, until cancelled."""
    while True:
        completion = await generator(prompt, max_tokens=options.length, temperature=options.temperature)
        await samples.put(Sample(prompt, completion, options.word in completion.text))


async def measure_lag(lags: list[float]) -> None:
    """Record how late the event loop runs a timer, until cancelled."""
    while True:
        began = time.perf_counter()
        await asyncio.sleep(0.005)
        lags.append(time.perf_counter() - began - 0.005)


async def learn(
    generator: Generator, net: HybridBlock, samples: asyncio.Queue[Sample], updates: int
) -> list[list[Sample]]:
    """Update the model with the feedback; return the texts of each update."""
    trainer = Trainer(net.collect_params(), "adam", {"learning_rate": 1e-3})
    batches = []
    for _ in range(updates):
        batch = [await samples.get() for _ in range(BATCH)]
        reinforce(net, trainer, batch)
        version = await generator.swap(policy="step")
        batches.append(batch)
        tokens = batch[0].completion.tokens
        print(
            f"version {version}: {sum(sample.is_liked for sample in batch)} of {len(batch)} thumbs-up; versions "
            f"{tokens[0].version} to {tokens[-1].version} wrote {batch[0].completion.text!r}"
        )
    return batches


async def main(options: argparse.Namespace) -> Figures:
    """Train on a text and then on feedback; return the measurements."""
    text = zen()
    characters = Characters(text)
    net = network(characters, options.seed)
    await train(net, np.array(characters.encode(text)), options.steps, options.seed)
    samples: asyncio.Queue[Sample] = asyncio.Queue(maxsize=BATCH)
    lags: list[float] = []
    began = time.perf_counter()
    async with Generator(PagedDecoder(net, pages=128), characters) as generator, asyncio.TaskGroup() as group:
        prompts = [characters.encode(letter) for letter in "TheBSFCRN" * 2]
        tasks = [group.create_task(keep_reading(generator, prompt, options, samples)) for prompt in prompts]
        tasks.append(group.create_task(measure_lag(lags)))
        batches = await learn(generator, net, samples, options.updates)
        for task in tasks:
            task.cancel()
    seconds = time.perf_counter() - began
    texts = [sample.completion.tokens for batch in batches for sample in batch]
    figures = Figures(
        [float(np.mean([sample.is_liked for sample in batch])) for batch in batches], sum(map(len, texts)),
        float(np.mean([len({token.version for token in tokens}) for tokens in texts])), seconds,
        float(np.quantile(lags, 0.99)),
    )  # fmt: skip
    print(figures)
    return figures


def parser() -> argparse.ArgumentParser:
    """Build the parser of this example's options."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--steps", type=int, default=100, help="the number of updates with the text")
    arguments.add_argument("--updates", type=int, default=60, help="the number of updates with feedback")
    arguments.add_argument("--word", default="better", help="readers like texts with this word")
    arguments.add_argument("--temperature", type=float, default=0.8)
    arguments.add_argument("--length", type=int, default=24, help="the number of characters of each text")
    arguments.add_argument("--seed", type=int, default=0)
    return arguments


if __name__ == "__main__":
    mx.run(main(parser().parse_args()))
