"""Training a model on data: the loop with its progress, and the model that it leaves."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from pathlib import Path
from typing import Any

from flowmx import initializer, lr_scheduler
from flowmx import symbol as sym
from flowmx.devices import cpu
from flowmx.engine import run
from flowmx.io import DataIter
from flowmx.metric import Accuracy
from flowmx.model import BatchEndParam
from flowmx.module import Module
from flowmx.progress import Bar
from flowmx.symbol import Symbol
from flowmx.tools.commands.training import models
from flowmx.tools.commands.training.data import Data, Wanted, load

__all__ = ["fit"]


class Progress:
    """Progress display of a training, as callbacks: a bar in each epoch, and a line after it.

    Attributes:
        accuracy: of the last validation.
    """

    def __init__(self, module: Module, data: Data, epochs: int, batch_size: int) -> None:
        self.module, self.validation, self.batches = module, data.validation, data.batches
        self.epochs, self.batch_size = epochs, batch_size
        self.accuracy: float | None = None
        self._bar: Bar | None = None
        self._started = 0.0
        self._samples = 0
        self._trained: dict[str, float] = {}

    def batch(self, param: BatchEndParam) -> None:
        """Count a batch, and update the bar."""
        if self._bar is None:
            self._bar = Bar(self.batches, f"epoch {param.epoch + 1}/{self.epochs}", unit="batches")
            self._started, self._samples = time.monotonic(), 0
        self._trained = dict(param.eval_metric.get_name_value())
        self._samples += self.batch_size
        self._bar.step(note=f"loss {self._trained['cross-entropy']:.4f}  accuracy {self._trained['accuracy']:.4f}")

    async def epoch(self, epoch: int, *args: Any) -> None:
        """End an epoch: close the bar, validate, and write a line."""
        if self._bar is not None:
            self._bar.close()
        self._bar = None
        rate = self._samples / max(1e-9, time.monotonic() - self._started)
        if self.validation is not None:
            self.accuracy = await accuracy(self.module, self.validation)
            said = f"validation accuracy {self.accuracy:.4f}  "
            sys.stderr.write(f"epoch {epoch + 1}: {said}({rate:.0f} samples/s)\n")


async def accuracy(module: Module, batches: DataIter) -> float:
    """The fraction of the rows that a model classifies correctly; padding of the last batch does not count."""
    metric = Accuracy()
    async for outputs, _, batch in module.iter_predict(batches):
        await outputs[0]
        metric.update([label[: len(outputs[0])] for label in batch.label], outputs)
    return float(metric.get()[1])


def fit(given: argparse.Namespace) -> int:
    """Train; returns the exit status. The last line of the output says what was reached and where the model is.

    Raises:
        ValueError: an option is out of range, or does not fit the others.
        FileExistsError: the folder has a model already that this one would get mixed up with.
        OSError: a file can not be read or written.
    """
    logging.getLogger().setLevel(logging.WARNING)
    if given.epochs < 1 or given.batch_size < 1:
        raise ValueError(f"--epochs is {given.epochs} and --batch-size {given.batch_size}, expected at least 1")
    seed = 0 if given.seed is None else given.seed
    data = load(
        Wanted(given.data, given.validation, given.batch_size, given.shape, given.classes, given.held_out, seed)
    )
    network = models.make(given.model, data.shape, data.classes)
    prefix = Path(given.out) / "model"
    _check_free(prefix, network, given.epochs)
    module = Module(network, context=given.device or [cpu()])
    progress = Progress(module, data, given.epochs, given.batch_size)
    run(_train(module, data, progress, given))
    prefix.parent.mkdir(parents=True, exist_ok=True)
    module.save_checkpoint(str(prefix), given.epochs)
    reached = "" if progress.accuracy is None else f"validation accuracy {progress.accuracy:.4f}; "
    sys.stdout.write(f"{reached}model: {prefix} (flowmx serve {prefix.parent})\n")
    return 0


async def _train(module: Module, data: Data, progress: Progress, given: argparse.Namespace) -> None:
    await module.fit(
        data.train, eval_metric=["accuracy", "ce"], optimizer=given.optimizer,
        optimizer_params=_optimizer(given, data.batches), num_epoch=given.epochs,
        initializer=initializer.Xavier(magnitude=2), batch_end_callback=progress.batch,
        epoch_end_callback=progress.epoch,
    )  # fmt: skip
    if progress.accuracy is None and data.validation is not None:  # it was over already when it went on
        progress.accuracy = await accuracy(module, data.validation)


def _optimizer(given: argparse.Namespace, batches: int | None) -> dict[str, Any]:
    """The optimizer's arguments; the learning rate falls along a cosine where the number of batches is known."""
    found: dict[str, Any] = {"learning_rate": given.lr, "wd": given.wd}
    if given.optimizer in ("sgd", "nag"):
        found["momentum"] = given.momentum
    if batches:
        found["lr_scheduler"] = lr_scheduler.CosineScheduler(batches * given.epochs, base_lr=given.lr, final_lr=0)
    return found


def _check_free(prefix: Path, network: Symbol, epochs: int) -> None:
    """Refuse a folder where a symbol would come to stand beside the parameters of another, or behind later ones.

    Raises:
        FileExistsError: it has a model of another network, or one of more epochs.
    """
    instead = "name another folder with --out, or remove that model"
    found = prefix.with_name(f"{prefix.name}-symbol.json")
    if found.exists() and _structure(sym.load(found)) != _structure(network):
        raise FileExistsError(f"{found} is of another network: {instead}")
    for path in sorted(prefix.parent.glob(f"{prefix.name}-*.params"), reverse=True):
        done = path.stem.rpartition("-")[2]
        if done.isdigit() and int(done) > epochs:
            raise FileExistsError(f"{path} is of {int(done)} epochs and would be taken for the result: {instead}")
        if not found.exists():
            raise FileExistsError(f"{path} has no symbol beside it, and may be of another network: {instead}")


def _structure(network: Symbol) -> tuple[object, ...]:
    """A network without the names of its operators, which differ between two that are made alike."""
    graph = json.loads(network.tojson())
    nodes = [
        (node["op"], node["name"] if node["op"] == "null" else "", node.get("attrs"), node["inputs"])
        for node in graph["nodes"]
    ]
    return nodes, graph["heads"]
