"""The measurements of ``python -m flowmx bench``: functions from options to rows."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from flowmx import autograd, initializer, ndarray
from flowmx import symbol as sym
from flowmx.gluon import Block, SymbolBlock, Trainer, loss
from flowmx.gluon.model_zoo import vision
from flowmx.tools.commands.training.models import SMALL, check_name, scores

__all__ = ["MEASURES", "Figure", "Options"]

_OPERATIONS = 2000
_CLASSES = 10
_SHAPES = {"mlp": (64,), "lenet": (1, 28, 28), "inceptionv3": (3, 299, 299)}
"""Shapes of rows that differ from the default."""


class Options(NamedTuple):
    """Options of a measurement.

    Attributes:
        model: name of the model; None: lenet.
        shape: shape of a row; None: the model's usual one.
        batches: the batch sizes.
        hybridize: whether to compile the model.
        seconds: approximate duration of a measurement.
    """

    model: str | None = None
    shape: tuple[int, ...] | None = None
    batches: tuple[int, ...] | list[int] = (32,)
    hybridize: bool = False
    seconds: float = 1.0


class Figure(NamedTuple):
    """A result of a measurement."""

    what: str
    value: float
    unit: str


def best(run: Callable[[], object], seconds: float) -> float:
    """Return the duration of the fastest of several runs, after a warm-up."""
    run()
    durations: list[float] = []
    until = time.perf_counter() + seconds
    while len(durations) < 3 or time.perf_counter() < until:
        started = time.perf_counter()
        run()
        durations.append(time.perf_counter() - started)
    return min(durations)


# -- operators -------------------------------------------------------------------------------------------------


def tiny(options: Options) -> list[Figure]:
    """Measure independent additions of 16 floats."""
    a, b = ndarray.ones((16,)), ndarray.ones((16,))

    def run() -> None:
        for _ in range(_OPERATIONS):
            a + b
        ndarray.waitall()

    return [Figure("a + b, independent, 16 floats", best(run, options.seconds) / _OPERATIONS * 1e6, "µs per operation")]


def chain(options: Options) -> list[Figure]:
    """Measure a chain of dependent additions."""

    def run() -> None:
        x = ndarray.zeros((16,))
        for _ in range(_OPERATIONS):
            x = x + 1
        x.wait_to_read()

    return [Figure("x = x + 1, a chain, 16 floats", best(run, options.seconds) / _OPERATIONS * 1e6, "µs per operation")]


def wait(options: Options) -> list[Figure]:
    """Measure one operation at a time, and reading its value."""
    a = ndarray.ones((16,))

    def run() -> None:
        for _ in range(_OPERATIONS // 10):
            (a + 1).asnumpy()

    return [Figure("a + 1 and its value, 16 floats", best(run, options.seconds) / (_OPERATIONS // 10) * 1e6, "µs")]


# -- models ----------------------------------------------------------------------------------------------------


def model(options: Options) -> list[Figure]:
    """Measure samples per second in training and prediction, by batch size."""
    return list(_model_rows(options))


def _model_rows(options: Options) -> Iterator[Figure]:
    name, shape = _model_and_shape(options)
    for size in options.batches:
        if size < 1:
            raise ValueError(f"--batch is {size}, expected at least 1")
        net = _network(name, shape)
        net.initialize(initializer.Normal(0.02))
        if options.hybridize:
            net.hybridize(static_alloc=True, static_shape=True)
        data, label = ndarray.random.uniform(shape=(size, *shape)), ndarray.zeros((size,))
        modes = {"prediction": _prediction(net, data), "training": _training(net, data, label)}
        for mode, run in modes.items():
            title = f"{name}, {'x'.join(map(str, shape))}, batch {size}, {mode}"
            yield Figure(title, size / best(run, options.seconds), "samples/s")


def _prediction(net: Block, data: object) -> Callable[[], Any]:
    return lambda: net(data).wait_to_read()


def _training(net: Block, data: Any, label: object) -> Callable[[], Any]:
    loss_of = loss.SoftmaxCrossEntropyLoss()
    trainer: list[Trainer] = []

    def run() -> None:
        with autograd.record():
            losses = loss_of(net(data), label)
        losses.backward()
        if not trainer:  # the shapes of parameters are known after the first pass
            trainer.append(Trainer(net.collect_params(), "sgd", {"learning_rate": 1e-4, "momentum": 0.9}))
        trainer[0].step(len(data))
        ndarray.waitall()

    return run


def _model_and_shape(options: Options) -> tuple[str, tuple[int, ...]]:
    name = check_name(options.model or "lenet")
    return name, options.shape or _SHAPES.get(name, (3, 224, 224))


def _network(name: str, shape: tuple[int, ...]) -> Block:
    if name in SMALL:
        data = sym.var("data")
        return SymbolBlock(SMALL[name](data, _CLASSES), [data])
    net: Block = vision.get_model(name, classes=_CLASSES)
    return net


def memory(options: Options) -> list[Figure]:
    """Measure the bytes of the model's memory plan (parameters excluded), and the process's peak memory."""
    name, shape = _model_and_shape(options)
    network = sym.SoftmaxOutput(scores(name, sym.var("data"), _CLASSES), name="softmax")
    rows = []
    for size in options.batches:
        plan = network.memory_estimate(data=(size, *shape))
        rows.append(Figure(f"{name}, batch {size}, planned for training", plan.peak / 2**20, "MiB"))
    peak = _peak()
    return rows if peak is None else [*rows, Figure("peak of this process", peak / 2**20, "MiB")]


def _peak() -> int | None:
    """Return the peak resident bytes of this process, or None if unknown."""
    try:
        from resource import RUSAGE_SELF, getrusage
    except ImportError:  # Windows
        return None
    return getrusage(RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


MEASURES: dict[str, Callable[[Options], list[Figure]]] = {
    "tiny": tiny, "chain": chain, "wait": wait, "model": model, "memory": memory,
}  # fmt: skip
"""Measurements by name."""
