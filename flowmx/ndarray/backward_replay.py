"""Replays of backward passes over tapes of the same form.

A training loop records the same calls in each step. The second backward pass over tapes of one form saves its bulks as
a :class:`Replay`: a flat list of computations on numbered slots, and the tape's arrays that they read. From the third
pass on, the traversal is skipped: the replay looks up the arrays and pushes the list. As in bulks, an error affects
only the computations that depend on the failed one.

The form of a tape consists of three parts: the rules of its nodes, which represent the operator, its parameters, shapes
and dtypes; the origin of each input; and the variables with their requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from flowmx import forks
from flowmx.bounded_tables import make_room
from flowmx.devices import Device
from flowmx.engine import Origin
from flowmx.engine.runtime import engine
from flowmx.engine.scheduler import DONE, Operation, Variable
from flowmx.ndarray import backward_bulks as bulks
from flowmx.ndarray.backward_bulks import Bulk, Part, Value
from flowmx.ndarray.computations import run_on
from flowmx.ndarray.core import BaseArray, Storage
from flowmx.ndarray.recording import GradientRules, LaterOutput, Leaf, TapeNode
from flowmx.ndarray.replay_frames import Frames
from flowmx.ndarray.replay_steps import Pass, Program, Step, Total, compute, slot_getter, storage_of

Key = tuple[Any, ...]

_MAX_NODES = 1 << 17
"""Maximum number of nodes of a replayed tape; the key of a larger tape would take too much memory."""
_MAX_STEPS = 200_000
"""Maximum number of computations of all cached replays; beyond it, randomly chosen replays are dropped."""
_MAX_HASHES = 1 << 14
"""Maximum number of forms to remember, by hash, after their first pass."""


class PushedBulk(NamedTuple):
    """A bulk that a backward pass pushed."""

    parts: tuple[Part, ...]
    light: bool
    short: bool
    nbytes: int


def _saved_form(array: BaseArray) -> Any:
    """Return an array as tape nodes save it."""
    return array.storage if array.strided_view is None else array


class Replay(NamedTuple):
    """A recorded backward pass.

    Attributes:
        device: the device of all arrays.
        programs: the operations.
        slots: the number of slots.
        checked: the arrays, as node and position, that must be unchanged since they were recorded.
        forms: shape and dtype of each variable's gradient.
        rules: the rules of the nodes; these references keep the ids in the key from being reused.
        frames: memory for passes.
        reached: the nodes that gradients reach, so that they are freed; None: all.
    """

    device: Device
    programs: tuple[Program, ...]
    slots: int
    checked: tuple[tuple[int, int], ...]
    forms: tuple[tuple[Any, Any], ...]
    rules: tuple[GradientRules, ...]
    frames: Frames
    reached: tuple[int, ...] | None = None

    def run(
        self,
        nodes: Sequence[TapeNode],
        head_arrays: Sequence[BaseArray],
        leaves: Sequence[Leaf],
        train: bool,
        origin: Origin,
    ) -> bool:
        """Push the pass and return True; push nothing and return False if the tape's arrays do not match.

        Args:
            nodes: the tape's nodes, in the order of the key.
            head_arrays: the heads, then the user's head gradients.
            leaves: the variables.
            train: whether the pass runs in training mode.
            origin: the user's line.

        Raises:
            AutogradError: an array that a gradient reads has changed since it was recorded.
        """
        grads_by_storage = self._gradients(leaves)
        if grads_by_storage is None:
            return False
        inputs = self._inputs(nodes, head_arrays, grads_by_storage)
        if inputs is None:
            return False
        for node_number, position in self.checked:
            node = nodes[node_number]
            saved = node.saved_state
            assert saved is not None
            if storage_of(saved[position]).version != saved[len(saved) // 2 + position]:
                node.refuse_changed(position)
        grads = list(grads_by_storage.values())
        order = Variable("order of a backward pass")
        state = Pass(self.programs, self.slots, self.frames)
        device = self.device
        run = run_on(device, train)
        for number, (program, (program_arrays, read)) in enumerate(zip(self.programs, inputs, strict=True)):
            targets = [grads[leaf].storage for leaf in program.leaves]
            op = Operation(
                compute, (), read, (order, *targets), device.compute, "backward", origin, program.nbytes, program.light
            )
            op.arguments = (run, number, state, program_arrays, grads, op)
            op.bulkable, op.handles_failures, op.short = False, True, program.short
            engine.enqueue(op)
            if op.state == DONE:
                op.arguments = ()  # break the reference cycle: they contain the operation
        return True

    def _inputs(
        self, nodes: Sequence[TapeNode], head_arrays: Sequence[BaseArray], grads_by_storage: Mapping[Storage, Any]
    ) -> list[tuple[list[Any], tuple[Storage, ...]]] | None:
        """Return each program's arrays and the storages that it reads; None if they do not match the recorded pass."""
        device, count = self.device, len(nodes)
        inputs = []
        for program in self.programs:
            arrays: list[object] = []
            storages: dict[Storage, None] = {}
            for _, number, position in program.sources:
                if number < count:
                    saved = nodes[number].saved_state
                    if saved is None:
                        return None
                    array = saved[position]
                else:
                    array = _saved_form(head_arrays[position])
                storage = array if type(array) is Storage else array.storage
                if storage.device is not device or storage in grads_by_storage:
                    return None
                arrays.append(array)
                storages[storage] = None
            inputs.append((arrays, tuple(storages)))
        return inputs

    def _gradients(self, leaves: Sequence[Leaf]) -> dict[Storage, Any] | None:
        """Return the variables' gradients, in order, by storage; None if they differ from the form."""
        grads: dict[Storage, Any] = {}
        for leaf, (shape, dtype) in zip(leaves, self.forms, strict=True):
            grad = leaf.grad
            if grad is None or grad.strided_view is not None or grad.dims != shape or grad.element_type != dtype:
                return None
            storage = grad.storage
            if storage.device is not self.device or storage in grads:
                return None
            grads[storage] = grad
        return grads


# -- recording ----------------------------------------------------------------------------------------------


class Forms:
    """A cache of replays by tape form.

    Attributes:
        replays: the replays; None for a form that cannot be replayed.
        replayed: the number of replayed passes.
    """

    def __init__(self) -> None:
        self.replays: dict[Key, Replay | None] = {}
        self.replayed = 0
        self._steps = 0
        self._hashes: dict[int, None] = {}
        self._lock = forks.lock()  # a finalizer may run a backward pass at any point

    def look_up(self, key: Key) -> tuple[Replay | None, bool]:
        """Return the replay of a form (or None), and whether to record one now."""
        with self._lock:
            if key in self.replays:
                return self.replays[key], False
            number = hash(key)
            if number in self._hashes:
                return None, True
            make_room(self._hashes, _MAX_HASHES)
            self._hashes[number] = None
            return None, False

    def keep(self, key: Key, replay: Replay | None) -> None:
        """Store the replay of a form (None: it cannot be replayed)."""
        with self._lock:
            self._steps += _weight(replay) - (_weight(self.replays.pop(key)) if key in self.replays else 0)
            while self._steps > _MAX_STEPS and self.replays:
                self._steps -= sum(map(_weight, make_room(self.replays, len(self.replays))))
            self.replays[key] = replay


def _weight(replay: Replay | None) -> int:
    return 1 if replay is None else 1 + sum(len(program.steps) for program in replay.programs)


forms = Forms()


def key_of(
    nodes: Sequence[TapeNode], leaves: Sequence[Leaf], heads: Sequence[BaseArray],
    head_grads: Sequence[BaseArray | None], train: bool,
) -> Key | None:  # fmt: skip
    """Return the form of a tape; None if it cannot be replayed."""
    if len(nodes) > _MAX_NODES:
        return None
    places: dict[object, int] = {}
    key: list[object] = [train, len(leaves)]
    add = key.append
    for at, leaf in enumerate(leaves, 2):
        grad, request = leaf.grad, leaf.request
        if grad is None or (request != "write" and request != "add"):  # faster than a tuple
            return None
        for other in head_grads:
            if other is not None and other.storage is grad.storage:
                return None  # the pass also reads the buffer, and may not need to write it
        places[leaf] = -at
        add(request)
    for at, node in enumerate(nodes):
        rules = node.rules
        if rules is None or node.saved_state is None:
            return None
        places[node] = at
        add(id(rules))
        for entry in node.entries:
            if entry is None:
                add(None)
            elif type(entry) is LaterOutput:
                add((places[entry.node], entry.index))
            else:
                add(places[entry])
    for head, grad in zip(heads, head_grads, strict=True):
        entry = head.tape_entry
        assert entry is not None
        add(
            (places[entry.node], entry.index, head.dims, head.element_type, None if grad is None else grad.element_type)
        )
    return tuple(key)


class ReplayRecorder:
    """Records a backward pass, and builds its replay.

    Attributes:
        pushed: its bulks.
        checked: the arrays that gradients read.
        reached: the nodes that gradients reached.
        failed: whether the pass cannot be replayed.
    """

    def __init__(
        self, nodes: Sequence[TapeNode], leaves: Sequence[Leaf], head_arrays: Sequence[BaseArray], device: Device
    ) -> None:
        self.pushed: list[PushedBulk] = []
        self.checked: list[tuple[int, int]] = []
        self.reached: list[int] = []
        self.failed = False
        self._device = device
        self._leaves = {id(leaf.grad): at for at, leaf in enumerate(leaves)}
        self._forms = tuple([(leaf.grad.dims, leaf.grad.element_type) for leaf in leaves if leaf.grad is not None])
        self._rules = tuple([node.rules for node in nodes if node.rules is not None])
        # Arrays are identified by id(), so keep references to them.
        self._arrays = [*[list(node.arrays or ()) for node in nodes], list(head_arrays)]
        self._places = {
            id(array): (at, place) for at, arrays in enumerate(self._arrays) for place, array in enumerate(arrays)
        }
        self._slots: dict[object, int] = {}
        self._count = 0

    def record(self, bulk: Bulk) -> None:
        """Record a bulk just before its push."""
        self.pushed.append(PushedBulk(tuple(bulk.parts()), bulk.light, bulk.short, bulk.nbytes))

    def _new_slot(self) -> int:
        self._count += 1
        return self._count - 1

    def replay(self) -> Replay | None:
        """Build the replay from the recorded bulks; None if the pass cannot be replayed."""
        if self.failed:
            return None
        try:
            flat_bulks = [self._flatten(number, bulk) for number, bulk in enumerate(self.pushed)]
        except LookupError:  # a bulk reads an array that is not on the tape
            return None
        last_uses: dict[int, tuple[int, int]] = {}
        for number, (steps, _) in enumerate(flat_bulks):
            for at, step in enumerate(steps):
                reads = (
                    (step.slot,) if isinstance(step, Total) else (*step.reads, *[slot for slot, _, _ in step.outputs])
                )
                last_uses.update(dict.fromkeys(reads, (number, at)))
        drops: dict[tuple[int, int], list[int]] = {}
        for slot, position in last_uses.items():
            drops.setdefault(position, []).append(slot)
        programs = []
        for number, ((steps, sources), bulk) in enumerate(zip(flat_bulks, self.pushed, strict=True)):
            steps_with_drops = tuple(
                [
                    step if isinstance(step, Total) else step._replace(drops=tuple(drops.get((number, at), ())))
                    for at, step in enumerate(steps)
                ]
            )
            leaves = tuple([step.leaf for step in steps if isinstance(step, Total)])
            programs.append(Program(steps_with_drops, tuple(sources), leaves, bulk.light, bulk.short, bulk.nbytes))
        reached = None if len(self.reached) == len(self._arrays) - 1 else tuple(self.reached)
        return Replay(
            self._device, tuple(programs), self._count, tuple(dict.fromkeys(self.checked)), self._forms, self._rules,
            Frames(), reached,
        )  # fmt: skip

    def _flatten(self, number: int, bulk: PushedBulk) -> tuple[list[Step | Total], list[tuple[int, int, int]]]:
        """Flatten a bulk into its steps and sources."""
        steps: list[Step | Total] = []
        sources: dict[int, tuple[int, int, int]] = {}

        def slot_of(cell: object) -> int:
            if type(cell) is Value:
                return self._slots[id(cell)]
            at, place = self._places[id(cell)]
            key = (number, at, place)
            if key not in self._slots:
                slot = self._slots[key] = self._new_slot()
                sources[slot] = (slot, at, place)
            return self._slots[key]

        for function, cells, extra, targets in bulk.parts:
            if function is bulks.run_rule:
                rule, results = extra
                rule_slots = [slot_of(cell) for cell in cells]
                for name, forward, reads, outputs, op in rule.steps:
                    outputs = tuple([(self._new_slot(), *form) for form in outputs])
                    inputs = tuple([rule_slots[index] for index in reads])
                    steps.append(Step(forward, inputs, outputs, (), name, slot_getter(inputs), op))
                    rule_slots += [slot for slot, *_ in outputs]
                for value, result in zip(targets, results, strict=True):
                    self._slots[id(value)] = rule_slots[result]
            elif function is bulks.store_total:
                cell = cells[0]
                owned = type(cell) is Value and cell.owned
                steps.append(Total(None, slot_of(cell), self._leaves[id(extra)], owned))
            elif function is bulks.add_total:
                steps.append(Total(extra.steps[0].forward, slot_of(cells[1]), self._leaves[id(cells[0])], False))
            else:
                raise LookupError(function)
        return steps, list(sources.values())
