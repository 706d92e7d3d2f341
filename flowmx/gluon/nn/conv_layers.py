"""Convolutions and pooling over one, two or three axes.

Kernel sizes, strides and padding are one number for all axes, or one per axis. ``_Conv`` documents the arguments of
convolutions. Pooling layers take ``pool_size``, ``strides`` (None: the size), ``padding``, ``layout``,
``ceil_mode`` (whether a last window may extend beyond the end), and average pooling also ``count_include_pad``.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import FunctionType
from typing import Any, ClassVar, Unpack

from flowmx import symbol as sym
from flowmx.gluon.hybrid import Layer
from flowmx.gluon.nn.activations import Activation
from flowmx.gluon.parameter_dict import ParameterDict
from flowmx.gluon.scope import BlockOptions
from flowmx.initializer import InitializerLike
from flowmx.ops.registry.tensors import Functions, Tensor

__all__ = [
    "AvgPool1D", "AvgPool2D", "AvgPool3D", "Conv1D", "Conv1DTranspose", "Conv2D", "Conv2DTranspose", "Conv3D",
    "Conv3DTranspose", "GlobalAvgPool1D", "GlobalAvgPool2D", "GlobalAvgPool3D", "GlobalMaxPool1D", "GlobalMaxPool2D",
    "GlobalMaxPool3D", "MaxPool1D", "MaxPool2D", "MaxPool3D", "ReflectionPad2D",
]  # fmt: skip

Lengths = int | Sequence[int]


class _Spatial(Layer):
    """A layer that works along one, two or three axes of its input."""

    axes: ClassVar[int]
    layouts: ClassVar[tuple[str, ...]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Name the class that is called, instead of its private base class, in errors about missing arguments."""
        super().__init_subclass__(**kwargs)
        inherited = cls.__init__
        if "__init__" not in vars(cls) and isinstance(inherited, FunctionType):
            function = FunctionType(
                inherited.__code__, inherited.__globals__, "__init__", inherited.__defaults__, inherited.__closure__
            )
            function.__kwdefaults__, function.__doc__ = inherited.__kwdefaults__, inherited.__doc__
            function.__annotations__ = inherited.__annotations__
            function.__qualname__ = f"{cls.__qualname__}.__init__"
            cls.__init__ = function  # type: ignore[method-assign]

    def _lengths(self, name: str, value: Any) -> tuple[int, ...]:
        """Return a number for each axis."""
        lengths = (value,) * self.axes if isinstance(value, int) else tuple(value)
        if len(lengths) != self.axes or isinstance(value, str):
            hint = "; for a kernel of odd size k, padding=k // 2 keeps the size" if value == "same" else ""
            raise ValueError(
                f"{type(self).__name__}: {name} is {value!r}, expected a number or {self.axes} of them{hint}"
            )
        return lengths

    def _layout(self, layout: str | None) -> str:
        if layout is None:
            return self.layouts[0]
        if layout not in self.layouts:
            raise ValueError(f"{type(self).__name__}: layout is {layout!r}, expected {' or '.join(self.layouts)}")
        return layout


class _Conv(_Spatial):
    """A convolution, or its transpose.

    Args:
        channels: the number of output channels.
        kernel_size: the lengths of the kernel, one number or one per axis.
        strides: the step of the kernel along each axis.
        padding: zeros added at each side.
        dilation: the distance between the kernel's elements.
        groups: the number of groups of channels.
        layout: the order of the axes. If the channels are last, they are last in the weight too, and the layer
            transposes inputs, weights and outputs.
        activation: the name of an activation, or None.
        use_bias: add a bias.
        weight_initializer: the initializer of the weight.
        bias_initializer: the initializer of the bias.
        in_channels: the number of input channels (default: inferred at the first call).
        prefix: as for ``Block``.
        params: as for ``Block``.

    Raises:
        ValueError: the layout or the number of lengths is invalid.
    """

    op_name = "Convolution"

    def __init__(
        self, channels: int, kernel_size: Lengths, strides: Lengths = 1, padding: Lengths = 0, dilation: Lengths = 1,
        groups: int = 1, layout: str | None = None, activation: str | None = None, use_bias: bool = True,
        weight_initializer: InitializerLike = None, bias_initializer: InitializerLike = "zeros", in_channels: int = 0,
        prefix: str | None = None, params: ParameterDict | None = None, adj: Lengths | None = None,
    ) -> None:  # fmt: skip
        super().__init__(prefix=prefix, params=params)
        layout = self._layout(layout)
        self._kwargs: dict[str, Any] = {
            "kernel": self._lengths("kernel_size", kernel_size), "stride": self._lengths("strides", strides),
            "dilate": self._lengths("dilation", dilation), "pad": self._lengths("padding", padding),
            "num_filter": channels, "num_group": groups, "no_bias": not use_bias, "layout": self.layouts[0],
        }  # fmt: skip
        if adj is not None:
            self._kwargs["adj"] = self._lengths("output_padding", adj)
        self._is_channels_last = layout.endswith("C")
        data = sym.var("data", shape=(1, in_channels, *self.axes * (0,)))
        symbol = getattr(sym, self.op_name)(data, **self._kwargs)
        _, weight, *shapes = symbol.infer_shape_partial()[0]
        if self._is_channels_last:
            weight = (weight[0], *weight[2:], weight[1])
        with self.name_scope():
            self.weight = self.params.get("weight", shape=weight, init=weight_initializer, allow_deferred_init=True)
            self.bias = self.params.get(
                "bias", shape=shapes[0], init=bias_initializer, allow_deferred_init=True
            ) if use_bias else None  # fmt: skip
            self.act = None if activation is None else Activation(activation, prefix=f"{activation}_")

    def _alias(self) -> str:
        return "conv"

    def hybrid_forward(self, F: Functions, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        compute = getattr(F, self.op_name)
        if self._is_channels_last:
            last = self.axes + 1
            x, weight = (F.transpose(array, axes=(0, last, *range(1, last))) for array in (x, weight))
            out = F.transpose(compute(x, weight, bias, name="fwd", **self._kwargs), axes=(0, *range(2, last + 1), 1))
        else:
            out = compute(x, weight, bias, name="fwd", **self._kwargs)
        return out if self.act is None else self.act(out)

    def __repr__(self) -> str:
        shape = self.weight.shape or (0, 0)
        options = self._kwargs
        parts = [
            f"{shape[-1 if self._is_channels_last else 1] or None} -> {shape[0]}",
            f"kernel_size={options['kernel']}",
            f"stride={options['stride']}",
        ]
        parts += [f"padding={options['pad']}"] if any(options["pad"]) else []
        parts += [f"dilation={options['dilate']}"] if set(options["dilate"]) != {1} else []
        parts += [f"groups={options['num_group']}"] if options["num_group"] != 1 else []
        parts += ["bias=False"] if self.bias is None else []
        parts += [repr(self.act)] if self.act is not None else []
        return f"{type(self).__name__}({', '.join(parts)})"


class _ConvTranspose(_Conv):
    op_name = "Deconvolution"

    def __init__(
        self, channels: int, kernel_size: Lengths, strides: Lengths = 1, padding: Lengths = 0,
        output_padding: Lengths = 0, dilation: Lengths = 1, groups: int = 1, layout: str | None = None,
        activation: str | None = None, use_bias: bool = True, weight_initializer: InitializerLike = None,
        bias_initializer: InitializerLike = "zeros", in_channels: int = 0, **kwargs: Unpack[BlockOptions],
    ) -> None:  # fmt: skip
        super().__init__(
            channels, kernel_size, strides, padding, dilation, groups, layout, activation, use_bias,
            weight_initializer, bias_initializer, in_channels, adj=output_padding, **kwargs,
        )  # fmt: skip
        self.outpad = self._kwargs["adj"]


class Conv1D(_Conv):
    """A convolution over one axis."""

    axes, layouts = 1, ("NCW",)


class Conv2D(_Conv):
    """A convolution over two axes: images."""

    axes, layouts = 2, ("NCHW", "NHWC")


class Conv3D(_Conv):
    """A convolution over three axes: volumes, videos."""

    axes, layouts = 3, ("NCDHW", "NDHWC")


class Conv1DTranspose(_ConvTranspose):
    """A transposed convolution over one axis."""

    axes, layouts = 1, ("NCW",)


class Conv2DTranspose(_ConvTranspose):
    """A transposed convolution over two axes."""

    axes, layouts = 2, ("NCHW", "NHWC")


class Conv3DTranspose(_ConvTranspose):
    """A transposed convolution over three axes."""

    axes, layouts = 3, ("NCDHW", "NDHWC")


class _Pooling(_Spatial):
    """A pooling layer; ``extra`` are additional parameters of the operator."""

    pool_type: ClassVar[str]

    def _pool(
        self, size: Lengths, strides: Lengths | None, padding: Lengths, layout: str | None, ceil_mode: bool,
        is_global: bool = False, **extra: Any,
    ) -> None:  # fmt: skip
        kernel = self._lengths("pool_size", size)
        self._kwargs: dict[str, Any] = {
            "kernel": kernel, "stride": kernel if strides is None else self._lengths("strides", strides),
            "pad": self._lengths("padding", padding), "global_pool": is_global, "pool_type": self.pool_type,
            "layout": self._layout(layout), "pooling_convention": "full" if ceil_mode else "valid", **extra,
        }  # fmt: skip

    def _alias(self) -> str:
        return "pool"

    def hybrid_forward(self, F: Functions, x: Tensor) -> Tensor:
        return F.Pooling(x, name="fwd", **self._kwargs)

    def __repr__(self) -> str:
        options = self._kwargs
        return (
            f"{type(self).__name__}(size={options['kernel']}, stride={options['stride']}, padding={options['pad']}, "
            f"ceil_mode={options['pooling_convention'] == 'full'}, global_pool={options['global_pool']}, "
            f"pool_type={options['pool_type']}, layout={options['layout']})"
        )


class _MaxPool(_Pooling):
    pool_type = "max"

    def __init__(
        self, pool_size: Lengths = 2, strides: Lengths | None = None, padding: Lengths = 0, layout: str | None = None,
        ceil_mode: bool = False, **kwargs: Unpack[BlockOptions],
    ) -> None:  # fmt: skip
        super().__init__(**kwargs)
        self._pool(pool_size, strides, padding, layout, ceil_mode)


class _AvgPool(_Pooling):
    pool_type = "avg"

    def __init__(
        self, pool_size: Lengths = 2, strides: Lengths | None = None, padding: Lengths = 0, ceil_mode: bool = False,
        layout: str | None = None, count_include_pad: bool = True, **kwargs: Unpack[BlockOptions],
    ) -> None:  # fmt: skip
        super().__init__(**kwargs)
        self._pool(pool_size, strides, padding, layout, ceil_mode, count_include_pad=count_include_pad)


class _GlobalPool(_Pooling):
    def __init__(self, layout: str | None = None, **kwargs: Unpack[BlockOptions]) -> None:
        super().__init__(**kwargs)
        self._pool(1, None, 0, layout, ceil_mode=True, is_global=True)


class MaxPool1D(_MaxPool):
    """The maximum of windows along one axis."""

    axes, layouts = 1, ("NCW", "NWC")


class MaxPool2D(_MaxPool):
    """The maximum of windows along two axes."""

    axes, layouts = 2, ("NCHW", "NHWC")


class MaxPool3D(_MaxPool):
    """The maximum of windows along three axes."""

    axes, layouts = 3, ("NCDHW", "NDHWC")

    def __init__(
        self, pool_size: Lengths = 2, strides: Lengths | None = None, padding: Lengths = 0, ceil_mode: bool = False,
        layout: str | None = None, **kwargs: Unpack[BlockOptions],
    ) -> None:  # fmt: skip
        # MXNet swaps the last two arguments here.
        super().__init__(pool_size, strides, padding, layout, ceil_mode, **kwargs)


class AvgPool1D(_AvgPool):
    """The mean of windows along one axis."""

    axes, layouts = 1, ("NCW", "NWC")

    def __init__(
        self, pool_size: Lengths = 2, strides: Lengths | None = None, padding: Lengths = 0, layout: str | None = None,
        ceil_mode: bool = False, count_include_pad: bool = True, **kwargs: Unpack[BlockOptions],
    ) -> None:  # fmt: skip
        super().__init__(pool_size, strides, padding, ceil_mode, layout, count_include_pad, **kwargs)


class AvgPool2D(_AvgPool):
    """The mean of windows along two axes."""

    axes, layouts = 2, ("NCHW", "NHWC")


class AvgPool3D(_AvgPool):
    """The mean of windows along three axes."""

    axes, layouts = 3, ("NCDHW", "NDHWC")


class GlobalMaxPool1D(_GlobalPool):
    """The maximum along one axis."""

    axes, layouts, pool_type = 1, ("NCW", "NWC"), "max"


class GlobalMaxPool2D(_GlobalPool):
    """The maximum along two axes."""

    axes, layouts, pool_type = 2, ("NCHW", "NHWC"), "max"


class GlobalMaxPool3D(_GlobalPool):
    """The maximum along three axes."""

    axes, layouts, pool_type = 3, ("NCDHW", "NDHWC"), "max"


class GlobalAvgPool1D(_GlobalPool):
    """The mean along one axis."""

    axes, layouts, pool_type = 1, ("NCW", "NWC"), "avg"


class GlobalAvgPool2D(_GlobalPool):
    """The mean along two axes."""

    axes, layouts, pool_type = 2, ("NCHW", "NHWC"), "avg"


class GlobalAvgPool3D(_GlobalPool):
    """The mean along three axes."""

    axes, layouts, pool_type = 3, ("NCDHW", "NDHWC"), "avg"


class ReflectionPad2D(Layer):
    """Pads images (batch, channels, height, width) by reflection.

    Args:
        padding: the number of elements added at each side, or eight numbers: before and after, for each axis.
        **kwargs: ``prefix`` and ``params``.

    Raises:
        ValueError: ``padding`` is neither one number nor eight.
    """

    def __init__(self, padding: int | tuple[int, ...] = 0, **kwargs: Unpack[BlockOptions]) -> None:
        super().__init__(**kwargs)
        if isinstance(padding, int):
            padding = (0, 0, 0, 0, padding, padding, padding, padding)
        if len(padding) != 8:
            raise ValueError(f"ReflectionPad2D: padding is {padding}, expected one number or eight")
        self._padding = padding

    def hybrid_forward(self, F: Functions, x: Tensor) -> Tensor:
        return F.pad(x, mode="reflect", pad_width=self._padding)
