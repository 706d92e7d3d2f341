"""Operators that recompute the output of another operator without its side effects.

The recomputation pass inserts them. BatchNorm updates its moving statistics once for each batch: the recomputation runs
the kernel of the first run on copies of the states. Dropout reuses the mask of the first run. The results are
bit-identical.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from flowmx.ops.arrays.linear import Inferred, InferredTypes
from flowmx.ops.compiled.fused_layers import BatchNormRelu
from flowmx.ops.nn.common import non_defaults
from flowmx.ops.nn.dropout import Dropout
from flowmx.ops.nn.normalization.batch_norm import BatchNorm
from flowmx.ops.nn.normalization.batch_norm_variants import BatchNormWithReLU, SyncBatchNorm
from flowmx.ops.registry.kernels import compute_operator
from flowmx.ops.registry.operators import Array, DType, Operator, Run, ShapeOrNone, family, lookup, operator, option
from flowmx.ops.registry.tensors import Functions, Gradients, Tensors
from flowmx.ops.registry.traits import BatchWise

PREFIX = "_again_"


@family
class _Recomputed(Operator, hidden=True):
    """Mixin that recomputes the first output of an operator; the states are plain inputs."""

    outputs_read: ClassVar[tuple[int, ...]] = ()
    """Outputs of the first run that are inputs of the recomputation."""
    output_names: ClassVar[tuple[str, ...]] = ("output",)
    json_outputs = 1
    stateless: bool = option(False, "The batch has its own statistics, so the states are not read.")

    @property
    def original(self) -> Operator:
        """The operator that is recomputed."""
        cls = lookup(self.name.removeprefix(PREFIX))
        return cls.create(**{name: value for name, value in non_defaults(self).items() if name in cls.parameters})

    def shape_only_inputs(self) -> tuple[int, ...]:
        count = len(self.inputs())
        return tuple(range(count - len(self.original.auxiliary), count)) if self.stateless else ()

    def visible_outputs(self) -> int:
        return 1

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        inputs, outputs = self.original.infer_shape(shapes)
        return inputs, outputs[:1]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        inputs, outputs = self.original.infer_type(dtypes)
        return inputs, outputs[:1]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        op = self.original
        first = len(inputs) - len(op.auxiliary)
        copy = run.xp.ones_like if self.stateless else run.xp.copy
        op_inputs = [*inputs[:first], *map(copy, inputs[first:])]
        spec = op.spec(tuple([array.shape for array in op_inputs]), tuple([array.dtype for array in op_inputs]))
        unused = [run.xp.empty(shape, dtype) for shape, dtype in zip(spec.shapes[1:], spec.dtypes[1:], strict=True)]
        compute_operator(op, run, op_inputs, [*outputs, *unused])

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        raise NotImplementedError  # the pass runs after differentiation


@operator(f"{PREFIX}Dropout")
class RecomputedDropout(
    _Recomputed, Dropout, uses_random=False, draws_by_part=False, mode_matters=False, batch_wise=BatchWise.EACH
):
    """The output of Dropout, recomputed with the mask of the first run."""

    arguments = ("data", "mask")
    outputs_read = (1,)

    def draws(self, train: bool) -> bool:
        return False

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, shapes[:1]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return dtypes, dtypes[:1]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        run.xp.multiply(inputs[0], inputs[1], out=outputs[0])


def _register(base: type[Operator]) -> type[_Recomputed]:
    """Register the operator that recomputes another one."""
    body: dict[str, object] = {
        "__doc__": f"The output of {base.name}, recomputed; the states do not change.",
        "__module__": __name__,
        "arguments": (*base.arguments, *base.auxiliary),
        "auxiliary": (),
    }
    cls: type[_Recomputed] = type(f"Recomputed{base.__name__}", (_Recomputed, base), body)
    return operator(PREFIX + base.name)(cls)


RECOMPUTED: dict[str, type[_Recomputed]] = {
    **{base.name: _register(base) for base in (BatchNorm, BatchNormRelu, BatchNormWithReLU, SyncBatchNorm)},
    Dropout.name: RecomputedDropout,
}
"""By an operator's name, the operator that recomputes its output."""
