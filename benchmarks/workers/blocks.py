"""The networks as Gluon blocks, built by the same code for flowmx and MXNet."""

from __future__ import annotations

from typing import Any

import networks  # a module of this folder: the peers cannot import the package

CIFAR_RESNET_18 = [
    networks.conv(64, 3, 1, 1, norm=True),
    *(networks.residual(f, 1 if f == 64 or i else 2, f > 64 and i == 0) for f in (64, 128, 256, 512) for i in range(2)),
    networks.pool(4, 1, kind="avg"), ("fc", 10, False),
]  # fmt: skip
"""ResNet-18 for images of 32x32."""


def network(gluon: Any, layers: list[Any]) -> Any:
    """Build a network from its table of layers."""
    nn = gluon.nn

    class Join(gluon.HybridBlock):  # type: ignore[misc, name-defined]
        def __init__(self, how: str, branches: list[Any]) -> None:
            super().__init__()
            self.how, self.branches = how, branches
            for branch in branches:
                self.register_child(branch)

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            outputs = [branch(x) for branch in self.branches]
            return F.concat(*outputs, dim=1) if self.how == "concat" else F.Activation(sum_of(outputs), act_type="relu")

    def build(layers: list[Any]) -> Any:
        net = nn.HybridSequential()
        for kind, *rest in layers:
            for layer in layers_of(kind, rest):
                net.add(layer)
        return net

    def layers_of(kind: str, rest: list[Any]) -> list[Any]:
        if kind == "conv":
            filters, kernel, stride, pad, relu, norm, groups = rest
            convolution = nn.Conv2D(filters, kernel, stride, pad, groups=groups, use_bias=not norm)
            return [convolution, *([nn.BatchNorm()] if norm else []), *([nn.Activation("relu")] if relu else [])]
        if kind == "pool":
            kernel, stride, pad, type_, full = rest
            return [(nn.MaxPool2D if type_ == "max" else nn.AvgPool2D)(kernel, stride, pad, ceil_mode=full)]
        if kind == "fc":
            return [nn.Dense(rest[0], activation="relu" if rest[1] else None)]
        return [Join(kind, [build(branch) for branch in rest])]

    return build(layers)


def sum_of(values: list[Any]) -> Any:
    """Add values from left to right."""
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total


def lstm(gluon: Any, hidden: int, steps: int, layers: int = 2) -> Any:
    """A stack of LSTM cells, unrolled, from (batch, steps, features) to the last layer's outputs."""

    class Unrolled(gluon.HybridBlock):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.cells = gluon.rnn.HybridSequentialRNNCell()
            for _ in range(layers):
                self.cells.add(gluon.rnn.LSTMCell(hidden, input_size=hidden))
            self.register_child(self.cells)

        def hybrid_forward(self, F: Any, x: Any, *states: Any) -> Any:
            self.cells.reset()
            outputs, _ = self.cells.unroll(steps, x, list(states), layout="NTC", merge_outputs=True)
            return outputs

    return Unrolled()
