"""Functions of one array that keep zeros: they are computed on what is stored."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowmx.errors import ParameterError
from flowmx.ops.registry.operators import Run
from flowmx.ops.sparse.content import Content, copied, from_dense, nothing, to_dense
from flowmx.ops.sparse.ways import Call, Raw, Way, applied, way

_KEEP_ZEROS = (
    "relu", "negative", "abs", "sign", "round", "rint", "ceil", "floor", "trunc", "fix", "log1p", "expm1", "square",
    "sqrt", "cbrt", "sin", "tan", "arcsin", "arctan", "degrees", "radians", "sinh", "tanh", "arcsinh", "arctanh",
    "_mul_scalar", "_div_scalar", "_contrib_gradientmultiplier",
)  # fmt: skip


def on_stored(call: Call) -> Way:
    """Compute an operator on the stored elements of its input."""
    op = call.op

    def compute(run: Run, x: Content) -> Raw:
        return x._replace(data=applied(op, run, x.data))

    return Way(call.stypes[0], compute)


way(*_KEEP_ZEROS)(on_stored)


@way("_copy", "BlockGrad", "make_loss")
def _copies(call: Call) -> Way:
    return Way(call.stypes[0], lambda run, x: copied(x))


@way("_copyto")
def _copy_to(call: Call) -> Way:
    return Way(call.stypes[0], lambda run, x, *_: x.copy() if isinstance(x, np.ndarray) else copied(x))


@way("zeros_like")
def _zeros_like(call: Call) -> Way:
    stype, shape = call.stypes[0], call.shapes[0]
    return Way(stype, lambda run, x: nothing(stype, shape, x.data.dtype))


@way("_identity_with_attr_like_rhs")
def _like(call: Call) -> Way:
    wanted, shape = call.stypes[1], call.shapes[0]
    return Way(wanted, lambda run, x, like: converted(x, wanted, shape))


@way("cast_storage")
def _cast_storage(call: Call) -> Way:
    wanted: str = call.op.stype  # type: ignore[attr-defined]
    shape = call.shapes[0]
    if wanted == "csr" and len(shape) != 2:
        raise ParameterError(
            f"cast_storage: stype is 'csr', expected 'default' or 'row_sparse' for shape {tuple(shape)}"
        )
    if sorted((wanted, call.stypes[0])) == ["csr", "row_sparse"]:
        raise ParameterError(f"cast_storage: from {call.stypes[0]} to {wanted} is not supported: make it dense first")

    def compute(run: Run, x: Raw) -> Raw:
        return converted(x, wanted, shape)

    return Way(wanted, compute)


def converted(x: Raw, stype: str, shape: Any) -> Raw:
    """A content in another storage type; always with data of its own."""
    if isinstance(x, np.ndarray):
        return x.copy() if stype == "default" else from_dense(x, stype)
    if stype == "default":
        return to_dense(x, shape)
    return copied(x) if stype == kind_of(x) else from_dense(to_dense(x, shape), stype)


def kind_of(content: Raw) -> str:
    """The storage type of a content."""
    return "default" if isinstance(content, np.ndarray) else "csr" if hasattr(content, "indptr") else "row_sparse"


_COMPARED = {
    "_equal_scalar": np.equal, "_not_equal_scalar": np.not_equal, "_greater_scalar": np.greater,
    "_greater_equal_scalar": np.greater_equal, "_lesser_scalar": np.less, "_lesser_equal_scalar": np.less_equal,
}  # fmt: skip


@way(*_COMPARED)
def _comparison(call: Call) -> Way | None:
    number: float = call.op.scalar  # type: ignore[attr-defined]
    return None if _COMPARED[call.op.name](0.0, number) else on_stored(call)


@way("clip")
def _clip(call: Call) -> Way | None:
    low, high = call.op.a_min, call.op.a_max  # type: ignore[attr-defined]
    return on_stored(call) if low <= 0 <= high else None


@way("_contrib_quadratic")
def _quadratic(call: Call) -> Way | None:
    return on_stored(call) if call.op.c == 0 and call.only == "csr" else None  # type: ignore[attr-defined]
