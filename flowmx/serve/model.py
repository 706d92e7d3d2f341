"""A model that computes batches of a few sizes, each compiled and run before it counts. For plain threads."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from flowmx import autograd
from flowmx import ndarray as nd
from flowmx.devices import Context, cpu
from flowmx.graph import collector
from flowmx.graph.nesting import flatten
from flowmx.ndarray import NDArray
from flowmx.serve.batching import Piece
from flowmx.serve.inputs import Array, Input, Inputs, Shape
from flowmx.serve.loading import Source

__all__ = ["Model"]

_TRIALS = 2
"""Runs of each size that are timed, after the one that compiles it."""


class Model:
    """A loaded model.

    Args:
        source: the model.
        inputs: what a request may hold.
        ctx: where its parameters are.
        version: its number among those that a predictor had.
    """

    def __init__(self, source: Source, inputs: Inputs, ctx: Context, version: int) -> None:
        self.source, self.inputs, self.ctx, self.version = source, inputs, ctx, version
        self.outputs: tuple[str, ...] = source.outputs
        """Their names; known once it is warm."""
        self.results: tuple[Input, ...] = ()
        """Shape of a row and dtype of each output; known once it is warm."""

    def warm(self, sizes: Sequence[int]) -> dict[int, float]:
        """Compile it for all shapes, and run each; returns the seconds that a batch of each size takes.

        Raises:
            ValueError: an output has no batch axis.
        """
        with collector.paused():  # looking through all that graphs are made of would hold up the loops
            return self._warm(sizes)

    def _warm(self, sizes: Sequence[int]) -> dict[int, float]:
        seconds: dict[int, float] = {}
        for shapes in self.inputs.shapes():
            for size in sizes:
                batch = [np.zeros((size, *s), spec.dtype) for s, spec in zip(shapes, self.inputs.specs, strict=True)]
                self._check(self.run(batch), size)
                seconds[size] = min(self._time(batch) for _ in range(_TRIALS))
        return seconds

    def compute(self, pieces: Sequence[Piece], size: int) -> tuple[Array, ...]:
        """The outputs for rows of jobs that have the same shapes, padded to a size; in their order."""
        return self.run(_stack(pieces, size, pieces[0].job.rows.shapes, [each.dtype for each in self.inputs.specs]))

    def run(self, batch: Sequence[Array]) -> tuple[Array, ...]:
        """The outputs for a batch, whose arrays it takes over; blocks until they are there."""
        given = [self._array(each) for each in batch]
        with autograd.pause():
            found = self.source.block(*given, *self._unread(batch))
        outputs, _ = flatten(found, NDArray, "outputs of the model")
        return tuple(each.asnumpy() for each in outputs)

    def _array(self, array: Array) -> NDArray:
        return nd.from_numpy(array) if self.ctx == cpu() else nd.array(array, self.ctx, array.dtype)

    def _unread(self, batch: Sequence[Array]) -> list[NDArray]:
        """Zeros for the inputs of losses."""
        symbol, names = self.source.symbol, self.source.unread
        if symbol is None or not names:
            return []
        known = {spec.name: array.shape for spec, array in zip(self.inputs.specs, batch, strict=True)}
        shapes = dict(zip(symbol.list_arguments(), symbol.infer_shape(**known)[0] or (), strict=True))
        return [nd.zeros(shapes[name], self.ctx) for name in names]

    def _time(self, batch: Sequence[Array]) -> float:
        copies = [each.copy() for each in batch]
        start = time.perf_counter()
        self.run(copies)
        return time.perf_counter() - start

    def _check(self, outputs: Sequence[Array], size: int) -> None:
        self.outputs = self.outputs or tuple(f"output{index}" for index in range(len(outputs)))
        for name, output in zip(self.outputs, outputs, strict=True):
            if not output.ndim or output.shape[0] != size:
                raise ValueError(
                    f"output {name} has shape {output.shape} for a batch of {size} rows, expected ({size}, ...): a "
                    "predictor needs a model whose outputs have the rows in their first axis"
                )
        found = [Input(name, each.shape[1:], each.dtype) for name, each in zip(self.outputs, outputs, strict=True)]
        self.results = tuple(map(_either, self.results, found)) if self.results else tuple(found)


def _either(one: Input, other: Input) -> Input:
    """An output whose lengths vary where they differ."""
    sizes = zip(one.shape, other.shape, strict=True)
    return one._replace(shape=tuple(size if size == again else None for size, again in sizes))


def _stack(pieces: Sequence[Piece], size: int, shapes: Sequence[Shape], dtypes: Sequence[Any]) -> list[Array]:
    """One array for each input, with the rows of all pieces, and zeros in what is left."""
    batch = [np.zeros((size, *shape), dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
    at = 0
    for job, start, stop in pieces:
        for target, given in zip(batch, job.rows.arrays, strict=True):
            inside = tuple(slice(0, length) for length in given.shape[1:])
            target[(slice(at, at + stop - start), *inside)] = given[start:stop]
        at += stop - start
    return batch
