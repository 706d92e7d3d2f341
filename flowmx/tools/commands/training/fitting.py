"""Trains a model on data: the training loop with progress, and the saved model."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from pathlib import Path

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
from flowmx.tools.commands.training.data import Data, DataOptions, load

__all__ = ["fit"]


class Progress:
    """Callbacks that display progress: a bar during an epoch, and a line after it.

    Attributes:
        accuracy: accuracy of the last validation.
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
        """Count a batch and update the bar."""
        if self._bar is None:
            self._bar = Bar(self.batches, f"epoch {param.epoch + 1}/{self.epochs}", unit="batches")
            self._started, self._samples = time.monotonic(), 0
        self._trained = dict(param.eval_metric.get_name_value())
        self._samples += self.batch_size
        self._bar.step(note=f"loss {self._trained['cross-entropy']:.4f}  accuracy {self._trained['accuracy']:.4f}")

    async def epoch(self, epoch: int, *args: object) -> None:
        """Close the bar at the end of an epoch, validate, and write a line."""
        if self._bar is not None:
            self._bar.close()
        self._bar = None
        rate = self._samples / max(1e-9, time.monotonic() - self._started)
        if self.validation is not None:
            self.accuracy = await accuracy(self.module, self.validation)
            result = f"validation accuracy {self.accuracy:.4f}  "
            sys.stderr.write(f"epoch {epoch + 1}: {result}({rate:.0f} samples/s)\n")


async def accuracy(module: Module, batches: DataIter) -> float:
    """Return the fraction of rows that a model classifies correctly, without the padding of the last batch."""
    metric = Accuracy()
    async for outputs, _, batch in module.iter_predict(batches):
        await outputs[0]
        metric.update([label[: len(outputs[0])] for label in batch.label], outputs)
    return float(metric.get()[1])


def fit(arguments: argparse.Namespace) -> int:
    """Train; return the exit status. The last line of the output has the accuracy and the path of the model.

    Raises:
        ValueError: an option is out of range, or conflicts with others.
        FileExistsError: the folder already has a model that could be confused with this one.
        OSError: a file cannot be read or written.
    """
    logging.getLogger().setLevel(logging.WARNING)
    if arguments.epochs < 1 or arguments.batch_size < 1:
        raise ValueError(f"--epochs is {arguments.epochs} and --batch-size {arguments.batch_size}, expected at least 1")
    seed = 0 if arguments.seed is None else arguments.seed
    data = load(
        DataOptions(
            arguments.data,
            arguments.validation,
            arguments.batch_size,
            arguments.shape,
            arguments.classes,
            arguments.held_out,
            seed,
        )
    )
    network = models.make(arguments.model, data.shape, data.classes)
    prefix = Path(arguments.out) / "model"
    _check_free(prefix, network, arguments.epochs)
    module = Module(network, context=arguments.device or [cpu()])
    progress = Progress(module, data, arguments.epochs, arguments.batch_size)
    run(_train(module, data, progress, arguments))
    prefix.parent.mkdir(parents=True, exist_ok=True)
    module.save_checkpoint(str(prefix), arguments.epochs)
    result = "" if progress.accuracy is None else f"validation accuracy {progress.accuracy:.4f}; "
    sys.stdout.write(f"{result}model: {prefix} (flowmx serve {prefix.parent})\n")
    return 0


async def _train(module: Module, data: Data, progress: Progress, arguments: argparse.Namespace) -> None:
    await module.fit(
        data.train, eval_metric=["accuracy", "ce"], optimizer=arguments.optimizer,
        optimizer_params=_optimizer(arguments, data.batches), num_epoch=arguments.epochs,
        initializer=initializer.Xavier(magnitude=2), batch_end_callback=progress.batch,
        epoch_end_callback=progress.epoch,
    )  # fmt: skip
    if progress.accuracy is None and data.validation is not None:  # a resumed training that was already complete
        progress.accuracy = await accuracy(module, data.validation)


def _optimizer(arguments: argparse.Namespace, batches: int | None) -> dict[str, object]:
    """Return the optimizer's arguments, with a cosine learning rate schedule if the number of batches is known."""
    options: dict[str, object] = {"learning_rate": arguments.lr, "wd": arguments.wd}
    if arguments.optimizer in ("sgd", "nag"):
        options["momentum"] = arguments.momentum
    if batches:
        options["lr_scheduler"] = lr_scheduler.CosineScheduler(
            batches * arguments.epochs, base_lr=arguments.lr, final_lr=0
        )
    return options


def _check_free(prefix: Path, network: Symbol, epochs: int) -> None:
    """Refuse a folder with parameters of another network or of later epochs.

    Raises:
        FileExistsError: the folder has such parameters.
    """
    advice = "name another folder with --out, or remove that model"
    path = prefix.with_name(f"{prefix.name}-symbol.json")
    if path.exists() and _structure(sym.load(path)) != _structure(network):
        raise FileExistsError(f"{path} is of another network: {advice}")
    for weights in sorted(prefix.parent.glob(f"{prefix.name}-*.params"), reverse=True):
        epoch = weights.stem.rpartition("-")[2]
        if epoch.isdigit() and int(epoch) > epochs:
            raise FileExistsError(f"{weights} has {int(epoch)} epochs and would be taken for the result: {advice}")
        if not path.exists():
            raise FileExistsError(f"{weights} has no symbol file and may be of another network: {advice}")


def _structure(network: Symbol) -> tuple[object, ...]:
    """Return the structure of a network without the names of its operators, which may differ in equal networks."""
    graph = json.loads(network.tojson())
    nodes = [
        (node["op"], node["name"] if node["op"] == "null" else "", node.get("attrs"), node["inputs"])
        for node in graph["nodes"]
    ]
    return nodes, graph["heads"]
