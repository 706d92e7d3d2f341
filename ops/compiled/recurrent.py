"""Recurrent layers in prediction: by a copy of their parameters in a kernel's order, which a bound graph makes once."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import ClassVar

from flowmx.ops.nn.common import computing_dtype
from flowmx.ops.recurrent.operator import RNN
from flowmx.ops.registry.dtypes import DType, dtype_named
from flowmx.ops.registry.operators import Array, Operator, Run, Shape, ShapeOrNone, family, operator, option, required

__all__ = ["Inferred", "KeptParameters", "PackRNN", "Packed", "PackedRNN", "Packing"]

Inferred = tuple[list[ShapeOrNone], list[ShapeOrNone]]
_BYTES = dtype_named("uint8")


@family
class Packed(RNN, hidden=True, no_gradient=True, uses_random=False, mode_matters=False, quantized=None):
    """Base of recurrent layers that read such a copy, bytes in whatever order, and keep nothing for a gradient.

    It stands before the layer among the bases.
    """

    def outputs(self) -> tuple[str, ...]:
        return super().outputs()[: self.visible_outputs()]

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        found, outputs = super().infer_shape([shapes[0], None, *shapes[2:]])
        return [found[0], shapes[1], *found[2:]], outputs[: self.visible_outputs()]

    def infer_type(self, dtypes: list[DType | None]) -> tuple[list[DType | None], list[DType | None]]:
        found, outputs = super().infer_type([dtypes[0], None, *dtypes[2:]])
        return [found[0], _BYTES, *found[2:]], outputs[: self.visible_outputs()]

    def cost(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> tuple[int, int]:
        time, batch, features = inputs[0]
        work = 2 * time * batch * self.layout.parameters(features)
        return work, sum(map(prod, (*inputs, *outputs)))


@operator("_kept_rnn_param_concat")
class KeptParameters(Operator, hidden=True, no_gradient=True, once=True):
    """The parameters of recurrent layers, whatever their shapes, in one vector."""

    arguments: ClassVar[tuple[str, ...]] = ()
    num_args: int = option(1, "The number of arrays.", low=1)

    def inputs(self) -> tuple[str, ...]:
        return tuple(f"arg{at}" for at in range(self.num_args))

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        known = [shape for shape in shapes if shape is not None]
        return shapes, [(sum(map(prod, known)),) if len(known) == len(shapes) else None]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        run.xp.concatenate([each.reshape(-1) for each in inputs], out=outputs[0])


@family
class Packing(KeptParameters):
    """Base of what makes such a copy; it stands before the layer among the bases, whose parameters are the others."""

    # Its inputs are the parameters, for which nothing holds that the layer knows of its data.
    inputs = KeptParameters.inputs
    cost = Operator.cost
    infer_back = Operator.infer_back
    data_shape: Shape = required("The shape of the layer's data.")
    size: int = required("The bytes of the copy.", low=0)

    def outputs(self) -> tuple[str, ...]:
        return ("packed",)

    def visible_outputs(self) -> int:
        return 1

    def counted_outputs(self) -> int:
        return 1

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, [(self.size,)]

    def infer_type(self, dtypes: list[DType | None]) -> tuple[list[DType | None], list[DType | None]]:
        return dtypes, [_BYTES]

    def vector(self, run: Run, inputs: Sequence[Array]) -> Array:
        """The parameters in one vector, in C order."""
        whole = run.xp.empty(sum(each.size for each in inputs), inputs[0].dtype)
        KeptParameters.forward(self, run, inputs, [whole])
        return whole

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        given = self.vector(run, inputs).view(_BYTES)
        outputs[0][: given.size] = given


@operator("_packed_RNN")
class PackedRNN(Packed):
    """Recurrent layers by such a copy."""

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        data, packed, *states = inputs
        time, batch, features = data.shape
        parameters = packed[: self.layout.parameters(features) * data.itemsize].view(data.dtype)
        kept = run.xp.empty(self.layout.reserved(time, batch, self.p > 0), computing_dtype(data.dtype))
        super().forward(run, [data, parameters, *states], [*outputs, kept])


@operator("_pack_RNN")
class PackRNN(Packing, RNN, uses_random=False, mode_matters=False, quantized=None):
    """The parameters of recurrent layers."""
