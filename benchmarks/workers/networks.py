"""Image networks, once as symbols (flowmx, MXNet) and once as PyTorch modules; and a Transformer as a symbol.

A network is a list of layers; a branch is a list inside a tuple, and the branches of a tuple are joined.
"""

from __future__ import annotations

from typing import Any


def conv(
    filters: int, kernel: Any, stride: int = 1, pad: Any = 0, relu: Any = True, norm: bool = False, groups: int = 1
) -> Any:
    """A convolution with its norm and activation; kernel and pad may be pairs; relu=6 clips at 6."""
    return ("conv", filters, kernel, stride, pad, relu, norm, groups)


def pair(value: Any) -> tuple[int, int]:
    """Return a number for each axis."""
    return value if isinstance(value, tuple) else (value, value)


def pool(kernel: int, stride: int, pad: int = 0, kind: str = "max", full: bool = False) -> Any:
    """A pooling layer."""
    return ("pool", kernel, stride, pad, kind, full)


def inception(a: int, b0: int, b: int, c0: int, c: int, d: int) -> Any:
    """A GoogLeNet block: four branches, joined along the channels."""
    return (
        "concat",
        [conv(a, 1)],
        [conv(b0, 1), conv(b, 3, pad=1)],
        [conv(c0, 1), conv(c, 5, pad=2)],
        [pool(3, 1, 1), conv(d, 1)],
    )


def inception_bn(a: int, b0: int, b: int, c0: int, c: int, kind: str, d: int) -> Any:
    """An Inception-BN block: four branches, of which the third has two 3x3 convolutions."""
    return (
        "concat",
        [conv(a, 1, norm=True)],
        [conv(b0, 1, norm=True), conv(b, 3, pad=1, norm=True)],
        [conv(c0, 1, norm=True), conv(c, 3, pad=1, norm=True), conv(c, 3, pad=1, norm=True)],
        [pool(3, 1, 1, kind), conv(d, 1, norm=True)],
    )


def inception_down(b0: int, b: int, c0: int, c: int) -> Any:
    """An Inception-BN block that halves the image."""
    return (
        "concat",
        [conv(b0, 1, norm=True), conv(b, 3, 2, 1, norm=True)],
        [conv(c0, 1, norm=True), conv(c, 3, pad=1, norm=True), conv(c, 3, 2, 1, norm=True)],
        [pool(3, 2, 1)],
    )


def bottleneck(filters: int, stride: int, project: bool) -> Any:
    """A ResNet-50 block."""
    body = [
        conv(filters, 1, norm=True), conv(filters, 3, stride, 1, norm=True),
        conv(4 * filters, 1, relu=False, norm=True),
    ]  # fmt: skip
    return ("add", body, [conv(4 * filters, 1, stride, relu=False, norm=True)] if project else [])


def residual(filters: int, stride: int, project: bool) -> Any:
    """A ResNet-18 block."""
    body = [conv(filters, 3, stride, 1, norm=True), conv(filters, 3, 1, 1, relu=False, norm=True)]
    return ("add", body, [conv(filters, 1, stride, relu=False, norm=True)] if project else [])


def inverted(inside: int, out: int, stride: int, wide: int, adds: bool) -> Any:
    """A MobileNetV2 block."""
    body = [
        *([] if wide == inside else [conv(wide, 1, relu=6, norm=True)]),
        conv(wide, 3, stride, 1, 6, True, wide), conv(out, 1, relu=False, norm=True),
    ]  # fmt: skip
    return [("sum", body, [])] if adds else body


def _mobilenet() -> list[Any]:
    layers, inside = [conv(32, 3, 2, 1, 6, True)], 32
    for times, out, count, stride in (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
    ):  # fmt: skip
        for number in range(count):
            layers += inverted(inside, out, 1 if number else stride, times * inside, number > 0)
            inside = out
    return [*layers, conv(1280, 1, relu=6, norm=True), pool(7, 1, kind="avg"), ("fc", 1000, False)]


def _normed(filters: int, kernel: Any, stride: int = 1, pad: Any = 0) -> Any:
    return conv(filters, kernel, stride, pad, norm=True)


def _inception_v3() -> list[Any]:
    def a(last: int) -> Any:
        return (
            "concat", [_normed(64, 1)], [_normed(48, 1), _normed(64, 5, pad=2)],
            [_normed(64, 1), _normed(96, 3, pad=1), _normed(96, 3, pad=1)],
            [pool(3, 1, 1, "avg"), _normed(last, 1)],
        )  # fmt: skip

    def c(width: int) -> Any:
        def flat(filters: int) -> Any:
            return _normed(filters, (1, 7), pad=(0, 3))

        def tall(filters: int) -> Any:
            return _normed(filters, (7, 1), pad=(3, 0))

        return (
            "concat", [_normed(192, 1)], [_normed(width, 1), flat(width), tall(192)],
            [
                _normed(width, 1), tall(width), flat(width), tall(width),
                flat(192),
            ],
            [pool(3, 1, 1, "avg"), _normed(192, 1)],
        )  # fmt: skip

    def e() -> Any:
        split = ("concat", [_normed(384, (1, 3), pad=(0, 1))], [_normed(384, (3, 1), pad=(1, 0))])
        return (
            "concat", [_normed(320, 1)], [_normed(384, 1), split], [_normed(448, 1), _normed(384, 3, pad=1), split],
            [pool(3, 1, 1, "avg"), _normed(192, 1)],
        )  # fmt: skip

    b = (
        "concat", [_normed(384, 3, 2)], [_normed(64, 1), _normed(96, 3, pad=1), _normed(96, 3, 2)], [pool(3, 2)],
    )  # fmt: skip
    d = (
        "concat", [_normed(192, 1), _normed(320, 3, 2)],
        [_normed(192, 1), _normed(192, (1, 7), pad=(0, 3)), _normed(192, (7, 1), pad=(3, 0)), _normed(192, 3, 2)],
        [pool(3, 2)],
    )  # fmt: skip
    return [
        _normed(32, 3, 2), _normed(32, 3), _normed(64, 3, pad=1), pool(3, 2), _normed(80, 1), _normed(192, 3),
        pool(3, 2), a(32), a(64), a(64), b, c(128), c(160), c(160), c(192), d, e(), e(), pool(8, 1, kind="avg"),
        ("fc", 1000, False),
    ]  # fmt: skip


def _vgg_16() -> list[Any]:
    layers: list[Any] = []
    for filters, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        layers += [*[conv(filters, 3, 1, 1)] * count, pool(2, 2)]
    return [*layers, ("fc", 4096, True), ("fc", 4096, True), ("fc", 1000, False)]


ALEXNET = [
    conv(64, 11, 4, 2), pool(3, 2), conv(192, 5, 1, 2), pool(3, 2), conv(384, 3, 1, 1), conv(256, 3, 1, 1),
    conv(256, 3, 1, 1), pool(3, 2), ("fc", 4096, True), ("fc", 4096, True), ("fc", 1000, False),
]  # fmt: skip
VGG_A = [
    conv(64, 3, 1, 1), pool(2, 2), conv(128, 3, 1, 1), pool(2, 2), conv(256, 3, 1, 1), conv(256, 3, 1, 1), pool(2, 2),
    conv(512, 3, 1, 1), conv(512, 3, 1, 1), pool(2, 2), conv(512, 3, 1, 1), conv(512, 3, 1, 1), pool(2, 2),
    ("fc", 4096, True), ("fc", 4096, True), ("fc", 1000, False),
]  # fmt: skip
GOOGLENET = [
    conv(64, 7, 2, 3), pool(3, 2, full=True), conv(64, 1), conv(192, 3, 1, 1), pool(3, 2, full=True),
    inception(64, 96, 128, 16, 32, 32), inception(128, 128, 192, 32, 96, 64), pool(3, 2, full=True),
    inception(192, 96, 208, 16, 48, 64), inception(160, 112, 224, 24, 64, 64), inception(128, 128, 256, 24, 64, 64),
    inception(112, 144, 288, 32, 64, 64), inception(256, 160, 320, 32, 128, 128), pool(3, 2, full=True),
    inception(256, 160, 320, 32, 128, 128), inception(384, 192, 384, 48, 128, 128), pool(7, 1, kind="avg"),
    ("fc", 1000, False),
]  # fmt: skip
RESNET_18 = [
    conv(64, 7, 2, 3, norm=True), pool(3, 2, 1),
    *(residual(f, s, s == 2) for f in (64, 128, 256, 512) for s in ((1 if f == 64 else 2), 1)),
    pool(7, 1, kind="avg"), ("fc", 1000, False),
]  # fmt: skip
RESNET_50 = [
    conv(64, 7, 2, 3, norm=True), pool(3, 2, 1),
    *(bottleneck(f, 2 if f > 64 and i == 0 else 1, i == 0)
      for f, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)) for i in range(blocks)),
    pool(7, 1, kind="avg"), ("fc", 1000, False),
]  # fmt: skip
INCEPTION_BN = [
    conv(64, 7, 2, 3, norm=True), pool(3, 2, full=True), conv(64, 1, norm=True), conv(192, 3, 1, 1, norm=True),
    pool(3, 2, full=True),
    inception_bn(64, 64, 64, 64, 96, "avg", 32), inception_bn(64, 64, 96, 64, 96, "avg", 64),
    inception_down(128, 160, 64, 96),
    inception_bn(224, 64, 96, 96, 128, "avg", 128), inception_bn(192, 96, 128, 96, 128, "avg", 128),
    inception_bn(160, 128, 160, 128, 160, "avg", 128), inception_bn(96, 128, 192, 160, 192, "avg", 128),
    inception_down(128, 192, 192, 256),
    inception_bn(352, 192, 320, 160, 224, "avg", 128), inception_bn(352, 192, 320, 192, 224, "max", 128),
    pool(7, 1, kind="avg"), ("fc", 1000, False),
]  # fmt: skip
NETWORKS: dict[str, list[Any]] = {
    "alexnet": ALEXNET, "googlenet": GOOGLENET, "vgg_a": VGG_A, "resnet_18": RESNET_18, "resnet_50": RESNET_50,
    "inception_bn": INCEPTION_BN,
}  # fmt: skip
LATER: dict[str, list[Any]] = {"vgg_16": _vgg_16(), "mobilenet_v2": _mobilenet(), "inception_v3": _inception_v3()}
"""Further networks that are measured in 16 bits; Inception-v3 takes images of 299."""


WIDTH, HEADS, BLOCKS, WORDS = 512, 8, 12, 1000
"""Sizes of the Transformer."""


def symbol(mx: Any, layers: list[Any]) -> Any:
    """Build the network as a symbol with a softmax, from ``mx.sym`` of flowmx or MXNet."""
    return mx.sym.SoftmaxOutput(_symbol(mx, mx.sym.Variable("data"), layers), name="softmax")


def _symbol(mx: Any, x: Any, layers: list[Any]) -> Any:
    for kind, *rest in layers:
        if kind == "conv":
            filters, kernel, stride, pad, relu, norm, groups = rest
            x = mx.sym.Convolution(
                x, num_filter=filters, kernel=pair(kernel), stride=pair(stride), pad=pair(pad), no_bias=norm,
                num_group=groups,
            )  # fmt: skip
            if norm:
                x = mx.sym.BatchNorm(x, fix_gamma=False, eps=1e-5)
            if relu == 6:
                x = mx.sym.clip(x, 0, 6)
            elif relu:
                x = mx.sym.Activation(x, act_type="relu")
        elif kind == "pool":
            kernel, stride, pad, type_, full = rest
            x = mx.sym.Pooling(
                x, kernel=(kernel, kernel), stride=(stride, stride), pad=(pad, pad), pool_type=type_,
                pooling_convention="full" if full else "valid",
            )  # fmt: skip
        elif kind == "fc":
            x = mx.sym.FullyConnected(x, num_hidden=rest[0])
            if rest[1]:
                x = mx.sym.Activation(x, act_type="relu")
        elif kind == "concat":
            x = mx.sym.Concat(*(_symbol(mx, x, branch) for branch in rest), dim=1)
        elif kind == "sum":
            x = _symbol(mx, x, rest[0]) + _symbol(mx, x, rest[1])
        else:
            x = mx.sym.Activation(_symbol(mx, x, rest[0]) + _symbol(mx, x, rest[1]), act_type="relu")
    return x


def transformer(mx: Any) -> Any:
    """A Transformer of pre-norm blocks on data (batch, tokens, WIDTH), with a classifier at each position."""
    F = mx.sym

    def linear(x: Any, name: str, units: int) -> Any:
        return F.FullyConnected(x, num_hidden=units, flatten=False, name=name)

    def norm(x: Any, name: str) -> Any:
        return F.LayerNorm(x, F.Variable(f"{name}_gamma"), F.Variable(f"{name}_beta"), name=name)

    def split_heads(x: Any) -> Any:
        x = F.transpose(F.Reshape(x, shape=(0, 0, HEADS, -1)), axes=(0, 2, 1, 3))
        return F.Reshape(x, shape=(-3, 0, 0))

    x = F.Variable("data")
    for at in range(BLOCKS):
        hidden = norm(x, f"norm{at}")
        query, key, value = (split_heads(linear(hidden, f"{name}{at}", WIDTH)) for name in ("query", "key", "value"))
        weights = F.softmax(F.batch_dot(query, key, transpose_b=True) * (WIDTH // HEADS) ** -0.5, axis=-1)
        mixed = F.Reshape(F.batch_dot(weights, value), shape=(-4, -1, HEADS, 0, 0))
        mixed = F.Reshape(F.transpose(mixed, axes=(0, 2, 1, 3)), shape=(0, 0, -3))
        x = x + linear(mixed, f"project{at}", WIDTH)
        hidden = F.LeakyReLU(linear(norm(x, f"inner_norm{at}"), f"up{at}", 4 * WIDTH), act_type="gelu")
        x = x + linear(hidden, f"down{at}", WIDTH)
    out = F.FullyConnected(x, num_hidden=WORDS, flatten=False, name="out")
    return F.SoftmaxOutput(out, F.Variable("softmax_label"), preserve_shape=True, name="softmax")


def module(torch: Any, layers: list[Any], size: int = 224) -> Any:
    """Build the network as a PyTorch module that returns logits."""
    nn = torch.nn

    class Join(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, how: str, branches: list[Any]) -> None:
            super().__init__()
            self.how, self.branches = how, nn.ModuleList(branches)

        def forward(self, x: Any) -> Any:
            outputs = [branch(x) for branch in self.branches]
            if self.how == "sum":
                return outputs[0] + outputs[1]
            return torch.cat(outputs, 1) if self.how == "concat" else torch.relu_(outputs[0] + outputs[1])

    def build(x: Any, layers: list[Any]) -> tuple[Any, Any]:
        modules: list[Any] = []

        def put(layer: Any, x: Any) -> Any:
            modules.append(layer)
            with torch.no_grad():
                return layer(x)

        for kind, *rest in layers:
            if kind == "conv":
                filters, kernel, stride, pad, relu, norm, groups = rest
                x = put(nn.Conv2d(x.shape[1], filters, kernel, stride, pad, bias=not norm, groups=groups), x)
                if norm:
                    x = put(nn.BatchNorm2d(filters), x)
                if relu:
                    x = put(nn.ReLU6(inplace=True) if relu == 6 else nn.ReLU(inplace=True), x)
            elif kind == "pool":
                kernel, stride, pad, type_, full = rest
                x = put(
                    nn.MaxPool2d(kernel, stride, pad, ceil_mode=full)
                    if type_ == "max"
                    else nn.AvgPool2d(kernel, stride, pad, ceil_mode=full),
                    x,
                )
            elif kind == "fc":
                if x.dim() > 2:
                    x = put(nn.Flatten(), x)
                x = put(nn.Linear(x.shape[1], rest[0]), x)
                if rest[1]:
                    x = put(nn.ReLU(inplace=True), x)
            else:
                branches = [build(x, branch)[0] for branch in rest]
                x = put(Join(kind, branches), x)
        return nn.Sequential(*modules), x

    return build(torch.zeros(2, 3, size, size), layers)[0]
