"""Measurements of ``python -m flowmx bench``: each is a function from options to rows."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from flowmx import autograd, initializer, ndarray
from flowmx import symbol as sym
from flowmx.gluon import Block, SymbolBlock, Trainer, loss
from flowmx.gluon.model_zoo import vision
from flowmx.tools.commands.training.models import SMALL, known, scores

__all__ = ["MEASURES", "Figure", "Options"]

_OPERATIONS = 2000
_CLASSES = 10
_SHAPES = {"mlp": (64,), "lenet": (1, 28, 28), "inceptionv3": (3, 299, 299)}
"""Of a row, where it is not the usual one."""


class Options(NamedTuple):
    """Options of a measurement.

    Attributes:
        model: by name; None: lenet.
        shape: of a row; None: the model's usual one.
        batches: the batch sizes.
        hybridize: compile the model.
        seconds: of each measurement, about.
    """

    model: str | None = None
    shape: tuple[int, ...] | None = None
    batches: tuple[int, ...] | list[int] = (32,)
    hybridize: bool = False
    seconds: float = 1.0


class Figure(NamedTuple):
    """A figure."""

    what: str
    value: float
    unit: str


def best(run: Callable[[], Any], seconds: float) -> float:
    """The least seconds of several runs, after one that warms up."""
    run()
    found: list[float] = []
    until = time.perf_counter() + seconds
    while len(found) < 3 or time.perf_counter() < until:
        started = time.perf_counter()
        run()
        found.append(time.perf_counter() - started)
    return min(found)


# -- operators -------------------------------------------------------------------------------------------------


def tiny(options: Options) -> list[Figure]:
    """Additions of 16 floats, none of which waits for another."""
    a, b = ndarray.ones((16,)), ndarray.ones((16,))

    def run() -> None:
        for _ in range(_OPERATIONS):
            a + b
        ndarray.waitall()

    return [Figure("a + b, independent, 16 floats", best(run, options.seconds) / _OPERATIONS * 1e6, "µs an operation")]


def chain(options: Options) -> list[Figure]:
    """Additions each of which waits for the one before."""

    def run() -> None:
        x = ndarray.zeros((16,))
        for _ in range(_OPERATIONS):
            x = x + 1
        x.wait_to_read()

    return [Figure("x = x + 1, a chain, 16 floats", best(run, options.seconds) / _OPERATIONS * 1e6, "µs an operation")]


def wait(options: Options) -> list[Figure]:
    """An operation at a time, and its value."""
    a = ndarray.ones((16,))

    def run() -> None:
        for _ in range(_OPERATIONS // 10):
            (a + 1).asnumpy()

    return [Figure("a + 1 and its value, 16 floats", best(run, options.seconds) / (_OPERATIONS // 10) * 1e6, "µs")]


# -- models ----------------------------------------------------------------------------------------------------


def model(options: Options) -> list[Figure]:
    """Samples a second in training and in prediction, at each size of batch."""
    return list(_model_rows(options))


def _model_rows(options: Options) -> Iterator[Figure]:
    name, shape = _named(options)
    for size in options.batches:
        if size < 1:
            raise ValueError(f"--batch is {size}, expected at least 1")
        net = _network(name, shape)
        net.initialize(initializer.Normal(0.02))
        if options.hybridize:
            net.hybridize(static_alloc=True, static_shape=True)
        data, label = ndarray.random.uniform(shape=(size, *shape)), ndarray.zeros((size,))
        ways = {"prediction": _predicts(net, data), "training": _trains(net, data, label)}
        for what, run in ways.items():
            title = f"{name}, {'x'.join(map(str, shape))}, batch {size}, {what}"
            yield Figure(title, size / best(run, options.seconds), "samples/s")


def _predicts(net: Block, data: Any) -> Callable[[], Any]:
    return lambda: net(data).wait_to_read()


def _trains(net: Block, data: Any, label: Any) -> Callable[[], Any]:
    loss_of = loss.SoftmaxCrossEntropyLoss()
    trainer: list[Trainer] = []

    def run() -> None:
        with autograd.record():
            found = loss_of(net(data), label)
        found.backward()
        if not trainer:  # parameters have their shapes now
            trainer.append(Trainer(net.collect_params(), "sgd", {"learning_rate": 1e-4, "momentum": 0.9}))
        trainer[0].step(len(data))
        ndarray.waitall()

    return run


def _named(options: Options) -> tuple[str, tuple[int, ...]]:
    name = known(options.model or "lenet")
    return name, options.shape or _SHAPES.get(name, (3, 224, 224))


def _network(name: str, shape: tuple[int, ...]) -> Block:
    if name in SMALL:
        data = sym.var("data")
        return SymbolBlock(SMALL[name](data, _CLASSES), [data])
    net: Block = vision.get_model(name, classes=_CLASSES)
    return net


def memory(options: Options) -> list[Figure]:
    """Measure the bytes of the model's memory plan (parameters excluded), and the process's peak memory."""
    name, shape = _named(options)
    network = sym.SoftmaxOutput(scores(name, sym.var("data"), _CLASSES), name="softmax")
    rows = []
    for size in options.batches:
        found = network.memory_estimate(data=(size, *shape))
        rows.append(Figure(f"{name}, batch {size}, planned for training", found.peak / 2**20, "MiB"))
    peak = _peak()
    return rows if peak is None else [*rows, Figure("this process at its peak", peak / 2**20, "MiB")]


def _peak() -> int | None:
    """Most bytes that this process has had in memory; None where the system does not say."""
    try:
        from resource import RUSAGE_SELF, getrusage
    except ImportError:  # Windows
        return None
    return getrusage(RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


MEASURES: dict[str, Callable[[Options], list[Figure]]] = {
    "tiny": tiny, "chain": chain, "wait": wait, "model": model, "memory": memory,
}  # fmt: skip
"""By name."""
