"""Elementwise arithmetic of which an operand is sparse."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from flowmx.errors import ShapeError
from flowmx.ops.registry.operators import Operator, Run, Shape, lookup
from flowmx.ops.sparse.content import INDEX, Array, Content, Csr, Rows, row_numbers, sorted_rows, to_dense, union
from flowmx.ops.sparse.elementwise import on_stored
from flowmx.ops.sparse.ways import Call, Raw, Way, applied, way

_MOST = np.iinfo(INDEX).max


def merged(op: Operator, run: Run, a: Content, b: Content, shape: Shape) -> Content:
    """The operator where one of two contents of a kind has something stored, for one that gives 0 of zeros."""
    if isinstance(a, Csr) and isinstance(b, Csr):
        return _merged_csr(op, run, sorted_rows(a), sorted_rows(b), shape)
    if _same_rows(a.indices, b.indices):
        return Rows(applied(op, run, a.data, b.data), a.indices)
    rows = union(a.indices, b.indices)
    return Rows(applied(op, run, _spread(a.data, a.indices, rows), _spread(b.data, b.indices, rows)), rows)


def _same_rows(mine: Array, other: Array) -> bool:
    """Tell whether two contents store the same rows, as gradients by one batch do."""
    return mine is other or np.array_equal(mine, other)


def _merged_csr(op: Operator, run: Run, a: Csr, b: Csr, shape: Shape) -> Csr:
    if shape[0] * shape[1] > _MOST:
        raise ShapeError(f"{op.name}: a csr matrix of shape {tuple(shape)} has more than 2**63 places, expected fewer")
    mine, other = (row_numbers(each) * shape[1] + each.indices for each in (a, b))
    places = union(mine, other)
    data = applied(op, run, _spread(a.data, mine, places), _spread(b.data, other, places))
    stays = data != 0  # MXNet stores no zeros here
    return from_places(data[stays], places[stays], shape)


def from_places(data: Array, places: Array, shape: Shape) -> Csr:
    """The matrix of elements at ascending places, counted along its rows."""
    rows, columns = np.divmod(places, shape[1])
    indptr = np.zeros(shape[0] + 1, INDEX)
    np.cumsum(np.bincount(rows, minlength=shape[0]), out=indptr[1:])
    return Csr(data, columns, indptr)


def _spread(data: Array, at: Array, places: Array) -> Array:
    """The values at their places among ascending ones, and zeros at the others."""
    made = np.zeros((len(places), *data.shape[1:]), data.dtype)
    made[np.searchsorted(places, at)] = data
    return made


def _part_of(dense: Array, like: Content) -> Array:
    """The elements of a dense array where a sparse one has some stored."""
    return dense[row_numbers(like), like.indices] if isinstance(like, Csr) else dense[like.indices]


def _stored_first(call: Call) -> Way:
    """A product with a dense array: it has what the sparse one has stored."""
    op = call.op

    def compute(run: Run, a: Raw, b: Raw) -> Raw:
        if isinstance(a, np.ndarray):
            assert not isinstance(b, np.ndarray)
            return b._replace(data=applied(op, run, _part_of(a, b), b.data))
        assert isinstance(b, np.ndarray)
        return a._replace(data=applied(op, run, a.data, _part_of(b, a)))

    return Way(next(each for each in call.stypes if each != "default"), compute)


def _dense_result(call: Call) -> Way:
    """A result that is dense, where one operand at least is."""
    op, shape = call.op, call.shapes[0]

    def compute(run: Run, *given: Raw) -> Raw:
        return applied(op, run, *[each if isinstance(each, np.ndarray) else to_dense(each, shape) for each in given])

    return Way("default", compute)


def _merging(call: Call) -> Way:
    op, shape = call.op, call.shapes[0]
    return Way(call.only, lambda run, a, b: merged(op, run, a, b, shape))


@way("elemwise_add", "elemwise_sub")
def _sum(call: Call) -> Way | None:
    if call.only:
        return _merging(call)
    return _dense_result(call) if "default" in call.stypes else None


@way("elemwise_mul")
def _product(call: Call) -> Way | None:
    if call.only:
        return _merging(call)
    return _stored_first(call) if "default" in call.stypes else None


@way("_backward_Activation")
def _slope(call: Call) -> Way | None:
    """A head times a slope, which is zero where the head is, and for relu where the output is."""
    if call.only:
        return _merging(call)
    is_zero = call.stypes[0] != "default" or call.op.act_type == "relu"  # type: ignore[attr-defined]
    return (_stored_first(call) if is_zero else _dense_result(call)) if "default" in call.stypes else None


@way("elemwise_div", "_power")
def _quotient(call: Call) -> Way | None:
    return _dense_result(call) if "default" in call.stypes or call.only == "row_sparse" else None


@way("_grad_add", "_maximum", "_minimum", "_hypot")
def _alike(call: Call) -> Way | None:
    return _merging(call) if call.only else None


@way("add_n", "ElementWiseSum")
def _sum_of_many(call: Call) -> Way | None:
    shape, add = call.shapes[0], lookup("elemwise_add").create()
    if call.only == "row_sparse":
        return Way("row_sparse", lambda run, *given: sum_of_rows(run, given, shape))
    if (len(call.stypes) > 4 and "default" in call.stypes) or call.stypes == ("default", "csr", "default"):

        def compute(run: Run, *given: Raw) -> Raw:
            dense = [each if isinstance(each, np.ndarray) else to_dense(each, shape) for each in given]
            return reduce(lambda a, b: applied(add, run, a, b), dense)

        return Way("default", compute)
    return None


def sum_of_rows(run: Run, given: Sequence[Any], shape: Shape) -> Rows:
    """The sum of several contents of stored rows, one after the other."""
    rows = given[0].indices
    if all(_same_rows(rows, each.indices) for each in given[1:]):
        add = lookup("elemwise_add").create()
        return Rows(reduce(lambda a, b: applied(add, run, a, b), [each.data for each in given]), rows)
    rows = union(*[each.indices for each in given])
    total = _spread(given[0].data, given[0].indices, rows)
    for each in given[1:]:
        total[np.searchsorted(rows, each.indices)] += each.data
    return Rows(total, rows)


@way("_plus_scalar", "_minus_scalar")
def _with_number(call: Call) -> Way:
    if call.op.scalar == 0:  # type: ignore[attr-defined]
        return on_stored(call)
    op, shape = call.op, call.shapes[0]
    return Way("default", lambda run, x: applied(op, run, to_dense(x, shape)))


way("_scatter_plus_scalar", "_scatter_minus_scalar")(on_stored)


@way("_scatter_elemwise_div")
def _scattered(call: Call) -> Way | None:
    if call.stypes[0] != "row_sparse":
        return None
    op, shape = call.op, call.shapes[0]

    def compute(run: Run, a: Rows, b: Raw) -> Raw:
        dense = b if isinstance(b, np.ndarray) else to_dense(b, shape)
        return Rows(applied(op, run, a.data, dense[a.indices]), a.indices)

    return Way("row_sparse", compute)


@way("broadcast_add", "broadcast_sub", "broadcast_mul", "broadcast_div")
def _broadcast(call: Call) -> Way | None:
    op, (one, other) = call.op, call.stypes
    if op.name in ("broadcast_mul", "broadcast_div"):
        if (one, other) != ("csr", "default") or _broadcast_shape(*call.shapes) != tuple(call.shapes[0]):
            return None
        return Way("csr", lambda run, a, b: a._replace(data=_with_part(op, run, a, b, call.shapes[0])))
    if sorted(call.stypes) != ["csr", "default"]:
        return None

    def compute(run: Run, *given: Raw) -> Raw:
        pair = zip(given, call.shapes, strict=True)
        dense = [each if isinstance(each, np.ndarray) else to_dense(each, shape) for each, shape in pair]
        alike = np.broadcast_arrays(*dense)
        return applied(lookup(f"elemwise_{op.name[-3:]}").create(), run, *map(np.ascontiguousarray, alike))

    return Way("default", compute)


def _broadcast_shape(*shapes: Shape) -> Shape | None:
    try:
        return np.broadcast_shapes(*[tuple(each) for each in shapes])
    except ValueError:
        return None


def _with_part(op: Operator, run: Run, a: Csr, b: Array, shape: Shape) -> Array:
    alike = np.broadcast_to(b, shape)
    return applied(lookup(f"elemwise_{op.name[-3:]}").create(), run, a.data, np.ascontiguousarray(_part_of(alike, a)))
