"""The features, and the pairs of them that do not meet."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from tests.matrix import scopes, workloads

__all__ = ["APART", "FEATURES", "Feature", "finish", "in_turns", "pairs", "same", "together"]


@dataclass(frozen=True)
class Feature:
    """A row and a column of the matrix.

    Attributes:
        name: as the page has it.
        run: the workload, a generator function; or the scope, a function from work to its result.
        is_scope: which of the two.
        covers: the modules of flowmx and the settings that it stands for.
    """

    name: str
    run: Callable[..., Any]
    is_scope: bool = False
    covers: tuple[str, ...] = ()


def _work(name: str, run: Callable[..., Any], *covers: str) -> Feature:
    return Feature(name, run, covers=covers)


def _scope(name: str, run: Callable[..., Any], *covers: str) -> Feature:
    return Feature(name, run, True, covers)


FEATURES = [
    _work("imperative training", workloads.imperative, "nd", "autograd", "gluon", "initializer", "optimizer"),
    _work("hybridize", workloads.hybridized, "cached_op", "graph"),
    _work("static_alloc", workloads.static),
    _work("BatchNorm with fix_gamma, weight decay", workloads.batch_norm),
    _work("inputs of varying length", workloads.lengths),
    _work("bound symbols", workloads.executor, "sym", "executor"),
    _work("Module", workloads.module, "mod", "module", "model"),
    _work("control flow", workloads.control_flow),
    _work("recurrent layers", workloads.recurrent, "rnn"),
    _work("quantization", workloads.quantized, "contrib"),
    _work("bfloat16", workloads.mixed_precision, "amp"),
    _work("sparse gradients", workloads.sparse),
    _work("mx.np", workloads.numpy_arrays, "np", "npx"),
    _work("random numbers", workloads.random_numbers, "random"),
    _work("Custom operators", workloads.custom_operator, "operator"),
    _work("autograd.Function", workloads.function),
    _work("pushed functions and coroutines", workloads.pushed, "engine"),
    _work("learning rate schedules", workloads.schedule, "lr_scheduler"),
    _work("a distributed job", workloads.distributed, "kvstore", "comm"),
    _work("two Trainers on one store", workloads.two_trainers),
    _work("resumed checkpoint.Run", workloads.checkpointed, "checkpoint"),
    _work("saving and loading", workloads.saved, "serialization"),
    _work("DataLoader", workloads.loader, "data"),
    _work("prefetched DataIter", workloads.iterator, "io"),
    _work("cancelled asynchronous iteration", workloads.asynchronous_loader),
    _work("ImageRecordIter", workloads.records, "recordio", "image"),
    _work("restarted Predictor", workloads.predictor, "serve"),
    _work("HTTP service", workloads.service),
    _scope("fork", scopes.forked),
    _scope("a second thread", scopes.in_thread),
    _scope("asyncio", scopes.on_loop, "program"),
    _scope("uvloop and subprocesses", scopes.on_uvloop),
    _scope("cancelled waits", scopes.cancelled),
    _scope("bulk", scopes.bulked),
    _scope("naive engine", scopes.naive),
    _scope("profiler", scopes.profiled, "profiler"),
    _scope("NaN watch", scopes.watched, "anomaly"),
    _scope("an unrelated failed operation", scopes.poisoned),
    _scope("memory budget", scopes.budgeted),
    _scope("abandoned scopes", scopes.recording_abandoned),
    _scope("garbage collection", scopes.collected),
    _scope("dashboard", scopes.dashboard, "dashboard", "observability", "flight_recorder"),
    _scope("name scopes", scopes.named, "name", "attribute"),
    _scope("a full graph cache", scopes.cached),
]

APART: dict[tuple[str, str], str] = {}
"""Pairs that cannot meet, and why."""


def pairs() -> list[tuple[Feature, Feature]]:
    """Return all cells of the matrix: pairs of features that meet."""
    return [pair for pair in combinations(FEATURES, 2) if (pair[0].name, pair[1].name) not in APART]


def finish(steps: Any) -> Any:
    """Take all steps of a workload; returns its result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def together(one: Feature, other: Feature) -> list[tuple[Feature, Any]]:
    """Carry out a pair; returns the results of the workloads in it."""
    if one.is_scope and other.is_scope:
        work = FEATURES[1]
        return [
            (work, outer.run(lambda inner=inner: inner.run(lambda: finish(work.run()))))
            for outer, inner in ((one, other), (other, one))
        ]
    if other.is_scope:
        return [(one, other.run(lambda: finish(one.run())))]
    return in_turns([one, other])


def in_turns(features: Sequence[Feature]) -> list[tuple[Feature, Any]]:
    """Take the steps of workloads in turns; returns their results."""
    results: dict[str, Any] = {}
    running = {each.name: each.run() for each in features}
    while running:
        for name, steps in list(running.items()):
            try:
                next(steps)
            except StopIteration as end:
                results[name] = end.value
                del running[name]
    return [(each, results[each.name]) for each in features]


def same(actual: Any, expected: Any) -> None:
    """Assert that two results are the same, up to rounding."""
    actual, expected = (each if isinstance(each, list) else [each] for each in (actual, expected))
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
