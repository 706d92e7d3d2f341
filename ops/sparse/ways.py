"""The ways that operators have on sparse arrays.

A *way* computes an operator on arrays of some storage types without making the sparse ones dense. Each family's file
registers functions that, for a call, return its way, or None where it has none; the caller then makes the arrays dense.
"""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from flowmx.ops.registry.operators import Operator, Run, Shape, kernel_for
from flowmx.ops.sparse.content import Array, Content

Raw = Array | Content
"""The content of a dense or of a sparse array."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of an operator.

    Attributes:
        op: the operator, with its parameters.
        stypes: the inputs' storage types.
        shapes: their shapes.
        in_place: whether the output is the first input.
    """

    op: Operator
    stypes: tuple[str, ...]
    shapes: tuple[Shape, ...]
    in_place: bool = False

    @property
    def only(self) -> str:
        """The storage type, where all inputs have one; otherwise empty."""
        return self.stypes[0] if len(set(self.stypes)) == 1 else ""


@dataclass(frozen=True, slots=True)
class Way:
    """A computation on sparse arrays.

    Attributes:
        stype: the storage type of its result.
        compute: called with the run and the inputs' content; gives the result's, with data that no input has, or that
            of the first input where the call is in place. Where there are further outputs, a list of all.
        gradient: the operator's on these, if not its own.
        makes_dense: whether it makes sparse inputs dense, which users are told.
        further: the storage types of the outputs after the first.
        moves: whether the list of results also has what the inputs that it updates become; otherwise it changes these
            in place, and gets all rows of row_sparse ones.
    """

    stype: str
    compute: Callable[..., Raw | list[Raw] | Awaitable[list[Raw]]]
    gradient: Callable[..., Sequence[Any]] | None = None
    makes_dense: bool = False
    further: tuple[str, ...] = ()
    moves: bool = False

    @property
    def stypes(self) -> tuple[str, ...]:
        """The storage types of all outputs."""
        return (self.stype, *self.further)


Finder = Callable[[Call], Way | None]

_finders: dict[str, Finder] = {}
_FAMILIES = (
    "elementwise",
    "binary",
    "products",
    "reductions",
    "parts",
    "lookups",
    "outputs",
    "updates",
    "graphs",
    "user_code",
)


def way(*names: str) -> Callable[[Finder], Finder]:
    """Register the function that finds the ways of operators."""

    def register(find: Finder) -> Finder:
        _finders.update(dict.fromkeys(names, find))
        return find

    return register


@cache
def _all() -> dict[str, Finder]:
    """The functions of all families, whose files are imported when the first sparse array is."""
    for family in _FAMILIES:
        importlib.import_module(f"flowmx.ops.sparse.{family}")
    return _finders


def find(call: Call) -> Way | None:
    """The way of a call; None where it has none."""
    finder = _all().get(call.op.name)
    return None if finder is None else finder(call)


def applied(op: Operator, run: Run, *arrays: Array) -> Array:
    """An elementwise operator on dense arrays of one shape, by its kernel if it has one."""
    dtype = op.infer_type([each.dtype for each in arrays])[1][0] or arrays[0].dtype
    out = np.empty(arrays[0].shape, dtype)
    if out.size:
        run_kernel(op, run, arrays, out)
    return out


def run_kernel(op: Operator, run: Run, arrays: Sequence[Array], out: Array) -> None:
    """Run an operator's kernel on dense arrays, or else its plain forward."""
    fast = kernel_for(run.device.kernels, op.name)
    if fast is None:
        op.forward(run, arrays, [out])
    else:
        fast(op, run, arrays, [out])
