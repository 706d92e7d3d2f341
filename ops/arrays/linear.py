"""Operators that are linear in their first input: they select, copy or sum its elements.

The gradient of such an operator is its transpose, applied to the head. :func:`linear` registers an operator and its
transpose, the hidden operator ``_backward_NAME`` of (head, the other inputs, like). ``like`` has the shape of the first
input. The gradient of the transpose is the operator itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar, dataclass_transform

from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array, Operator, Run, Shape, ShapeOrNone, operator, option, required
from flowmx.ops.registry.tensors import Functions, Gradients, Tensor, Tensors
from flowmx.ops.registry.traits import BatchParts, BatchWise, Passing

Inferred = tuple[list[ShapeOrNone], list[ShapeOrNone]]
InferredTypes = tuple[list[DType | None], list[DType | None]]


def shape_of(inputs: Tensors, position: int) -> Tensor:
    """Return an input whose shape and dtype a gradient reads, but not its values, which may have changed since."""
    like: Tensor = getattr(inputs, "unchecked", inputs.__getitem__)(position)
    return like


def parameters_of(op: Operator) -> dict[str, Any]:
    """Return all parameters of an operator, to create another operator with them."""
    return {name: getattr(op, name) for name in op.parameters}


class Linear(Operator):
    """Base of operators that are linear in their first input; a subclass implements :meth:`apply_transpose`."""

    shape_only: ClassVar[bool] = False
    """Whether only the shapes of the other inputs matter."""

    def shape_only_inputs(self) -> tuple[int, ...]:
        return tuple(range(1, len(self.inputs()))) if self.shape_only else super().shape_only_inputs()

    def apply_transpose(self, run: Run, head: Array, others: Sequence[Array], out: Array) -> None:
        """Compute the gradient of the first input into ``out``."""
        raise NotImplementedError(f"{self.name} has no transpose")

    def others(self, inputs: Any, count: int) -> list[Any]:
        """Return the inputs between the first and ``like``."""
        get = (lambda index: shape_of(inputs, index)) if self.shape_only else inputs.__getitem__
        return [get(index) for index in range(1, 1 + count)]

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        others = self.others(inputs, len(self.inputs()) - 1)
        return [self.transpose_of(F, heads[0], others, shape_of(inputs, 0)), *([None] * len(others))]

    def transpose_of(self, F: Functions, head: Tensor, others: Tensors, like: Tensor) -> Tensor:
        """Return the transpose applied to a head."""
        parameters = parameters_of(self)
        if self.variadic:
            parameters[self.variadic] += 1
            return F.op(f"_backward_{self.name}", head, *others, like, **parameters)
        # By name, since optional inputs may be absent.
        keywords = dict(zip(self.inputs()[1:], others, strict=True))
        return F.op(f"_backward_{self.name}", head, **keywords, like=like, **parameters)


class _Transposed(Linear, hidden=True):
    primal: ClassVar[type[Operator]]

    def shape_only_inputs(self) -> tuple[int, ...]:
        return tuple({*super().shape_only_inputs(), len(self.inputs()) - 1})

    def batch_parts(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> BatchParts | None:
        # The transpose maps a part of the head to the same part of the gradient. The gradient of an input that every
        # part reads is a sum over the parts.
        if self.traits.batch_wise is not BatchWise.OWN:
            return None
        head, *others, like = inputs
        parts = self._primal().batch_parts([like, *others], [head])
        if parts is None:
            return None
        last = len(inputs) - 1
        inputs_split = tuple([index or last for index in parts.inputs])
        heads_split = (0,) if parts.outputs else ()
        return (
            BatchParts(heads_split + inputs_split, (0,))
            if last in inputs_split
            else BatchParts(heads_split + inputs_split, (), (0,))
        )

    def _primal(self) -> Operator:
        """Return the operator that this one is the transpose of."""
        parameters = parameters_of(self)
        if self.variadic:
            parameters[self.variadic] -= 1
        return self.primal.create(**parameters)

    def inputs(self) -> tuple[str, ...]:
        names = super().inputs()
        return names if self.variadic or "like" in names else (*names, "like")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        completed, outputs = super().infer_shape([shapes[-1], *shapes[1:-1]])
        return [outputs[0], *completed[1:], completed[0]], [completed[0]]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        like = dtypes[-1] if dtypes[-1] is not None else dtypes[0]
        completed, outputs = super().infer_type([like, *dtypes[1:-1]])
        return [outputs[0], *completed[1:], completed[0]], [completed[0]]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        self.apply_transpose(run, inputs[0], inputs[1:-1], outputs[0])

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        others = self.others(inputs, len(self.inputs()) - 2)
        return [
            F.op(self.primal.name, heads[0], *others, **parameters_of(self._primal())), *([None] * (len(others) + 1)),
        ]  # fmt: skip


C = TypeVar("C", bound=type[Linear])


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(required, option))
def linear(name: str, *aliases: str) -> Callable[[C], C]:
    """Register a linear operator under ``name``, and its transpose under ``_backward_NAME``."""

    def register(cls: C) -> C:
        registered = operator(name, *aliases)(cls)
        body = {
            "__doc__": f"The gradient of {name}.",
            "__module__": registered.__module__,
            "arguments": ("head", *registered.arguments[1:], "like"),
            "primal": registered,
        }
        operator(f"_backward_{name}")(
            type(
                f"_Backward{registered.__name__}",
                (_Transposed, registered),
                body,
                heavy=False,
                in_place=(),
                view=False,
                repeats=False,
                passing=Passing.NEVER,
                precision=None,
                batch_wise=BatchWise.OWN,
            )
        )
        return registered

    return register
