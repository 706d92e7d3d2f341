"""Input specifications of a model, and the validation of inputs: names, shapes, dtypes, lengths, values.

This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from flowmx.errors import AdviceError
from flowmx.ops.registry.operators import Array
from flowmx.serve.errors import InvalidInput
from flowmx.serve.large_bodies import array_of
from flowmx.serve.variable_axes import Axis

__all__ = ["Array", "Input", "Inputs", "Rows", "Shapes"]

Shape = tuple[int, ...]


class Input(NamedTuple):
    """The specification of one input or output of a model.

    Attributes:
        name: name of the variable.
        shape: shape of one row, without the batch axis; None marks a variable length.
        dtype: dtype of the elements.
    """

    name: str
    shape: tuple[int | None, ...]
    dtype: Any = np.dtype(np.float32)

    def describe(self) -> dict[str, object]:
        """Return a JSON-compatible description."""
        return {"name": self.name, "shape": list(self.shape), "dtype": np.dtype(self.dtype).name}

    def __str__(self) -> str:
        return f"{np.dtype(self.dtype).name} {_text(self.shape)}"


class Rows(NamedTuple):
    """A validated input.

    Attributes:
        arrays: one array per input, with the batch axis.
        rows: number of rows.
        single: whether the input was one sample without the batch axis.
        shapes: shape of a row of each input, with lengths rounded up to the compiled ones.
    """

    arrays: tuple[Array, ...]
    rows: int
    single: bool
    shapes: tuple[Shape, ...]


class Inputs:
    """The input specifications of a model.

    Args:
        specs: one or more inputs.
        lengths: lengths that variable axes are padded to.
        max_rows: maximum number of rows of a request.
        finite: whether to refuse NaN and infinities.
    """

    def __init__(
        self, specs: Sequence[Input], lengths: Sequence[int] = (), max_rows: int = 1, finite: bool = False
    ) -> None:
        if not specs:
            raise ValueError("a predictor needs at least one input: pass shape=(...), or shape={name: (...)}")
        if any(None in spec.shape for spec in specs) and not lengths:
            raise AdviceError(
                "an input has a variable length", "pass the lengths to compile for as lengths=(16, 32, 64)",
                "pass the lengths to compile for, --lengths 16,32,64",
            )  # fmt: skip
        self.specs = [spec._replace(dtype=np.dtype(spec.dtype)) for spec in specs]
        self.lengths = tuple(sorted(set(lengths)))
        self.max_rows = max_rows
        self.finite = finite
        self.axes = [
            Axis(index, axis)
            for index, spec in enumerate(specs)
            for axis, size in enumerate(spec.shape)
            if size is None
        ]
        """The variable axes."""
        self.groups: list[list[int]] | None = None if len(self.axes) > 1 else [list(range(len(self.axes)))]
        """The groups of variable axes, as indices, that must have equal lengths; None until the model is warm."""

    def read(self, x: object) -> Rows:
        """Validate an input.

        Args:
            x: an array or nested lists, of one row or several; for several inputs, a dict of these by name.

        Raises:
            InvalidInput: the input does not match the specifications.
        """
        arrays = [_as_array(spec, value) for spec, value in zip(self.specs, self._values(x), strict=True)]
        counts = [self._rows(spec, array) for spec, array in zip(self.specs, arrays, strict=True)]
        if len(set(counts)) > 1:
            listing = ", ".join(f"{spec.name} {_count(n)}" for spec, n in zip(self.specs, counts, strict=True))
            raise InvalidInput(f"the inputs have different numbers of samples: {listing}")
        count = counts[0]
        if count is not None and not 1 <= count <= self.max_rows:
            raise InvalidInput(f"the input has {count} samples, expected 1 to {self.max_rows} samples in a request")
        casts = [self._cast(spec, array) for spec, array in zip(self.specs, arrays, strict=True)]
        batch = tuple(array[None] if count is None else array for array in casts)
        shapes = tuple(self._padded(spec, array.shape[1:]) for spec, array in zip(self.specs, batch, strict=True))
        return Rows(batch, count or 1, count is None, shapes)

    @property
    def takes_any_values(self) -> bool:
        """Whether an array of the right shape and dtype is valid whatever its values, and there is one input."""
        return len(self.specs) == 1 and not self.finite

    def row_lengths(self, rows: Rows) -> list[int]:
        """Return the lengths of the variable axes of an input."""
        return [rows.arrays[axis.input].shape[1 + axis.axis] for axis in self.axes]

    def check_lengths(self, rows: Rows) -> None:
        """Check that the variable axes that the model combines have equal lengths; the model must be warm.

        Raises:
            InvalidInput: they have different lengths.
        """
        lengths = self.row_lengths(rows)
        for group in self.groups or ():
            if len({lengths[index] for index in group}) > 1:
                listing = ", ".join(
                    f"{self._axis_name(self.axes[index])} has length {lengths[index]}" for index in group
                )
                raise InvalidInput(f"{listing}, expected equal lengths, because the model combines these axes")

    def _axis_name(self, axis: Axis) -> str:
        spec = self.specs[axis.input]
        return spec.name if spec.shape.count(None) == 1 else f"axis {axis.axis} of {spec.name}"

    def shapes(self) -> list[tuple[Shape, ...]]:
        """Return the row shapes to compile: one per length, shared by all variable axes."""
        is_fixed = not any(None in spec.shape for spec in self.specs)
        return [
            tuple(tuple(length if size is None else size for size in spec.shape) for spec in self.specs)
            for length in ((0,) if is_fixed else self.lengths)
        ]

    def describe(self) -> list[dict[str, object]]:
        """Return a JSON-compatible description of the inputs."""
        return [spec.describe() for spec in self.specs]

    def _values(self, x: object) -> list[Any]:
        names = [spec.name for spec in self.specs]
        if not isinstance(x, Mapping):
            if len(names) > 1:
                raise InvalidInput(f"the model has {len(names)} inputs, expected a dict of {', '.join(names)}")
            return [x]
        if set(x) != set(names):
            raise InvalidInput(f"the inputs are {', '.join(map(str, x)) or 'none'}, expected {', '.join(names)}")
        return [x[name] for name in names]

    def _cast(self, spec: Input, array: Array) -> Array:
        """Return the array in the dtype of the input. The number of rows was checked before this linear step."""
        if array.dtype != spec.dtype:
            array = _cast(spec, array)
        if self.finite and array.dtype.kind == "f" and not np.isfinite(array).all():
            raise InvalidInput(f"input {spec.name} holds NaN or infinity, expected finite numbers")
        return array

    def _rows(self, spec: Input, array: Array) -> int | None:
        """Return the number of rows, or None for one sample without the batch axis."""
        if self._fits(spec, array.shape):
            return None
        if array.ndim and self._fits(spec, array.shape[1:]):
            return int(array.shape[0])
        raise InvalidInput(
            f"input {spec.name} has shape {_text(array.shape)}, expected {_text(spec.shape)} for one sample or "
            f"{_text(('samples', *spec.shape))} for several" + self._length_hint(spec)
        )

    def _fits(self, spec: Input, shape: Shape) -> bool:
        return len(shape) == len(spec.shape) and all(
            size == expected if expected is not None else 1 <= size <= self.lengths[-1]
            for size, expected in zip(shape, spec.shape, strict=True)
        )

    def _length_hint(self, spec: Input) -> str:
        return f", with lengths of 1 to {self.lengths[-1]}" if None in spec.shape else ""

    def _padded(self, spec: Input, shape: Shape) -> Shape:
        return tuple(
            size if expected is not None else next(length for length in self.lengths if length >= size)
            for size, expected in zip(shape, spec.shape, strict=True)
        )


def _as_array(spec: Input, value: object) -> Array:
    if isinstance(value, (str, bytes)):
        raise InvalidInput(
            f"input {spec.name} is a {type(value).__name__}, expected an array or list of numbers, {spec}; a decode "
            "hook converts other bodies"
        )
    try:
        array = array_of(value)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"input {spec.name} is not an array of numbers, expected {spec}: {error}") from None
    if array.dtype.hasobject:
        raise InvalidInput(f"input {spec.name} has dtype {array.dtype}, which cannot be cast to {spec}")
    return array


def _cast(spec: Input, array: Array) -> Array:
    """Return the array in the dtype of the input, if the dtype can hold its values."""
    if spec.dtype.kind in "iu":
        bounds = np.iinfo(spec.dtype)
        fits = array.dtype.kind in "biu"
        low, high = (int(array.min()), int(array.max())) if fits and array.size else (0, 0)
        if low < bounds.min or high > bounds.max:
            raise InvalidInput(
                f"input {spec.name} has values from {low} to {high}, expected {bounds.min} to {bounds.max} for {spec}"
            )
    else:
        fits = array.dtype.kind in "biufV" and np.can_cast(array.dtype, spec.dtype, "same_kind")
    if not fits:
        raise InvalidInput(f"input {spec.name} has dtype {array.dtype}, which cannot be cast to {spec}")
    with np.errstate(over="ignore", invalid="ignore"):
        return array.astype(spec.dtype)


def _text(shape: Sequence[object]) -> str:
    sizes = ["length" if size is None else str(size) for size in shape]
    return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"


def _count(rows: int | None) -> str:
    return "1 sample without the batch axis" if rows is None else str(rows)


Shapes = Sequence["int | None"] | Mapping[str, Sequence["int | None"]]
"""The shape of a row; for several inputs, a dict by name."""
