"""BatchNorm under MXNet's other names: with a ReLU, and over the devices of a process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowmx.ops.compiled.fused import BatchNormRelu
from flowmx.ops.nn.common import bound
from flowmx.ops.nn.normalization.batch_norm import BatchNorm, BatchStatistics
from flowmx.ops.registry.operators import Array, Operator, Run, kernel_for, operator, option, required
from flowmx.ops.registry.traits import BatchWise, Precision


def _run(op: Operator, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """Compute another operator, by the device's kernel where there is one."""
    fast = kernel_for(run.device.kernels, op.name)
    if fast is None:
        op.forward(run, inputs, outputs)
    else:
        fast(op, run, inputs, outputs)


@operator("_contrib_BatchNormWithReLU")
class BatchNormWithReLU(BatchNorm, quantized=None, batch_wise=BatchWise.OWN):
    """BatchNorm, then a ReLU."""

    outputs_counted = 4

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        _run(BatchNormRelu.create(**bound(self)), run, inputs, outputs)

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        head = heads[0] * (outputs[0] > 0)
        return list(F.op("_backward_BatchNorm", head, *inputs[:2], *list(outputs)[1:], **bound(self)))


@operator("_contrib_SyncBatchNorm")
class SyncBatchNorm(BatchStatistics, precision=Precision.FLOAT32):
    """BatchNorm over the batches of several devices; here those of one process, whose batch is whole.

    Shapes: data (batch, channels, ...), the others (channels,). Further outputs with ``output_mean_var``: mean
    and variance. From Zhang et al., "Context Encoding for Semantic Segmentation", 2018.
    """

    axis = 1
    ndev: int = option(1, "Ignored.", low=1)
    key: str = required("Names the layer; ignored.")

    def plain(self) -> dict[str, Any]:
        """The parameters that BatchNorm has too."""
        return {name: value for name, value in bound(self).items() if name in BatchNorm.parameters}

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        _run(BatchNorm.create(**self.plain()), run, inputs, outputs)
        var = outputs[2]
        var[...] = var**-2 - var.dtype.type(self.eps)

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        inverse = F.rsqrt(outputs[2] + self.eps)
        given = (heads[0], *inputs[:2], outputs[1], inverse, outputs[3])
        return list(F.op("_backward_BatchNorm", *given, **self.plain()))
