"""A model that computes batches of a few sizes, each compiled in advance. Blocking: it runs on threads."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

import numpy as np

from flowmx import autograd
from flowmx import ndarray as nd
from flowmx.devices import Context, cpu
from flowmx.errors import AdviceError
from flowmx.graph import collector
from flowmx.graph.nesting import flatten
from flowmx.ndarray import NDArray
from flowmx.serve.batching import Piece
from flowmx.serve.inputs import Array, Input, Inputs, Shape
from flowmx.serve.model_loading import Source
from flowmx.serve.variable_axes import shared_axes, trial_lengths

__all__ = ["Model"]

_TRIALS = 2
"""Timed runs per size, after the one that compiles."""


class Model:
    """A loaded model.

    Args:
        source: the model.
        inputs: its input specifications.
        ctx: the device of its parameters.
        version: its number among the models of the predictor.
    """

    def __init__(self, source: Source, inputs: Inputs, ctx: Context, version: int) -> None:
        self.source, self.inputs, self.ctx, self.version = source, inputs, ctx, version
        self.outputs: tuple[str, ...] = source.outputs
        """Names of the outputs; known once the model is warm."""
        self.results: tuple[Input, ...] = ()
        """Specifications of the outputs; known once the model is warm."""

    def warm(self, sizes: Sequence[int]) -> dict[int, float]:
        """Compile and run the model for all shapes and sizes; return the duration of a batch by size, in seconds.

        Raises:
            ValueError: an output has no batch axis.
        """
        with collector.paused():  # traversing the graphs' objects would block the event loops
            return self._warm(sizes)

    def _warm(self, sizes: Sequence[int]) -> dict[int, float]:
        seconds: dict[int, float] = {}
        for shapes in self.inputs.shapes():
            for size in sizes:
                batch = [np.zeros((size, *s), spec.dtype) for s, spec in zip(shapes, self.inputs.specs, strict=True)]
                self._check(self.run(batch), size)
                seconds[size] = min(self._time(batch) for _ in range(_TRIALS))
        if self.inputs.groups is None:
            trials = trial_lengths(self.inputs.lengths)
            self.inputs.groups = shared_axes(self.inputs.axes, trials, partial(self._accepts, sizes[0]))
        return seconds

    def _accepts(self, size: int, lengths: Sequence[int]) -> bool:
        """Return whether the model computes a batch of zeros with these lengths of its variable axes."""
        shapes = [list(spec.shape) for spec in self.inputs.specs]
        for axis, length in zip(self.inputs.axes, lengths, strict=True):
            shapes[axis.input][axis.axis] = length
        specs = zip(shapes, self.inputs.specs, strict=True)
        batch = [np.zeros((size, *(length or 0 for length in shape)), spec.dtype) for shape, spec in specs]
        try:
            self.run(batch)
        except Exception:  # the user's model may raise anything
            return False
        return True

    def compute(self, pieces: Sequence[Piece], size: int) -> tuple[Array, ...]:
        """Return the outputs for the rows of jobs of equal shapes, in order, padded to a batch size."""
        return self.run(_stack(pieces, size, pieces[0].job.rows.shapes, [spec.dtype for spec in self.inputs.specs]))

    def run(self, batch: Sequence[Array]) -> tuple[Array, ...]:
        """Return the outputs for a batch, and block until they are computed. The batch's arrays may be overwritten."""
        arrays = [self._array(array) for array in batch]
        with autograd.pause():
            result = self.source.block(*arrays, *self._zero_labels(batch))
        outputs, _ = flatten(result, NDArray, "outputs of the model")
        return tuple(output.asnumpy() for output in outputs)

    def _array(self, array: Array) -> NDArray:
        return nd.from_numpy(array) if self.ctx == cpu() else nd.array(array, self.ctx, array.dtype)

    def _zero_labels(self, batch: Sequence[Array]) -> list[NDArray]:
        """Return zeros for the labels."""
        symbol, names = self.source.symbol, self.source.labels
        if symbol is None or not names:
            return []
        input_shapes = {spec.name: array.shape for spec, array in zip(self.inputs.specs, batch, strict=True)}
        argument_shapes = symbol.infer_shape_partial(**input_shapes)[0] or ()
        shapes = {name: shape or () for name, shape in zip(symbol.list_arguments(), argument_shapes, strict=True)}
        unknown = [name for name in names if not shapes[name]]
        if unknown:
            raise AdviceError(
                f"the outputs {', '.join(symbol.list_outputs())} read {', '.join(unknown)}, whose shape is unknown",
                f"serve the outputs for predictions, symbol[name], or make it an input: shape={{{unknown[0]!r}: ...}}",
                f"save the outputs for predictions, symbol[name], or make it an input: --shape {unknown[0]}=SIZES",
            )
        return [nd.zeros(shapes[name], self.ctx) for name in names]

    def _time(self, batch: Sequence[Array]) -> float:
        copies = [array.copy() for array in batch]
        start = time.perf_counter()
        self.run(copies)
        return time.perf_counter() - start

    def _check(self, outputs: Sequence[Array], size: int) -> None:
        self.outputs = self.outputs or tuple(f"output{index}" for index in range(len(outputs)))
        for name, output in zip(self.outputs, outputs, strict=True):
            if not output.ndim or output.shape[0] != size:
                raise ValueError(
                    f"output {name} has shape {output.shape} for a batch of {size} samples, expected ({size}, ...): a "
                    "predictor needs a model whose outputs have a batch axis in front"
                )
        pairs = zip(self.outputs, outputs, strict=True)
        specs = [Input(name, output.shape[1:], output.dtype) for name, output in pairs]
        self.results = tuple(map(_merge, self.results, specs)) if self.results else tuple(specs)


def _merge(one: Input, other: Input) -> Input:
    """Return the specification of an output; sizes that differ are variable."""
    sizes = zip(one.shape, other.shape, strict=True)
    return one._replace(shape=tuple(size if size == other_size else None for size, other_size in sizes))


def _stack(pieces: Sequence[Piece], size: int, shapes: Sequence[Shape], dtypes: Sequence[object]) -> list[Array]:
    """Return one array per input with the rows of all pieces, padded with zeros."""
    batch = [np.zeros((size, *shape), dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
    offset = 0
    for job, start, stop in pieces:
        for target, array in zip(batch, job.rows.arrays, strict=True):
            lengths = tuple(slice(0, length) for length in array.shape[1:])
            target[(slice(offset, offset + stop - start), *lengths)] = array[start:stop]
        offset += stop - start
    return batch
