"""Convolutions that learn where to look."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from flowmx.gluon.hybrid import HybridBlock
from flowmx.gluon.nn import Activation

__all__ = ["DeformableConvolution", "ModulatedDeformableConvolution"]

Lengths = int | Sequence[int]


class DeformableConvolution(HybridBlock):
    """A convolution whose kernel's elements are moved by offsets, which another convolution computes.

    Dai et al., Deformable Convolutional Networks, ICCV 2017.

    Args:
        channels: the number of output channels.
        kernel_size: the lengths of both kernels, one number or two.
        strides: the steps.
        padding: zeros added at each side.
        dilation: the distance of the kernels' elements.
        groups: into how many groups the channels are split.
        num_deformable_group: the number of groups of channels with offsets of their own.
        layout: only ``"NCHW"``.
        use_bias: add a bias.
        in_channels: the number of input channels (default: seen at the first call).
        activation: the name of an activation, or None.
        weight_initializer: of the weight.
        bias_initializer: of the bias.
        offset_weight_initializer: of the weight of the convolution that computes offsets.
        offset_bias_initializer: of its bias.
        offset_use_bias: add a bias to it.
        op_name: kept for MXNet's scripts.
        adj: kept likewise.
        prefix: as for ``Block``.
        params: as for ``Block``.

    Raises:
        ValueError: another layout.
    """

    operator: ClassVar[str] = "DeformableConvolution"
    per_element: ClassVar[int] = 2
    """Numbers that are computed for each element of the kernel."""

    def __init__(
        self, channels: int, kernel_size: Lengths = (1, 1), strides: Lengths = (1, 1), padding: Lengths = (0, 0),
        dilation: Lengths = (1, 1), groups: int = 1, num_deformable_group: int = 1, layout: str = "NCHW",
        use_bias: bool = True, in_channels: int = 0, activation: str | None = None, weight_initializer: Any = None,
        bias_initializer: Any = "zeros", offset_weight_initializer: Any = "zeros",
        offset_bias_initializer: Any = "zeros", offset_use_bias: bool = True, op_name: str | None = None,
        adj: Any = None, prefix: str | None = None, params: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(prefix=prefix, params=params)
        if layout != "NCHW":
            raise ValueError(f"{type(self).__name__}: layout is {layout!r}, expected 'NCHW'")
        kernel = _pair(kernel_size)
        self._elements = num_deformable_group * kernel[0] * kernel[1]
        given = {
            "kernel": kernel, "stride": _pair(strides), "dilate": _pair(dilation), "pad": _pair(padding),
            "num_group": groups, "layout": layout,
        }  # fmt: skip
        offsets = self.per_element * self._elements
        self._kwargs_offset = {**given, "num_filter": offsets, "no_bias": not offset_use_bias}
        self._kwargs = {
            **given, "num_filter": channels, "no_bias": not use_bias, "num_deformable_group": num_deformable_group
        }  # fmt: skip
        inputs = in_channels // groups

        def get(name: str, shape: tuple[int, ...], init: Any) -> Any:
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
        self, F: Any, x: Any, offset_weight: Any, deformable_conv_weight: Any, offset_bias: Any = None,
        deformable_conv_bias: Any = None,
    ) -> Any:  # fmt: skip
        offset = F.Convolution(x, offset_weight, offset_bias, **self._kwargs_offset)
        operator = getattr(F.contrib, self.operator)
        moved = self._moves(F, offset)
        out = operator(x, *moved, deformable_conv_weight, deformable_conv_bias, name="fwd", **self._kwargs)
        return out if self.act is None else self.act(out)

    def _moves(self, F: Any, offset: Any) -> tuple[Any, ...]:
        return (offset,)

    def __repr__(self) -> str:
        shape, given = self.deformable_conv_weight.shape or (0, 0), self._kwargs
        parts = [f"{shape[1] or None} -> {shape[0]}", f"kernel_size={given['kernel']}", f"stride={given['stride']}"]
        parts += [f"padding={given['pad']}"] if given["pad"] != (0, 0) else []
        parts += [f"dilation={given['dilate']}"] if given["dilate"] != (1, 1) else []
        parts += [f"groups={given['num_group']}"] if given["num_group"] != 1 else []
        parts += ["bias=False"] if self.deformable_conv_bias is None else []
        parts += [repr(self.act)] if self.act is not None else []
        return f"{type(self).__name__}({', '.join(parts)})"


class ModulatedDeformableConvolution(DeformableConvolution):
    """A :class:`DeformableConvolution` whose elements also have computed factors between 0 and 2.

    Zhu et al., Deformable ConvNets v2, CVPR 2019. The arguments are those of DeformableConvolution.
    """

    operator = "ModulatedDeformableConvolution"
    per_element = 3

    def _alias(self) -> str:
        return "modulated_deformable_conv"

    def _moves(self, F: Any, offset: Any) -> tuple[Any, ...]:
        split = 2 * self._elements
        factors = F.slice_axis(offset, axis=1, begin=split, end=None)
        return F.slice_axis(offset, axis=1, begin=0, end=split), F.sigmoid(factors) * 2


def _pair(value: Lengths) -> tuple[int, ...]:
    made = (value,) * 2 if isinstance(value, int) else tuple(value)
    if len(made) != 2:
        raise ValueError(f"DeformableConvolution: {value!r} was given, expected one number or two")
    return made
