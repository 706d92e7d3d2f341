"""The dataflow between steps: dominators, regions and chains."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from flowmx.source_code.description import Step, Value

__all__ = ["Dataflow"]

_OUTSIDE = -1
"""The position of a reader outside the body."""


class Dataflow:
    """Which steps read which values.

    Values that are computed without parameters from inputs other than the first, such as masks, are *global*: any block
    may read them. Steps that read no input at all, such as constants, are *free*: they belong to their readers.

    Args:
        steps: the steps, in order.
        outputs: the values that are returned.
        inputs: the values that are passed in.
    """

    def __init__(self, steps: Sequence[Step], outputs: Sequence[Value], inputs: Sequence[Value]) -> None:
        self._steps = steps
        self._producer = {value: index for index, step in enumerate(steps) for value in step.outputs}
        self._readers: dict[Value, set[int]] = defaultdict(set)
        for index, step in enumerate(steps):
            for value in step.inputs:
                self._readers[value].add(index)
        for value in outputs:
            self._readers[value].add(_OUTSIDE)
        self._global: set[Value] = set(inputs[1:])
        self._free: set[int] = set()
        for index, step in enumerate(steps):
            if all(value in self._producer and self._producer[value] in self._free for value in step.inputs):
                self._free.add(index)
            elif not step.layers and all(self.is_given(value) for value in step.inputs):
                self._global.update(step.outputs)
        counts: dict[object, int] = defaultdict(int)
        for step in steps:
            for layer in step.layers.values():
                if layer.identity is not None:
                    counts[layer.identity] += 1
        self._shared = {
            index
            for index, step in enumerate(steps)
            if any(layer.identity is not None and counts[layer.identity] > 1 for layer in step.layers.values())
        }

    def is_given(self, value: Value) -> bool:
        """Return whether a value is global or free."""
        return value in self._global or (value in self._producer and self._producer[value] in self._free)

    def _trunk(self, index: int) -> list[Value]:
        """Return the values that a step reads, except global and free ones."""
        return list(dict.fromkeys(value for value in self._steps[index].inputs if not self.is_given(value)))

    def is_unshared(self, positions: Sequence[int]) -> bool:
        """Return whether no other steps use the layers of these."""
        return self._shared.isdisjoint(positions)

    # -- regions ---------------------------------------------------------------------------------------

    def regions(self) -> Iterator[tuple[int, ...]]:
        """Return the positions of the steps of each region, inputs before users."""
        start: dict[int, Value | None] = {}  # the dominating value of each step
        depth: dict[Value | None, int] = {None: 0}
        parent: dict[Value, Value | None] = {}
        for index, step in enumerate(self._steps):
            if index in self._free or any(value in self._global for value in step.outputs):
                continue
            values = self._trunk(index)
            for value in values:
                if value not in depth:  # an input
                    depth[value], parent[value] = 1, None
            common: Value | None = values[0] if values else None
            for value in values[1:]:
                common = _common(common, value, depth, parent)
            start[index] = common
            for value in step.outputs:
                depth[value], parent[value] = depth[common] + 1, common
        for index, begin in start.items():
            if begin is not None and len(self._trunk(index)) > 1:
                region = self._between(begin, index)
                if region is not None:
                    yield region

    def _between(self, value: Value, end: int) -> tuple[int, ...] | None:
        """Return the steps on the paths from a value to a step; None if others read what they compute."""
        order: dict[int, None] = {}
        pending = [(end, False)]
        while pending:
            index, is_ready = pending.pop()
            if is_ready:
                order[index] = None
            elif index not in order:
                pending.append((index, True))
                for source in reversed(self._steps[index].inputs):
                    if source != value and source not in self._global and source in self._producer:
                        pending.append((self._producer[source], False))
        inner = set(order) - {end}
        is_closed = all(self._readers[v] <= set(order) for i in inner for v in self._steps[i].outputs)
        return (
            tuple(order) if is_closed and len(self._steps[end].outputs) == 1 and self.is_unshared(list(order)) else None
        )

    def is_read_only_by(self, value: Value, positions: Sequence[int]) -> bool:
        """Return whether only these steps read a value."""
        return self._readers[value] <= set(positions)

    # -- chains ----------------------------------------------------------------------------------------

    def after(self, positions: Sequence[int]) -> int | None:
        """Return the only step that reads the output of these, if it reads no other value."""
        output = self._steps[positions[-1]].outputs[0]
        if len(self._readers[output]) != 1:
            return None
        (reader,) = self._readers[output]
        return (
            reader if reader != _OUTSIDE and self._trunk(reader) == [output] and self.is_unshared((reader,)) else None
        )

    def before(self, positions: Sequence[int]) -> int | None:
        """Return the step that computes the only input of some steps, or None if other steps read that input too."""
        inner = {value for position in positions for value in self._steps[position].outputs}
        values = {value for position in positions for value in self._trunk(position)} - inner
        if len(values) != 1:
            return None
        (value,) = values
        index = self._producer.get(value)
        if index is None or not self._readers[value] <= set(positions) or not self.is_unshared((index,)):
            return None
        return index if len(self._trunk(index)) == 1 else None

    def block_after(self, positions: Sequence[int], starts: Mapping[int, object]) -> int | None:
        """Return which of the blocks that begin at ``starts`` reads the output of these, if nothing else does."""
        output = self._steps[positions[-1]].outputs[0]
        readers = self._readers[output]
        for start, instance in starts.items():
            inside = set(getattr(instance, "positions", ()))
            if readers <= inside:
                reads = {value for position in inside for value in self._trunk(position)}
                own = {value for position in inside for value in self._steps[position].outputs}
                return start if reads - own == {output} else None
        return None


def _common(
    one: Value | None, other: Value | None, depth: Mapping[Value | None, int], parent: Mapping[Value, Value | None]
) -> Value | None:
    """Return the nearest common dominator of two values."""
    while one != other:
        if depth[one] >= depth[other]:
            one = parent[one] if one is not None else None
        else:
            other = parent[other] if other is not None else None
    return one
