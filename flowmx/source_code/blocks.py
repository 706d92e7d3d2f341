"""Blocks: parts of a network that occur several times become classes.

A body is a list of steps, and the items that it is written as: single steps, and calls of block classes. Classes come
from *regions*, in three passes:

1. A region is everything between a value and the first value after it that all paths pass through, such as a residual
   unit. Regions that occur more than once become classes, the largest first.
2. Classes grow: an activation or a normalization that follows (or precedes) every instance becomes part of the class,
   and two classes that always alternate become one.
3. Chains of a layer and its normalization and activation become classes if there are many.

Instances of a class compute the same expressions. Where they differ, in channels or strides, the class has parameters.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from flowmx.source_code.description import Step, Value
from flowmx.source_code.regions import Dataflow

__all__ = ["MINOR", "Block", "Body", "Call", "Parameter", "find_blocks"]

_SMALLEST = 3
"""The smallest number of steps of a region that becomes a class."""
_FEWEST_CHAINS = 8
"""The number of equal chains from which they become a class."""
_MOST_PARAMETERS = 7
"""The largest number of parameters of a class."""
MINOR = {"bn", "norm", "dropout", "act"}
"""Titles of layers that belong to the layer before them."""
_ACTIVATION = re.compile("relu|sigmoid|tanh|elu|softplus|softsign|silu|clamp|clip|Activation")


@dataclass(frozen=True)
class Parameter:
    """A parameter of a block class."""

    name: str

    def __repr__(self) -> str:
        return self.name


@dataclass(eq=False)
class Block:
    """A class of the written file.

    Attributes:
        body: the steps of its first instance, with parameters in their slots.
        names: the names of the nodes of every instance, by position.
        parameters: the parameters of its constructor.
    """

    body: Body
    names: list[list[str]]
    parameters: list[Parameter]


class Call(NamedTuple):
    """An item of a body: a step, or an instance of a block.

    Attributes:
        positions: the positions of its steps in the body.
        block: the class; None for a single step.
        arguments: the arguments of the constructor.
    """

    positions: tuple[int, ...]
    block: Block | None = None
    arguments: tuple[object, ...] = ()


@dataclass(eq=False)
class Body:
    """The content of a class.

    Attributes:
        steps: its steps, in order.
        inputs: the values that it reads.
        outputs: the values that it returns.
        items: what it is written as.
    """

    steps: list[Step]
    inputs: list[Value]
    outputs: list[Value]
    items: list[Call] = field(default_factory=list)

    @cached_property
    def flow(self) -> Dataflow:
        """Which steps read which values."""
        return Dataflow(self.steps, self.outputs, self.inputs)

    def reads(self, item: Call) -> list[Value]:
        """Return the values that an item reads and other items compute, in the order of the block's inputs."""
        inner = {value for position in item.positions for value in self.steps[position].outputs}
        values = (value for position in item.positions for value in self.steps[position].inputs)
        outer = list(dict.fromkeys(value for value in values if value not in inner))
        return sorted(outer, key=self.flow.is_given) if item.block else outer


class _Instance(NamedTuple):
    """A part of a body that may become an instance of a block."""

    body: Body
    positions: tuple[int, ...]

    @property
    def steps(self) -> list[Step]:
        return [self.body.steps[position] for position in self.positions]


def find_blocks(body: Body) -> list[Block]:
    """Set the items of a body; return the blocks that they call, a block after those that it calls."""
    blocks: list[Block] = []
    bodies = [body]
    for current in bodies:  # the list grows
        groups = _repeated_regions(current)
        if groups:
            groups = _merge(_grow(groups, current.flow), current.flow)
        new = [block for group in groups if (block := _replace(group))]
        blocks += new
        bodies += [block.body for block in new]
        _fill(current)
    blocks += _chains(bodies)
    for each in [*bodies, *(block.body for block in blocks)]:
        _fill(each)
    return _callees_first(body, blocks)


# -- regions ---------------------------------------------------------------------------------------------------------


def _repeated_regions(body: Body) -> list[list[_Instance]]:
    """Return groups of equal regions that do not overlap, the largest regions first."""
    groups: dict[object, list[tuple[int, ...]]] = defaultdict(list)
    for positions in body.flow.regions():
        steps = [body.steps[position] for position in positions]
        if len(steps) >= _SMALLEST and sum(bool(step.layers) for step in steps) > 1:
            groups[_pattern(steps)].append(positions)
    taken: set[int] = set()
    result = []
    for regions in sorted(groups.values(), key=lambda regions: -len(regions[0])):
        chosen: list[_Instance] = []
        for positions in regions:
            if taken.isdisjoint(positions):
                chosen.append(_Instance(body, positions))
                taken.update(positions)
        if len(chosen) > 1:
            result.append(chosen)
        else:
            taken.difference_update(*(instance.positions for instance in chosen))
    return result


def _pattern(steps: Sequence[Step]) -> object:
    """Return what two instances of a class have in common: the code of their steps, and which values they read."""
    numbers: dict[Value, object] = {}
    for index, step in enumerate(steps):
        numbers.update({value: (index, place) for place, value in enumerate(step.outputs)})
    outer = 0
    rows = []
    for step in steps:
        for value in step.inputs:
            if value not in numbers:
                numbers[value] = outer
                outer += 1
        rows.append((step.pattern, tuple(numbers[value] for value in step.inputs)))
    return tuple(rows)


def _grow(groups: list[list[_Instance]], flow: Dataflow) -> list[list[_Instance]]:
    """Add the steps that follow, or precede, every instance of a class."""
    taken = {position for group in groups for instance in group for position in instance.positions}
    for is_after in (True, False):
        for place, group in enumerate(groups):
            while (more := _neighbors(group, flow, taken, is_after)) is not None:
                taken.update(more)
                group = groups[place] = [
                    _Instance(body, (*positions, new) if is_after else (new, *positions))
                    for (body, positions), new in zip(group, more, strict=True)
                ]
    return groups


def _neighbors(group: list[_Instance], flow: Dataflow, taken: set[int], is_after: bool) -> list[int] | None:
    neighbors = [flow.after(each.positions) if is_after else flow.before(each.positions) for each in group]
    positions = [position for position in neighbors if position is not None]
    if len(set(positions)) < len(group) or not taken.isdisjoint(positions):
        return None
    steps = [group[0].body.steps[position] for position in positions]
    is_same = len({step.pattern for step in steps}) == 1
    return positions if is_same and _is_minor(steps[0]) else None


def _is_minor(step: Step) -> bool:
    """Return whether a step is an activation, a normalization or dropout, which belongs to the layer before it."""
    titles = {layer.title for layer in step.layers.values()}
    is_minor = titles <= MINOR if titles else _ACTIVATION.search(step.code) is not None
    return is_minor and len(step.inputs) == 1 and len(step.outputs) == 1


def _merge(groups: list[list[_Instance]], flow: Dataflow) -> list[list[_Instance]]:
    """Join two classes whose instances alternate."""
    groups = list(groups)
    for first in list(groups):
        for second in list(groups):
            if first is second or len(first) != len(second) or first not in groups or second not in groups:
                continue
            starts = {instance.positions[0]: instance for instance in second}
            followers = [flow.block_after(instance.positions, starts) for instance in first]
            if None in followers or len(set(followers)) < len(second):
                continue
            joined = [
                _Instance(one.body, (*one.positions, *starts[start].positions))
                for one, start in zip(first, followers, strict=True)
                if start is not None
            ]
            if len({_pattern(instance.steps) for instance in joined}) == 1:
                groups[groups.index(first)] = joined
                groups.remove(second)
                break
    return groups


# -- chains ----------------------------------------------------------------------------------------------------------


def _chains(bodies: Iterable[Body]) -> list[Block]:
    """Make classes of chains that occur often in all bodies together: a layer with its normalization and activation."""
    groups: dict[object, list[_Instance]] = defaultdict(list)
    for body in bodies:
        flow = body.flow
        free = {item.positions[0] for item in body.items if item.block is None}
        for position in sorted(free):
            step = body.steps[position]
            if step.layers and not _is_minor(step) and len(step.inputs) == 1 and flow.is_unshared((position,)):
                instance = _Instance(body, _chain(body, position, free))
                if len(instance.positions) > 1:
                    groups[_pattern(instance.steps)].append(instance)
    chosen = [group for group in groups.values() if len(group) >= _FEWEST_CHAINS]
    return [block for group in chosen if (block := _replace(group))]


def _chain(body: Body, position: int, free: Collection[int]) -> tuple[int, ...]:
    """Return a layer and what belongs to it."""
    chain: tuple[int, ...] = (position,)
    while True:
        after = body.flow.after(chain)
        if after is None or after not in free or not _is_minor(body.steps[after]):
            return chain
        chain = (*chain, after)


# -- classes ---------------------------------------------------------------------------------------------------------


def _replace(group: Sequence[_Instance]) -> Block | None:
    """Make a class of equal instances, and calls in their bodies; None if they differ in too many ways."""
    slots = [[slot for step in instance.steps for slot in step.slots()] for instance in group]
    columns = [tuple(value for _, _, value in column) for column in zip(*slots, strict=True)]
    varying = {repr(column): column for column in columns if len(set(map(repr, column))) > 1}
    if len(varying) > _MOST_PARAMETERS:
        return None
    names = _parameter_names(group[0].steps, columns, varying)
    varying = {key: varying[key] for key in sorted(varying, key=lambda key: "channels" not in names[key])}
    steps, rest = [], iter(columns)
    for step in group[0].steps:
        values = []
        for _ in step.slots():
            column = next(rest)
            values.append(Parameter(names[repr(column)]) if repr(column) in varying else column[0])
        steps.append(step.with_slots(values))
    block = Block(
        Body(steps, [], [steps[-1].outputs[0]]),
        [[step.name for step in instance.steps] for instance in group],
        [Parameter(names[key]) for key in varying],
    )
    block.body.inputs = group[0].body.reads(Call(group[0].positions, block))
    for index, instance in enumerate(group):
        arguments = tuple(column[index] for column in varying.values())
        instance.body.items.append(Call(instance.positions, block, arguments))
    return block


def _parameter_names(
    steps: Sequence[Step], columns: Sequence[tuple[object, ...]], varying: Mapping[str, tuple[object, ...]]
) -> dict[str, str]:
    """Return the name of each parameter: what it is for, such as ``stride`` or ``in_channels``."""
    roles: dict[str, list[str]] = {key: [] for key in varying}
    order = iter(columns)
    for step in steps:
        for _, name, _ in step.slots():
            key = repr(next(order))
            if key in roles:
                roles[key].append(name)
    outs = [key for key, uses in roles.items() if _OUTPUTS.intersection(uses)]
    first = next((key for key, uses in roles.items() if uses[0] in _SIZES), None)
    last = _last_output(steps, columns)
    names: dict[str, str] = {}
    for key, uses in roles.items():
        name = uses[0]
        if key in outs or name in _SIZES:
            is_first, is_last = key == first, key == last
            name = "channels" if is_first and is_last else "in_channels" if is_first else (
                "out_channels" if is_last else "mid_channels" if last in roles else "channels"
            )  # fmt: skip
        names[key] = _unused(name, names.values())
    return names


_OUTPUTS = {"out_channels", "out_features", "channels", "units"}
"""Arguments that are the number of channels of a layer's output."""
_SIZES = ("in_channels", "in_units", "in_features", "num_features", "normalized_shape", "groups")
"""Arguments that are the number of channels of a layer's input."""


def _last_output(steps: Sequence[Step], columns: Sequence[tuple[object, ...]]) -> str | None:
    """Return the column of the last number of output channels."""
    order, last = iter(columns), None
    for step in steps:
        for _, name, _ in step.slots():
            column = next(order)
            if name in _OUTPUTS:
                last = repr(column)
    return last


def _unused(name: str, names: Iterable[str]) -> str:
    taken, number, result = set(names), 1, name
    while result in taken:
        number += 1
        result = f"{name}{number}"
    return result


def _fill(body: Body) -> None:
    """Add single steps to the items, and put the items in order."""
    calls = [item for item in body.items if item.block is not None]
    covered = {position for item in calls for position in item.positions}
    items = [*calls, *(Call((index,)) for index in range(len(body.steps)) if index not in covered)]
    owner = {value: item for item in items for p in item.positions for value in body.steps[p].outputs}
    ordered: dict[Call, None] = {}
    for item in sorted(items, key=lambda item: max(item.positions)):
        for each in _dependencies(item, body, owner, ordered):
            ordered[each] = None
    body.items = list(ordered)


def _dependencies(item: Call, body: Body, owner: Mapping[Value, Call], done: Mapping[Call, None]) -> Iterator[Call]:
    """Return an item after the items that it depends on, without those that are done."""
    pending, visited = [(item, False)], set()
    while pending:
        current, is_ready = pending.pop()
        if is_ready:
            yield current
        elif current not in visited and current not in done:
            visited.add(current)
            pending.append((current, True))
            reads = [value for position in current.positions for value in body.steps[position].inputs]
            pending += [
                (owner[value], False) for value in reversed(reads) if value in owner and owner[value] != current
            ]


def _callees_first(body: Body, blocks: Sequence[Block]) -> list[Block]:
    order: dict[Block, None] = {}

    def visit(current: Body) -> None:
        for item in current.items:
            if item.block is not None and item.block not in order:
                visit(item.block.body)
                order[item.block] = None

    visit(body)
    return [block for block in order if block in blocks]
