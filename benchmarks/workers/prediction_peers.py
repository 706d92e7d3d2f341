"""The networks of ``prediction.py`` as PyTorch modules; ``networks.py`` has some of them."""

from __future__ import annotations

from typing import Any

import networks  # modules of this folder: the peers cannot import the package
from prediction_networks import BLOCKS, EFFICIENTNET, FEATURES, HEADS, UNITS, WIDTH

IN_NETWORKS = {
    "resnet18_v1": "resnet_18", "resnet50_v1": "resnet_50", "vgg16": "vgg_16", "inception_v3": "inception_v3",
    "mobilenet_v2_1_0": "mobilenet_v2",
}  # fmt: skip


def build(torch: Any, network: str) -> Any:
    """Return a network as a module that takes the data of ``prediction_networks.data_shape``."""
    nn = torch.nn
    if network in IN_NETWORKS:
        layers = {**networks.NETWORKS, **networks.LATER}[IN_NETWORKS[network]]
        return networks.module(torch, layers, 299 if "inception" in network else 224)
    if network == "encoder":
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, 0.0, "gelu", batch_first=True)
        return nn.TransformerEncoder(layer, BLOCKS)
    if network == "lstm":
        return _first(torch, nn.LSTM(FEATURES, UNITS, 2))
    return {"densenet121": densenet, "squeezenet1_0": squeezenet, "efficientnet_b0": efficientnet}[network](torch)


def _first(torch: Any, layer: Any) -> Any:
    """Return a module that returns the first output of a layer."""

    class First(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Any) -> Any:
            return self.layer(x)[0]

    return First()


def _joined(torch: Any, first: Any, second: Any) -> Any:
    """Return a module that joins the outputs of two modules along the channels; None stands for the input."""

    class Joined(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = first, second

        def forward(self, x: Any) -> Any:
            return torch.cat([x if self.first is None else self.first(x), self.second(x)], 1)

    return Joined()


def densenet(torch: Any) -> Any:
    """Return DenseNet-121."""
    nn = torch.nn
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)]
    inside = 64
    for stage, count in enumerate((6, 12, 24, 16)):
        for _ in range(count):
            body = nn.Sequential(
                nn.BatchNorm2d(inside), nn.ReLU(), nn.Conv2d(inside, 128, 1, bias=False),
                nn.BatchNorm2d(128), nn.ReLU(True), nn.Conv2d(128, 32, 3, 1, 1, bias=False),
            )  # fmt: skip
            layers.append(_joined(torch, None, body))
            inside += 32
        layers += [nn.BatchNorm2d(inside), nn.ReLU(True)]
        if stage < 3:
            layers += [nn.Conv2d(inside, inside // 2, 1, bias=False), nn.AvgPool2d(2)]
            inside //= 2
    return nn.Sequential(*layers, nn.AvgPool2d(7), nn.Flatten(), nn.Linear(inside, 1000))


def squeezenet(torch: Any) -> Any:
    """Return SqueezeNet 1.0."""
    nn = torch.nn

    def fire(inside: int, squeeze: int, expand: int) -> Any:
        sides = [
            nn.Sequential(nn.Conv2d(squeeze, expand, kernel, padding=kernel // 2), nn.ReLU(True)) for kernel in (1, 3)
        ]
        return nn.Sequential(nn.Conv2d(inside, squeeze, 1), nn.ReLU(True), _joined(torch, *sides))

    return nn.Sequential(
        nn.Conv2d(3, 96, 7, 2), nn.ReLU(True), nn.MaxPool2d(3, 2, ceil_mode=True), fire(96, 16, 64), fire(128, 16, 64),
        fire(128, 32, 128), nn.MaxPool2d(3, 2, ceil_mode=True), fire(256, 32, 128), fire(256, 48, 192),
        fire(384, 48, 192), fire(384, 64, 256), nn.MaxPool2d(3, 2, ceil_mode=True), fire(512, 64, 256),
        nn.Conv2d(512, 1000, 1), nn.ReLU(True), nn.AvgPool2d(13), nn.Flatten(),
    )  # fmt: skip


def efficientnet(torch: Any) -> Any:
    """Return EfficientNet-B0."""
    nn = torch.nn

    def conv(inside: int, filters: int, kernel: int = 1, stride: int = 1, groups: int = 1, act: bool = True) -> Any:
        layer = nn.Conv2d(inside, filters, kernel, stride, kernel // 2, groups=groups, bias=False)
        return nn.Sequential(layer, nn.BatchNorm2d(filters), *([nn.SiLU(True)] if act else []))

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, inside: int, wide: int, filters: int, kernel: int, stride: int, adds: bool) -> None:
            super().__init__()
            self.expand = conv(inside, wide) if wide != inside else nn.Identity()
            self.depthwise = conv(wide, wide, kernel, stride, wide)
            few = max(1, inside // 4)
            self.gate = nn.Sequential(
                nn.AdaptiveAvgPool2d(1), nn.Conv2d(wide, few, 1), nn.SiLU(True), nn.Conv2d(few, wide, 1), nn.Sigmoid()
            )
            self.project, self.adds = conv(wide, filters, act=False), adds

        def forward(self, x: Any) -> Any:
            hidden = self.depthwise(self.expand(x))
            hidden = self.project(hidden * self.gate(hidden))
            return x + hidden if self.adds else hidden

    layers, inside = [conv(3, 32, 3, 2)], 32
    for times, filters, count, stride, kernel in EFFICIENTNET:
        for number in range(count):
            layers.append(Block(inside, times * inside, filters, kernel, 1 if number else stride, number > 0))
            inside = filters
    return nn.Sequential(*layers, conv(320, 1280), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000))
