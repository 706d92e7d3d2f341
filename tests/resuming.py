"""Programs that train, are killed, and resume: run by the tests of checkpoints, in this process or in their own.

    python -m tests.resuming <program> <folder> <log> [[<rank>:]<epoch>.<batch> or writing.<bytes>]

Each batch is a line of the log: epoch, batch, which samples, the metric. The last line says what the parameters are.
The program kills itself in the place that is named last; of a job, the worker of that rank does.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import flowmx as mx
from flowmx import autograd, gluon
from tests.seeding import seed_all

SAMPLES, BATCH, EPOCHS, EVERY = 70, 8, 3, 2
SEED = 7


def data(shuffle: bool = True, part: int = 0, parts: int = 1) -> mx.io.NDArrayIter:
    """Return samples whose first number is their index."""
    draw = np.random.default_rng(3)
    images = draw.normal(size=(SAMPLES, 12)).astype(np.float32)
    images[:, 0] = np.arange(SAMPLES) / SAMPLES
    labels = draw.integers(0, 4, SAMPLES).astype(np.float32)
    part_of_worker = slice(part, SAMPLES - SAMPLES % parts, parts)
    return mx.io.NDArrayIter(
        images[part_of_worker], labels[part_of_worker], BATCH, shuffle=shuffle, last_batch_handle="roll_over"
    )


def network() -> Any:
    """Return a network with random operators and running averages."""
    out = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=16, name="fc")
    out = mx.sym.Dropout(mx.sym.Activation(mx.sym.BatchNorm(out, name="bn"), act_type="relu"), p=0.4)
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(out, num_hidden=4, name="fc2"), name="softmax")


def numbers(batch: Any) -> str:
    """Return the indices of a batch's samples."""
    return ",".join(str(round(each * SAMPLES)) for each in batch.data[0].asnumpy()[:, 0].tolist())


def digest(arrays: dict[str, Any]) -> str:
    """Return a hash of all bits of the parameters."""
    checksum = hashlib.sha256()
    for name in sorted(arrays):
        checksum.update(name.encode() + np.ascontiguousarray(arrays[name]).tobytes())
    return checksum.hexdigest()


class Log:
    """A log whose lines survive a kill of the process, and the batch after which the process is killed."""

    def __init__(self, path: str, kill: str | None = None, rank: int | None = None) -> None:
        self._arguments = path, kill
        if rank is not None:
            path = f"{path}-{rank}"
            who, _, place = (kill or "").partition(":")
            kill = place if who in (str(rank), "all") else None
        self._file = Path(path).open("a", buffering=1)  # noqa: SIM115
        self._kill = kill
        if kill is not None and kill.startswith("writing."):
            kill_while_writing(int(kill.split(".")[1]))

    def of_worker(self, rank: int) -> Log:
        """Return the log of one worker of a job."""
        return Log(*self._arguments, rank)

    def __call__(self, epoch: int, batch: int, *values: Any) -> None:
        print(epoch, batch, *values, file=self._file)
        if self._kill == f"{epoch}.{batch}":
            os.kill(os.getpid(), signal.SIGKILL)

    def end(self, arrays: dict[str, Any]) -> None:
        print("end", digest(arrays), file=self._file)
        self._file.close()


def kill_while_writing(after: int) -> None:
    """Kill the process during the fourth checkpoint, after this number of its bytes is written."""
    from flowmx.checkpoint import folder

    module: Any = folder
    real, count = module.replace_file, [0]

    def torn(path: Any, chunks: Any) -> None:
        count[0] += 1
        if count[0] == 4:
            path.with_name(".flowmx-torn.tmp").write_bytes(b"".join(chunks)[:after])
            os.kill(os.getpid(), signal.SIGKILL)
        real(path, chunks)

    module.replace_file = torn


def settings(folder: str | None) -> dict[str, Any]:
    return {} if folder is None else {"checkpoint": mx.checkpoint.Checkpoints(folder, every=EVERY)}


def module(folder: str | None, log: Log, kv: Any = "local", contexts: int = 1) -> None:
    """Train with ``Module.fit``."""
    part, parts = (0, 1) if isinstance(kv, str) else (kv.rank, kv.num_workers)
    mod = mx.mod.Module(network(), context=[mx.cpu(i) for i in range(contexts)])
    schedule = mx.lr_scheduler.FactorScheduler(step=5, factor=0.7)

    def record_samples(param: Any) -> None:
        values = [value for _, value in param.eval_metric.get_global_name_value()]
        log(param.epoch, param.nbatch, numbers(param.locals["data_batch"]), *values)

    async def train() -> None:
        await mod.fit(
            data(part=part, parts=parts), eval_data=data(part=part, parts=parts), num_epoch=EPOCHS, kvstore=kv,
            eval_metric=["acc", "ce"], optimizer="adam", batch_end_callback=record_samples,
            optimizer_params={"learning_rate": 0.01, "lr_scheduler": schedule}, **settings(folder),
        )  # fmt: skip

    asyncio.run(train())
    args, aux = mod.get_params()
    log.end({name: array.asnumpy() for name, array in (args | aux).items()})


def devices(folder: str | None, log: Log) -> None:
    """Train like :func:`fit`, but on two devices with different auxiliary states and generators."""
    module(folder, log, contexts=2)


def block(folder: str | None, log: Log, kv: Any = "device") -> None:
    """Train with a Gluon loop that adds the gradients of two batches."""
    part, parts = (0, 1) if isinstance(kv, str) else (kv.rank, kv.num_workers)
    batches = data(part=part, parts=parts)
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(16, activation="relu"), gluon.nn.BatchNorm(), gluon.nn.Dropout(0.4), gluon.nn.Dense(4))
    net.initialize(mx.init.Xavier())
    if isinstance(kv, str):
        net.collect_params().setattr("grad_req", "add")
    net(mx.nd.zeros((1, 12)))
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9}, kvstore=kv)
    loss_of, metric = gluon.loss.SoftmaxCrossEntropyLoss(), mx.metric.Accuracy()
    run = mx.checkpoint.Run(folder, net, trainer, batches, metric, every=3) if folder is not None else None
    start = (0, 0) if run is None else run.resume()
    for epoch in range(start[0], EPOCHS):
        number = start[1] if epoch == start[0] else 0
        for batch in batches:
            inputs, labels = (batch.data or [])[0], (batch.label or [])[0]
            with autograd.record():
                out = net(inputs)
                loss = loss_of(out, labels)
            loss.backward()
            metric.update([labels], [out])
            if not isinstance(kv, str):
                trainer.step(BATCH * kv.num_workers)
            elif number % 2:
                trainer.step(2 * BATCH)
                net.collect_params().zero_grad()
            if run is not None:
                run.batch_end()
            log(epoch, number, numbers(batch), metric.get()[1])
            number += 1
        batches.reset()
        metric.reset()
        if run is not None:
            run.epoch_end()
    log.end({name: param.data().asnumpy() for name, param in enumerate_names(net)})


def enumerate_names(net: Any) -> Any:
    return ((name.removeprefix(net.prefix), param) for name, param in net.collect_params().items())


def job(program: Callable[..., None]) -> Callable[[str | None, Log], None]:
    """Train with a Gluon loop as one worker of a job."""

    def worker(folder: str | None, log: Log) -> None:
        kv = mx.kv.create("dist_sync")
        program(folder, log.of_worker(kv.rank), kv)

    return worker


PROGRAMS: dict[str, Callable[[str | None, Log], None]] = {
    "module": module, "devices": devices, "block": block, "job_module": job(module), "job_block": job(block),
}  # fmt: skip


def run(program: str, folder: str | None, path: str, kill: str | None = None) -> None:
    """Run a program from its beginning, or from its last checkpoint."""
    seed_all(SEED)
    PROGRAMS[program](folder, Log(path, kill))


if __name__ == "__main__":
    run(sys.argv[1], None if sys.argv[2] == "-" else sys.argv[2], *sys.argv[3:])
