"""The attributes of a class: its layers, blocks and sequences of blocks, with their names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from flowmx.source_code.blocks import Body, Call
from flowmx.source_code.description import Layer, State, Step, Value
from flowmx.source_code.names import common_prefix, identifier, unused

__all__ = ["BlockMember", "LayerMember", "Members", "SequenceMember", "entries"]


_LONGEST_CHAIN = 5
"""A block of fewer steps is named like its first layer."""


@dataclass(eq=False)
class LayerMember:
    """A layer, which one or more steps use."""

    name: str
    layer: Layer
    uses: list[tuple[int, str]] = field(default_factory=list)


@dataclass(eq=False)
class BlockMember:
    """An instance of a block."""

    name: str
    call: Call


@dataclass(eq=False)
class SequenceMember:
    """Blocks that are called one after the other.

    Attributes:
        name: the name of the attribute.
        calls: the blocks.
        extra: the values that all of them read in addition.
    """

    name: str
    calls: list[Call]
    extra: list[Value]


Member = LayerMember | BlockMember | SequenceMember


class Members:
    """The attributes of a body's class.

    Args:
        body: the body.
        names: the names of its nodes in each of its instances.
    """

    def __init__(self, body: Body, names: Sequence[Sequence[str]]) -> None:
        self.body, self._names = body, names
        self.all: list[Member] = []
        self.layers: dict[tuple[int, str], LayerMember] = {}
        self.calls: dict[Call, BlockMember | SequenceMember] = {}
        self._by_identity: dict[object, LayerMember] = {}
        self._prefixes = [
            common_prefix([name for name, step in zip(row, body.steps, strict=True) if step.layers] or list(row))
            for row in names
        ]
        index = 0
        while index < len(body.items):
            sequence = self._sequence(index)
            if len(sequence) > 1:
                self._add_sequence(sequence)
            elif body.items[index].block is not None:
                self._add_block(body.items[index])
            else:
                self._add_layers(body.items[index].positions[0])
            index += len(sequence)
        self._number()

    def _add_layers(self, position: int) -> None:
        step = self.body.steps[position]
        for key, layer in step.layers.items():
            member = self._by_identity.get(layer.identity) if layer.identity is not None else None
            if member is None:
                member = LayerMember(self._title(position, layer), layer)
                self.all.append(member)
                if layer.identity is not None:
                    self._by_identity[layer.identity] = member
            member.uses.append((position, key))
            self.layers[position, key] = member

    def _title(self, position: int, layer: Layer) -> str:
        """Return the name of a layer's node without the prefix, if all instances agree, or the name of its kind."""
        own = [row[position].removeprefix(prefix) for row, prefix in zip(self._names, self._prefixes, strict=True)]
        if layer.kind.startswith(("nn.Parameter", "Parameter", "buffer")):
            own = [source.removeprefix(self._prefixes[0]) for source in next(iter(layer.state.values())).sources[:1]]
            own = own if len(self._names) == 1 else []
        names = {identifier(name) for name in own}
        return names.pop() if len(names) == 1 and "" not in names else f"{layer.title}#"

    def _add_block(self, call: Call) -> None:
        name = identifier(self._stem(call))
        held = [position for position in call.positions if self.body.steps[position].layers]
        if not name and len(call.positions) < _LONGEST_CHAIN:
            layer = next(iter(self.body.steps[held[0]].layers.values()))
            name = self._title(held[0], layer)
        member = BlockMember(name or "block#", call)
        self.all.append(member)
        self.calls[call] = member

    def _stem(self, call: Call) -> str:
        """Return the prefix that the nodes of a block share, without the prefix of the whole body."""
        if len(self._names) > 1:
            return ""
        names = [self._names[0][position] for position in call.positions if self.body.steps[position].layers]
        return common_prefix(names).removeprefix(self._prefixes[0]).rstrip("_./:")

    # -- sequences -------------------------------------------------------------------------------------

    def _sequence(self, start: int) -> list[Call]:
        """Return the blocks from an item on that follow each other and belong together by their names."""
        items, calls = self.body.items, [self.body.items[start]]
        if calls[0].block is None:
            return calls
        extra = self.body.reads(calls[0])[1:]
        for item in items[start + 1 :]:
            (*_, last) = [self.body.steps[position] for position in calls[-1].positions]
            if item.block is None or self.body.reads(item) != [last.outputs[0], *extra]:
                break
            if not self.body.flow.is_read_only_by(last.outputs[0], item.positions):
                break
            if self._group([*calls, item]) is None:
                break
            calls.append(item)
        return calls

    def _group(self, calls: Sequence[Call]) -> str | None:
        """Return the name of a sequence of blocks; None if their names do not belong together."""
        stems = [self._stem(call) for call in calls]
        if not any(stems):
            return ""
        parents = {stem.rpartition("_")[0] if "_" in stem else "" for stem in stems}
        if len(set(stems)) == 1:
            return stems[0]
        if len(set(stems)) < len(stems):
            return None
        is_numbered = len({stem.rpartition("_")[2].rstrip("0123456789") for stem in stems}) == 1
        return parents.pop() if len(parents) == 1 and is_numbered else None

    def _add_sequence(self, calls: list[Call]) -> None:
        name = identifier(self._group(calls) or "") or "blocks#"
        member = SequenceMember(name, calls, self.body.reads(calls[0])[1:])
        self.all.append(member)
        self.calls.update(dict.fromkeys(calls, member))

    def _number(self) -> None:
        """Make the names unique, and number those that come from kinds."""
        counts = Counter(member.name for member in self.all)
        taken: set[str] = set()
        numbers: Counter[str] = Counter()
        for member in self.all:
            name = member.name
            if name.endswith("#"):
                numbers[name] += 1
                is_numbered = counts[name] > 1 or not isinstance(member, SequenceMember)
                name = f"{name[:-1]}{numbers[name]}" if is_numbered and counts[name] > 1 else name[:-1]
            member.name = unused(name, taken)
            taken.add(member.name)


def entries(
    body: Body, steps: Sequence[Step], members: dict[Body, Members], prefix: str = ""
) -> Iterator[tuple[str, State]]:
    """Return the entries of the state dict by name.

    Args:
        body: the body of the class.
        steps: the steps of this instance.
        members: the attributes of each body's class.
        prefix: the path of this instance.
    """
    for member in members[body].all:
        path = f"{prefix}{member.name}"
        if isinstance(member, LayerMember):
            position, key = member.uses[0]
            for name, state in steps[position].layers[key].state.items():
                yield f"{path}.{name}" if name else path, state
        else:
            calls = member.calls if isinstance(member, SequenceMember) else [member.call]
            for index, call in enumerate(calls):
                assert call.block is not None
                inner = f"{path}.{index}." if isinstance(member, SequenceMember) else f"{path}."
                yield from entries(call.block.body, [steps[p] for p in call.positions], members, inner)
