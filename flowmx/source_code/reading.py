"""Read a symbol: describe each node by a step, with the table of a target."""

from __future__ import annotations

import itertools
import re
import string
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from flowmx import ndarray
from flowmx.contrib.onnx import dynamic_lengths
from flowmx.contrib.onnx.dynamic_lengths import Lengths, Varying
from flowmx.graph import infer
from flowmx.graph.node import Entry, Node, topological
from flowmx.ndarray import NDArray
from flowmx.ops.registry.operators import Array, DType, Shape
from flowmx.source_code.description import Layer, Network, State, Step, Transform, Unsupported, Value
from flowmx.source_code.names import identifier, unused
from flowmx.symbol import Symbol
from flowmx.symbol.partition import inline_regions

__all__ = ["Code", "Row", "Site", "Table", "read"]


class Code(NamedTuple):
    """The code of a node; see :class:`~flowmx.source_code.description.Step`.

    Attributes:
        text: the expression.
        layers: the layers in it, by name.
        constants: the constants in it, by name.
        helpers: functions that it calls and the written file defines.
        outputs: which outputs of the node the expression computes, in order.
        comment: a remark for the reader.
    """

    text: str
    layers: Mapping[str, Layer] = {}
    constants: Mapping[str, object] = {}
    helpers: tuple[str, ...] = ()
    outputs: tuple[int, ...] = (0,)
    comment: str = ""


Row = str | Callable[["Site"], "Code | str"]
"""The code of an operator: a template of its inputs and parameters, or a function that returns the code of a node."""


class Table(NamedTuple):
    """A target's operators.

    Attributes:
        name: the target's name, for messages.
        rows: the code of each operator.
        fallback: the code of other operators; it may raise Unsupported.
        parameter: returns the layer that holds an array: of (name, shape, is it trained).
    """

    name: str
    rows: Mapping[str, Row]
    fallback: Callable[[Site], Code | str]
    parameter: Callable[[str, Array, bool], Layer]


class Site:
    """A node that is being described.

    Attributes:
        op: the operator, with its parameters as attributes.
        name: the name of the node.
        count: the number of its inputs.
    """

    def __init__(self, reader: _Reader, node: Node) -> None:
        self._reader, self._node = reader, node
        self.op: Any = node.op
        self.name = node.name
        self.count = len(node.inputs)

    def dims(self, index: int = 0) -> Lengths:
        """Return the lengths of an input's axes."""
        return self._reader.shapes[self._node.inputs[index]]

    def out_dims(self, index: int = 0) -> Lengths:
        """Return the lengths of an output's axes."""
        return self._reader.shapes[Entry(self._node, index)]

    def rank(self, index: int = 0) -> int:
        """Return the number of axes of an input."""
        return len(self.dims(index))

    def axis(self, axis: int, index: int = 0) -> int:
        """Return an axis counted from the front."""
        return axis % self.rank(index) if self.rank(index) else 0

    def fixed(self, length: object, what: str) -> int:
        """Return a length that must not depend on the inputs' lengths.

        Raises:
            Unsupported: it does.
        """
        if not isinstance(length, int):
            raise Unsupported(f"{what} varies with the inputs, expected a fixed length")
        return length

    def dtype(self, index: int = 0) -> DType:
        """Return the dtype of an input."""
        return self._reader.dtypes[self._node.inputs[index]]

    def out_dtype(self, index: int = 0) -> DType:
        """Return the dtype of an output."""
        return self._reader.dtypes[Entry(self._node, index)]

    def uses(self, output: int) -> bool:
        """Return whether an output is used."""
        return Entry(self._node, output) in self._reader.used

    def parameter(self, index: int) -> str | None:
        """Return the name of the array that an input is, or None."""
        return self._reader.parameters.get(self._node.inputs[index]) if index < self.count else None

    def owns(self, *indices: int) -> bool:
        """Return whether inputs are arrays that no other layer uses, so that a layer can hold them."""
        names = [self.parameter(index) for index in indices]
        return all(name is not None and self._reader.owners[name] <= 1 for name in names)

    def array(self, index: int) -> Array:
        """Return the content of an input that is an array of the checkpoint.

        Raises:
            Unsupported: it is computed.
        """
        name = self.parameter(index)
        if name is None:
            raise Unsupported(f"its input {self.op.inputs()[index]!r} is computed, expected an array of the checkpoint")
        return self._reader.arrays[name].asnumpy()

    def folded(self, index: int) -> tuple[tuple[str, ...], Transform]:
        """Return the arrays that an input is computed from, and the function that computes it from them.

        Raises:
            Unsupported: it depends on an input of the network.
        """
        symbol = Symbol([self._node.inputs[index]])
        names = tuple(symbol.list_inputs())
        missing = [name for name in names if name not in self._reader.arrays]
        if missing:
            raise Unsupported(f"its input {self.op.inputs()[index]!r} depends on {missing[0]!r}, expected parameters")

        def compute(*arrays: Array) -> Array:
            if symbol.entries[0].node.is_variable:
                return arrays[0]
            values = {name: ndarray.array(array, dtype=array.dtype) for name, array in zip(names, arrays, strict=True)}
            result: Array = symbol.bind(None, values, grad_req="null").forward()[0].asnumpy()
            return result

        return names, compute

    def source(self, index: int) -> str:
        """Return the name of the operator that computes an input, or ""."""
        op = self._node.inputs[index].node.op
        return "" if op is None else op.name

    def state(self, **indices: int) -> dict[str, State]:
        """Return a layer's state: copies of inputs, by their names in the layer."""
        return {key: State((str(self.parameter(index)),)) for key, index in indices.items()}


class _Reader:
    def __init__(
        self, symbol: Symbol, arrays: Mapping[str, NDArray], inputs: Mapping[str, Lengths], types: Mapping[str, DType]
    ) -> None:
        self.arrays = arrays
        self.new_value = itertools.count().__next__
        self.nodes = topological(symbol.entries)
        variables = [node for node in self.nodes if node.is_variable]
        self.parameters = {Entry(node, 0): node.name for node in variables if node.name in arrays}
        fixed: dict[Node, Shape] = {node: arrays[node.name].shape for node in variables if node.name in arrays}
        lengths = {node: inputs[node.name] for node in variables if node.name in inputs}
        self.shapes = dynamic_lengths.trials(self.nodes, fixed, lengths)
        dtypes = {node: types[node.name] for node in lengths if node.name in types}
        dtypes |= {node: np.dtype(arrays[node.name].dtype) for node in fixed}
        self.dtypes = infer.infer_types(self.nodes, dtypes)
        self.used = {entry for node in self.nodes for entry in node.inputs} | set(symbol.entries)
        owners: dict[str, set[object]] = defaultdict(set)
        for node in self.nodes:
            held = tuple(self.parameters.get(entry) for entry in node.inputs)
            for name in held:
                if name is not None:
                    owners[name].add((node.op, held))
        self.owners = defaultdict(int, {name: len(users) for name, users in owners.items()})


def read(
    symbol: Symbol, arrays: Mapping[str, NDArray], inputs: Mapping[str, Lengths], types: Mapping[str, DType],
    table: Table, name: str,
) -> Network:  # fmt: skip
    """Describe a symbol.

    Args:
        symbol: the symbol.
        arrays: its parameters and auxiliary states by name.
        inputs: the lengths of the inputs' axes.
        types: the dtypes of the inputs.
        table: the target's operators.
        name: the name of the network's class.

    Raises:
        Unsupported: operators cannot be described; the message lists the nodes.
    """
    symbol = Symbol(inline_regions(symbol.entries))
    reader = _Reader(symbol, arrays, inputs, types)
    values: dict[Entry, Value] = {}
    named_inputs: dict[str, Value] = {}
    steps: list[Step] = []
    problems: dict[int, str] = {}
    states = set(symbol.list_auxiliary_states())
    for node in reader.nodes:
        if node.op is None:
            if node.name in inputs:
                name_ = unused(identifier(node.name) or f"input{len(named_inputs)}", named_inputs)
                named_inputs[name_] = values[Entry(node, 0)] = reader.new_value()
            continue
        try:
            step = _describe(reader, node, values, table, states)
        except Unsupported as error:
            step = _unwritten(reader, node, values)
            problems[id(step)] = f"{node.name!r} ({node.op.name}): {error}"
        if step is not None:
            steps.append(step)
    outputs = {}
    for output, entry in zip(symbol.list_outputs(), symbol.entries, strict=True):
        if entry not in values:
            layer = table.parameter(reader.parameters[entry], arrays[reader.parameters[entry]].asnumpy(), True)
            values[entry] = reader.new_value()
            steps.append(Step(entry.node.name, "{layer}", (), (values[entry],), {"layer": layer}))
        outputs[output] = values[entry]
    steps = _in_order(_without_duplicates(steps, outputs), list(named_inputs.values()), list(outputs.values()))
    reasons = [problems[id(step)] for step in steps if id(step) in problems]
    if reasons:
        raise Unsupported(f"these nodes cannot be written for {table.name}:\n  " + "\n  ".join(reasons))
    return Network(name, named_inputs, outputs, steps)


def _unwritten(reader: _Reader, node: Node, values: dict[Entry, Value]) -> Step:
    """Return a step without code, for a node that may not be needed: parameters may be computed by other means."""
    inputs = tuple(values[entry] for entry in node.inputs if entry in values)
    outputs = tuple(reader.new_value() for _ in range(node.outputs()))
    values.update({Entry(node, index): value for index, value in enumerate(outputs)})
    return Step(node.name, "", inputs, outputs)


def _describe(reader: _Reader, node: Node, values: dict[Entry, Value], table: Table, states: set[str]) -> Step | None:
    """Return the step of a node, and set the values of its outputs; None if it only passes its input on."""
    assert node.op is not None
    site = Site(reader, node)
    row = table.rows.get(node.op.name, table.fallback)
    code = row if isinstance(row, str) else row(site)
    if isinstance(code, str):
        code = Code(code, constants={name: getattr(node.op, name) for name in _fields(code) if not name.isdigit()})
    if code.text == "{0}" and not code.comment and (node.inputs[0] in values or node.inputs[0] in reader.parameters):
        source = node.inputs[0]
        if source in reader.parameters:
            reader.parameters[Entry(node, 0)] = reader.parameters[source]
        else:
            values[Entry(node, 0)] = values[source]
        return None
    layers, places, inputs = dict(code.layers), {}, []
    for index in sorted({int(name) for name in _fields(code.text) if name.isdigit()}):
        entry = node.inputs[index]
        if entry in reader.parameters:
            array = reader.parameters[entry]
            layers[f"p{index}"] = table.parameter(array, reader.arrays[array].asnumpy(), array not in states)
            places[str(index)] = f"{{p{index}}}"
        else:
            if entry not in values:
                raise Unsupported(f"it reads {entry.node.name!r}, which is neither an input nor a parameter")
            value = values[entry]
            if value not in inputs:
                inputs.append(value)
            places[str(index)] = f"{{{inputs.index(value)}}}"
    outputs = []
    for index in code.outputs:
        values[Entry(node, index)] = reader.new_value()
        outputs.append(values[Entry(node, index)])
    missing = [i for i in range(node.outputs()) if i not in code.outputs and Entry(node, i) in reader.used]
    if missing:
        raise Unsupported(f"its output {node.op.outputs()[missing[0]]!r} has no code")
    text = _replace(code.text, places)
    return Step(node.name, text, tuple(inputs), tuple(outputs), layers, code.constants, code.helpers, code.comment)


def _fields(text: str) -> list[str]:
    return [name for _, name, _, _ in string.Formatter().parse(text) if name]


def _replace(text: str, places: Mapping[str, str]) -> str:
    """Replace the fields of inputs in a template."""
    parts = []
    for before, name, _, _ in string.Formatter().parse(text):
        parts.append(before.replace("{", "{{").replace("}", "}}"))
        if name:
            parts.append(places.get(name, f"{{{name}}}"))
    return "".join(parts)


def _without_duplicates(steps: Sequence[Step], outputs: dict[str, Value]) -> list[Step]:
    """Return the steps without those that repeat a step without layers; outputs are renamed too."""
    names: dict[Value, Value] = {}
    first: dict[object, Step] = {}
    result = []
    for step in steps:
        if any(value in names for value in step.inputs):
            step.inputs = tuple(names.get(value, value) for value in step.inputs)
        key = (step.pattern, step.inputs, repr(step.constants))
        if step.layers or not step.inputs or _RANDOM.search(step.code) or key not in first:
            first.setdefault(key, step)
            result.append(step)
        else:
            names.update(zip(step.outputs, first[key].outputs, strict=True))
    outputs.update({name: names.get(value, value) for name, value in outputs.items()})
    return result


_RANDOM = re.compile("drop|rand|rrelu|^$")


def _in_order(steps: Sequence[Step], inputs: Sequence[Value], outputs: Sequence[Value]) -> list[Step]:
    """Return the steps that the outputs need; those that need neither parameters nor the first input come first."""
    producer = {value: step for step in steps for value in step.outputs}
    needed: set[int] = set()
    pending = list(outputs)
    while pending:
        step = producer.get(pending.pop())
        if step is not None and id(step) not in needed:
            needed.add(id(step))
            pending += step.inputs
    early: set[Value] = set(inputs[1:])
    first, rest = [], []
    for step in steps:
        if id(step) not in needed:
            continue
        if not step.layers and step.inputs and early.issuperset(step.inputs):
            early.update(step.outputs)
            first.append(step)
        else:
            rest.append(step)
    return [*first, *rest]


__all__ += ["Lengths", "Varying"]
