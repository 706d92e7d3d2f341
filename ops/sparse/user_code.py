"""Custom operators on sparse arrays, in the storage types that the operator's property declares."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import cast

import numpy as np

from flowmx.ops.control.custom import SparseValue, UserOperator, await_on_loop
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array, Run, Shape
from flowmx.ops.sparse.content import zero_content
from flowmx.ops.sparse.dispatch import AnyContent, Call, SparseKernel, sparse_kernel
from flowmx.ops.sparse.unary import content_stype, convert

_Value = SparseValue | np.ndarray


@sparse_kernel("Custom", "_backward_Custom")
def _user_code(call: Call) -> SparseKernel:
    op = cast("UserOperator", call.op)
    input_stypes, output_stypes = op.storage_types(call.stypes)

    def compute(run: Run, *contents: AnyContent) -> list[AnyContent] | Awaitable[list[AnyContent]]:
        inputs = [_input_value(*args) for args in zip(contents, input_stypes, call.shapes, strict=True)]
        dtypes = [value.dtype for value in inputs]
        spec = op.spec(tuple([tuple(shape) for shape in call.shapes]), tuple(dtypes))
        outputs = [_new_value(*args) for args in zip(output_stypes, spec.shapes, spec.dtypes, strict=True)]
        pending = op.begin(run, cast("Sequence[Array]", inputs), cast("Sequence[Array]", outputs))
        results = [*outputs, *[inputs[position] for position in op.updates]]
        if pending is None:
            return _contents(results)
        if op.is_coroutine(run.device, inputs):
            return _await_contents(pending, results)
        await_on_loop(op.name, pending)
        return _contents(results)

    sparse = any(stype != "default" for stype in (*input_stypes, *output_stypes))
    return SparseKernel(
        output_stypes[0], compute, makes_dense=not sparse, other_stypes=tuple(output_stypes[1:]), returns_states=True
    )


def _input_value(content: AnyContent, stype: str, shape: Shape) -> _Value:
    if content_stype(content) != stype:
        content = convert(content, stype, shape)
    if isinstance(content, np.ndarray):
        return content
    return SparseValue(content, stype, tuple(shape), content.data.dtype)


def _new_value(stype: str, shape: Shape, dtype: DType) -> _Value:
    return (
        np.empty(shape, dtype)
        if stype == "default"
        else SparseValue(zero_content(stype, shape, dtype), stype, shape, dtype)
    )


def _contents(values: list[_Value]) -> list[AnyContent]:
    """Return the contents that user code wrote."""
    return [value.content if isinstance(value, SparseValue) else value for value in values]


async def _await_contents(pending: Awaitable[None], values: list[_Value]) -> list[AnyContent]:
    await pending
    return _contents(values)
