"""Unary operators that map zeros to zeros: computed on the stored elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowmx.errors import ParameterError
from flowmx.ops.registry.operators import Run
from flowmx.ops.sparse.content import Content, copy_content, from_dense, to_dense, zero_content
from flowmx.ops.sparse.dispatch import AnyContent, Call, SparseKernel, apply_elementwise, sparse_kernel

_KEEP_ZEROS = (
    "relu", "negative", "abs", "sign", "round", "rint", "ceil", "floor", "trunc", "fix", "log1p", "expm1", "square",
    "sqrt", "cbrt", "sin", "tan", "arcsin", "arctan", "degrees", "radians", "sinh", "tanh", "arcsinh", "arctanh",
    "_mul_scalar", "_div_scalar", "_contrib_gradientmultiplier",
)  # fmt: skip


def stored_elements_kernel(call: Call) -> SparseKernel:
    """Return the kernel that applies an operator to the stored elements of its input."""
    op = call.op

    def compute(run: Run, x: Content) -> AnyContent:
        return x._replace(data=apply_elementwise(op, run, x.data))

    return SparseKernel(call.stypes[0], compute)


sparse_kernel(*_KEEP_ZEROS)(stored_elements_kernel)


@sparse_kernel("_copy", "BlockGrad", "make_loss")
def _copy(call: Call) -> SparseKernel:
    return SparseKernel(call.stypes[0], lambda run, x: copy_content(x))


@sparse_kernel("_copyto")
def _copy_to(call: Call) -> SparseKernel:
    return SparseKernel(call.stypes[0], lambda run, x, *_: x.copy() if isinstance(x, np.ndarray) else copy_content(x))


@sparse_kernel("zeros_like")
def _zeros_like(call: Call) -> SparseKernel:
    stype, shape = call.stypes[0], call.shapes[0]
    return SparseKernel(stype, lambda run, x: zero_content(stype, shape, x.data.dtype))


@sparse_kernel("_identity_with_attr_like_rhs")
def _convert_like(call: Call) -> SparseKernel:
    stype, shape = call.stypes[1], call.shapes[0]
    return SparseKernel(stype, lambda run, x, like: convert(x, stype, shape))


@sparse_kernel("cast_storage")
def _cast_storage(call: Call) -> SparseKernel:
    stype: str = call.op.stype
    shape = call.shapes[0]
    if stype == "csr" and len(shape) != 2:
        raise ParameterError(
            f"cast_storage: stype is 'csr', expected 'default' or 'row_sparse' for shape {tuple(shape)}"
        )
    if sorted((stype, call.stypes[0])) == ["csr", "row_sparse"]:
        raise ParameterError(f"cast_storage: from {call.stypes[0]} to {stype} is not supported: convert to dense first")

    def compute(run: Run, x: AnyContent) -> AnyContent:
        return convert(x, stype, shape)

    return SparseKernel(stype, compute)


def convert(x: AnyContent, stype: str, shape: Any) -> AnyContent:
    """Return a copy of a content in a storage type."""
    if isinstance(x, np.ndarray):
        return x.copy() if stype == "default" else from_dense(x, stype)
    if stype == "default":
        return to_dense(x, shape)
    return copy_content(x) if stype == content_stype(x) else from_dense(to_dense(x, shape), stype)


def content_stype(content: AnyContent) -> str:
    """Return the storage type of a content."""
    return "default" if isinstance(content, np.ndarray) else "csr" if hasattr(content, "indptr") else "row_sparse"


_COMPARED = {
    "_equal_scalar": np.equal, "_not_equal_scalar": np.not_equal, "_greater_scalar": np.greater,
    "_greater_equal_scalar": np.greater_equal, "_lesser_scalar": np.less, "_lesser_equal_scalar": np.less_equal,
}  # fmt: skip


@sparse_kernel(*_COMPARED)
def _comparison(call: Call) -> SparseKernel | None:
    number: float = call.op.scalar
    return None if _COMPARED[call.op.name](0.0, number) else stored_elements_kernel(call)


@sparse_kernel("clip")
def _clip(call: Call) -> SparseKernel | None:
    low, high = call.op.a_min, call.op.a_max
    return stored_elements_kernel(call) if low <= 0 <= high else None


@sparse_kernel("_contrib_quadratic")
def _quadratic(call: Call) -> SparseKernel | None:
    return stored_elements_kernel(call) if call.op.c == 0 and call.common_stype == "csr" else None
