"""Deformable convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, cast

from flowmx.gluon.hybrid import HybridBlock
from flowmx.gluon.nn import Activation
from flowmx.gluon.parameter import Parameter
from flowmx.gluon.parameter_dict import ParameterDict
from flowmx.initializer import InitializerLike
from flowmx.ops.registry.tensors import Functions, Tensor

__all__ = ["DeformableConvolution", "ModulatedDeformableConvolution"]

Lengths = int | Sequence[int]


class DeformableConvolution(HybridBlock):
    """A convolution that samples its input at offsets computed by a second convolution.

    Dai et al., Deformable Convolutional Networks, ICCV 2017.

    Args:
        channels: the number of output channels.
        kernel_size: the size of both kernels, one number or two.
        strides: the step of the kernel along each axis.
        padding: zeros added at each side.
        dilation: the distance between the kernels' elements.
        groups: the number of groups that the channels are split into.
        num_deformable_group: the number of channel groups with separate offsets.
        layout: only ``"NCHW"``.
        use_bias: add a bias.
        in_channels: the number of input channels (default: inferred at the first call).
        activation: the name of an activation, or None.
        weight_initializer: initializes the weight.
        bias_initializer: initializes the bias.
        offset_weight_initializer: initializes the weight of the convolution that computes offsets.
        offset_bias_initializer: initializes the bias of that convolution.
        offset_use_bias: whether that convolution has a bias.
        op_name: ignored; accepted for MXNet's scripts.
        adj: ignored; accepted for MXNet's scripts.
        prefix: as for ``Block``.
        params: as for ``Block``.

    Raises:
        ValueError: the layout is not ``"NCHW"``.
    """

    operator: ClassVar[str] = "DeformableConvolution"
    per_element: ClassVar[int] = 2
    """The number of values computed for each element of the kernel."""

    def __init__(
        self, channels: int, kernel_size: Lengths = (1, 1), strides: Lengths = (1, 1), padding: Lengths = (0, 0),
        dilation: Lengths = (1, 1), groups: int = 1, num_deformable_group: int = 1, layout: str = "NCHW",
        use_bias: bool = True, in_channels: int = 0, activation: str | None = None,
        weight_initializer: InitializerLike = None, bias_initializer: InitializerLike = "zeros",
        offset_weight_initializer: InitializerLike = "zeros", offset_bias_initializer: InitializerLike = "zeros",
        offset_use_bias: bool = True, op_name: str | None = None, adj: object = None, prefix: str | None = None,
        params: ParameterDict | None = None,
    ) -> None:  # fmt: skip
        super().__init__(prefix=prefix, params=params)
        if layout != "NCHW":
            raise ValueError(f"{type(self).__name__}: layout is {layout!r}, expected 'NCHW'")
        kernel = _pair(kernel_size)
        self._elements = num_deformable_group * kernel[0] * kernel[1]
        geometry = {
            "kernel": kernel, "stride": _pair(strides), "dilate": _pair(dilation), "pad": _pair(padding),
            "num_group": groups, "layout": layout,
        }  # fmt: skip
        offsets = self.per_element * self._elements
        self._kwargs_offset = {**geometry, "num_filter": offsets, "no_bias": not offset_use_bias}
        self._kwargs = {
            **geometry, "num_filter": channels, "no_bias": not use_bias, "num_deformable_group": num_deformable_group
        }  # fmt: skip
        inputs = in_channels // groups

        def get(name: str, shape: tuple[int, ...], init: InitializerLike) -> Parameter:
            return self.params.get(name, shape=shape, init=init, allow_deferred_init=True)

        with self.name_scope():
            self.offset_weight = get("offset_weight", (offsets, inputs, *kernel), offset_weight_initializer)
            self.offset_bias = get("offset_bias", (offsets,), offset_bias_initializer) if offset_use_bias else None
            self.deformable_conv_weight = get("deformable_conv_weight", (channels, inputs, *kernel), weight_initializer)
            self.deformable_conv_bias = get("deformable_conv_bias", (channels,), bias_initializer) if use_bias else None
            self.act = None if activation is None else Activation(activation, prefix=f"{activation}_")

    def _alias(self) -> str:
        return "deformable_conv"

    def hybrid_forward(
        self, F: Functions, x: Tensor, offset_weight: Tensor, deformable_conv_weight: Tensor,
        offset_bias: Tensor | None = None, deformable_conv_bias: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        offset = F.Convolution(x, offset_weight, offset_bias, **self._kwargs_offset)
        operator = getattr(F.contrib, self.operator)
        offsets = self._split_offsets(F, offset)
        out = operator(x, *offsets, deformable_conv_weight, deformable_conv_bias, name="fwd", **self._kwargs)
        return out if self.act is None else cast("Tensor", self.act(out))

    def _split_offsets(self, F: Functions, offset: Tensor) -> tuple[Tensor, ...]:
        return (offset,)

    def __repr__(self) -> str:
        shape, options = self.deformable_conv_weight.shape or (0, 0), self._kwargs
        parts = [f"{shape[1] or None} -> {shape[0]}", f"kernel_size={options['kernel']}", f"stride={options['stride']}"]
        parts += [f"padding={options['pad']}"] if options["pad"] != (0, 0) else []
        parts += [f"dilation={options['dilate']}"] if options["dilate"] != (1, 1) else []
        parts += [f"groups={options['num_group']}"] if options["num_group"] != 1 else []
        parts += ["bias=False"] if self.deformable_conv_bias is None else []
        parts += [repr(self.act)] if self.act is not None else []
        return f"{type(self).__name__}({', '.join(parts)})"


class ModulatedDeformableConvolution(DeformableConvolution):
    """A :class:`DeformableConvolution` that also scales each sampled element, by computed factors between 0 and 2.

    Zhu et al., Deformable ConvNets v2, CVPR 2019. The arguments are those of DeformableConvolution.
    """

    operator = "ModulatedDeformableConvolution"
    per_element = 3

    def _alias(self) -> str:
        return "modulated_deformable_conv"

    def _split_offsets(self, F: Functions, offset: Tensor) -> tuple[Tensor, ...]:
        split = 2 * self._elements
        factors = F.slice_axis(offset, axis=1, begin=split, end=None)
        return F.slice_axis(offset, axis=1, begin=0, end=split), F.sigmoid(factors) * 2


def _pair(value: Lengths) -> tuple[int, ...]:
    lengths = (value,) * 2 if isinstance(value, int) else tuple(value)
    if len(lengths) != 2:
        raise ValueError(f"DeformableConvolution: got {value!r}, expected one number or two")
    return lengths
