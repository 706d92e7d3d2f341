"""A network as plain data: the calls that build it, its inputs, and its steps."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

import flowmx as mx
from flowmx import gluon
from flowmx.gluon import contrib, loss, nn, rnn
from flowmx.gluon.model_zoo import vision
from tests.modes import parts

NAMES = {**vars(parts), "contrib": contrib, "loss": loss, "mx": mx, "nn": nn, "rnn": rnn, "vision": vision}
"""The names that may occur in the texts of layers."""


class Code(str):
    """A value whose text is written unchanged."""

    def __repr__(self):
        return str(self)


@dataclass(frozen=True)
class Layer:
    """The call that creates a block.

    Attributes:
        name: of what is called.
        children: the calls that make its arguments by position.
        options: its arguments by name.
    """

    name: str
    children: tuple["Layer", ...] = ()
    options: tuple[tuple[str, Any], ...] = ()

    def __str__(self):
        return self.text(0)

    def text(self, indent):
        """Return the call's text, over several lines if it is long."""
        arguments = [f"{name}={value!r}" for name, value in self.options]
        short = f"{self.name}({', '.join([*map(str, self.children), *arguments])})"
        if len(short) + indent <= 100 or not self.children:
            return short
        inner = [each.text(indent + 4) for each in self.children] + arguments
        pad = "\n" + " " * (indent + 4)
        return f"{self.name}({pad}{f',{pad}'.join(inner)},\n{' ' * indent})"

    def walk(self):
        """Iterate over the call and all calls inside."""
        yield self
        for each in self.children:
            yield from each.walk()


def layer(name, /, *children, **options):
    """Create a call; arguments that are None are dropped."""
    return Layer(name, children, tuple((key, value) for key, value in options.items() if value is not None))


@dataclass(frozen=True)
class Input:
    """An input: its shape without the batch, and its content.

    Kinds are ``normal`` (differentiated by), ``label`` (the same, but not), ``index`` (below ``high``), ``sign``,
    ``unit`` (between 0 and 1), ``odds`` (positive, of sum 1 along the last axis), and ``padded`` (indices, then -1).
    """

    shape: tuple[int, ...]
    kind: str = "normal"
    high: int = 2
    dtype: str = ""

    def draw(self, random, batch):
        """Draw values for a batch."""
        shape = (batch, *self.shape)
        if self.kind in ("index", "padded"):
            values = random.integers(0, self.high, shape)
            if self.kind == "padded":
                values = np.where(
                    np.arange(self.shape[-1]) < 1 + random.integers(0, self.shape[-1], (batch, 1)), values, -1
                )
            return values.astype(float)
        if self.kind == "sign":
            return random.integers(0, 2, shape) * 2.0 - 1
        if self.kind == "unit":
            return random.uniform(0.05, 0.95, shape)
        if self.kind == "odds":
            values = random.uniform(0.1, 1, shape)
            return values / values.sum(axis=-1, keepdims=True)
        return random.standard_normal(shape)


@dataclass(frozen=True)
class Step:
    """A step of the network.

    ``predict``; ``observe``, the forward pass of training alone; ``train``, with an update; ``frozen``, gradients in
    prediction mode; ``twice``, two forward passes, then both backward passes, and an update.
    """

    kind: str
    batch: int


@dataclass(frozen=True)
class Network:
    """A network and its steps.

    Attributes:
        layer: what makes it.
        inputs: what it takes.
        steps: what is done.
        seed: of its parameters, inputs and the gradients of its outputs.
        optimizer: the name and arguments of what updates it.
        request: ``write`` or ``add`` gradients; ``some`` leaves every third parameter as it is.
        whole: its outputs for an instance depend on the other instances.
        plain: parts of it are no HybridBlocks, so there is no symbol of it.
        draws: it draws random numbers in training.
        loose: it draws them in a different order, or in other shapes, where it is composed of symbols.
        scalar: an output is one number for the whole batch.
    """

    layer: Layer
    inputs: tuple[Input, ...]
    steps: tuple[Step, ...] = (Step("predict", 2), Step("train", 2))
    seed: int = 0
    optimizer: tuple[str, dict[str, Any]] = field(default=("sgd", {"learning_rate": 0.01}), hash=False)
    request: str = "write"
    whole: bool = False
    plain: bool = False
    draws: bool = False
    loose: bool = False
    scalar: bool = False

    def make(self):
        """Create the block, without initializing it."""
        return eval(str(self.layer), dict(NAMES))

    def names(self):
        """Return the layers of the network."""
        return [each.name for each in self.layer.walk()]


def structure(net):
    """Map the names of a block's parameters to their names in files."""
    return {param.name: name for name, param in net._collect_params_with_prefix().items()}


def initialize(net, contexts, first):
    """Initialize the parameters of a block, whose shapes are inferred from the first inputs."""
    net.initialize(ctx=contexts)
    with mx.autograd.predict_mode():
        net(*first)


def value(name, shape, seed):
    """Draw numbers for a parameter, large enough that neither values nor gradients vanish, and no bias is 0."""
    random = np.random.default_rng([seed, *name.encode()])
    last = name.rsplit(".", 1)[-1].rsplit("_", 1)[-1]
    if last == "var":
        return random.uniform(0.5, 2, shape)
    if last in ("gamma", "scale"):
        return random.uniform(0.5, 1.5, shape)
    if last == "alpha":
        return random.uniform(0.1, 0.5, shape)
    values = random.standard_normal(shape)
    return values / np.sqrt(np.prod(shape[1:])) if len(shape) > 1 else values * 0.5


def contexts(names):
    """Return devices by name."""
    return [mx.Context(*_named(name)) for name in names]


def _named(name):
    kind, number = name.rstrip(")").split("(")
    return kind, int(number)


__all__ = [
    "Code",
    "Input",
    "Layer",
    "Network",
    "Step",
    "contexts",
    "gluon",
    "initialize",
    "layer",
    "structure",
    "value",
]
