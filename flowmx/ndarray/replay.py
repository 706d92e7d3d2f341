"""Replays: backward passes over tapes that were recorded before in the same form.

A training loop records the same calls at each step. The second time that a tape of one form is walked back over, what
the walk puts into its bulks is kept as a :class:`Replay`: a flat list of computations on numbered slots, and which
arrays of the tape they read. From the third time on the walk is left out: the arrays are looked up and the list is
pushed. Errors are dealt with for each computation by itself, as in bulks.

The form of a tape is what its nodes are, by the rules of their gradients, which stand for the operator, its
parameters, shapes and dtypes; where each input came from; and the variables with their requests.
"""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from flowmx.devices import Device
from flowmx.engine import Origin
from flowmx.engine.failure import Failure, failure_of
from flowmx.engine.runtime import engine
from flowmx.engine.scheduler import DONE, Operation, Variable
from flowmx.ndarray import bulk as bulks
from flowmx.ndarray.bulk import Bulk, Part, Value
from flowmx.ndarray.core import BaseArray, Storage, run_on
from flowmx.ndarray.recording import Further, Leaf, TapeNode
from flowmx.ndarray.references import HELD, TAKEN
from flowmx.ops.registry.operators import Run

Key = tuple[Any, ...]

_MOST_NODES = 1 << 17
"""Nodes of a tape up to which it is looked up: the key of a larger one would cost more memory than it is worth."""
_MOST_STEPS = 200_000
"""Computations of all replays that are kept; those used longest ago go first."""
_MOST_SEEN = 1024
"""Forms that were met once and are remembered by their hash."""


class Step(NamedTuple):
    """One computation on slots.

    Attributes:
        forward: computes it; None where the slot is another one with a new shape.
        reads: the slots that it takes.
        makes: the slots that it fills, with their shapes and dtypes.
        drops: the slots that nobody reads any more.
        name: the operator's.
        take: gets the content of ``reads`` from all slots.
    """

    forward: Callable[..., Any] | None
    reads: tuple[int, ...]
    makes: tuple[tuple[int, Any, Any], ...]
    drops: tuple[int, ...]
    name: str
    take: Callable[[list[Any]], Sequence[Any]]


class Total(NamedTuple):
    """The use of a variable's total.

    Attributes:
        forward: adds it to the buffer; None where it becomes the buffer's content.
        slot: the total.
        leaf: which variable.
        owned: whether nobody else can see its memory, which may be handed over.
    """

    forward: Callable[..., Any] | None
    slot: int
    leaf: int
    owned: bool


class Program(NamedTuple):
    """One operation of a replay.

    Attributes:
        steps: what is computed, and stored, in this order.
        sources: for each slot that is an array: which, as its node's number and its place there.
        leaves: the variables whose buffers are written.
        light, short, nbytes: as of an operation.
    """

    steps: tuple[Step | Total, ...]
    sources: tuple[tuple[int, int, int], ...]
    leaves: tuple[int, ...]
    light: bool
    short: bool
    nbytes: int


class Pushed(NamedTuple):
    """A bulk that a walk has pushed."""

    parts: tuple[Part, ...]
    light: bool
    short: bool
    nbytes: int


class Replay(NamedTuple):
    """A backward pass, learned.

    Attributes:
        device: where all arrays are.
        programs: its operations.
        slots: the number of slots.
        checked: the arrays, as node and place, that must not have been changed since they were recorded.
        forms: shape and dtype of each variable's gradient.
        rules: the rules of the nodes, held so that their identities stay theirs.
        reached: which nodes gradients reach, so that they are freed; None: all.
    """

    device: Device
    programs: tuple[Program, ...]
    slots: int
    checked: tuple[tuple[int, int], ...]
    forms: tuple[tuple[Any, Any], ...]
    rules: tuple[dict[Any, Any], ...]
    reached: tuple[int, ...] | None = None

    def run(
        self, nodes: Sequence[TapeNode], tops: Sequence[BaseArray], leaves: Sequence[Leaf], train: bool, origin: Origin
    ) -> bool:
        """Push the pass; False, and nothing is pushed, where the tape's arrays are not as they were.

        Args:
            nodes: the tape's, in the order of the key.
            tops: the heads, then the head gradients that were given.
            leaves: the variables.
            train: whether it runs in training mode.
            origin: the user's line.

        Raises:
            AutogradError: an array that a gradient looks at was changed since it was recorded.
        """
        device, count = self.device, len(nodes)
        grads: list[Any] = []
        written: set[Storage] = set()
        for leaf, (shape, dtype) in zip(leaves, self.forms, strict=True):
            grad = leaf.grad
            if grad is None or grad._view is not None or grad._shape != shape or grad._dtype != dtype:
                return False
            storage = grad._storage
            if storage.device is not device or storage in written:
                return False
            grads.append(grad)
            written.add(storage)
        arrays, reads = [], []
        for program in self.programs:
            found: list[Any] = []
            memory: dict[Storage, None] = {}
            for _, at, place in program.sources:
                if at < count:
                    of = nodes[at].kept
                    if of is None:
                        return False
                    array = of[place]
                else:
                    array = _kept(tops[place])
                storage = array if type(array) is Storage else array._storage
                if storage.device is not device or storage in written:
                    return False
                found.append(array)
                memory[storage] = None
            arrays.append(found)
            reads.append(tuple(memory))
        for at, place in self.checked:
            checked = nodes[at]
            kept = checked.kept
            assert kept is not None
            if _storage(kept[place]).version != kept[len(kept) // 2 + place]:
                checked.refuse_changed(place)
        order = Variable("order of a backward pass")
        slots: list[Any] = [None] * self.slots
        failed: dict[int, Failure] = {}
        run = run_on(device, train)
        for program, found, read in zip(self.programs, arrays, reads, strict=True):
            targets = [grads[leaf]._storage for leaf in program.leaves]
            op = Operation(
                _compute, (), read, (order, *targets), device.compute, "backward", origin, program.nbytes, program.light
            )
            op.arguments = (run, program, slots, failed, found, grads, op)
            op.bulkable, op.settles, op.short = False, True, program.short
            engine.enqueue(op)
            if op.state == DONE:
                op.arguments = ()  # they hold the operation
        return True


# -- running -----------------------------------------------------------------------------------------------


def _taking(slots: tuple[int, ...]) -> Callable[[list[Any]], Sequence[Any]]:
    """A function in C that gets these slots."""
    return itemgetter(*slots) if len(slots) > 1 else itemgetter(slice(slots[0], slots[0] + 1) if slots else slice(0))


def _kept(array: BaseArray) -> Any:
    """An array as the nodes of a tape keep it."""
    return array._storage if array._view is None else array


def _storage(kept: Any) -> Storage:
    return kept if type(kept) is Storage else kept._storage


def _compute(
    run: Run, program: Program, slots: list[Any], failed: dict[int, Failure], arrays: Sequence[Any],
    grads: Sequence[BaseArray], op: Operation,
) -> None:  # fmt: skip
    """The operation: compute step by step."""
    for (slot, _, _), array in zip(program.sources, arrays, strict=True):
        slots[slot] = array.array if type(array) is Storage else array._read()
    if engine.poisoned:
        for (slot, _, _), array in zip(program.sources, arrays, strict=True):
            failure = _storage(array).failure
            if failure is not None:
                failed[slot] = failure
        if failed or op.writes[0].failure is not None:
            _compute_carefully(run, program.steps, slots, failed, grads, op)
            return
    new = run.device.allocate
    for at, step in enumerate(program.steps):
        try:
            if type(step) is Total:
                _store(run, step, slots, grads[step.leaf])
                grads[step.leaf]._storage.failure = None
                continue
            forward, reads, makes, drops, _, take = step  # type: ignore[misc]
            if forward is None:
                slots[makes[0][0]] = slots[reads[0]].reshape(makes[0][1])
            elif len(makes) == 1:
                slot, shape, dtype = makes[0]
                slots[slot] = made = new(shape, dtype)
                forward(run, take(slots), [made])
                del made
            else:
                for slot, shape, dtype in makes:
                    slots[slot] = new(shape, dtype)
                forward(run, take(slots), [slots[each[0]] for each in makes])
            for slot in drops:
                slots[slot] = None
        except Exception as error:
            _fail(failure_of(error, bulks.named(op, getattr(step, "name", op.name))), step, failed, grads, op)
            _compute_carefully(run, program.steps[at + 1 :], slots, failed, grads, op)
            return


def _compute_carefully(
    run: Run, steps: Sequence[Step | Total], slots: list[Any], failed: dict[int, Failure], grads: Sequence[BaseArray],
    op: Operation,
) -> None:  # fmt: skip
    """Compute where something has failed: what was computed from it fails too, and nothing else."""
    new = run.device.allocate
    for step in steps:
        reads = (step.slot,) if isinstance(step, Total) else step.reads
        # The order's fails where an operation of this pass was broken off as a whole.
        failure = next((failed[slot] for slot in reads if slot in failed), op.writes[0].failure)
        if failure is None:
            try:
                if isinstance(step, Total):
                    _store(run, step, slots, grads[step.leaf])
                    grads[step.leaf]._storage.failure = None
                elif step.forward is None:
                    slots[step.makes[0][0]] = slots[reads[0]].reshape(step.makes[0][1])
                else:
                    for slot, shape, dtype in step.makes:
                        slots[slot] = new(shape, dtype)
                    step.forward(run, [slots[each] for each in reads], [slots[each[0]] for each in step.makes])
            except Exception as error:
                failure = failure_of(error, bulks.named(op, getattr(step, "name", op.name)))
        if failure is not None:
            _fail(failure, step, failed, grads, op)


def _fail(
    failure: Failure, step: Step | Total, failed: dict[int, Failure], grads: Sequence[BaseArray], op: Operation
) -> None:
    """Give the error of a step to what it makes."""
    if isinstance(step, Total):
        engine.poison(failure, (grads[step.leaf]._storage,), op)
        return
    for slot, _, _ in step.makes:
        failed[slot] = failure
    engine.poison(failure, (), op)


def _store(run: Run, total: Total, slots: list[Any], grad: BaseArray) -> None:
    """Put a total into a gradient buffer: its memory, or its content where somebody else uses the memory of either."""
    array, storage = slots[total.slot], grad._storage
    if total.forward is not None:
        into = grad._written()
        total.forward(run, [into, array], [into])
        return
    slots[total.slot] = None
    if total.owned and sys.getrefcount(array) <= TAKEN and (
        storage.array is None or sys.getrefcount(storage.array) <= HELD
    ):  # fmt: skip
        storage.array = array
        return
    slots[total.slot] = array
    run.device.copy(array, grad._written())


# -- learning ----------------------------------------------------------------------------------------------


class Forms:
    """The replays that are known, by the form of their tapes.

    Attributes:
        known: those; None for a form that has none.
        replayed: how many passes were replayed.
    """

    def __init__(self) -> None:
        self.known: OrderedDict[Key, Replay | None] = OrderedDict()
        self.replayed = 0
        self._steps = 0
        self._seen: set[int] = set()
        self._lock = threading.RLock()  # a finaliser in the middle may walk back too

    def look_up(self, key: Key) -> tuple[Replay | None, bool]:
        """The replay of a form, if there is one, and whether it is to be learned now."""
        with self._lock:
            if key in self.known:
                self.known.move_to_end(key)
                return self.known[key], False
            number = hash(key)
            if number in self._seen:
                return None, True
            if len(self._seen) >= _MOST_SEEN:
                self._seen.clear()
            self._seen.add(number)
            return None, False

    def keep(self, key: Key, replay: Replay | None) -> None:
        """Keep the replay of a form; None: it has none."""
        with self._lock:
            self._steps += _weight(replay) - (_weight(self.known[key]) if key in self.known else 0)
            self.known[key] = replay
            while self._steps > _MOST_STEPS and len(self.known) > 1:
                _, oldest = self.known.popitem(last=False)
                self._steps -= _weight(oldest)


def _weight(replay: Replay | None) -> int:
    return 1 if replay is None else 1 + sum(len(program.steps) for program in replay.programs)


forms = Forms()


def key_of(
    nodes: Sequence[TapeNode], leaves: Sequence[Leaf], heads: Sequence[BaseArray], given: Sequence[BaseArray | None],
    train: bool,
) -> Key | None:  # fmt: skip
    """The form of a tape; None where it is not learned."""
    if len(nodes) > _MOST_NODES:
        return None
    places: dict[Any, int] = {}
    key: list[Any] = [train, len(leaves)]
    add = key.append
    for at, leaf in enumerate(leaves, 2):
        grad, request = leaf.grad, leaf.request
        if grad is None or (request != "write" and request != "add"):  # no tuple to look through
            return None
        for other in given:
            if other is not None and other._storage is grad._storage:
                return None  # what is written is read as well, and may need no writing
        places[leaf] = -at
        add(request)
    for at, node in enumerate(nodes):
        rules = node.rules
        if rules is None or node.kept is None:
            return None
        places[node] = at
        add(id(rules))
        for entry in node.entries:
            if entry is None:
                add(None)
            elif type(entry) is Further:
                add((places[entry.node], entry.index))
            else:
                add(places[entry])
    for head, grad in zip(heads, given, strict=True):
        entry = head._entry
        assert entry is not None
        add((places[entry.node], entry.index, head._shape, head._dtype, None if grad is None else grad._dtype))
    return tuple(key)


class Lesson:
    """Notes of a walk while its replay is learned.

    Attributes:
        pushed: its bulks.
        checked: the arrays that gradients looked at.
        reached: the nodes that gradients reached.
        failed: True once it did what can not be replayed.
    """

    def __init__(
        self, nodes: Sequence[TapeNode], leaves: Sequence[Leaf], tops: Sequence[BaseArray], device: Device
    ) -> None:
        self.pushed: list[Pushed] = []
        self.checked: list[tuple[int, int]] = []
        self.reached: list[int] = []
        self.failed = False
        self._device = device
        self._leaves = {id(leaf.grad): at for at, leaf in enumerate(leaves)}
        self._forms = tuple([(leaf.grad._shape, leaf.grad._dtype) for leaf in leaves if leaf.grad is not None])
        self._rules = tuple([node.rules for node in nodes if node.rules is not None])
        # Arrays are known by their identity, so they are held on to.
        self._held = [*[list(node.arrays or ()) for node in nodes], list(tops)]
        self._places = {
            id(array): (at, place) for at, held in enumerate(self._held) for place, array in enumerate(held)
        }
        self._slots: dict[Any, int] = {}
        self._count = 0

    def note(self, bulk: Bulk) -> None:
        """Note a bulk that is about to be pushed."""
        self.pushed.append(Pushed(tuple(bulk.parts()), bulk.light, bulk.short, bulk.nbytes))

    def _new(self) -> int:
        self._count += 1
        return self._count - 1

    def replay(self) -> Replay | None:
        """The replay of what was noted; None where there is none."""
        if self.failed:
            return None
        try:
            plain = [self._flat(number, bulk) for number, bulk in enumerate(self.pushed)]
        except LookupError:  # a bulk reads an array that is not of the tape
            return None
        last: dict[int, tuple[int, int]] = {}
        for number, (steps, _) in enumerate(plain):
            for at, step in enumerate(steps):
                reads = (step.slot,) if isinstance(step, Total) else (*step.reads, *[each[0] for each in step.makes])
                last.update(dict.fromkeys(reads, (number, at)))
        drops: dict[tuple[int, int], list[int]] = {}
        for slot, where in last.items():
            drops.setdefault(where, []).append(slot)
        programs = []
        for number, ((steps, sources), bulk) in enumerate(zip(plain, self.pushed, strict=True)):
            ended = tuple(
                [
                    step if isinstance(step, Total) else step._replace(drops=tuple(drops.get((number, at), ())))
                    for at, step in enumerate(steps)
                ]
            )
            leaves = tuple([step.leaf for step in steps if isinstance(step, Total)])
            programs.append(Program(ended, tuple(sources), leaves, bulk.light, bulk.short, bulk.nbytes))
        reached = None if len(self.reached) == len(self._held) - 1 else tuple(self.reached)
        return Replay(
            self._device, tuple(programs), self._count, tuple(dict.fromkeys(self.checked)), self._forms, self._rules,
            reached,
        )  # fmt: skip

    def _flat(self, number: int, bulk: Pushed) -> tuple[list[Step | Total], list[tuple[int, int, int]]]:
        """The steps of a bulk, and its sources."""
        steps: list[Step | Total] = []
        sources: dict[int, tuple[int, int, int]] = {}

        def slot_of(cell: Any) -> int:
            if type(cell) is Value:
                return self._slots[id(cell)]
            at, place = self._places[id(cell)]
            key = (number, at, place)
            if key not in self._slots:
                slot = self._slots[key] = self._new()
                sources[slot] = (slot, at, place)
            return self._slots[key]

        for function, cells, more, targets in bulk.parts:
            if function is bulks.run_rule:
                rule, results = more
                local = [slot_of(cell) for cell in cells]
                for name, forward, reads, makes in rule.steps:
                    made = tuple([(self._new(), *form) for form in makes])
                    taken = tuple([local[each] for each in reads])
                    steps.append(Step(forward, taken, made, (), name, _taking(taken)))
                    local += [each[0] for each in made]
                for value, result in zip(targets, results, strict=True):
                    self._slots[id(value)] = local[result]
            elif function is bulks.store_total:
                cell = cells[0]
                owned = type(cell) is Value and cell.owned
                steps.append(Total(None, slot_of(cell), self._leaves[id(more)], owned))
            elif function is bulks.add_total:
                steps.append(Total(more.steps[0].forward, slot_of(cells[1]), self._leaves[id(cells[0])], False))
            else:
                raise LookupError(function)
        return steps, list(sources.values())
