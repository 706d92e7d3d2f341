"""A low-rank adapter of a network: its layers are wrapped, and only the adapter is trained."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from flowmx import ndarray as nd
from flowmx.devices import Context
from flowmx.errors import ArgumentKindError, ParameterError, StateError
from flowmx.gluon.base_block import Block
from flowmx.gluon.lora.layers import LoRADense, Wrapped, dense_layers, replace
from flowmx.gluon.lora.names import sources
from flowmx.gluon.lora.weights import AdapterWeights, LayerWeights, read, write
from flowmx.gluon.nn.packed import PackedDense
from flowmx.gluon.parameter import Parameter
from flowmx.gluon.parameter_dict import ParameterDict
from flowmx.gluon.utils import brief_list

__all__ = ["LoRA", "attach", "load"]

_TARGETS = r"\.(query|value)$"
"""The layers that get an adapter by default, as in the paper."""


class LoRA:
    """An adapter that is attached to a network. Create it with :func:`attach` or :func:`load`.

    The parameters of the network are constants while it is attached.

    Args:
        net: the network.
        layers: the layers with an adapter by path.

    Attributes:
        net: as passed.
        layers: as passed.
        is_merged: whether the adapter is part of the weights of the network.

    Example:
        >>> lora = mx.gluon.lora.attach(net, rank=8, alpha=16)
        >>> trainer = mx.gluon.Trainer(lora.collect_params(), "adam", {"learning_rate": 1e-3})
        >>> ...
        >>> lora.save("adapter")
    """

    def __init__(self, net: Block, layers: dict[str, LoRADense]) -> None:
        self.net, self.layers, self.is_merged = net, layers, False
        own = set(self.parameters())
        self._requests = {each: each.grad_req for each in net.collect_params().values() if each not in own}
        for parameter in self._requests:
            parameter.grad_req = "null"

    def parameters(self) -> Iterator[Parameter]:
        """Iterate over the parameters of the adapter."""
        for layer in self.layers.values():
            yield from (layer.lora_a, layer.lora_b)

    def collect_params(self) -> ParameterDict:
        """Return the parameters of the adapter, for a ``Trainer``."""
        parameters = ParameterDict()
        for layer in self.layers.values():
            parameters.update(layer.params)
        return parameters

    def weights(self) -> AdapterWeights:
        """Return the present weights of the adapter; this waits for them."""
        layers = {}
        for path, layer in self.layers.items():
            a = layer.lora_a.data().asnumpy().reshape(layer.parts, layer.rank, layer.in_units)
            b = layer.lora_b.data().asnumpy().reshape(layer.parts, layer.units // layer.parts, layer.rank)
            layers[path] = LayerWeights(a, b, layer.scales)
        return AdapterWeights(layers, "a network")

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the adapter as a folder that Hugging Face's PEFT loads.

        Raises:
            OSError: a file cannot be written.
        """
        dropout = next((layer.dropout._rate for layer in self.layers.values() if layer.dropout is not None), 0.0)
        write(self.net, self.weights(), folder, dropout)

    def merge(self) -> None:
        """Add the adapter to the weights of the network, and restore its layers, which take no more time than before.

        Raises:
            TypeError: a weight is quantized.
            AssertionError: the adapter is merged already.
        """
        if self.is_merged:
            raise StateError("the adapter is already merged")
        self._add(1)
        for path, layer in self.layers.items():
            replace(self.net, path, layer.base)
        self.is_merged = True

    def unmerge(self) -> None:
        """Subtract the adapter from the weights, up to rounding, and put its layers in place again.

        Raises:
            AssertionError: the adapter is not merged.
        """
        if not self.is_merged:
            raise StateError("the adapter is not merged")
        self._add(-1)
        for path, layer in self.layers.items():
            replace(self.net, path, layer)
        self.is_merged = False

    def detach(self) -> None:
        """Restore the layers and the gradients of the network. A merged adapter stays in its weights."""
        for path, layer in self.layers.items():
            if not self.is_merged:
                replace(self.net, path, layer.base)
        for parameter, request in self._requests.items():
            parameter.grad_req = request
        self.layers, self._requests = {}, {}

    def _add(self, sign: int) -> None:
        """Add the adapter to the weights, or subtract it.

        Raises:
            TypeError: a weight is quantized.
            ParameterError: another layer has the same weight.
        """
        owners = Counter(self.net._collect_params_with_prefix().values())
        for path, layer in self.layers.items():
            if isinstance(layer.base, PackedDense):
                raise ArgumentKindError(
                    f"merge: the weight of {path} is quantized ({layer.base.format}), expected floating point: load "
                    'the network with dtype="float32"'
                )
            if owners[layer.base.weight] > 1:
                raise ParameterError(
                    f"merge: {path} shares its weight with another layer, which must not change: attach no adapter "
                    "to it"
                )
        for layer in self.layers.values():
            weight = layer.base.weight
            difference = (layer.difference() * sign).astype(weight.dtype)
            weight.set_data(weight.data() + difference)


def attach(
    net: Block, targets: str = _TARGETS, rank: int = 8, alpha: float = 16.0, dropout: float = 0.0,
    ctx: Context | list[Context] | None = None,
) -> LoRA:  # fmt: skip
    """Attach a new adapter to dense layers of a network, whose weights may be quantized.

    Args:
        net: the network, with initialized parameters.
        targets: a regular expression; layers with a path in which it is found get an adapter.
        rank: the rank of the adapter.
        alpha: the factor of the adapter is ``alpha / rank``.
        dropout: the probability with which an input of the adapter is dropped in training.
        ctx: the device or devices of the adapter (default: those of the network).

    Raises:
        ValueError: no layer matches, a number is out of range, or a layer has an adapter already.
        TypeError: a layer has an activation.

    Example:
        >>> lora = mx.gluon.lora.attach(net, "attention|widen|narrow", rank=8)
    """
    paths = [path for path in dense_layers(net) if re.search(targets, path)]
    if not paths:
        raise ParameterError(
            f"lora.attach: no dense layer matches {targets!r}, the layers are {brief_list(dense_layers(net))}"
        )
    if not 0 <= dropout < 1:
        raise ParameterError(f"lora.attach: dropout is {dropout}, expected 0 to below 1")
    parts = {path: len(sources(net, path)) for path in paths}
    return _attach(net, {path: (rank, [alpha / max(rank, 1)] * parts[path]) for path in paths}, dropout, ctx)


def load(
    net: Block, folder: str | os.PathLike[str], dropout: float = 0.0, ctx: Context | list[Context] | None = None,
    max_bytes: int = 1 << 30,
) -> LoRA:  # fmt: skip
    """Attach an adapter from a folder of Hugging Face's PEFT to a network of the model zoo.

    Args:
        net: the network.
        folder: the folder, with ``adapter_config.json`` and ``adapter_model.safetensors``.
        dropout: as for :func:`attach`.
        ctx: as for :func:`attach`.
        max_bytes: the maximum size of the file of weights in bytes.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is malformed or too large, or the adapter is of an unsupported kind, or does not fit the
            network.
    """
    weights = read(net, folder, max_bytes)
    shapes = {path: (layer.rank, layer.scales) for path, layer in weights.layers.items()}
    lora = _attach(net, shapes, dropout, ctx)
    for path, layer in weights.layers.items():
        lora.layers[path].lora_a.set_data(nd.array(np.concatenate(layer.a)))
        lora.layers[path].lora_b.set_data(nd.array(np.concatenate(layer.b)))
    return lora


def _attach(
    net: Block, shapes: Mapping[str, tuple[int, Sequence[float]]], dropout: float, ctx: Context | list[Context] | None
) -> LoRA:  # fmt: skip
    """Wrap layers: the rank and the factor of each part by path."""
    layers, present = {}, dense_layers(net)
    for path, (rank, scales) in shapes.items():
        layer = present[path]
        if isinstance(layer, Wrapped):
            raise ParameterError(f"lora: {path} has an adapter already: detach it first")
        layers[path] = LoRADense(layer, rank, scales, dropout)
    for path, layer in layers.items():
        layer.params.initialize(ctx=layer.weight.list_ctx() if ctx is None else ctx)
        replace(net, path, layer)
    return LoRA(net, layers)
