"""The description of a network that source code is written from: steps that compute values, and layers with parameters.

A target (:mod:`flowmx.source_code.torch`, :mod:`flowmx.source_code.gluon`) describes each node of a symbol by a
:class:`Step`: the code of an expression, and perhaps the constructor of a layer that it calls. What follows, blocks,
names and printing, reads only these descriptions.

In the code of a step, ``{0}``, ``{1}`` and so on are its inputs, and names in braces are its layers and constants.
Constants and the arguments of layers may differ between the instances of a block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from flowmx.errors import MXNetError
from flowmx.ops.registry.operators import Array

__all__ = ["Array", "Layer", "Network", "State", "Step", "Transform", "Unsupported", "Value"]

Value = int
"""The id of a value: an input of the network, or an output of a step."""
Transform = Callable[..., Array]
"""A function that takes the source arrays and returns the array to store."""


class Unsupported(MXNetError, ValueError):
    """A node cannot be written in the target's language."""


class State(NamedTuple):
    """An entry of a layer's state.

    Attributes:
        sources: the names of the arrays in the checkpoint.
        transform: computes the entry from them; None for an unchanged copy.
    """

    sources: tuple[str, ...]
    transform: Transform | None = None


@dataclass(frozen=True)
class Layer:
    """A layer with state, or one that behaves differently in training.

    Attributes:
        kind: the class, such as ``nn.Conv2d``.
        arguments: the arguments of the constructor by name, in order.
        positional: the number of leading arguments that are written without their names.
        defaults: arguments that are omitted if they have these values.
        state: entries of the state dict by name; the name "" is the layer itself, a parameter.
        wrapper: the function that the constructor's result is passed to, such as ``fix_gamma``; or "".
        title: the name of the attribute if the symbol has no good one, such as ``conv``.
    """

    kind: str
    arguments: Mapping[str, object] = field(default_factory=dict)
    positional: int = 0
    defaults: Mapping[str, object] = field(default_factory=dict)
    state: Mapping[str, State] = field(default_factory=dict)
    wrapper: str = ""
    title: str = "layer"

    @property
    def identity(self) -> object:
        """A key that is equal for two uses of the same layer; None for a layer without state."""
        if not self.state:
            return None
        return self.kind, tuple(self.state.items()), tuple((k, repr(v)) for k, v in self.arguments.items())

    @property
    def pattern(self) -> object:
        """A key that is equal for the layers of two instances of a block."""
        values = {name: self.arguments.get(name, self.defaults.get(name)) for name in ("bias", "affine", "use_bias")}
        grouped = "groups" in self.arguments and self.arguments["groups"] != 1
        return self.kind, self.wrapper, tuple(self.state), grouped, tuple(values.items())


@dataclass(eq=False)
class Step:
    """A statement: an expression of values.

    Attributes:
        name: the name of the node.
        code: the expression.
        inputs: the values that it reads.
        outputs: the values that it computes.
        layers: the layers and parameters that it uses, by their names in the code.
        constants: values of names in the code.
        helpers: functions that the written file must define.
        comment: a remark for the reader.
    """

    name: str
    code: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    layers: Mapping[str, Layer] = field(default_factory=dict)
    constants: Mapping[str, object] = field(default_factory=dict)
    helpers: tuple[str, ...] = ()
    comment: str = ""

    @property
    def pattern(self) -> object:
        """A key that is equal for the steps of two instances of a block."""
        layers = tuple((name, layer.pattern) for name, layer in self.layers.items())
        return self.code, len(self.outputs), tuple(self.constants), layers

    def slots(self) -> Iterator[tuple[str, str, object]]:
        """Return what may differ between instances: the layer or "", the name of the argument, and the value."""
        for name, layer in self.layers.items():
            for argument in dict.fromkeys((*layer.arguments, *layer.defaults)):
                yield name, argument, layer.arguments.get(argument, layer.defaults.get(argument))
        for name, value in self.constants.items():
            yield "", name, value

    def with_slots(self, values: Iterable[object]) -> Step:
        """Return the step with other values of its slots."""
        layers: dict[str, dict[str, object]] = {name: {} for name in self.layers}
        constants: dict[str, object] = {}
        for (layer, name, _), value in zip(self.slots(), values, strict=True):
            (layers[layer] if layer else constants)[name] = value
        new = {name: replace(self.layers[name], arguments=arguments) for name, arguments in layers.items()}
        return replace(self, layers=new, constants=constants)


class Network(NamedTuple):
    """A network.

    Attributes:
        name: the name of its class.
        inputs: its inputs by name.
        outputs: its outputs by name.
        steps: its steps, in order.
    """

    name: str
    inputs: Mapping[str, Value]
    outputs: Mapping[str, Value]
    steps: list[Step]
