"""Recurrent layers in prediction, with their parameters in the layout of a kernel; a bound graph packs them once."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import ClassVar

from flowmx.ops.arrays.linear import Inferred, InferredTypes
from flowmx.ops.nn.common import computing_dtype
from flowmx.ops.recurrent.rnn import RNN
from flowmx.ops.registry.dtypes import DType, dtype_named
from flowmx.ops.registry.operators import Array, Operator, Run, Shape, ShapeOrNone, family, operator, option, required

__all__ = ["PackRNN", "Packed", "PackedRNN", "Packing", "ParameterVector"]

_BYTES = dtype_named("uint8")


@family
class Packed(RNN, hidden=True, no_gradient=True, uses_random=False, mode_matters=False, quantized=None):
    """Mixin of recurrent layers that read packed parameters (bytes) and store nothing for a gradient."""

    def outputs(self) -> tuple[str, ...]:
        return super().outputs()[: self.visible_outputs()]

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        inputs, outputs = super().infer_shape([shapes[0], None, *shapes[2:]])
        return [inputs[0], shapes[1], *inputs[2:]], outputs[: self.visible_outputs()]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        inputs, outputs = super().infer_type([dtypes[0], None, *dtypes[2:]])
        return [inputs[0], _BYTES, *inputs[2:]], outputs[: self.visible_outputs()]

    def cost(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> tuple[int, int]:
        time, batch, features = inputs[0]
        work = 2 * time * batch * self.layout.parameter_count(features)
        return work, sum(map(prod, (*inputs, *outputs)))


@operator("_kept_rnn_param_concat")
class ParameterVector(Operator, hidden=True, no_gradient=True, once=True):
    """The parameters of recurrent layers, of any shapes, concatenated to one vector."""

    arguments: ClassVar[tuple[str, ...]] = ()
    num_args: int = option(1, "The number of arrays.", low=1)

    def inputs(self) -> tuple[str, ...]:
        return tuple(f"arg{index}" for index in range(self.num_args))

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        complete = [shape for shape in shapes if shape is not None]
        return shapes, [(sum(map(prod, complete)),) if len(complete) == len(shapes) else None]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        run.xp.concatenate([array.reshape(-1) for array in inputs], out=outputs[0])


@family
class Packing(ParameterVector):
    """Mixin of operators that pack a layer's parameters; they also have the options of the layer."""

    # The inputs are parameters, not data: the layer's methods do not apply.
    inputs = ParameterVector.inputs
    cost = Operator.cost
    infer_back = Operator.infer_back
    data_shape: Shape = required("The shape of the layer's data.")
    size: int = required("The size of the copy in bytes.", low=0)

    def outputs(self) -> tuple[str, ...]:
        return ("packed",)

    def visible_outputs(self) -> int:
        return 1

    def json_output_count(self) -> int:
        return 1

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, [(self.size,)]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return dtypes, [_BYTES]

    def vector(self, run: Run, inputs: Sequence[Array]) -> Array:
        """Return the parameters in one vector, in C order."""
        vector: Array = run.xp.empty(sum(array.size for array in inputs), inputs[0].dtype)
        ParameterVector.forward(self, run, inputs, [vector])
        return vector

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        vector = self.vector(run, inputs).view(_BYTES)
        outputs[0][: vector.size] = vector


@operator("_packed_RNN")
class PackedRNN(Packed):
    """Recurrent layers with packed parameters."""

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        data, packed, *states = inputs
        time, batch, features = data.shape
        parameters = packed[: self.layout.parameter_count(features) * data.itemsize].view(data.dtype)
        reserve = run.xp.empty(self.layout.reserve_size(time, batch, self.p > 0), computing_dtype(data.dtype))
        super().forward(run, [data, parameters, *states], [*outputs, reserve])


@operator("_pack_RNN")
class PackRNN(Packing, RNN, uses_random=False, mode_matters=False, quantized=None):
    """The packed parameters of recurrent layers."""
