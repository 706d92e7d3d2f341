"""Layers with a low-rank adapter: the base is constant, and two small matrices are trained."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from flowmx import ndarray as nd
from flowmx.errors import ArgumentKindError, ParameterError
from flowmx.gluon.base_block import Block
from flowmx.gluon.hybrid import HybridBlock, Layer
from flowmx.gluon.nn.basic_layers import Dense, Dropout
from flowmx.gluon.nn.packed import PackedDense
from flowmx.gluon.parameter import Parameter
from flowmx.initializer import Uniform
from flowmx.ndarray import NDArray
from flowmx.ops.registry.tensors import Functions, Tensor

__all__ = ["LoRADense", "Wrapped", "dense_layers", "replace"]


class Wrapped(Dense):
    """A layer around a ``Dense`` or ``PackedDense`` layer, whose weight and bias it shows as its own.

    Args:
        base: the layer.
        suffix: the end of the prefix of the names of its parameters.

    Attributes:
        base: as passed.

    Raises:
        TypeError: the layer has an activation.
        ValueError: the number of inputs is not known.
    """

    base: Dense

    def __init__(self, base: Dense, suffix: str) -> None:
        if base.act is not None:
            raise ArgumentKindError(
                f"{base.name}: the layer has the activation {base.act!r}, expected a layer without one: an adapter is "
                "added before the activation"
            )
        Layer.__init__(self, prefix=f"{base.prefix}{suffix}_")
        self.act = None
        self.base = base
        if isinstance(base, PackedDense):
            self.units, self.in_units, self.flattens = base.rows, base.columns, False
        else:
            self.units, self.in_units = base.weight.shape or (0, 0)
            self.flattens = base._flatten
        if self.units < 1 or self.in_units < 1:
            raise ParameterError(
                f"{base.name}: the weight has the shape {base.weight.shape}, expected a known number of inputs: call "
                "the network once, or pass in_units"
            )

    @property
    def weight(self) -> Parameter:  # type: ignore[override]
        """The weight of the base."""
        return self.base.weight

    @property
    def bias(self) -> Parameter | None:  # type: ignore[override]
        """The bias of the base, or None."""
        return self.base.bias

    def _collect_params_with_prefix(self, prefix: str = "") -> dict[str, Parameter]:
        """Return the parameters by path: those of the base have the paths that they have without an adapter."""
        own = {f"{prefix}.{name}" if prefix else name: each for name, each in self._reg_params.items()}
        return self.base._collect_params_with_prefix(prefix) | own

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base!r})"


class LoRADense(Wrapped):
    """A layer with a low-rank adapter (Hu et al., LoRA, 2021): ``base(x) + scale · (dropout(x) · Aᵀ) · Bᵀ``.

    Args:
        base: a ``Dense`` layer without an activation, or a ``PackedDense`` layer, whose weights stay quantized.
        rank: the number of rows of A.
        scales: the factor of the adapter, for each of the equal parts of the outputs. Each part has its own A and B;
            joined layers have two.
        dropout: the probability with which an input of the adapter is dropped in training.

    Attributes:
        lora_a: A, (parts · rank, inputs), random.
        lora_b: B, (outputs, rank), zeros, so that the adapter has no effect at first.

    Raises:
        ValueError: a number is out of range, or the outputs do not have equal parts.
        TypeError: the layer has an activation.
    """

    def __init__(self, base: Dense, rank: int, scales: Sequence[float], dropout: float = 0.0) -> None:
        super().__init__(base, "lora")
        parts = len(scales)
        if rank < 1 or parts < 1 or self.units % parts:
            raise ParameterError(
                f"{base.name}: rank is {rank} and parts {parts} for {self.units} outputs, expected 1 or more, and "
                "equal parts"
            )
        self.rank, self.scales, self.parts = rank, tuple(scales), parts
        self._casts = not isinstance(base, PackedDense) and np.dtype(base.weight.dtype).itemsize < 4
        with self.name_scope():
            bound = 1 / math.sqrt(self.in_units)
            self.lora_a = self.params.get("a", shape=(parts * rank, self.in_units), init=Uniform(bound))
            self.lora_b = self.params.get("b", shape=(self.units, rank), init="zeros")
            self.dropout = Dropout(dropout) if dropout else None

    def hybrid_forward(self, F: Functions, x: Tensor, lora_a: Any, lora_b: Any) -> Any:  # type: ignore[override]
        out: Any = self.base(x)
        data: Any = F.Cast(x, dtype="float32") if self._casts else x
        data = data if self.dropout is None else self.dropout(data)
        hidden = F.FullyConnected(
            data, lora_a, no_bias=True, num_hidden=self.parts * self.rank, flatten=self.flattens
        )  # fmt: skip
        size, pieces = self.units // self.parts, []
        for part in range(self.parts):
            inputs, rows = hidden, lora_b
            if self.parts > 1:
                inputs = F.slice_axis(hidden, axis=-1, begin=part * self.rank, end=(part + 1) * self.rank)
                rows = F.slice_axis(lora_b, axis=0, begin=part * size, end=(part + 1) * size)
            piece = F.FullyConnected(inputs, rows, no_bias=True, num_hidden=size, flatten=False)
            pieces.append(piece * self.scales[part])
        delta = pieces[0] if self.parts == 1 else F.concat(*pieces, dim=-1)
        return out + (F._internal._cast_like(delta, out) if self._casts else delta)

    def difference(self) -> NDArray:
        """Return what the adapter adds to the weight, float32 (outputs, inputs)."""
        a = self.lora_a.data().reshape((self.parts, self.rank, self.in_units))
        b = self.lora_b.data().reshape((self.parts, self.units // self.parts, self.rank))
        products = nd.batch_dot(b, a) * nd.array(self.scales).reshape((-1, 1, 1))
        return products.reshape((self.units, self.in_units))


def dense_layers(net: Block, path: str = "") -> dict[str, Dense]:
    """Return the dense layers in a network by path, such as ``llama.layers.0.attention.query``."""
    layers: dict[str, Dense] = {}
    for name, child in net._children.items():
        place = f"{path}.{name}" if path else name
        if isinstance(child, Dense):
            layers[place] = child
        else:
            layers |= dense_layers(child, place)
    return layers


def replace(net: Block, path: str, layer: Dense) -> None:
    """Put a layer at a path of a network, in place of another one; graphs are compiled again."""
    parent_path, _, name = path.rpartition(".")
    parent = net
    for each in parent_path.split(".") if parent_path else []:
        parent = parent._children[each]
    if parent._children[name]._active:
        flags: dict[str, Any] = parent._children[name].__dict__["_flags"]
        layer.hybridize(True, **flags)
    parent._children[name] = layer
    if name in parent.__dict__:
        parent.__dict__[name] = layer
    net.apply(lambda block: block._clear_cached_op() if isinstance(block, HybridBlock) else None)
