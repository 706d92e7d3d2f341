"""The backward pass over the tape: compute the gradients of operators and store their totals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from flowmx.devices import Device
from flowmx.engine import Variable, capture, describe, layer_scope, origin
from flowmx.engine.origin import warn_user
from flowmx.engine.runtime import engine
from flowmx.errors import AutogradError
from flowmx.late_binding import late
from flowmx.ndarray import functions as F
from flowmx.ndarray.array import NDArray
from flowmx.ndarray.backward_bulks import Bulk, Cell, Value
from flowmx.ndarray.core import BaseArray, may_store, set_tape_entry, store
from flowmx.ndarray.creation import full
from flowmx.ndarray.gradient_rules import Rule, learn, rule_for
from flowmx.ndarray.recording import (
    FastScope,
    GradientRules,
    Leaf,
    Saved,
    Scope,
    TapeEntry,
    TapeNode,
    defer_full_collections,
    differentiated,
    free,
    restore_collections,
    state,
)  # fmt: skip
from flowmx.ops.registry.operators import Operator
from flowmx.ops.registry.tensors import Functions, Gradients, Tensors
from flowmx.ops.sparse.shapes import SparseShape

if TYPE_CHECKING:
    from flowmx.ndarray import backward_replay

_LONG_TAPE = 1000
"""The number of tape nodes above which the backward pass defers full garbage collections."""
_FULL_KEYS = (..., slice(None))
"""The keys that select a whole array: dense, sparse."""
_warned_lines: set[tuple[str, int]] = set()
"""The user's lines with a warning about a gradient that stops at a freed node."""


class _Order(NamedTuple):
    """The nodes and variables that heads depend on.

    Attributes:
        nodes: the nodes in topological order, inputs first.
        leaves: the variables.
        dead: nodes through which no gradient flows to a variable.
    """

    nodes: list[TapeNode]
    leaves: dict[Leaf, None]
    dead: set[TapeNode]


def _order(heads: Sequence[NDArray]) -> _Order:
    """Find the nodes and variables that the heads depend on, by a depth-first search without recursion."""
    nodes: dict[TapeNode, None] = {}
    visited: set[TapeNode | Leaf] = set()
    leaves: dict[Leaf, None] = {}
    dead: set[TapeNode] = set()
    stack: list[TapeNode] = []
    parents: Sequence[TapeEntry | None] = [head.tape_entry for head in heads]
    while True:
        for entry in parents:
            if entry is None:
                continue
            parent = entry if type(entry) is TapeNode else entry.node
            if parent not in visited:
                if type(parent) is TapeNode:
                    stack.append(parent)
                else:
                    visited.add(parent)
                    leaves[cast("Leaf", parent)] = None
        while stack and stack[-1] in visited:
            node = stack.pop()
            nodes[node] = None
            if node.gradient is None or (dead and node.saved_state is not None and _is_dead(node, dead)):
                dead.add(node)
        if not stack:
            break
        visited.add(stack[-1])
        parents = stack[-1].entries
    return _Order(list(nodes), leaves, dead)


def leaves_of(heads: Sequence[NDArray]) -> list[Leaf]:
    """Return the variables that recorded arrays depend on."""
    return list(_order(heads).leaves)


def _freed_message(node: TapeNode) -> str:
    place = f" (called at {describe(node.origin)})" if node.origin is not None else ""
    return f"backward: the tape of {node.name!r}{place} was freed by an earlier backward pass"


def _is_dead(node: TapeNode, dead: set[TapeNode]) -> bool:
    return all(entry is None or entry.node in dead for entry in node.entries)


class BackwardPass:
    """A backward pass, which computes the total gradient of each variable that the heads depend on.

    Gradients with a rule are collected in bulks (``ndarray/backward_bulks.py``); other gradient functions are called
    with arrays.

    Args:
        retain: keep the tape.
        create_graph: record the pass itself.
        train_mode: run in training mode.
        stores: store the totals in the variables' buffers, possibly already during the pass.
    """

    # Class attributes, so that a replayed pass need not set them.
    _bulk: Bulk | None = None
    _position = 0
    _heads: Sequence[NDArray] = ()
    _head_grads: Sequence[NDArray | None] = ()
    _remaining_uses: Counter[Any] | None = None
    _key: backward_replay.Key | None = None
    _recorder: backward_replay.ReplayRecorder | None = None
    _nodes: list[TapeNode]
    """The tape's nodes, inputs first; ``_position`` is the current position."""
    leaves: dict[Leaf, None]
    """The variables that the heads depend on and whose gradient buffers are not written yet."""
    _dead: set[TapeNode]
    _sums: dict[TapeEntry, Cell]
    _released: list[TapeNode]
    _saved: set[Any]
    _orders: dict[Device, Variable]

    def __init__(self, retain: bool, create_graph: bool, train_mode: bool, stores: bool) -> None:
        self._retain, self._create_graph, self._train, self._stores = retain, create_graph, train_mode, stores
        self._by_calls = create_graph or engine.is_watched or not engine.config.backward_bulks
        self._origin = capture(3)

    # -- walking ---------------------------------------------------------------------------------------

    def run(self, heads: list[NDArray], head_grads: list[NDArray | None]) -> bool:
        """Enqueue the gradients; return True if the pass was replayed, which also stores the totals."""
        for position, (head, head_grad) in enumerate(zip(heads, head_grads, strict=True)):
            # Asynchronous devices launch operations one by one, so bulks do not apply.
            self._by_calls |= head.storage.device.is_asynchronous
            if head.tape_entry is None:
                raise AutogradError(
                    f"backward: head {position} (shape {head.shape}) was not computed inside autograd.record() "
                    "from arrays with attach_grad()"
                )
            if head_grad is not None:
                if head_grad.dims != head.dims and head_grad.shape != head.shape:  # _shape differs for sparse arrays
                    raise AutogradError(
                        f"backward: head gradient {position} has shape {head_grad.shape}, expected {head.shape}"
                    )
                head_grad.storage.shared = True
        self._heads, self._head_grads = heads, head_grads
        self._nodes, self.leaves, self._dead = _order(heads)
        if not self.leaves:
            raise AutogradError(f"{_freed_message(self._nodes[-1])}; pass retain_graph=True to that pass")
        if self._replays():
            return True
        self._sums, self._released, self._saved, self._orders = {}, [], set(), {}
        with (Scope if self._create_graph else FastScope)(self._create_graph, self._train, True):
            for head, head_grad in zip(heads, head_grads, strict=True):
                assert head.tape_entry is not None
                self._add(head.tape_entry, self._ones(head) if head_grad is None else head_grad)
            if len(self._nodes) > _LONG_TAPE:
                defer_full_collections()
            try:
                for at in range(len(self._nodes) - 1, -1, -1):
                    self._position = at
                    self._visit(self._nodes[at])
            finally:
                if self._released:
                    free(self._released)
                elif len(self._nodes) > _LONG_TAPE and not self._create_graph:
                    restore_collections()
            self._nodes, self._released = [], []
        return False

    def _replays(self) -> bool:
        """Push the replay for tapes of this form and return True; or start to record a replay and return False."""
        if not self._stores or self._by_calls:
            return False
        nodes, leaves = self._nodes, list(self.leaves)
        replays = late("ndarray.backward_replay")
        self._key = replays.key_of(nodes, leaves, self._heads, self._head_grads, self._train)
        if self._key is None:
            return False
        program, is_due = replays.forms.look_up(self._key)
        head_arrays = [*self._heads, *[each for each in self._head_grads if each is not None]]
        if program is not None and program.run(nodes, head_arrays, leaves, self._train, self._origin):
            replays.forms.replayed += 1
            for leaf in leaves:
                grad = leaf.grad
                if grad is not None and grad.history is not None:
                    _overwrite(leaf, grad)
            if not self._retain:
                reached = nodes if program.reached is None else [nodes[position] for position in program.reached]
                for node in reached:
                    node.release()
                free(reached)
            self._nodes, self.leaves = [], {}
            return True
        if is_due:
            self._recorder = replays.ReplayRecorder(nodes, leaves, head_arrays, head_arrays[0].storage.device)
        return False

    def _visit(self, node: TapeNode) -> None:
        """Compute the gradients of a node's inputs from those of its outputs, and add them to the sums."""
        sums = self._sums
        if node.visible == 1:
            grads = [sums.pop(node, None)]
        else:
            grads = [sums.pop(node.output(index), None) for index in range(node.visible)]
        is_reached = grads[0] is not None or any(grad is not None for grad in grads)
        if is_reached and node not in self._dead:
            if node.saved_state is None:
                self._stop_at(node)
                return
            gradients = self._apply_rule(node, grads)
            if gradients is None:
                arrays = self.arrays(grads)
                gradients = _gradients(node, arrays, self._targets(node, arrays), self._checked(node, grads))
                # The function may wait for operations of this pass, so bulks are not used from here on.
                self._by_calls = True
            for entry, gradient in zip(node.entries, gradients, strict=False):
                if entry is not None and gradient is not None:
                    self._add(entry, gradient)
        if self._recorder is not None and is_reached:
            self._recorder.reached.append(self._position)
        if self._remaining_uses is not None:
            self._remaining_uses.subtract(entry for entry in node.entries if entry is not None)
        if is_reached and not self._retain:
            node.release()
            self._released.append(node)

    def _stop_at(self, node: TapeNode) -> None:
        """Stop at a node that an earlier pass freed: operations recorded since treat it as a constant, as in MXNet.

        Raises:
            AutogradError: an operation used the node before it was freed.
        """
        users = [
            user
            for user in self._nodes[self._position + 1 :]
            if any(e is not None and e.node is node for e in user.entries)
        ]
        is_head = any(head.tape_entry is not None and head.tape_entry.node is node for head in self._heads)
        if is_head or any(user.era < node.era for user in users):
            raise AutogradError(f"{_freed_message(node)}; pass retain_graph=True to that pass")
        advice = "so it counts as a constant: call detach() to confirm, or pass retain_graph=True to that pass"
        warn_user(f"{_freed_message(node)}, {advice}", _warned_lines)

    def _targets(self, node: TapeNode, heads: Sequence[NDArray | None]) -> Sequence[NDArray | None]:
        """Return, for each input of a node, the buffer into which its gradient may be written directly, or None."""
        if not self._stores or not getattr(node.gradient, "takes_targets", False):
            return ()
        self._look_ahead()
        assert self._remaining_uses is not None
        assert node.arrays is not None
        busy_storages = {
            cell.storage for cell in (*map(_current, self._sums.values()), *heads) if isinstance(cell, BaseArray)
        }
        busy_storages |= self._saved
        targets: list[NDArray | None] = []
        for entry, array in zip(node.entries, node.arrays, strict=False):
            target = _buffer_of(entry, array) if self._remaining_uses[entry] == 1 and entry not in self._sums else None
            targets.append(None if target is None or target.storage in busy_storages else target)
            busy_storages.update([target.storage] if target is not None else [])
        return targets

    def _add(self, entry: TapeEntry, gradient: Cell) -> None:
        before = self._sums.get(entry)
        if before is None:
            self._sums[entry] = gradient
            return
        before, gradient = _current(before), _current(gradient)
        rule = None if self._by_calls else _sum_of(before, gradient)
        if rule is not None:
            total = self._bulk_on(_device(before)).compute(rule, (before, gradient))[0]
            assert total is not None
            self._sums[entry] = total
        else:
            one, other = self.arrays([before, gradient])
            sparse = isinstance(one.dims, SparseShape) or isinstance(other.dims, SparseShape)
            with _naming(entry.node):
                self._sums[entry] = F.op("elemwise_add", one, other) if sparse else one + other

    def _ones(self, head: NDArray) -> Cell:
        if isinstance(head.dims, SparseShape):
            return full(head.shape, 1, head.context, head.element_type)
        if self._by_calls:
            return cast("NDArray", F.op("ones_like", head.without_history()))
        rule = rule_for("ones_like", [head], _ones_like, head.storage.device)
        assert rule is not None
        ones = self._bulk_on(head.storage.device).compute(rule, [head])[0]
        assert ones is not None
        return ones

    def _apply_rule(self, node: TapeNode, grads: Sequence[Cell | None]) -> Sequence[Cell | None] | None:
        """Add the node's rule to a bulk and return the gradients of its inputs; None if no rule applies."""
        rules, arrays = node.rules, node.arrays
        if rules is None or self._by_calls:
            return None
        assert arrays is not None
        count, device = len(node.entries), arrays[0].storage.device
        if device.is_asynchronous:
            return None
        heads = [None if each is None else _current(each) for each in grads]
        for position, each in enumerate(heads, count):
            if each is not None and not _is_like(each, arrays[position], device):
                return None
        needed = self._needed_inputs(node) if self._dead else tuple([each is not None for each in node.entries])
        key = (device, needed, tuple([each is not None for each in heads]))
        try:
            rule = rules[key]
        except KeyError:
            rule = rules[key] = learn(node.gradient, arrays[:count], arrays[count:], *key[1:], device)
        if rule is None:
            return None
        for position in rule.checked:
            if arrays[position].storage.version != node.version(position):
                node.refuse_changed(position)
        if self._recorder is not None:
            self._recorder.checked += [(self._position, position) for position in rule.checked]
        arrays_of_rule: list[Any] = [*arrays, *heads]
        return self._bulk_on(device).compute(rule, [arrays_of_rule[position] for position in rule.sources])

    def _checked(self, node: TapeNode, grads: Sequence[Cell | None]) -> Collection[int] | None:
        """Return the arrays of a node that its gradients depend on; None if the node has no rule."""
        rules, arrays, count = node.rules, node.arrays, len(node.entries)
        if rules is None or arrays is None:
            return None
        key = (arrays[0].storage.device, self._needed_inputs(node), tuple([grad is not None for grad in grads]))
        if key not in rules:
            rules[key] = learn(node.gradient, arrays[:count], arrays[count:], *key[1:], key[0])
        rule = rules[key]
        return None if rule is None else rule.checked

    def _needed_inputs(self, node: TapeNode) -> tuple[bool, ...]:
        """Return, for each input of a node, whether its gradient reaches a variable."""
        return tuple([entry is not None and entry.node not in self._dead for entry in node.entries])

    # -- bulks -----------------------------------------------------------------------------------------

    def _bulk_on(self, device: Device) -> Bulk:
        """Return the current bulk of a device; push the previous one if it is full or on another device."""
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
            if self._recorder is not None:
                self._recorder.record(self._bulk)
            self._bulk.push()
            self._bulk = None

    def arrays(self, cells: Sequence[Cell | None]) -> list[Any]:
        """Return gradients as arrays; values of the current bulk are written to new arrays."""
        if self._recorder is not None:
            self._recorder.failed = True
        pending_values = [cell for cell in cells if isinstance(cell, Value) and cell.handle is None]
        for cell in pending_values:
            self._bulk_on(cell.device).show(cell)
        if pending_values:
            self._push()
        return [None if cell is None else _current(cell) for cell in cells]

    def gradients(self, leaves: Sequence[Leaf], variables: Sequence[NDArray]) -> list[NDArray]:
        """Return the totals of these variables' leaves; zeros for leaves without a total."""
        totals = self.totals()
        cells = [totals.get(leaf) for leaf in leaves]
        shared = [self._is_shared(cell) for cell in cells]
        gradients: list[NDArray] = []
        with Scope(self._create_graph, self._train):
            for array, variable, is_shared in zip(self.arrays(cells), variables, shared, strict=True):
                if array is None:
                    gradient = F.op("zeros_like", variable.without_history())
                elif is_shared or any(array.storage is each.storage for each in gradients):
                    gradient = F.op("_copy", array)
                else:
                    gradient = array
                gradients.append(gradient)
            return [self._depend_on_variables(each) for each in gradients] if self._create_graph else gradients

    def _is_shared(self, cell: Cell | None) -> bool:
        """Return whether other code refers to this total (such as a head gradient), so that it must be copied."""
        if cell is None or isinstance(cell := _current(cell), Value):
            return False
        is_head_grad = any(each is not None and each.storage is cell.storage for each in self._head_grads)
        # With create_graph the tape refers to all totals, so the flag is meaningless.
        return is_head_grad or (cell.storage.shared and not self._create_graph)

    def _depend_on_variables(self, gradient: NDArray) -> NDArray:
        """Record a gradient as a function of all variables, even if it does not depend on some."""
        variables = TapeNode("gradient", None, list(self.leaves), (), (), 1, self._origin)
        result = gradient.without_history()
        rules = _dependence_rules.setdefault((gradient.dims, gradient.element_type), {})
        entries = [gradient.tape_entry, variables]
        node = TapeNode("gradient", _pass_first, entries, [gradient, gradient], [result], 1, self._origin, rules)
        result.history = node
        return result

    # -- totals ----------------------------------------------------------------------------------------

    def totals(self) -> dict[Leaf, Cell]:
        """Return the total of each leaf."""
        return {entry.node: total for entry, total in self._sums.items() if isinstance(entry.node, Leaf)}

    def store(self) -> None:
        """Enqueue storing the totals in the leaves' buffers, according to their requests."""
        with FastScope(False, self._train):
            totals, storages = self.totals(), set()
            for leaf in totals:
                self.leaves.pop(leaf, None)
            for total in map(_current, totals.values()):
                if not isinstance(total, Value):
                    if total.storage in storages:  # several leaves may have the same gradient
                        total.storage.shared = True
                    storages.add(total.storage)
            for leaf, total in totals.items():
                self._store(leaf, total)
            self._push()
            for leaf in self.leaves:  # no gradient reached these
                if leaf.grad is not None and leaf.request == "write":
                    _overwrite(leaf, leaf.grad)
                    cast("NDArray", leaf.grad)[_FULL_KEYS[isinstance(leaf.grad.dims, SparseShape)]] = 0
            if self._recorder is not None and self._key is not None:
                self._recorder.failed |= bool(self.leaves)
                late("ndarray.backward_replay").forms.keep(self._key, self._recorder.replay())
                self._recorder = None

    def _look_ahead(self) -> None:
        """Count the remaining uses of each entry, and collect the storages that the remaining nodes saved."""
        if self._remaining_uses is None:
            reached = self._nodes[: self._position + 1]
            self._remaining_uses = Counter(entry for node in reached for entry in node.entries if entry is not None)
            self._saved = {array.storage for node in reached for array in node.arrays or ()}

    def _store_early(self, bulk: Bulk) -> None:
        """Store the complete totals now, so that they can be used while the pass continues."""
        self._look_ahead()
        assert self._remaining_uses is not None
        for entry, total in list(self._sums.items()):
            leaf = entry.node
            if not isinstance(leaf, Leaf) or self._remaining_uses[entry] or leaf.grad is None:
                continue
            current = _current(total)
            if (
                isinstance(current, Value)
                and leaf.grad.storage not in self._saved
                and _is_like(current, leaf.grad, bulk.device)
            ):
                del self._sums[entry]
                self.leaves.pop(leaf, None)
                _overwrite(leaf, leaf.grad)
                _store(bulk, leaf, current, leaf.grad)

    def _store(self, leaf: Leaf, total: Cell) -> None:
        target, total = cast("NDArray | None", leaf.grad), _current(total)
        if target is None or (total is target and leaf.request == "write"):
            return
        _overwrite(leaf, target)
        # Bulks also copy head gradients. Arrays from the user's code are stored by separate operations.
        is_bulkable = isinstance(total, Value) or (
            not self._by_calls and any(total is each for each in self._head_grads) and type(total.dims) is tuple
        )
        if is_bulkable and leaf.request != "null" and _is_like(total, target, target.storage.device):
            _store(self._bulk_on(target.storage.device), leaf, total, target)
        elif leaf.request != "null":
            _store_array(leaf, self.arrays([total])[0], target)


def _overwrite(leaf: Leaf, target: BaseArray) -> None:
    """Clear the tape's record of a gradient buffer that is about to be overwritten."""
    if leaf.request == "write" and target.history is not None:
        set_tape_entry(target, None)


def _store_array(leaf: Leaf, total: NDArray, target: NDArray) -> None:
    """Store an array in a leaf's buffer, by a separate operation that waits for no other total."""
    if total.element_type != target.element_type:
        total = total.astype(target.element_type)
    if leaf.request == "add":
        F.op("elemwise_add", target, total, out=target)
    elif isinstance(target.dims, SparseShape) or isinstance(total.dims, SparseShape):
        late("ndarray.sparse.calls").copy(total, target, "store")
    elif may_store(total, target):
        store(total, target)
    else:
        F.op("_copy", total, out=target)


def _buffer_of(entry: TapeEntry | None, array: BaseArray) -> NDArray | None:
    """Return the leaf's buffer if the gradient of ``array`` may be written into it, else None."""
    leaf = None if entry is None else entry.node
    if not isinstance(leaf, Leaf) or leaf.request != "write" or leaf.grad is None or leaf.grad.strided_view is not None:
        return None
    return cast("NDArray", leaf.grad) if _is_like(array, leaf.grad, leaf.grad.storage.device) else None


def _current(cell: Cell) -> Cell:
    """Return the array of a value if it has one, else the cell."""
    return cell.handle if type(cell) is Value and cell.handle is not None else cell


def _device(cell: Cell) -> Device:
    return cell.device if isinstance(cell, Value) else cell.storage.device


def _is_like(cell: Cell, array: BaseArray, device: Device) -> bool:
    return _device(cell) is device and cell.dims == array.dims and cell.element_type == array.element_type


def _store(bulk: Bulk, leaf: Leaf, total: Cell, target: BaseArray) -> None:
    """Make a bulk store a total in a leaf's buffer of the same shape and dtype, according to its request."""
    if leaf.request == "write":
        bulk.store(total, target)
    elif leaf.request == "add":
        rule = _sum_of(target, total)
        assert rule is not None
        bulk.add_to(total, target, rule)


_dependence_rules: dict[object, GradientRules] = {}


def _pass_first(F: object, inputs: object, outputs: object, heads: Tensors) -> Gradients:
    return [heads[0], None]


def _ones_like(F: Functions, inputs: Any, outputs: object, heads: object) -> Gradients:
    return [F.ones_like(inputs.unchecked(0))]


def _plus(F: object, inputs: Tensors, outputs: object, heads: object) -> Gradients:
    return [inputs[0] + inputs[1]]


def _sum_of(one: Cell, other: Cell) -> Rule | None:
    """Return the rule that adds two gradients; None if their device, shape or dtype differ, or they are sparse."""
    if _device(one) is not _device(other) or one.dims != other.dims or one.element_type != other.element_type:
        return None
    if isinstance(one.dims, SparseShape):
        return None
    return rule_for("sum", [one, other], _plus, _device(one))


def _gradients(
    node: TapeNode, grads: Sequence[NDArray | None], targets: Sequence[NDArray | None], checked: Collection[int] | None
) -> Sequence[NDArray | None]:
    """Call a node's gradient function; return the gradients of its inputs, in their targets if they have one."""
    inputs, outputs = node.saved(checked)
    heads = [
        F.op("zeros_like", outputs.unchecked(index)) if gradient is None else gradient
        for index, gradient in enumerate(grads)
    ]
    # A recorded backward pass continues the graph, so pass the inputs with their history.
    saved = _History(inputs, node.entries) if state.get().recording else inputs
    layer = node.origin[2] if origin.layer_name_users and node.origin is not None else None
    try:
        with layer_scope(layer, fresh=True) if layer else nullcontext(), _naming(node):
            arguments = (F, saved, _outputs(node, outputs), heads, *([targets] if targets else []))
            gradients = cast("Sequence[NDArray | None]", node.gradient(*arguments))
    except NotImplementedError as error:
        reason = f": {error}" if "must define" in str(error) else ""
        raise AutogradError(f"backward: operator {node.name!r} has no gradient{reason}") from None
    if not isinstance(getattr(node.gradient, "__self__", None), Operator):
        buffers = set(map(id, targets))
        for gradient in gradients:  # user code may refer to it
            if gradient is not None and id(gradient) not in buffers:
                gradient.storage.shared = True
    return gradients


@contextmanager
def _named(node: TapeNode) -> Iterator[None]:
    token = differentiated.set(node)
    try:
        yield
    finally:
        differentiated.reset(token)


def _naming(node: TapeNode | Leaf) -> AbstractContextManager[None]:
    """Return a context manager for operations that compute a node's gradient: the NaN watch reports the node."""
    return _named(node) if engine.is_watched and isinstance(node, TapeNode) else nullcontext()


class _History(Sequence[Any]):
    """The saved arrays of a node, with their entries on the tape."""

    def __init__(self, saved: Saved, entries: Sequence[TapeEntry | None]) -> None:
        self._saved, self._entries = saved, entries

    def __len__(self) -> int:
        return len(self._saved)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        array = self._saved[index].without_history()
        array.history = self._entries[index]
        return array

    def unchecked(self, index: int) -> BaseArray:
        return self._saved.unchecked(index)

    def needs_gradient(self, index: int) -> bool:
        return self._entries[index] is not None


def _outputs(node: TapeNode, outputs: Saved) -> Sequence[Any]:
    if not state.get().recording:
        return outputs
    entries: list[TapeEntry | None] = [
        node.output(index) if index < node.visible else None for index in range(len(outputs))
    ]
    return _History(outputs, entries)
