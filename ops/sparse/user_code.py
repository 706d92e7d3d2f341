"""Custom operators on sparse arrays: the user's code gets them, and gives them, as its property says."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import cast

import numpy as np

from flowmx.ops.control.custom import SparseValue, UserOperator, await_on_loop
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Run, Shape
from flowmx.ops.sparse.content import nothing
from flowmx.ops.sparse.elementwise import converted, kind_of
from flowmx.ops.sparse.ways import Call, Raw, Way, way

_Value = SparseValue | np.ndarray


@way("Custom", "_backward_Custom")
def _user_code(call: Call) -> Way:
    op = cast("UserOperator", call.op)
    taken, given = op.storage_types(call.stypes)

    def compute(run: Run, *contents: Raw) -> list[Raw] | Awaitable[list[Raw]]:
        inputs = [_lent(*each) for each in zip(contents, taken, call.shapes, strict=True)]
        dtypes = [each.dtype for each in inputs]
        spec = op.spec(tuple([tuple(shape) for shape in call.shapes]), tuple(dtypes))
        outputs = [_new(*each) for each in zip(given, spec.shapes, spec.dtypes, strict=True)]
        pending = op.begin(run, inputs, outputs)
        written = [*outputs, *[inputs[position] for position in op.updates]]
        if pending is None:
            return _left(written)
        if op.is_coroutine(run.device, inputs):
            return _after(pending, written)
        await_on_loop(op.name, pending)
        return _left(written)

    sparse = any(stype != "default" for stype in (*taken, *given))
    return Way(given[0], compute, makes_dense=not sparse, further=tuple(given[1:]), moves=True)


def _lent(content: Raw, stype: str, shape: Shape) -> _Value:
    if kind_of(content) != stype:
        content = converted(content, stype, shape)
    if isinstance(content, np.ndarray):
        return content
    return SparseValue(content, stype, tuple(shape), content.data.dtype)


def _new(stype: str, shape: Shape, dtype: DType) -> _Value:
    return (
        np.empty(shape, dtype) if stype == "default" else SparseValue(nothing(stype, shape, dtype), stype, shape, dtype)
    )


def _left(values: list[_Value]) -> list[Raw]:
    """The contents that user code left."""
    return [each.content if isinstance(each, SparseValue) else each for each in values]


async def _after(pending: Awaitable[None], values: list[_Value]) -> list[Raw]:
    await pending
    return _left(values)
