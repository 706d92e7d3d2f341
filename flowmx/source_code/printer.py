"""Print the classes of a network in a target's style."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol

from flowmx.source_code.blocks import MINOR, Block, Body, Call, Parameter
from flowmx.source_code.description import Layer, Step, Value
from flowmx.source_code.literals import literal, unparse
from flowmx.source_code.members import BlockMember, LayerMember, Members, SequenceMember
from flowmx.source_code.names import class_name, unused
from flowmx.source_code.statements import Statement, nest, placeholder, with_variables

__all__ = ["Printer", "Style"]

_WIDTH = 110


class Style(Protocol):
    """The style in which a target writes classes.

    Attributes:
        base: the base class.
        sequence: the class of a sequence of blocks.
        loop: the class of a sequence that a loop passes values through.
    """

    base: str
    sequence: str
    loop: str

    def forward(self, inputs: Sequence[str], parameters: Sequence[str]) -> str:
        """Return the first line of the forward method."""

    def layer(self, name: str, layer: Layer, arguments: str) -> list[str]:
        """Return the statements that create a layer."""

    def uses(self, name: str, layer: Layer) -> str:
        """Return the expression for a layer in the forward method."""

    def initialize(self, parameters: Sequence[str]) -> list[str]:
        """Return the first lines of the constructor."""

    def create(self, constructor: str, name: str, items: Sequence[str]) -> list[str]:
        """Return the statements that create a sequence of blocks."""


class _Written(NamedTuple):
    name: str
    lines: list[str]


class Printer:
    """Prints a body and the blocks that it calls.

    Args:
        style: how the target writes classes.
        name: the name of the network's class.
        doc: the docstring of the network's class.
        inputs: the network's inputs by name.
    """

    def __init__(self, style: Style, name: str, doc: Sequence[str], inputs: Mapping[str, Value]) -> None:
        self._style, self._doc, self._inputs = style, doc, inputs
        self._names: dict[Block, str] = {}
        self._name = name
        self.members: dict[Body, Members] = {}

    def write(self, body: Body, blocks: Sequence[Block], names: Sequence[str]) -> list[str]:
        """Return the lines of all classes, each after those that it uses."""
        lines: list[str] = []
        for block in blocks:
            name = class_name(block.body.steps)
            self._names[block] = unused(name, {*self._names.values(), self._name})
            self.members[block.body] = Members(block.body, block.names)
            lines += [*self._class(self._names[block], block.body, block.parameters), "", ""]
        self.members[body] = Members(body, [names])
        return lines + self._class(self._name, body, ())

    # -- classes ---------------------------------------------------------------------------------------

    def _class(self, name: str, body: Body, parameters: Sequence[Parameter]) -> list[str]:
        members = self.members[body]
        stored = dict.fromkeys(
            value.name for step in body.steps for value in step.constants.values() if isinstance(value, Parameter)
        )
        init = [f"self.{each} = {each}" for each in stored]
        for member in members.all:
            init += self._member(member)
        first = self._style.initialize([parameter.name for parameter in parameters])
        is_main = name == self._name
        doc = self._docstring() if is_main else []
        return [
            f"class {name}({self._style.base}):", *_indent([*doc, first[0]]), *_indent([*first[1:], *init], 2), "",
            *self._forward(body, members, is_main),
        ]  # fmt: skip

    def _docstring(self) -> list[str]:
        first, *rest = self._doc
        return [f'"""{first}', "", *rest, '"""', ""] if rest else [f'"""{first}"""', ""]

    def _member(self, member: LayerMember | BlockMember | SequenceMember) -> list[str]:
        if isinstance(member, LayerMember):
            return [
                line
                for each in self._style.layer(member.name, member.layer, _arguments(member.layer))
                for line in _wrap(each)
            ]
        if isinstance(member, BlockMember):
            return _wrap(f"self.{member.name} = {self._instance(member.call)}")
        constructor = self._style.loop if member.extra else self._style.sequence
        return self._style.create(constructor, member.name, self._instances(member.calls))

    def _instance(self, call: Call, replace: Mapping[int, str] | None = None) -> str:
        assert call.block is not None
        arguments = [(replace or {}).get(i) or literal(value) for i, value in enumerate(call.arguments)]
        named = [
            f"{parameter.name}={argument}" if "channels" not in parameter.name else argument
            for parameter, argument in zip(call.block.parameters, arguments, strict=True)
        ]
        return f"{self._names[call.block]}({', '.join(named)})"

    def _instances(self, calls: Sequence[Call]) -> list[str]:
        """Return the elements of a sequence: a loop for equal ones, and for numbers in arithmetic progression."""
        result: list[str] = []
        index = 0
        while index < len(calls):
            run = _run(calls, index)
            if run.length > 1:
                loop = f"for {'i' if run.steps else '_'} in range({run.length})"
                result.append(f"*[{self._instance(calls[index], run.steps)} {loop}]")
            else:
                result.append(self._instance(calls[index]))
            index += run.length
        return result

    # -- forward ---------------------------------------------------------------------------------------

    def _forward(self, body: Body, members: Members, is_main: bool) -> list[str]:
        statements: list[Statement] = []
        for item in body.items:
            if item.block is None:
                statements.append(self._step(body.steps[item.positions[0]], item.positions[0], members))
            else:
                statements += self._call(body, item, members)
        names = list(self._inputs) if is_main else list(_inputs_of_blocks(len(body.inputs)))
        inputs = dict(zip(body.inputs, names, strict=True))
        lines, results = with_variables(nest(statements, body.outputs), inputs, body.outputs)
        if len(results) == 1 and lines and lines[-1].startswith(f"{results[0]} = "):
            lines[-1] = f"return {lines[-1].removeprefix(f'{results[0]} = ')}"
        else:
            lines.append(f"return {', '.join(results)}")
        raw = [m.name for m in members.all if isinstance(m, LayerMember) and "" in m.layer.state]
        wrapped = [line for each in lines for line in _wrap(each, 8)]
        return [f"    {self._style.forward(names, raw)}", *_indent(wrapped, 2)]

    def _step(self, step: Step, position: int, members: Members) -> Statement:
        texts = {key: self._style.uses(members.layers[position, key].name, layer) for key, layer in step.layers.items()}
        texts |= {
            key: f"self.{value.name}" if isinstance(value, Parameter) else literal(value)
            for key, value in step.constants.items()
        }
        code = step.code.format(*map(placeholder, step.inputs), **texts)
        is_main = any(layer.title not in {*MINOR, "weight"} for layer in step.layers.values())
        return Statement(step.outputs, code, is_main, comment=step.comment)

    def _call(self, body: Body, item: Call, members: Members) -> list[Statement]:
        member = members.calls[item]
        reads = body.reads(item)
        arguments = ", ".join(map(placeholder, reads))
        if isinstance(member, BlockMember):
            output = body.steps[item.positions[-1]].outputs[0]
            return [Statement((output,), f"self.{member.name}({arguments})", is_main=True)]
        if item is not member.calls[0]:
            return []
        output = body.steps[member.calls[-1].positions[-1]].outputs[0]
        if member.extra:
            return [Statement((output,), f"({arguments})", is_main=True, loop=f"self.{member.name}")]
        return [Statement((output,), f"self.{member.name}({arguments})", is_main=True)]


class _Run(NamedTuple):
    length: int
    steps: dict[int, str]


def _run(calls: Sequence[Call], start: int) -> _Run:
    """Return the longest run of instances that one loop creates, and the arguments that depend on the loop's index."""
    first = calls[start]
    best = _Run(1, {})
    for end in range(start + 2, len(calls) + 1):
        part = calls[start:end]
        if part[-1].block is not first.block:
            break
        steps: dict[int, str] = {}
        for index, values in enumerate(zip(*(call.arguments for call in part), strict=True)):
            if all(repr(value) == repr(values[0]) for value in values):
                continue
            text = _progression(values)
            if text is None:
                return best
            steps[index] = text
        if steps and len(part) == 2:
            continue  # two numbers are always in progression
        best = _Run(len(part), steps)
    return best


def _progression(values: Sequence[object]) -> str | None:
    if not all(type(value) is int for value in values):
        return None
    numbers = [value for value in values if isinstance(value, int)]
    step = numbers[1] - numbers[0]
    if any(b - a != step for a, b in pairwise(numbers)):
        return None
    return f"{numbers[0]} + {step} * i" if numbers[0] else f"{step} * i"


def _inputs_of_blocks(count: int) -> Iterable[str]:
    return ("x", "y", "z", "u", "v", "w")[:count] if count <= 6 else [f"x{number}" for number in range(count)]


def _arguments(layer: Layer) -> str:
    """Return the arguments of a constructor, without those that have their defaults."""
    parts = []
    for index, (name, value) in enumerate(layer.arguments.items()):
        if index < layer.positional:
            parts.append(literal(value))
        elif name not in layer.defaults or repr(layer.defaults[name]) != repr(value):
            parts.append(f"{name}={literal(value)}")
    return ", ".join(parts)


def _indent(lines: Iterable[str], levels: int = 1) -> list[str]:
    return [f"{'    ' * levels}{line}" if line else "" for line in lines]


def _wrap(line: str, indent: int = 8) -> list[str]:
    """Break a line that is too long after the first bracket whose content can be split."""
    if len(line) + indent <= _WIDTH or "#" in line:
        return [line]
    start = line.find("(", line.find(" = ") + 1)
    if start < 0 or not line.endswith(")"):
        return [line]
    content = line[start + 1 : -1]
    try:
        ast.parse(f"f({content})", mode="eval")
    except SyntaxError:
        return [line]
    return [line[: start + 1], *[f"    {part}" for part in _split(content)], ")"]


def _split(content: str) -> list[str]:
    """Split arguments into lines."""
    call = ast.parse(f"f({content})", mode="eval").body
    assert isinstance(call, ast.Call)
    parts = [unparse(each) for each in (*call.args, *call.keywords)]
    lines = [""]
    for part in parts:
        if lines[-1] and len(lines[-1]) + len(part) + 14 > _WIDTH:
            lines.append("")
        lines[-1] += f"{' ' if lines[-1] else ''}{part},"
    return lines
