"""Operators that compute again what another has computed, and leave alone what that one changes.

The recomputation pass puts them in the place of a second run. BatchNorm's moving statistics follow each batch once: its
repetition runs the very kernel of the first run, on copies of the states. Dropout's repetition uses the mask that was
drawn. So the results are the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from flowmx.ops.compiled.fused import BatchNormRelu
from flowmx.ops.nn.common import bound
from flowmx.ops.nn.dropout import Dropout
from flowmx.ops.nn.normalization.batch_norm import BatchNorm
from flowmx.ops.nn.normalization.batch_norm_variants import BatchNormWithReLU, SyncBatchNorm
from flowmx.ops.registry.operators import (
    Array,
    DType,
    Operator,
    Run,
    ShapeOrNone,
    family,
    kernel_for,
    lookup,
    operator,
    option,
)
from flowmx.ops.registry.traits import BatchWise

PREFIX = "_again_"


@family
class _Again(Operator, hidden=True):
    """The first output of the operator that it stands before among the bases; the states are plain inputs."""

    outputs_read: ClassVar[tuple[int, ...]] = ()
    """Further inputs: these outputs of the first run."""
    output_names: ClassVar[tuple[str, ...]] = ("output",)
    outputs_counted = 1
    stateless: bool = option(False, "The states do not matter: the batch has its own statistics.")

    @property
    def repeated(self) -> Operator:
        """The operator that it computes again."""
        of = lookup(self.name.removeprefix(PREFIX))
        return of.create(**{name: value for name, value in bound(self).items() if name in of.parameters})

    def only_shapes(self) -> tuple[int, ...]:
        count = len(self.inputs())
        return tuple(range(count - len(self.repeated.auxiliary), count)) if self.stateless else ()

    def visible_outputs(self) -> int:
        return 1

    def infer_shape(self, shapes: list[ShapeOrNone]) -> tuple[list[ShapeOrNone], list[ShapeOrNone]]:
        inputs, outputs = self.repeated.infer_shape(shapes)
        return inputs, outputs[:1]

    def infer_type(self, dtypes: list[DType | None]) -> tuple[list[DType | None], list[DType | None]]:
        inputs, outputs = self.repeated.infer_type(dtypes)
        return inputs, outputs[:1]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        op = self.repeated
        first = len(inputs) - len(op.auxiliary)
        copied = run.xp.ones_like if self.stateless else run.xp.copy
        given = [*inputs[:first], *map(copied, inputs[first:])]
        spec = op.spec(tuple([each.shape for each in given]), tuple([each.dtype for each in given]))
        rest = [run.xp.empty(s, d) for s, d in zip(spec.shapes[1:], spec.dtypes[1:], strict=True)]
        fast = kernel_for(run.device.kernels, op.name)
        if fast is None:
            op.forward(run, given, [*outputs, *rest])
        else:
            fast(op, run, given, [*outputs, *rest])

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        raise NotImplementedError  # the pass runs after differentiation


@operator(f"{PREFIX}Dropout")
class DropoutAgain(
    _Again, Dropout, uses_random=False, draws_by_part=False, mode_matters=False, batch_wise=BatchWise.EACH
):
    """The output of Dropout once more, with the mask that it drew."""

    arguments = ("data", "mask")
    outputs_read = (1,)

    def draws(self, train: bool) -> bool:
        return False

    def infer_shape(self, shapes: list[ShapeOrNone]) -> tuple[list[ShapeOrNone], list[ShapeOrNone]]:
        return shapes, shapes[:1]

    def infer_type(self, dtypes: list[DType | None]) -> tuple[list[DType | None], list[DType | None]]:
        return dtypes, dtypes[:1]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        run.xp.multiply(inputs[0], inputs[1], out=outputs[0])


def _register(base: type[Operator]) -> type[_Again]:
    """The operator that repeats another one."""
    body: dict[str, Any] = {
        "__doc__": f"The output of {base.name} once more; the states stay as they are.",
        "__module__": __name__,
        "arguments": (*base.arguments, *base.auxiliary),
        "auxiliary": (),
    }
    made: type[_Again] = type(f"{base.__name__}Again", (_Again, base), body)
    return operator(PREFIX + base.name)(made)


AGAIN: dict[str, type[_Again]] = {
    **{base.name: _register(base) for base in (BatchNorm, BatchNormRelu, BatchNormWithReLU, SyncBatchNorm)},
    Dropout.name: DropoutAgain,
}
"""By an operator's name, the operator that computes its output again."""
