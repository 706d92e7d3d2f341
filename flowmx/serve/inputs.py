"""Inputs of a model, and their check: names, shapes, dtypes, lengths, values. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from flowmx.serve.errors import InvalidInput

__all__ = ["Array", "Input", "Inputs", "Rows", "Shapes"]

Array = np.ndarray[Any, np.dtype[Any]]
Shape = tuple[int, ...]


class Input(NamedTuple):
    """One input of a model.

    Attributes:
        name: its variable.
        shape: of one row, without the batch axis; None for a length that varies.
        dtype: of its elements.
    """

    name: str
    shape: tuple[int | None, ...]
    dtype: Any = np.dtype(np.float32)

    def described(self) -> dict[str, Any]:
        """It as JSON can hold it."""
        return {"name": self.name, "shape": list(self.shape), "dtype": np.dtype(self.dtype).name}

    def __str__(self) -> str:
        return f"{np.dtype(self.dtype).name} {_text(self.shape)}"


class Rows(NamedTuple):
    """A request's input, checked.

    Attributes:
        arrays: an array for each input, with the batch axis.
        rows: how many.
        single: whether one row was given without the batch axis.
        shapes: of a row of each input, with lengths rounded up to those that are compiled.
    """

    arrays: tuple[Array, ...]
    rows: int
    single: bool
    shapes: tuple[Shape, ...]


class Inputs:
    """The inputs of a model.

    Args:
        specs: one or more.
        lengths: those that varying axes are padded to.
        most_rows: how many rows one request may have.
        finite: whether NaN and infinities are refused.
    """

    def __init__(
        self, specs: Sequence[Input], lengths: Sequence[int] = (), most_rows: int = 1, finite: bool = False
    ) -> None:
        if not specs:
            raise ValueError("a predictor needs at least one input: give shape=(...), or shape={name: (...)}")
        if any(None in each.shape for each in specs) and not lengths:
            raise ValueError("an input has an axis of None, so lengths=(...) must say which lengths to compile for")
        self.specs = [each._replace(dtype=np.dtype(each.dtype)) for each in specs]
        self.lengths = tuple(sorted(set(lengths)))
        self.most_rows = most_rows
        self.finite = finite

    def read(self, given: Any) -> Rows:
        """Check an input.

        Args:
            given: an array or nested lists, of one row or several; of several inputs, a dict of these.

        Raises:
            InvalidInput: it does not fit.
        """
        arrays = [_as_array(spec, each) for spec, each in zip(self.specs, self._parts(given), strict=True)]
        counts = [self._rows(spec, array) for spec, array in zip(self.specs, arrays, strict=True)]
        if len(set(counts)) > 1:
            found = ", ".join(f"{each.name} {_count(n)}" for each, n in zip(self.specs, counts, strict=True))
            raise InvalidInput(f"the inputs have different numbers of rows: {found}")
        count = counts[0]
        if count is not None and not 1 <= count <= self.most_rows:
            raise InvalidInput(f"the input has {count} rows, expected 1 to {self.most_rows} in a request")
        fitting = [self._fitting(spec, array) for spec, array in zip(self.specs, arrays, strict=True)]
        whole = tuple(array[None] if count is None else array for array in fitting)
        shapes = tuple(self._padded(spec, array.shape[1:]) for spec, array in zip(self.specs, whole, strict=True))
        return Rows(whole, count or 1, count is None, shapes)

    def shapes(self) -> list[tuple[Shape, ...]]:
        """Shapes of rows that are compiled: all for which the axes that vary have one length."""
        fixed = not any(None in each.shape for each in self.specs)
        return [
            tuple(tuple(length if size is None else size for size in each.shape) for each in self.specs)
            for length in ((0,) if fixed else self.lengths)
        ]

    def described(self) -> list[dict[str, Any]]:
        """Description of the expected inputs, JSON-compatible."""
        return [each.described() for each in self.specs]

    def _parts(self, given: Any) -> list[Any]:
        names = [each.name for each in self.specs]
        if not isinstance(given, Mapping):
            if len(names) > 1:
                raise InvalidInput(f"the model has {len(names)} inputs, expected a dict of {', '.join(names)}")
            return [given]
        if set(given) != set(names):
            raise InvalidInput(f"the inputs are {', '.join(map(str, given)) or 'none'}, expected {', '.join(names)}")
        return [given[name] for name in names]

    def _fitting(self, spec: Input, array: Array) -> Array:
        """An array in the dtype of an input; its rows were counted before, since this takes its time for each."""
        if array.dtype != spec.dtype:
            array = _converted(spec, array)
        if self.finite and array.dtype.kind == "f" and not np.isfinite(array).all():
            raise InvalidInput(f"input {spec.name} holds NaN or infinity, expected finite numbers")
        return array

    def _rows(self, spec: Input, array: Array) -> int | None:
        """The number of rows, or None for one row without the batch axis."""
        if self._fits(spec, array.shape):
            return None
        if array.ndim and self._fits(spec, array.shape[1:]):
            return int(array.shape[0])
        raise InvalidInput(
            f"input {spec.name} has shape {_text(array.shape)}, expected {_text(spec.shape)} for one row or "
            f"{_text(('rows', *spec.shape))} for several" + self._about_lengths(spec)
        )

    def _fits(self, spec: Input, shape: Shape) -> bool:
        return len(shape) == len(spec.shape) and all(
            size == wanted if wanted is not None else 1 <= size <= self.lengths[-1]
            for size, wanted in zip(shape, spec.shape, strict=True)
        )

    def _about_lengths(self, spec: Input) -> str:
        return f", with lengths of 1 to {self.lengths[-1]}" if None in spec.shape else ""

    def _padded(self, spec: Input, shape: Shape) -> Shape:
        return tuple(
            size if wanted is not None else next(length for length in self.lengths if length >= size)
            for size, wanted in zip(shape, spec.shape, strict=True)
        )


def _as_array(spec: Input, given: Any) -> Array:
    try:
        array = np.asarray(given)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"input {spec.name} is no array of numbers, expected {spec}: {error}") from None
    if array.dtype.hasobject:
        raise InvalidInput(f"input {spec.name} has dtype {array.dtype}, which does not become {spec}")
    return array


def _converted(spec: Input, array: Array) -> Array:
    """An array in the dtype of an input, where its values have one there."""
    if spec.dtype.kind in "iu":
        bounds = np.iinfo(spec.dtype)
        fits = array.dtype.kind in "biu"
        least, most = (int(array.min()), int(array.max())) if fits and array.size else (0, 0)
        if least < bounds.min or most > bounds.max:
            raise InvalidInput(
                f"input {spec.name} holds {least} to {most}, expected {bounds.min} to {bounds.max} for {spec}"
            )
    else:
        fits = array.dtype.kind in "biufV" and np.can_cast(array.dtype, spec.dtype, "same_kind")
    if not fits:
        raise InvalidInput(f"input {spec.name} has dtype {array.dtype}, which does not become {spec}")
    with np.errstate(over="ignore", invalid="ignore"):
        return array.astype(spec.dtype)


def _text(shape: Sequence[Any]) -> str:
    sizes = ["length" if size is None else str(size) for size in shape]
    return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"


def _count(rows: int | None) -> str:
    return "one without the batch axis" if rows is None else str(rows)


Shapes = Sequence["int | None"] | Mapping[str, Sequence["int | None"]]
"""The shape of a row; of several inputs, by name."""
