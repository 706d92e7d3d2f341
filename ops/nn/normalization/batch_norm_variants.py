"""BatchNorm under MXNet's other names: with a ReLU, and over the devices of a process."""

from __future__ import annotations

from collections.abc import Sequence

from flowmx.ops.compiled.fused_layers import BatchNormRelu
from flowmx.ops.nn.common import non_defaults
from flowmx.ops.nn.normalization.batch_norm import BatchNorm, BatchStatistics
from flowmx.ops.registry.kernels import compute_operator
from flowmx.ops.registry.operators import Array, Run, operator, option, required
from flowmx.ops.registry.tensors import Functions, Gradients, Tensors
from flowmx.ops.registry.traits import BatchWise, Precision


@operator("_contrib_BatchNormWithReLU")
class BatchNormWithReLU(BatchNorm, quantized=None, batch_wise=BatchWise.OWN):
    """BatchNorm, then a ReLU."""

    json_outputs = 4

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        compute_operator(BatchNormRelu.create(**non_defaults(self)), run, inputs, outputs)

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        head = heads[0] * (outputs[0] > 0)
        return list(F.op("_backward_BatchNorm", head, *inputs[:2], *list(outputs)[1:], **non_defaults(self)))


@operator("_contrib_SyncBatchNorm")
class SyncBatchNorm(BatchStatistics, precision=Precision.FLOAT32):
    """BatchNorm over the batches of several devices. Here the devices of a process share one batch.

    Shapes: data (batch, channels, ...), the others (channels,). Further outputs with ``output_mean_var``: mean
    and variance. From Zhang et al., "Context Encoding for Semantic Segmentation", 2018.
    """

    axis = 1
    ndev: int = option(1, "Ignored.", low=1)
    key: str = required("Names the layer; ignored.")

    def plain(self) -> dict[str, object]:
        """Return the parameters that BatchNorm also has."""
        return {name: value for name, value in non_defaults(self).items() if name in BatchNorm.parameters}

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        compute_operator(BatchNorm.create(**self.plain()), run, inputs, outputs)
        var = outputs[2]
        var[...] = var**-2 - var.dtype.type(self.eps)

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        inverse = F.rsqrt(outputs[2] + self.eps)
        arrays = (heads[0], *inputs[:2], outputs[1], inverse, outputs[3])
        return list(F.op("_backward_BatchNorm", *arrays, **self.plain()))
