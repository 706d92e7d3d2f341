"""Generate texts with weights that another process trains. A KVStore connects the processes.

Run ``python examples/generate_from_kvstore.py``: it launches itself as a job of two workers and a server on this
machine. Worker 0 trains a character model, and the server updates the weights. Worker 1 writes texts all the time, and
pulls the weights again and again. The new weights take effect between two steps: running texts continue, and each
character carries the version that computed it. At the end worker 1 prints how its texts have improved.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import subprocess
import sys

import numpy as np
from char_generator import PROMPTS, Characters, network, zen

import flowmx as mx
from flowmx import settings
from flowmx.generation import Completion, Generator, PagedDecoder, WeightPuller
from flowmx.gluon import HybridBlock
from flowmx.gluon.loss import SoftmaxCrossEntropyLoss
from flowmx.kvstore.base import KVStoreBase

LENGTH = 48


def launch(arguments: list[str]) -> int:
    """Launch this program as a job; return its exit status."""
    job = [sys.executable, "-m", "flowmx", "launch", "--workers", "2", "--servers", "1"]
    return subprocess.run([*job, "--", sys.executable, __file__, *arguments], check=False).returncode


def train(kv: KVStoreBase, net: HybridBlock, tokens: np.ndarray, options: argparse.Namespace) -> None:
    """Push gradients to the server, and pull the weights that it updates."""
    loss_of, random = SoftmaxCrossEntropyLoss(), np.random.default_rng(options.seed)
    parameters = list(net.collect_params().values())
    for _ in range(options.steps):
        starts = random.integers(0, len(tokens) - LENGTH, 16)
        parts = tokens[starts[:, None] + np.arange(LENGTH + 1)]
        with mx.autograd.record():
            loss = loss_of(net(mx.nd.array(parts[:, :-1], dtype="int32")), mx.nd.array(parts[:, 1:])).mean()
        loss.backward()
        for key, parameter in enumerate(parameters):
            kv.push(key, parameter.grad(), priority=-key)
            kv.pull(key, out=parameter.data(), priority=-key)
    print(f"worker 0 trained {options.steps} steps: loss {float(loss.asscalar()):.3f}", flush=True)


async def write(kv: KVStoreBase, net: HybridBlock, characters: Characters, options: argparse.Namespace) -> list[float]:
    """Write texts while weights come; return the share of words of each round that are in the original text."""
    words, shares = set(re.findall(r"\w+", zen())), []
    async with Generator(PagedDecoder(net, pages=64), characters) as generator:
        puller = WeightPuller(generator, kv, dict(enumerate(net.collect_params().values())))
        for index in range(options.rounds + 1):
            if index == options.rounds:  # the last texts have the final weights
                await asyncio.to_thread(kv.barrier)
                await puller.pull()
            texts = [generator(prompt, max_tokens=LENGTH, temperature=0.5) for prompt in PROMPTS]
            written = asyncio.gather(*texts)
            while not written.done():
                await puller.pull(options.policy)
            completions: list[Completion] = await written
            present = [word for completion in completions for word in re.findall(r"\w+", completion.text)]
            shares.append(sum(word in words for word in present) / max(len(present), 1))
            tokens = completions[0].tokens
            print(
                f"versions {tokens[0].version} to {tokens[-1].version} wrote {completions[0].text!r}; "
                f"{shares[-1]:.0%} of the words exist",
                flush=True,
            )
    return shares


def main(options: argparse.Namespace) -> None:
    """Run one of the two workers."""
    text = zen()
    characters = Characters(text)
    net = network(characters, options.seed)
    tokens = np.array(characters.encode(text))
    net(mx.nd.zeros((1, 1), dtype="int32"))
    with mx.kv.create("dist_async") as kv:
        kv.set_optimizer(mx.optimizer.Adam(learning_rate=3e-3))
        for key, parameter in enumerate(net.collect_params().values()):
            kv.init(key, parameter.data())
        if kv.rank == 0:
            train(kv, net, tokens, options)
            kv.barrier()
        else:
            shares = mx.run(write(kv, net, characters, options))
            print(f"words that exist: {shares[0]:.0%} in the first round, {shares[-1]:.0%} in the last", flush=True)


def parser() -> argparse.ArgumentParser:
    """Build the parser of this example's options."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--steps", type=int, default=150, help="the number of updates")
    arguments.add_argument(
        "--rounds",
        type=int,
        default=20,
        help="the number of times that each prompt is continued while the other trains",
    )
    arguments.add_argument("--policy", default="step", choices=["step", "recompute", "drain"])
    arguments.add_argument("--seed", type=int, default=0)
    return arguments


if __name__ == "__main__":
    if not settings.get().scheduler:
        sys.exit(launch(sys.argv[1:]))
    main(parser().parse_args())
