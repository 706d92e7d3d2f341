"""The table of Gluon layers: for each, a function from random choices and the shape of a sample to a call.

A function returns None if the layer does not accept samples with that number of axes. If ``keep`` is true the shape
must not change. Only calls that the layers' documentation allows are drawn, so every failure is a fault.
"""

import random
from math import prod
from typing import Any

from tests.modes.network import Layer, layer

ACTIVATIONS = ("relu", "sigmoid", "tanh", "softrelu", "softsign")
CHANNELS_FIRST = {1: "NCW", 2: "NCHW", 3: "NCDHW"}
CHANNELS_LAST = {1: "NWC", 2: "NHWC", 3: "NDHWC"}
LARGE = 512
"""The number of elements of a sample beyond which layers do not enlarge it."""


class Draw(random.Random):
    """Random choices."""

    def often(self, probability):
        """Return True with this probability."""
        return self.random() < probability

    def maybe(self, *values, often=0.5):
        """Draw one of the values, or None."""
        return self.choice(values) if self.often(often) else None

    def divisor(self, number, least=1, most=8):
        """Draw a divisor of a number from ``least`` to ``most``, or 1 if none exists."""
        return self.choice([each for each in range(least, most + 1) if number % each == 0] or [1])

    def axis(self, shape):
        """Draw an axis of a batch after the first, counted from the front or from the end."""
        at = self.randrange(len(shape)) + 1
        return at if self.often(0.7) else at - len(shape) - 1


LAYERS: dict[str, Any] = {}


def drawn(name, *ranks):
    """Register a function in the table, for samples with these numbers of axes (default: any)."""

    def put(function):
        LAYERS[name] = lambda d, shape, keep=False: (
            function(d, shape, keep) if not ranks or len(shape) in ranks else None
        )
        return function

    return put


# -- products ---------------------------------------------------------------------------------------------


@drawn("nn.Dense")
def dense(d, shape, keep):
    flatten = len(shape) == 1 if keep else d.often(0.4)
    return layer(
        "nn.Dense", units=shape[-1] if keep else d.choice([1, 2, 3, 5, 8, 16, 20]), activation=d.maybe(*ACTIVATIONS),
        use_bias=d.maybe(False, often=0.3), flatten=None if flatten else False,
        in_units=d.maybe(prod(shape) if flatten else shape[-1], often=0.2),
    )  # fmt: skip


# -- convolutions -----------------------------------------------------------------------------------------


def window(d, length, transposed=False, dilate=True, large=False):
    """Draw the window parameters along an axis."""
    while True:
        dilation = d.choice([1, 1, 2]) if dilate else 1
        kernel, stride, pad = d.choice([1, 2, 3, 3]), d.choice([1, 1, 1, 2, 3]), d.choice([0, 0, 1, 2])
        span = dilation * (kernel - 1) + 1
        call = {"kernel_size": kernel, "strides": stride, "padding": pad, "dilation": dilation}
        if not transposed and span <= length + 2 * pad and pad <= span:
            return call
        if transposed:
            call["output_padding"] = d.randrange(stride)
            out = stride * (length - 1) + span - 2 * pad + call["output_padding"]
            if 1 <= out <= (length if large else 3 * length + 2):
                return call


def windows(d, lengths, **how):
    """Draw the window parameters along several axes: numbers for all of them, or one for each."""
    if d.often(0.5):
        return window(d, min(lengths), **how)
    each = [window(d, length, **how) for length in lengths]
    return {key: tuple(one[key] for one in each) for key in each[0]}


def besides(options, **defaults):
    """Return arguments without defaults."""
    return {key: value for key, value in options.items() if value != defaults.get(key, object())}


def convolution(name, axes, transposed=False):
    def function(d, shape, keep):
        groups = d.divisor(shape[0], least=2) if d.often(0.4) else 1
        wide = prod(shape) >= LARGE
        channels = shape[0] if keep else groups * d.choice([1] if wide else [1, 2, 3, 4, 8])
        if keep:
            kernel, dilation = d.choice([1, 3]), d.choice([1, 1, 2])
            options = {"kernel_size": kernel, "padding": dilation * (kernel - 1) // 2, "dilation": dilation}
        else:
            options = windows(d, shape[1:], transposed=transposed, **({"large": wide} if transposed else {}))
        return layer(
            name, channels=channels, **besides(options, strides=1, padding=0, dilation=1, output_padding=0),
            groups=groups if groups > 1 else None, layout=d.maybe(CHANNELS_FIRST[axes], often=0.1),
            activation=d.maybe(*ACTIVATIONS, often=0.3), use_bias=d.maybe(False, often=0.3),
            in_channels=d.maybe(shape[0], often=0.2),
        )  # fmt: skip

    drawn(name, axes + 1)(function)


for number in (1, 2, 3):
    convolution(f"nn.Conv{number}D", number)
    convolution(f"nn.Conv{number}DTranspose", number, transposed=True)


def deformable(name):
    def function(d, shape, keep):
        kernel = d.choice([1, 3])
        options = {"kernel_size": kernel, "padding": kernel // 2} if keep else windows(d, shape[1:])
        groups = 2 if shape[0] % 2 == 0 and _area(options["kernel_size"]) % 2 == 0 and d.often(0.3) else 1
        own = d.divisor(shape[0], most=2)
        channels = shape[0] if keep else groups * d.choice([1, 2, 3])
        return layer(
            name, channels=channels, **besides(options, kernel_size=1, strides=1, padding=0, dilation=1),
            groups=groups if groups > 1 and channels % groups == 0 else None,
            num_deformable_group=own if own > 1 else None, use_bias=d.maybe(False, often=0.3),
            activation=d.maybe(*ACTIVATIONS, often=0.3), offset_use_bias=d.maybe(False, often=0.3),
        )  # fmt: skip

    drawn(name, 3)(function)


def _area(kernel):
    return kernel * kernel if isinstance(kernel, int) else prod(kernel)


deformable("contrib.cnn.DeformableConvolution")
deformable("contrib.cnn.ModulatedDeformableConvolution")


# -- pooling ----------------------------------------------------------------------------------------------


def pooled(length, kernel, stride, pad, ceil):
    """Return whether every window of a pooling contains an element."""
    last = (length + 2 * pad - kernel) // stride
    if ceil:
        last = -(-(length + 2 * pad - kernel) // stride)
    return last >= 0 and last * stride < length + pad and pad < kernel


def pooling(name, axes, mean):
    def function(d, shape, keep):
        last = d.often(0.2)
        lengths = shape[:-1] if last else shape[1:]
        layout = CHANNELS_LAST[axes] if last else d.maybe(CHANNELS_FIRST[axes], often=0.1)
        more = {"count_include_pad": d.maybe(False)} if mean else {}
        if keep:
            return layer(name, pool_size=3, strides=1, padding=1, layout=layout, **more)
        while True:
            ceil = d.often(0.3)
            options = windows(d, lengths, dilate=False)
            size, stride, pad = (_all(options[key], axes) for key in ("kernel_size", "strides", "padding"))
            if d.often(0.2):
                stride = size
            if all(pooled(*each, ceil) for each in zip(lengths, size, stride, pad, strict=True)):
                break
        return layer(
            name, pool_size=_one(size), strides=None if stride == size else _one(stride),
            padding=_one(pad) or None, ceil_mode=ceil or None, layout=layout, **more,
        )  # fmt: skip

    drawn(name, axes + 1)(function)


def _all(value, axes):
    return (value,) * axes if isinstance(value, int) else value


def _one(values):
    return values[0] if len(set(values)) == 1 else values


for number in (1, 2, 3):
    pooling(f"nn.MaxPool{number}D", number, mean=False)
    pooling(f"nn.AvgPool{number}D", number, mean=True)
    for kind in ("Max", "Avg"):
        drawn(f"nn.Global{kind}Pool{number}D", number + 1)(
            lambda d, shape, keep, name=f"nn.Global{kind}Pool{number}D", axes=number: (
                None if keep else layer(name, layout=d.maybe(CHANNELS_FIRST[axes], CHANNELS_LAST[axes], often=0.3))
            )
        )


# -- normalization ----------------------------------------------------------------------------------------


def statistics(d):
    """Draw arguments of layers with running averages."""
    return {
        "momentum": d.maybe(0.5, 0.99, often=0.3), "epsilon": d.maybe(1e-3, 1e-2, often=0.3),
        "center": d.maybe(False, often=0.2), "scale": d.maybe(False, often=0.2),
        "use_global_stats": d.maybe(True, often=0.15),
    }  # fmt: skip


for kind in ("BatchNorm", "BatchNormReLU"):

    @drawn(f"nn.{kind}")
    def batch_norm(d, shape, keep, name=f"nn.{kind}"):
        axis = d.axis(shape) if d.often(0.3) else 1
        channels = shape[axis - 1 if axis > 0 else axis]
        return layer(
            name, axis=axis if axis != 1 else None, **statistics(d), in_channels=d.maybe(channels, often=0.2)
        )  # fmt: skip


@drawn("contrib.nn.SyncBatchNorm")
def sync_batch_norm(d, shape, keep):
    return layer("contrib.nn.SyncBatchNorm", **statistics(d), in_channels=d.maybe(shape[0], often=0.2))


# Two numbers alone become -1 and 1, and have no gradient but rounding: nothing is normalized over two.


@drawn("nn.LayerNorm")
def layer_norm(d, shape, keep):
    axis = d.axis(shape) if d.often(0.4) else -1
    return None if shape[axis - 1 if axis > 0 else axis] == 2 else layer(
        "nn.LayerNorm", axis=axis if axis != -1 else None, epsilon=d.maybe(1e-3, often=0.3),
        center=d.maybe(False, often=0.2), scale=d.maybe(False, often=0.2),
    )  # fmt: skip


@drawn("nn.RMSNorm")
def rms_norm(d, shape, keep):
    axis = d.axis(shape) if d.often(0.4) else -1
    return None if shape[axis - 1 if axis > 0 else axis] == 1 else layer(
        "nn.RMSNorm", axis=axis if axis != -1 else None, epsilon=d.maybe(1e-3, often=0.3),
        scale=d.maybe(False, often=0.2),
    )  # fmt: skip


@drawn("nn.InstanceNorm", 2, 3, 4)
def instance_norm(d, shape, keep):
    axis = d.randrange(len(shape)) + 1 if d.often(0.3) else 1
    return None if prod(shape) == 2 * shape[axis - 1] else layer(
        "nn.InstanceNorm", axis=axis if axis != 1 else None, epsilon=d.maybe(1e-3, often=0.5),
        center=d.maybe(False, often=0.2), scale=d.maybe(True, often=0.6),
    )  # fmt: skip


@drawn("nn.GroupNorm", 2, 3, 4)
def group_norm(d, shape, keep):
    groups = d.divisor(shape[0])
    return None if prod(shape) == 2 * groups else layer(
        "nn.GroupNorm", num_groups=groups if groups > 1 else None, epsilon=d.maybe(1e-3, often=0.3),
        center=d.maybe(False, often=0.2), scale=d.maybe(False, often=0.2),
    )  # fmt: skip


# -- activations, and what moves elements -----------------------------------------------------------------

drawn("nn.Activation")(lambda d, shape, keep: layer("nn.Activation", activation=d.choice(ACTIVATIONS)))
drawn("nn.LeakyReLU")(lambda d, shape, keep: layer("nn.LeakyReLU", alpha=d.choice([0.0, 0.1, 1.5])))
drawn("nn.PReLU")(lambda d, shape, keep: layer("nn.PReLU", in_channels=d.maybe(shape[0])))
drawn("nn.ELU")(lambda d, shape, keep: layer("nn.ELU", alpha=d.maybe(0.5)))
drawn("nn.SELU")(lambda d, shape, keep: layer("nn.SELU"))
drawn("nn.GELU")(lambda d, shape, keep: layer("nn.GELU", approximation=d.maybe("tanh")))
drawn("nn.SiLU")(lambda d, shape, keep: layer("nn.SiLU"))
drawn("nn.Swish")(lambda d, shape, keep: layer("nn.Swish", beta=d.maybe(0.7)))
drawn("nn.Flatten")(lambda d, shape, keep: None if keep and len(shape) > 1 else layer("nn.Flatten"))
drawn("contrib.nn.Identity")(lambda d, shape, keep: layer("contrib.nn.Identity"))
drawn("nn.Dropout")(
    lambda d, shape, keep: layer(
        "nn.Dropout", rate=d.choice([0, 0.3, 0.5]), axes=(d.randrange(len(shape)) + 1,) if d.often(0.3) else None
    )
)


@drawn("nn.MultiHeadAttention", 2)
def attention(d, shape, keep):
    heads = d.choice([1, 2, 3])
    units = shape[1] if keep else heads * d.choice([2, 4])
    return None if units % heads or prod(shape) > LARGE else layer(
        "nn.MultiHeadAttention", units=units, num_heads=heads, use_bias=d.maybe(False, often=0.3),
        causal=True if (near := d.often(0.3)) else d.maybe(True), window=2 if near else None,
        rotary=True if units // heads % 2 == 0 and d.often(0.3) else None,
        num_key_heads=1 if d.often(0.3) else None, score_cap=2.0 if d.often(0.2) else None,
        norm_epsilon=1e-5 if d.often(0.2) else None,
    )  # fmt: skip


for kind in ("TransformerEncoderLayer", "TransformerEncoder"):

    @drawn(f"nn.{kind}", 2)
    def encoder(d, shape, keep, name=f"nn.{kind}"):
        heads = d.choice([1, 2])
        return None if shape[1] % heads or shape[1] < 3 or prod(shape) > LARGE else layer(
            name, **({"num_layers": d.choice([1, 2])} if name == "nn.TransformerEncoder" else {}), units=shape[1],
            num_heads=heads, hidden_units=d.choice([3, 8]), dropout=0.0, pre_norm=d.maybe(True), causal=d.maybe(True),
            activation=d.maybe("gelu", "gelu_tanh", "silu", "glu", "swiglu", "geglu"), norm=d.maybe("rms", often=0.3),
            use_bias=d.maybe(False, often=0.3),
        )  # fmt: skip


@drawn("nn.LearnedPositions", 2)
def learned_positions(d, shape, keep):
    return layer("nn.LearnedPositions", max_length=shape[0] + d.choice([0, 2]), units=shape[1])


@drawn("nn.RotaryPositions", 2)
def rotary_positions(d, shape, keep):
    return None if shape[1] % 2 else layer(
        "nn.RotaryPositions", size=shape[1], base=d.maybe(100.0), interleaved=d.maybe(True),
        scaling=d.maybe({"rope_type": "linear", "factor": 2.0}, often=0.3),
    )  # fmt: skip


for kind in ("GLU", "SwiGLU", "GEGLU"):

    @drawn(f"nn.{kind}")
    def gated(d, shape, keep, name=f"nn.{kind}"):
        axes = [axis for axis, length in enumerate(shape, 1) if length % 2 == 0]
        return None if keep or not axes else layer(name, axis=d.choice(axes))


@drawn("nn.ReflectionPad2D", 3)
def reflection_pad(d, shape, keep):
    if keep or min(shape[1:]) < 2 or prod(shape) > LARGE:
        return None
    if d.often(0.5):
        return layer("nn.ReflectionPad2D", padding=1)
    top, bottom, left, right = (d.randrange(0, min(3, length)) for length in (*shape[1:2] * 2, *shape[2:] * 2))
    return layer("nn.ReflectionPad2D", padding=(0, 0, 0, 0, top, bottom, left, right))


for number in (1, 2, 3):

    @drawn(f"contrib.nn.PixelShuffle{number}D", number + 1)
    def pixel_shuffle(d, shape, keep, name=f"contrib.nn.PixelShuffle{number}D", axes=number):
        factors = [tuple(d.choice([1, 2, 3]) for _ in range(axes)) for _ in range(8)]
        fitting = [each for each in factors if shape[0] % prod(each) == 0]
        return None if keep or not fitting else layer(name, factor=_one(fitting[0]))


def is_a(call, *names):
    """Return whether a call, or one inside it, creates one of these layers."""
    return any(each.name in names for each in call.walk()) if isinstance(call, Layer) else False
