"""Train LeNet on handwritten digits with several workers and servers, and compare with one process.

Run ``python examples/train_distributed.py``: it launches itself as a job of 2 workers and 2 servers on this machine.
Or launch it like any other program, on more machines, with other numbers and policies::

    python -m flowmx launch --workers 4 --servers 2 -- python examples/train_distributed.py

Each worker trains on its part of every batch; the servers sum the gradients and update the parameters. At the end the
worker of rank 0 trains again alone, on whole batches split over as many devices of its process, and compares: gradients
are summed in the same order, so the parameters are bit-identical.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import subprocess
import sys
import time

import numpy as np
from digits import Images, Labels, lenet, load

import flowmx as mx
from flowmx import settings

Params = dict[str, np.ndarray]


def launch(workers: int, servers: int, arguments: list[str]) -> int:
    """Launch this program as a job; returns its exit status."""
    job = [sys.executable, "-m", "flowmx", "launch", "--workers", str(workers), "--servers", str(servers)]
    return subprocess.run([*job, "--", sys.executable, __file__, *arguments], check=False).returncode


def part(images: Images, labels: Labels, batch_size: int, rank: int, workers: int) -> mx.io.NDArrayIter:
    """Return a worker's part of every batch, in the order of the batches."""
    batches = len(images) // batch_size
    samples = slice(rank * batch_size // workers, (rank + 1) * batch_size // workers)
    shares = [array[: batches * batch_size].reshape(batches, batch_size, -1)[:, samples] for array in (images, labels)]
    batch_size = shares[0].shape[1]
    return mx.io.NDArrayIter(shares[0].reshape(-1, 1, 28, 28), shares[1].reshape(-1), batch_size)


async def train(
    data: mx.io.NDArrayIter,
    initial_params: Params,
    epochs: int,
    kvstore: object,
    devices: int = 1,
    prints_progress: bool = False,
) -> mx.mod.Module:
    """Train with a store, from initial parameters; prints each epoch."""
    started = time.perf_counter()

    def progress(epoch: int, *_: object) -> None:
        if prints_progress:
            print(f"epoch {epoch:2} done after {time.perf_counter() - started:.1f} s", flush=True)

    module = mx.mod.Module(lenet(), context=[mx.cpu(index) for index in range(devices)])
    await module.fit(
        data, num_epoch=epochs, kvstore=kvstore,
        arg_params={name: mx.nd.array(value) for name, value in initial_params.items()},
        optimizer_params={"learning_rate": 0.1, "momentum": 0.9}, epoch_end_callback=progress,
    )  # fmt: skip
    return module


def initial_parameters(seed: int) -> Params:
    """Return the initial parameters."""
    mx.random.seed(seed)
    module = mx.mod.Module(lenet())
    module.bind([("data", (1, 1, 28, 28))], [("softmax_label", (1,))])
    module.init_params(mx.init.Xavier())
    return numbers(module)


def numbers(module: mx.mod.Module) -> Params:
    """Return a module's parameters as NumPy arrays."""
    return {name: value.asnumpy() for name, value in module.get_params()[0].items()}


def work(options: argparse.Namespace) -> None:
    """Run as one worker of the job."""
    kv = mx.kv.create("dist_sync")
    images, labels, test_images, test_labels = load()
    initial_params = initial_parameters(options.seed)
    samples = part(images, labels, options.batch_size, kv.rank, kv.num_workers)
    is_first = kv.rank == 0
    module = asyncio.run(train(samples, initial_params, options.epochs, kv, prints_progress=is_first))
    kv.close()
    if not is_first:
        return
    whole = part(images, labels, options.batch_size, 0, 1)
    alone = numbers(asyncio.run(train(whole, initial_params, options.epochs, "local", devices=kv.num_workers)))
    difference = max(float(np.abs(value - alone[name]).max()) for name, value in numbers(module).items())
    print(f"largest difference from one process: {difference}")
    test = mx.io.NDArrayIter(test_images, test_labels, options.batch_size)
    print(f"test accuracy: {mx.run(module.score(test, 'acc'))[0][1]:.4f}")
    if difference:
        raise SystemExit("the parameters of the job differ from those of one process")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--workers", type=int, default=2, help="if it launches itself")
    parser.add_argument("--servers", type=int, default=2, help="if it launches itself")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    if not settings.get().scheduler:
        raise SystemExit(launch(arguments.workers, arguments.servers, sys.argv[1:]))
    work(arguments)
