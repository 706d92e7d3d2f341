"""The walk back over the tape: gradients of operators, and what becomes of the totals."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple, cast

from flowmx.devices import Device
from flowmx.engine import Variable, capture, describe, layer_scope, origin
from flowmx.engine.origin import warn_user
from flowmx.engine.runtime import engine
from flowmx.errors import AutogradError
from flowmx.ndarray import functions as F
from flowmx.ndarray import replay
from flowmx.ndarray.array import NDArray, full
from flowmx.ndarray.bulk import Bulk, Cell, Value
from flowmx.ndarray.core import BaseArray, comes_from, may_store, store
from flowmx.ndarray.recording import Leaf, Saved, Scope, TapeEntry, TapeNode, free, state
from flowmx.ndarray.rules import Rule, learn, rule_for
from flowmx.ops.registry.operators import Operator
from flowmx.ops.sparse.shapes import SparseShape

_ALL_OF = (..., slice(None))
"""The keys of the whole of an array: of a dense one, of a sparse one."""
_stopped: set[tuple[str, int]] = set()
"""The user's lines that were warned of, since a gradient ends there at what is freed."""


class _Order(NamedTuple):
    """The nodes and variables that heads depend on.

    Attributes:
        nodes: each after all its inputs' nodes.
        leaves: the variables.
        dead: nodes through which no gradient flows to a variable.
    """

    nodes: list[TapeNode]
    leaves: dict[Leaf, None]
    dead: set[TapeNode]


def _order(heads: Sequence[NDArray]) -> _Order:
    """The nodes and variables that the heads depend on."""
    done: dict[TapeNode, None] = {}
    entered: set[TapeNode | Leaf] = set()
    leaves: dict[Leaf, None] = {}
    dead: set[TapeNode] = set()
    stack: list[TapeNode] = []
    upwards: Sequence[TapeEntry | None] = [head._entry for head in heads]
    while True:
        for entry in upwards:
            if entry is None:
                continue
            origin_ = entry if type(entry) is TapeNode else entry.node
            if origin_ not in entered:
                if type(origin_) is TapeNode:
                    stack.append(origin_)
                else:
                    entered.add(origin_)
                    leaves[cast("Leaf", origin_)] = None
        while stack and stack[-1] in entered:
            node = stack.pop()
            done[node] = None
            if node.gradient is None or (dead and node.kept is not None and _is_dead(node, dead)):
                dead.add(node)
        if not stack:
            break
        entered.add(stack[-1])
        upwards = stack[-1].entries
    return _Order(list(done), leaves, dead)


def leaves_of(heads: Sequence[NDArray]) -> list[Leaf]:
    """The variables that recorded arrays depend on."""
    return list(_order(heads).leaves)


def _freed(node: TapeNode) -> str:
    place = f" (called at {describe(node.origin)})" if node.origin is not None else ""
    return f"backward: the tape of {node.name!r}{place} was freed by an earlier backward pass"


def _is_dead(node: TapeNode, dead: set[TapeNode]) -> bool:
    return all(entry is None or entry.node in dead for entry in node.entries)


class Walk:
    """A walk back over the tape, from heads to the total gradient of every leaf that they depend on.

    Gradients by rules are gathered in bulks (``ndarray/bulk.py``); others are called with arrays.

    Args:
        retain: keep the tape.
        create_graph: record the walk.
        train_mode: whether it runs in training mode.
        stores: whether the totals go to the variables' buffers, which may then be written on the way.
    """

    # What a pass that is replayed never changes is not set for each one.
    _bulk: Bulk | None = None
    _at = 0
    _heads: Sequence[NDArray] = ()
    _given: Sequence[NDArray | None] = ()
    _left: Counter[Any] | None = None
    _key: replay.Key | None = None
    _lesson: replay.Lesson | None = None
    _nodes: list[TapeNode]
    """The tape's nodes in the order of the walk; ``_at`` is the position reached."""
    leaves: dict[Leaf, None]
    """The variables that the heads depend on whose gradient buffers are to be written yet."""
    _dead: set[TapeNode]
    _sums: dict[TapeEntry, Cell]
    _released: list[TapeNode]
    _kept: set[Any]
    _orders: dict[Device, Variable]

    def __init__(self, retain: bool, create_graph: bool, train_mode: bool, stores: bool) -> None:
        self._retain, self._create_graph, self._train, self._stores = retain, create_graph, train_mode, stores
        seen = create_graph or engine.is_watched
        self._by_calls = seen or not engine.config.backward_bulks
        self._origin = capture(3)

    # -- walking ---------------------------------------------------------------------------------------

    def go(self, heads: list[NDArray], head_grads: list[NDArray | None]) -> bool:
        """Enqueue the gradients, as far as anybody needs to see them on the way; True if they are stored already."""
        for position, (head, given) in enumerate(zip(heads, head_grads, strict=True)):
            # What an asynchronous device launches is known operation by operation.
            self._by_calls |= head._storage.device.is_asynchronous
            if head._entry is None:
                raise AutogradError(
                    f"backward: head {position} (shape {head.shape}) was not computed inside autograd.record() "
                    "from arrays with attach_grad()"
                )
            if given is not None:
                if given._shape != head._shape and given.shape != head.shape:  # a sparse one has a shape of its own
                    raise AutogradError(
                        f"backward: head gradient {position} has shape {given.shape}, expected {head.shape}"
                    )
                given._storage.shared = True
        self._heads, self._given = heads, head_grads
        self._nodes, self.leaves, self._dead = _order(heads)
        if not self.leaves:
            raise AutogradError(f"{_freed(self._nodes[-1])}; pass retain_graph=True to that one")
        if self._replays():
            return True
        self._sums, self._released, self._kept, self._orders = {}, [], set(), {}
        with Scope(self._create_graph, self._train, True):
            for head, given in zip(heads, head_grads, strict=True):
                assert head._entry is not None
                self._add(head._entry, self._ones(head) if given is None else given)
            try:
                for at in range(len(self._nodes) - 1, -1, -1):
                    self._at = at
                    self._through(self._nodes[at])
            finally:
                if self._released:
                    free(self._released)
            self._nodes, self._released = [], []
        return False

    def _replays(self) -> bool:
        """Push the pass as it was learned from tapes of this form, if it was; else it may be learned from this one."""
        if not self._stores or self._by_calls:
            return False
        nodes, leaves = self._nodes, list(self.leaves)
        self._key = replay.key_of(nodes, leaves, self._heads, self._given, self._train)
        if self._key is None:
            return False
        known, is_new = replay.forms.look_up(self._key)
        tops = [*self._heads, *[each for each in self._given if each is not None]]
        if known is not None and known.run(nodes, tops, leaves, self._train, self._origin):
            replay.forms.replayed += 1
            for leaf in leaves:
                grad = leaf.grad
                if grad is not None and grad._past is not None:
                    _overwrite(leaf, grad)
            if not self._retain:
                reached = nodes if known.reached is None else [nodes[at] for at in known.reached]
                for node in reached:
                    node.release()
                free(reached)
            self._nodes, self.leaves = [], {}
            return True
        if is_new:
            self._lesson = replay.Lesson(nodes, leaves, tops, tops[0]._storage.device)
        return False

    def _through(self, node: TapeNode) -> None:
        """Add to the gradients of a node's inputs what follows from those of its outputs."""
        sums = self._sums
        if node.visible == 1:
            grads = [sums.pop(node, None)]
        else:
            grads = [sums.pop(node.output(index), None) for index in range(node.visible)]
        is_reached = grads[0] is not None or any(each is not None for each in grads)
        if is_reached and node not in self._dead:
            if node.kept is None:
                self._stop_at(node)
                return
            found = self._by_rule(node, grads)
            if found is None:
                arrays = self.arrays(grads)
                found = _gradients(node, arrays, self._targets(node, arrays), self._checked(node, grads))
                # It may be code that waits for operations of this very pass: none may now stand for several.
                self._by_calls = True
            for entry, gradient in zip(node.entries, found, strict=False):
                if entry is not None and gradient is not None:
                    self._add(entry, gradient)
        if self._lesson is not None and is_reached:
            self._lesson.reached.append(self._at)
        if self._left is not None:
            self._left.subtract(entry for entry in node.entries if entry is not None)
        if is_reached and not self._retain:
            node.release()
            self._released.append(node)

    def _stop_at(self, node: TapeNode) -> None:
        """Stop at a node that an earlier pass freed: what was recorded from it since has it as a constant, as in MXNet.

        Raises:
            AutogradError: it was used before it was freed.
        """
        users = [
            user for user in self._nodes[self._at + 1 :] if any(e is not None and e.node is node for e in user.entries)
        ]
        is_head = any(head._entry is not None and head._entry.node is node for head in self._heads)
        if is_head or any(user.era < node.era for user in users):
            raise AutogradError(f"{_freed(node)}; pass retain_graph=True to that one")
        advice = "so it counts as a constant: say so with detach(), or pass retain_graph=True to that one"
        warn_user(f"{_freed(node)}, {advice}", _stopped)

    def _targets(self, node: TapeNode, heads: Sequence[NDArray | None]) -> Sequence[NDArray | None]:
        """For each input of a node, the buffer that its gradient may be written into at once, as the whole total."""
        if not self._stores or not getattr(node.gradient, "takes_targets", False):
            return ()
        self._look_ahead()
        assert self._left is not None
        assert node.arrays is not None
        taken = {each._storage for each in (*map(_seen, self._sums.values()), *heads) if isinstance(each, BaseArray)}
        taken |= self._kept
        found: list[NDArray | None] = []
        for entry, array in zip(node.entries, node.arrays, strict=False):
            target = _own_buffer(entry, array) if self._left[entry] == 1 and entry not in self._sums else None
            found.append(None if target is None or target._storage in taken else target)
            taken.update([target._storage] if target is not None else [])
        return found

    def _add(self, entry: TapeEntry, gradient: Cell) -> None:
        before = self._sums.get(entry)
        if before is None:
            self._sums[entry] = gradient
            return
        before, gradient = _seen(before), _seen(gradient)
        rule = None if self._by_calls else _sum_of(before, gradient)
        if rule is not None:
            total = self._on(_device(before)).compute(rule, (before, gradient))[0]
            assert total is not None
            self._sums[entry] = total
        else:
            one, other = self.arrays([before, gradient])
            sparse = isinstance(one._shape, SparseShape) or isinstance(other._shape, SparseShape)
            self._sums[entry] = F.op("elemwise_add", one, other) if sparse else one + other

    def _ones(self, head: NDArray) -> Cell:
        if isinstance(head._shape, SparseShape):
            return full(head.shape, 1, head.context, head._dtype)
        if self._by_calls:
            return cast("NDArray", F.op("ones_like", head._plain()))
        rule = rule_for("ones_like", [head], _ones_like, head._storage.device)
        assert rule is not None
        found = self._on(head._storage.device).compute(rule, [head])[0]
        assert found is not None
        return found

    def _by_rule(self, node: TapeNode, grads: Sequence[Cell | None]) -> Sequence[Cell | None] | None:
        """The gradients of a node's inputs by its rule; None where it has none for these."""
        rules, arrays = node.rules, node.arrays
        if rules is None or self._by_calls:
            return None
        assert arrays is not None
        count, device = len(node.entries), arrays[0]._storage.device
        if device.is_asynchronous:
            return None
        heads = [None if each is None else _seen(each) for each in grads]
        for position, each in enumerate(heads, count):
            if each is not None and not _is_like(each, arrays[position], device):
                return None
        wanted = self._wanted(node) if self._dead else tuple([each is not None for each in node.entries])
        key = (device, wanted, tuple([each is not None for each in heads]))
        try:
            rule = rules[key]
        except KeyError:
            rule = rules[key] = learn(node.gradient, arrays[:count], arrays[count:], *key[1:], device)
        if rule is None:
            return None
        for position in rule.checked:
            if arrays[position]._storage.version != node.version(position):
                node.refuse_changed(position)
        if self._lesson is not None:
            self._lesson.checked += [(self._at, position) for position in rule.checked]
        every = [*arrays, *heads]
        return self._on(device).compute(rule, [every[position] for position in rule.sources])

    def _checked(self, node: TapeNode, grads: Sequence[Cell | None]) -> Collection[int] | None:
        """The arrays of a node that its gradients follow from, where there is a rule that tells."""
        rules, arrays, count = node.rules, node.arrays, len(node.entries)
        if rules is None or arrays is None:
            return None
        key = (arrays[0]._storage.device, self._wanted(node), tuple([each is not None for each in grads]))
        if key not in rules:
            rules[key] = learn(node.gradient, arrays[:count], arrays[count:], *key[1:], key[0])
        rule = rules[key]
        return None if rule is None else rule.checked

    def _wanted(self, node: TapeNode) -> tuple[bool, ...]:
        """For each input of a node whether its gradient leads anywhere."""
        return tuple([each is not None and each.node not in self._dead for each in node.entries])

    # -- bulks -----------------------------------------------------------------------------------------

    def _on(self, device: Device) -> Bulk:
        """The bulk to add to."""
        bulk = self._bulk
        if bulk is None or bulk.device is not device or bulk.is_full:
            if bulk is not None and bulk.is_full and self._nodes and self._stores:
                self._store_early(bulk)
            self._push()
            order = self._orders.get(device)
            if order is None:
                order = self._orders[device] = Variable("order of a backward pass")
            bulk = self._bulk = Bulk(device, self._train, self._origin, order)
        return bulk

    def _push(self) -> None:
        if self._bulk is not None:
            if self._lesson is not None:
                self._lesson.note(self._bulk)
            self._bulk.push()
            self._bulk = None

    def arrays(self, cells: Sequence[Cell | None]) -> list[Any]:
        """Gradients as arrays."""
        if self._lesson is not None:
            self._lesson.failed = True
        waiting = [each for each in cells if isinstance(each, Value) and each.handle is None]
        for each in waiting:
            self._on(each.device).show(each)
        if waiting:
            self._push()
        return [None if each is None else _seen(each) for each in cells]

    def gradients(self, leaves: Sequence[Leaf], variables: Sequence[NDArray]) -> list[NDArray]:
        """The totals of some leaves, the places of these variables; zeros where there is none."""
        totals = self.totals()
        cells = [totals.get(leaf) for leaf in leaves]
        foreign = [self._is_foreign(cell) for cell in cells]
        found: list[NDArray] = []
        with Scope(self._create_graph, self._train):
            for array, variable, is_foreign in zip(self.arrays(cells), variables, foreign, strict=True):
                if array is None:
                    made = F.op("zeros_like", variable._plain())
                elif is_foreign or any(array._storage is each._storage for each in found):
                    made = F.op("_copy", array)
                else:
                    made = array
                found.append(made)
            return [self._tied(each) for each in found] if self._create_graph else found

    def _is_foreign(self, cell: Cell | None) -> bool:
        """Tell whether a total is an array that somebody else has, who would see it changed: a head gradient, say."""
        if cell is None or isinstance(cell := _seen(cell), Value):
            return False
        given = any(each is not None and each._storage is cell._storage for each in self._given)
        return given or (cell._storage.shared and not self._create_graph)  # there the tape has all of them

    def _tied(self, gradient: NDArray) -> NDArray:
        """A recorded gradient as the function of all variables that it is, also of those in which it is constant."""
        reached = TapeNode("gradient", None, list(self.leaves), (), (), 1, self._origin)
        made = cast("NDArray", gradient._plain())
        rules = _rules_of_tied.setdefault((gradient._shape, gradient._dtype), {})
        entries = [gradient._entry, reached]
        node = TapeNode("gradient", _through_tied, entries, [gradient, gradient], [made], 1, self._origin, rules)
        made._past = node
        return made

    # -- totals ----------------------------------------------------------------------------------------

    def totals(self) -> dict[Leaf, Cell]:
        """The total of each leaf."""
        return {entry.node: total for entry, total in self._sums.items() if isinstance(entry.node, Leaf)}

    def store(self) -> None:
        """Enqueue that the totals go where the leaves' requests say."""
        with Scope(False, self._train):
            totals, seen = self.totals(), set()
            for leaf in totals:
                self.leaves.pop(leaf, None)
            for total in map(_seen, totals.values()):
                if not isinstance(total, Value):
                    if total._storage in seen:  # the same array may be the gradient of several
                        total._storage.shared = True
                    seen.add(total._storage)
            for leaf, total in totals.items():
                self._store(leaf, total)
            self._push()
            for leaf in self.leaves:  # on which the heads depend, but not smoothly
                if leaf.grad is not None and leaf.request == "write":
                    _overwrite(leaf, leaf.grad)
                    cast("NDArray", leaf.grad)[_ALL_OF[isinstance(leaf.grad._shape, SparseShape)]] = 0
            if self._lesson is not None and self._key is not None:
                self._lesson.failed |= bool(self.leaves)
                replay.forms.keep(self._key, self._lesson.replay())
                self._lesson = None

    def _look_ahead(self) -> None:
        """Count what is still to come for each entry, and what it looks at."""
        if self._left is None:
            reached = self._nodes[: self._at + 1]
            self._left = Counter(entry for node in reached for entry in node.entries if entry is not None)
            self._kept = {each._storage for node in reached for each in node.arrays or ()}

    def _store_early(self, bulk: Bulk) -> None:
        """Hand over the totals that are complete, so that they can be used while the pass goes on."""
        self._look_ahead()
        assert self._left is not None
        for entry, total in list(self._sums.items()):
            leaf = entry.node
            if not isinstance(leaf, Leaf) or self._left[entry] or leaf.grad is None:
                continue
            now = _seen(total)
            if (
                isinstance(now, Value)
                and leaf.grad._storage not in self._kept
                and _is_like(now, leaf.grad, bulk.device)
            ):
                del self._sums[entry]
                self.leaves.pop(leaf, None)
                _overwrite(leaf, leaf.grad)
                _store(bulk, leaf, now, leaf.grad)

    def _store(self, leaf: Leaf, total: Cell) -> None:
        target, total = cast("NDArray | None", leaf.grad), _seen(total)
        if target is None or (total is target and leaf.request == "write"):
            return
        _overwrite(leaf, target)
        # A head gradient is copied; arrays that the user's code made are stored by operations of their own.
        is_ours = isinstance(total, Value) or (
            not self._by_calls and any(total is each for each in self._given) and type(total._shape) is tuple
        )
        if is_ours and leaf.request != "null" and _is_like(total, target, target._storage.device):
            _store(self._on(target._storage.device), leaf, total, target)
        elif leaf.request != "null":
            _store_array(leaf, self.arrays([total])[0], target)


def _overwrite(leaf: Leaf, target: BaseArray) -> None:
    """Forget what was recorded of a gradient buffer that is to be written anew."""
    if leaf.request == "write" and target._past is not None:
        comes_from(target, None)


def _store_array(leaf: Leaf, total: NDArray, target: NDArray) -> None:
    """Put a total that is an array into a leaf's buffer: by an operation of its own, so that it waits for no other."""
    if total._dtype != target._dtype:
        total = total.astype(target._dtype)
    if leaf.request == "add":
        F.op("elemwise_add", target, total, out=target)
    elif isinstance(target._shape, SparseShape) or isinstance(total._shape, SparseShape):
        sparse_calls().copy(total, target, "store")
    elif may_store(total, target):
        store(total, target)
    else:
        F.op("_copy", total, out=target)


def sparse_calls() -> Any:
    """The module of calls on sparse arrays, which is imported when there is one."""
    return importlib.import_module("flowmx.ndarray.sparse.calls")


def _own_buffer(entry: TapeEntry | None, array: BaseArray) -> NDArray | None:
    """The buffer of a leaf that a gradient of an array's form may be written into."""
    leaf = None if entry is None else entry.node
    if not isinstance(leaf, Leaf) or leaf.request != "write" or leaf.grad is None or leaf.grad._view is not None:
        return None
    return cast("NDArray", leaf.grad) if _is_like(array, leaf.grad, leaf.grad._storage.device) else None


def _seen(cell: Cell) -> Cell:
    """The current cell of a value: its array, once it has one."""
    return cell.handle if type(cell) is Value and cell.handle is not None else cell


def _device(cell: Cell) -> Device:
    return cell.device if isinstance(cell, Value) else cell._storage.device


def _is_like(cell: Cell, array: BaseArray, device: Device) -> bool:
    return _device(cell) is device and cell._shape == array._shape and cell._dtype == array._dtype


def _store(bulk: Bulk, leaf: Leaf, total: Cell, target: BaseArray) -> None:
    """Put a total into a leaf's buffer, which is like it, as its request says."""
    if leaf.request == "write":
        bulk.store(total, target)
    elif leaf.request == "add":
        rule = _sum_of(target, total)
        assert rule is not None
        bulk.add_to(total, target, rule)


_rules_of_tied: dict[Any, dict[Any, Any]] = {}


def _through_tied(F: Any, inputs: Any, outputs: Any, heads: Any) -> list[Any]:
    return [heads[0], None]


def _ones_like(F: Any, inputs: Any, outputs: Any, heads: Any) -> list[Any]:
    return [F.ones_like(inputs.unchecked(0))]


def _plus(F: Any, inputs: Any, outputs: Any, heads: Any) -> list[Any]:
    return [inputs[0] + inputs[1]]


def _sum_of(one: Cell, other: Cell) -> Rule | None:
    """The rule of a sum of two gradients of one form; None where they are not."""
    if _device(one) is not _device(other) or one._shape != other._shape or one._dtype != other._dtype:
        return None
    if isinstance(one._shape, SparseShape):
        return None
    return rule_for("sum", [one, other], _plus, _device(one))


def _gradients(
    node: TapeNode, grads: Sequence[NDArray | None], targets: Sequence[NDArray | None], checked: Collection[int] | None
) -> Sequence[NDArray | None]:
    """The gradients of a node's inputs, by calling what computes them with arrays; those with targets go there."""
    inputs, outputs = node.saved(checked)
    heads = [F.op("zeros_like", outputs.unchecked(index)) if each is None else each for index, each in enumerate(grads)]
    # Inputs handed out with their history, so that a recorded backward pass continues the graph.
    given = _History(inputs, node.entries) if state.get().recording else inputs
    layer = node.origin[2] if origin.names_layers and node.origin is not None else None
    try:
        with layer_scope(layer, fresh=True) if layer else nullcontext():
            arguments = (F, given, _outputs(node, outputs), heads, *([targets] if targets else []))
            found = cast("Sequence[NDArray | None]", node.gradient(*arguments))
    except NotImplementedError:
        raise AutogradError(f"backward: operator {node.name!r} has no gradient") from None
    if not isinstance(getattr(node.gradient, "__self__", None), Operator):
        kept = set(map(id, targets))
        for each in found:  # code of the user's may have kept it
            if each is not None and id(each) not in kept:
                each._storage.shared = True
    return found


class _History(Sequence[Any]):
    """The saved arrays of a node, with the place on the tape that each came from."""

    def __init__(self, saved: Saved, entries: Sequence[TapeEntry | None]) -> None:
        self._saved, self._entries = saved, entries

    def __len__(self) -> int:
        return len(self._saved)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        array = self._saved[index]._plain()
        array._past = self._entries[index]
        return array

    def unchecked(self, index: int) -> Any:
        return self._saved.unchecked(index)

    def wanted(self, index: int) -> bool:
        return self._entries[index] is not None


def _outputs(node: TapeNode, outputs: Saved) -> Sequence[Any]:
    if not state.get().recording:
        return outputs
    entries: list[TapeEntry | None] = [
        node.output(index) if index < node.visible else None for index in range(len(outputs))
    ]
    return _History(outputs, entries)
