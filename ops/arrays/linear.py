"""Operators that are linear in their first input: they choose, copy or add up its elements.

The gradient of such an operator is its transpose, applied to the head. :func:`linear` registers an operator
together with it, as the hidden operator ``_backward_NAME`` of (head, the other inputs, like), where ``like``
has the first input's shape; the gradient of that one is the operator itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar, dataclass_transform

from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array, Operator, Run, Shape, ShapeOrNone, operator, option, required
from flowmx.ops.registry.traits import BatchParts, BatchWise, Passing

Inferred = tuple[list[ShapeOrNone], list[ShapeOrNone]]
InferredTypes = tuple[list[DType | None], list[DType | None]]


def shape_of(inputs: Any, position: int) -> Any:
    """An input of which a gradient looks at the shape and dtype alone, so that it may have changed since."""
    return getattr(inputs, "unchecked", inputs.__getitem__)(position)


def bound(op: Operator) -> dict[str, Any]:
    """The parameters of an operator, to bind another one with."""
    return {name: getattr(op, name) for name in op.parameters}


class Linear(Operator):
    """Base of operators that are linear in their first input; a subclass writes :meth:`transposed`."""

    shape_only: ClassVar[bool] = False
    """True when only the shape of the other inputs matters."""

    def only_shapes(self) -> tuple[int, ...]:
        return tuple(range(1, len(self.inputs()))) if self.shape_only else super().only_shapes()

    def transposed(self, run: Run, head: Array, others: Sequence[Array], out: Array) -> None:
        """Compute the gradient of the first input, into ``out``."""
        raise NotImplementedError(f"{self.name} has no transpose")

    def others(self, inputs: Any, count: int) -> list[Any]:
        """The inputs between the first and ``like``."""
        read = (lambda at: shape_of(inputs, at)) if self.shape_only else inputs.__getitem__
        return [read(at) for at in range(1, 1 + count)]

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        others = self.others(inputs, len(self.inputs()) - 1)
        return [self.transpose_of(F, heads[0], others, shape_of(inputs, 0)), *([None] * len(others))]

    def transpose_of(self, F: Any, head: Any, others: Sequence[Any], like: Any) -> Any:
        """Call the transpose."""
        parameters = bound(self)
        if self.variadic:
            parameters[self.variadic] += 1
            return F.op(f"_backward_{self.name}", head, *others, like, **parameters)
        # By name, since some of the others may be left out.
        named = dict(zip(self.inputs()[1:], others, strict=True))
        return F.op(f"_backward_{self.name}", head, **named, like=like, **parameters)


class _Transposed(Linear, hidden=True):
    primal: ClassVar[type[Operator]]

    def only_shapes(self) -> tuple[int, ...]:
        return tuple({*super().only_shapes(), len(self.inputs()) - 1})

    def batch_parts(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> BatchParts | None:
        # What gave a part of the outputs for a part of the inputs takes it back there; what all parts read adds up.
        if self.traits.batch_wise is not BatchWise.OWN:
            return None
        head, *others, like = inputs
        parts = self._primal().batch_parts([like, *others], [head])
        if parts is None:
            return None
        last = len(inputs) - 1
        along = tuple([at or last for at in parts.inputs])
        heads = (0,) if parts.outputs else ()
        return BatchParts(heads + along, (0,)) if last in along else BatchParts(heads + along, (), (0,))

    def _primal(self) -> Operator:
        """The operator whose gradient it is."""
        parameters = bound(self)
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
        self.transposed(run, inputs[0], inputs[1:-1], outputs[0])

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        others = self.others(inputs, len(self.inputs()) - 2)
        return [
            F.op(self.primal.name, heads[0], *others, **bound(self._primal())), *([None] * (len(others) + 1)),
        ]  # fmt: skip


C = TypeVar("C", bound=type[Linear])


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(required, option))
def linear(name: str, *aliases: str) -> Callable[[C], C]:
    """Register a linear operator, and its transpose as ``_backward_NAME``."""

    def register(cls: C) -> C:
        made = operator(name, *aliases)(cls)
        body = {
            "__doc__": f"The gradient of {name}.",
            "__module__": made.__module__,
            "arguments": ("head", *made.arguments[1:], "like"),
            "primal": made,
        }
        operator(f"_backward_{name}")(
            type(
                f"_Backward{made.__name__}",
                (_Transposed, made),
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
        return made

    return register
