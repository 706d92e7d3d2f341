"""Parallel blocks, pixel shuffles, and variants of other layers."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, ClassVar, Unpack

from flowmx import autograd
from flowmx import ndarray as nd
from flowmx.devices import num_gpus
from flowmx.gluon.base_block import Block
from flowmx.gluon.contrib.nn.cross_device import Exchanges
from flowmx.gluon.hybrid import HybridBlock
from flowmx.gluon.nn import BatchNorm, HybridSequential, Sequential
from flowmx.gluon.parameter_dict import ParameterDict
from flowmx.gluon.scope import BlockOptions
from flowmx.initializer import InitializerLike
from flowmx.ndarray import NDArray
from flowmx.ops.registry.dtypes import DTypeLike
from flowmx.ops.registry.tensors import Functions, Tensor

__all__ = [
    "Concurrent", "HybridConcurrent", "Identity", "PixelShuffle1D", "PixelShuffle2D", "PixelShuffle3D",
    "SparseEmbedding", "SyncBatchNorm",
]  # fmt: skip


class Concurrent(Sequential):
    """Applies blocks to the same input, and concatenates their outputs.

    Args:
        axis: the axis of the concatenation.
        prefix: as for ``Block``.
        params: as for ``Block``.
    """

    def __init__(self, axis: int = -1, prefix: str | None = None, params: ParameterDict | None = None) -> None:
        super().__init__(prefix=prefix, params=params)
        self.axis = axis

    def forward(self, x: Tensor, *args: Any) -> Any:
        """Return the concatenated outputs."""
        return nd.concat(*(block(x, *args) for block in self._children.values()), dim=self.axis)


class HybridConcurrent(HybridSequential):
    """Applies HybridBlocks to the same input, and concatenates their outputs.

    Args:
        axis: the axis of the concatenation.
        prefix: as for ``Block``.
        params: as for ``Block``.
    """

    def __init__(self, axis: int = -1, prefix: str | None = None, params: ParameterDict | None = None) -> None:
        super().__init__(prefix=prefix, params=params)
        self.axis = axis

    def hybrid_forward(self, F: Functions, x: Tensor, *args: object) -> Tensor:
        return F.concat(*(block(x, *args) for block in self._children.values()), dim=self.axis)


class Identity(HybridBlock):
    """Returns the input unchanged; a skip branch in a :class:`HybridConcurrent`.

    Args:
        prefix: as for ``Block``.
        params: as for ``Block``.
    """

    def hybrid_forward(self, F: object, x: object) -> Any:
        return x


class SparseEmbedding(Block):
    """Rows of a table, by index. The table and its gradient are row_sparse: create a ``Trainer`` before the first call.

    Args:
        input_dim: the number of rows.
        output_dim: the length of a row.
        dtype: the type of the table's elements.
        weight_initializer: initializes the table.
        **kwargs: ``prefix`` and ``params``.
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        dtype: DTypeLike = "float32",
        weight_initializer: InitializerLike = None,
        **kwargs: Unpack[BlockOptions],
    ) -> None:
        super().__init__(**kwargs)
        self._kwargs: dict[str, Any] = {
            "input_dim": input_dim,
            "output_dim": output_dim,
            "dtype": dtype,
            "sparse_grad": True,
        }
        self.weight = self.params.get(
            "weight", shape=(input_dim, output_dim), init=weight_initializer, dtype=dtype, grad_stype="row_sparse",
            stype="row_sparse",
        )  # fmt: skip

    def forward(self, x: NDArray) -> NDArray:
        rows: NDArray = nd.Embedding(x, self.weight.row_sparse_data(x), name="fwd", **self._kwargs)
        return rows

    def __repr__(self) -> str:
        return "{}({input_dim} -> {output_dim}, {dtype})".format(type(self).__name__, **self._kwargs)


class SyncBatchNorm(BatchNorm):
    """BatchNorm with statistics over the batches of all devices.

    Call the network on all devices before waiting for a result. Compiled (hybridized) graphs do not exchange
    statistics: each device uses its own, with a warning. Hybridize the parts between such layers instead.

    Zhang et al., Context Encoding for Semantic Segmentation, CVPR 2018.

    Args:
        in_channels: the number of channels (default: inferred at the first call).
        num_devices: the number of devices that a batch is split over (default: the number of GPUs, at least 1).
        momentum: the momentum of the running statistics.
        epsilon: added to the variance.
        center: learn an offset (beta).
        scale: learn a factor (gamma).
        use_global_stats: also use the running statistics in training.
        beta_initializer: initializes the offset.
        gamma_initializer: initializes the factor.
        running_mean_initializer: initializes the running mean.
        running_variance_initializer: initializes the running variance.
        **kwargs: ``prefix`` and ``params``.
    """

    def __init__(
        self, in_channels: int = 0, num_devices: int | None = None, momentum: float = 0.9, epsilon: float = 1e-5,
        center: bool = True, scale: bool = True, use_global_stats: bool = False,
        beta_initializer: InitializerLike = "zeros",
        gamma_initializer: InitializerLike = "ones", running_mean_initializer: InitializerLike = "zeros",
        running_variance_initializer: InitializerLike = "ones", **kwargs: Unpack[BlockOptions],
    ) -> None:  # fmt: skip
        super().__init__(
            1, momentum, epsilon, center, scale, use_global_stats, beta_initializer, gamma_initializer,
            running_mean_initializer, running_variance_initializer, in_channels, **kwargs,
        )  # fmt: skip
        devices = max(1, num_gpus()) if num_devices is None else num_devices
        del self._kwargs["axis"]
        self._kwargs |= {"ndev": devices, "key": self.prefix}
        self._exchanges = Exchanges(f"SyncBatchNorm {self.name!r}", devices)

    def hybrid_forward(
        self, F: Functions, x: Tensor, gamma: Tensor, beta: Tensor, running_mean: Tensor, running_var: Tensor
    ) -> Any:
        if self._kwargs["ndev"] > 1:
            if not isinstance(x, NDArray):
                warnings.warn(
                    f"SyncBatchNorm {self.name!r}: a compiled graph uses the statistics of each device separately: "
                    "hybridize the parts of the network between such layers instead",
                    stacklevel=2,
                )
            elif autograd.is_training() and not self._kwargs["use_global_stats"]:
                return self._normalize(x, gamma, beta, running_mean, running_var)
        return F.contrib.SyncBatchNorm(x, gamma, beta, running_mean, running_var, name="fwd", **self._kwargs)

    def _normalize(self, x: Any, gamma: Any, beta: Any, running_mean: Any, running_var: Any) -> NDArray:
        """Normalize with the statistics of all devices, and update the running statistics."""
        moments = nd.stack(nd.mean(x, axis=1, exclude=True), nd.mean(nd.square(x), axis=1, exclude=True))
        mean, square = nd.split(self._exchanges.mean(moments), num_outputs=2, axis=0, squeeze_axis=True)
        var = nd.maximum(square - nd.square(mean), 0)
        with autograd.pause():
            momentum = self._kwargs["momentum"]
            for running, current in ((running_mean, mean), (running_var, var)):
                running[:] = momentum * running + (1 - momentum) * current
        scale = nd.rsqrt(var + self._kwargs["eps"])
        scale = scale if self._kwargs["fix_gamma"] else gamma * scale
        shift = beta - mean * scale
        shape = (1, -1, *(1,) * (x.ndim - 2))
        return nd.broadcast_add(nd.broadcast_mul(x, scale.reshape(shape)), shift.reshape(shape))


class _PixelShuffle(HybridBlock):
    """Rearranges channels into pixels, with a factor for each axis."""

    axes: ClassVar[int]

    def __init__(self, factor: int | Sequence[int]) -> None:
        super().__init__()
        self._factors = (factor,) * self.axes if isinstance(factor, int) else tuple(int(length) for length in factor)
        if len(self._factors) != self.axes:
            raise ValueError(f"{type(self).__name__}: factor is {factor!r}, expected a number or {self.axes} of them")

    def hybrid_forward(self, F: Functions, x: Tensor) -> Tensor:
        # (n, c * f1 * f2, h, w) -> (n, c, f1, f2, h, w) -> (n, c, h, f1, w, f2) -> (n, c, h * f1, w * f2)
        out = F.reshape(x, shape=(0, -4, -1, self._product, *(0,) * self.axes))
        for split in range(1, self.axes):
            first, rest = self._factors[split - 1], self._product_from(split)
            out = F.reshape(out, shape=(*(0,) * (split + 1), -4, first, rest, *(0,) * self.axes))
        pairs = [axis for i in range(self.axes) for axis in (2 + self.axes + i, 2 + i)]
        return F.reshape(F.transpose(out, axes=(0, 1, *pairs)), shape=(0, 0, *(-3,) * self.axes))

    @property
    def _product(self) -> int:
        return self._product_from(0)

    def _product_from(self, start: int) -> int:
        product = 1
        for factor in self._factors[start:]:
            product *= factor
        return product

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._factors if self.axes > 1 else self._factors[0]})"


class PixelShuffle1D(_PixelShuffle):
    """(batch, channels * factor, width) becomes (batch, channels, width * factor).

    Shi et al., Real-Time Single Image and Video Super-Resolution Using an Efficient Sub-Pixel CNN, CVPR 2016.

    Args:
        factor: the upscaling factor.
    """

    axes = 1


class PixelShuffle2D(_PixelShuffle):
    """(batch, channels * f1 * f2, height, width) becomes (batch, channels, height * f1, width * f2).

    Args:
        factor: the upscaling factors, one number or two.
    """

    axes = 2


class PixelShuffle3D(_PixelShuffle):
    """(batch, channels * f1 * f2 * f3, depth, height, width) becomes (batch, channels, depth * f1, ...).

    Args:
        factor: the upscaling factors, one number or three.
    """

    axes = 3
