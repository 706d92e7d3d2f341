"""Kernels of operators on sparse arrays.

A *sparse kernel* computes an operator on arrays of certain storage types without making the sparse ones dense. The
other modules register a function for each operator. It returns the kernel for a call, or None; the
caller then makes the arrays dense.
"""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from flowmx.ops.registry.kernels import compute_operator
from flowmx.ops.registry.operators import Array, Operator, Run, Shape
from flowmx.ops.sparse.content import Content

AnyContent = Array | Content
"""The content of a dense or of a sparse array."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of an operator.

    Attributes:
        op: the operator, with its parameters; its class is the one that the kernel is registered for.
        stypes: the storage types of the inputs.
        shapes: the shapes of the inputs.
        in_place: whether the output is the first input.
    """

    op: Any
    stypes: tuple[str, ...]
    shapes: tuple[Shape, ...]
    in_place: bool = False

    @property
    def common_stype(self) -> str:
        """The storage type of all inputs; empty if they differ."""
        return self.stypes[0] if len(set(self.stypes)) == 1 else ""


@dataclass(frozen=True, slots=True)
class SparseKernel:
    """A computation on sparse arrays.

    Attributes:
        stype: the storage type of the result.
        compute: called with the run and the contents of the inputs; returns the content of the result, or a list for
            several outputs. A result shares no data with the inputs, except with the first one if the call is in place.
        gradient: the gradient for these storage types; None for the operator's gradient.
        makes_dense: whether it makes sparse inputs dense; users get a warning.
        other_stypes: the storage types of the outputs after the first.
        returns_states: whether the list of results also has the new values of updated inputs; otherwise the kernel
            updates these inputs in place, and all rows of row_sparse ones are stored.
    """

    stype: str
    compute: Callable[..., AnyContent | list[AnyContent] | Awaitable[list[AnyContent]]]
    gradient: Callable[..., Sequence[Any]] | None = None
    makes_dense: bool = False
    other_stypes: tuple[str, ...] = ()
    returns_states: bool = False

    @property
    def stypes(self) -> tuple[str, ...]:
        """The storage types of all outputs."""
        return (self.stype, *self.other_stypes)


KernelLookup = Callable[[Call], SparseKernel | None]

_lookups: dict[str, KernelLookup] = {}
_MODULES = (
    "unary",
    "binary",
    "csr_products",
    "reductions",
    "slicing",
    "embedding",
    "regression_outputs",
    "optimizer_updates",
    "dgl",
    "user_code",
)


def sparse_kernel(*names: str) -> Callable[[KernelLookup], KernelLookup]:
    """Register a function that returns the sparse kernel for a call of one of these operators."""

    def register(find: KernelLookup) -> KernelLookup:
        _lookups.update(dict.fromkeys(names, find))
        return find

    return register


@cache
def _load_lookups() -> dict[str, KernelLookup]:
    """Import all modules with sparse kernels, at the first call on a sparse array; return their functions."""
    for module in _MODULES:
        importlib.import_module(f"flowmx.ops.sparse.{module}")
    return _lookups


def find_kernel(call: Call) -> SparseKernel | None:
    """Return the sparse kernel for a call, or None."""
    lookup = _load_lookups().get(call.op.name)
    return None if lookup is None else lookup(call)


def apply_elementwise(op: Operator, run: Run, *arrays: Array) -> Array:
    """Apply an elementwise operator to dense arrays of the same shape."""
    dtype = op.infer_type([array.dtype for array in arrays])[1][0] or arrays[0].dtype
    out = np.empty(arrays[0].shape, dtype)
    if out.size:
        run_kernel(op, run, arrays, out)
    return out


def run_kernel(op: Operator, run: Run, arrays: Sequence[Array], out: Array) -> None:
    """Run an operator's kernel on dense arrays, or else its forward."""
    compute_operator(op, run, arrays, [out])
