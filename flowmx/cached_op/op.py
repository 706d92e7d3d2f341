"""``CachedOp``: a symbol as a function of arrays, compiled once for each combination of shapes.

A call is one operation of the engine, and its backward pass another one; the tape records it as one operator.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from itertools import repeat
from operator import attrgetter, is_
from typing import Any, cast

from flowmx import autograd
from flowmx.cached_op.compiled import FORWARD, Compiled
from flowmx.cached_op.observed import observed
from flowmx.devices import Device
from flowmx.engine import capture
from flowmx.engine.scheduler import Variable
from flowmx.errors import AutogradError, DeviceError
from flowmx.graph import collector
from flowmx.graph.casts import inferred
from flowmx.graph.compiler import graph_of
from flowmx.graph.graph import written
from flowmx.graph.node import Entry, Node
from flowmx.graph.running.memory import Blocks
from flowmx.graph.running.runner import Runner
from flowmx.graph.storage_types import makes_sparse
from flowmx.ndarray import core, recording
from flowmx.ndarray.array import NDArray
from flowmx.ndarray.core import allocate
from flowmx.ops.sparse.shapes import SparseShape
from flowmx.symbol.symbol import Symbol

_KEPT = 16
"""Combinations of shapes that stay compiled."""


class CachedOp:
    """A symbol as a function of arrays.

    Args:
        symbol: its inputs are the function's arguments, in the order of ``list_inputs``.
        static_alloc: the arrays of parameters stay the same from call to call.
        static_shape: so do all shapes. With both, filters are kept in the order that kernels want, besides the
            parameters themselves.
        data_names: which inputs are data, and no parameters.
        may_cast: whether mixed precision may put casts into the graph.

    Example:
        >>> double = CachedOp(mx.sym.Variable("x") * 2)
        >>> double(mx.nd.ones(3))
    """

    def __init__(
        self,
        symbol: Symbol,
        static_alloc: bool = False,
        static_shape: bool = False,
        data_names: Sequence[str] | None = None,
        may_cast: bool = True,
    ) -> None:
        self._symbol = symbol
        self._name = symbol.name or "cached graph"
        self._pack = static_alloc and static_shape
        self._may_cast = may_cast
        self._nodes = symbol._nodes()
        self._variables = [node for node in self._nodes if node.is_variable]
        names = [node.name for node in self._variables]
        data = names if data_names is None else data_names
        self._data = [i for i, name in enumerate(names) if name in data]
        self._varying = () if data_names is None else tuple(data_names)
        ops = [node.op for node in self._nodes if node.op is not None]
        self._random = any(op.traits.uses_random for op in ops)
        self._detached = any(op.traits.detached for op in ops)
        self._is_dynamic = any(op.traits.dynamic or makes_sparse(op) for op in ops)
        changed = [written(self._nodes, train) for train in (False, True)]
        self._changed = [[i for i, node in enumerate(self._variables) if node in each] for each in changed]
        """The inputs that a call changes: in prediction, and in training."""
        self._compiled: OrderedDict[Any, Compiled] = OrderedDict()
        self._blocks: dict[Device, Blocks] = {}
        self._gradients: dict[Any, tuple[_Function, list[int]]] = {}
        self._lock = threading.RLock()

    def __call__(self, *args: NDArray) -> Any:
        """Enqueue it on these arrays; returns its output, or a list of them, at once.

        Raises:
            TypeError: the wrong number of arguments.
            DeviceError: they are on several devices.
            ShapeError, TypeInferenceError: they do not fit the graph.
        """
        if len(args) != len(self._variables):
            raise TypeError(f"CachedOp: {len(args)} arrays were given, expected {len(self._variables)}")
        storages = [*map(_storage_of, args)]
        device = self._device(storages)
        mode = recording.state.get()
        shapes = tuple(map(_shape_of, args))
        if self._is_dynamic or _has_sparse(shapes) or (mode.recording and any(map(_has_sparse_gradient, args))):
            found = observed(self._symbol, {v.name: each for v, each in zip(self._variables, args, strict=True)}, ())
            return found[0] if len(found) == 1 else found
        wanted = tuple([i for i, each in enumerate(args) if each._entry is not None]) if mode.recording else ()
        compiled = self._compile(device, mode.training, wanted, args, shapes)
        face = self._face(args)
        outputs = [cast("NDArray", allocate(device, *result, None, face)) for result in compiled.described]
        call = _Call(compiled) if wanted else None
        self._push(compiled, call, args, storages, outputs, mode.training)
        if call is not None:

            def gradient(
                F: Any, inputs: Any, made: Any, heads: Sequence[NDArray], targets: Sequence[NDArray | None] = ()
            ) -> Sequence[NDArray | None]:
                return self._differentiate(call, wanted, inputs, made, heads, targets)

            gradient.takes_targets = True  # type: ignore[attr-defined]
            gradient.symbol = self._symbol  # type: ignore[attr-defined]
            core.record(self._name, gradient, args, outputs, len(outputs), capture(2))
        return outputs[0] if len(outputs) == 1 else outputs

    def _face(self, args: Sequence[NDArray]) -> type[NDArray]:
        """The class of results: that of ``mx.np`` where an input is an array of it."""
        for index in self._data:
            if args[index].__class__ is not NDArray:
                return args[index].__class__
        return NDArray

    def _device(self, storages: Sequence[core.Storage]) -> Device:
        if not storages:
            raise TypeError("CachedOp: the symbol has no inputs, so there is no device to run on")
        device = storages[0].device
        if all(map(is_, map(_device_of, storages), repeat(device))):
            return device
        name, other = next(
            (node.name, each.device)
            for node, each in zip(self._variables, storages, strict=True)
            if each.device is not device
        )
        raise DeviceError(
            f"CachedOp: {self._variables[0].name} is on {device} and {name} on {other}: "
            "bring them together with as_in_context"
        )

    # -- compiling -------------------------------------------------------------------------------------

    def _compile(
        self, device: Device, train: bool, wanted: tuple[int, ...], args: Sequence[NDArray], shapes_given: Sequence[Any]
    ) -> Compiled:  # fmt: skip
        """The symbol for arrays like these; what was used least recently makes room."""
        casting = core.casting if self._may_cast else None
        described = shapes_given, tuple(map(_dtype_of, args))
        key = (device, train, casting, wanted, described)
        with self._lock:
            known = self._compiled.get(key)
            if known is not None:
                self._compiled.move_to_end(key)
                return known
        with collector.paused():
            entries, shapes, dtypes = self._inferred(args, casting)
        with self._lock:
            blocks = self._blocks.setdefault(device, Blocks(device))
            made = Compiled(
                entries, self._variables, [self._variables[i] for i in wanted], shapes, dtypes,
                device, train, self._pack and not train, blocks, self._data, self._varying,
            )  # fmt: skip
            self._compiled[key] = made
            while len(self._compiled) > _KEPT:
                self._compiled.popitem(last=False)
        return made

    def _inferred(self, args: Sequence[NDArray], casting: core.Casting | None) -> Any:
        """The outputs of the graph for arrays like these, cast as mixed precision says; all shapes and dtypes."""
        shapes = {node: each._shape for node, each in zip(self._variables, args, strict=True)}
        dtypes = {node: each._dtype for node, each in zip(self._variables, args, strict=True)}
        return inferred(self._symbol._entries, shapes, dtypes, casting)

    # -- running ---------------------------------------------------------------------------------------

    def _push(
        self, compiled: Compiled, call: _Call | None, args: Sequence[NDArray], storages: Sequence[core.Storage],
        outputs: Sequence[NDArray], train: bool,
    ) -> None:  # fmt: skip
        writes: list[Variable] = [each._storage for each in outputs]
        writes += [storages[i] for i in self._changed[train]]
        if call is not None:
            writes.append(call)
        if self._random:
            writes.append(compiled.device.generator)
        versions = [*zip(storages, map(_version_of, storages), strict=True)]
        core.push_on(
            compiled.device, _forward, (compiled, call, args, outputs, versions), tuple(storages), tuple(writes),
            self._name, compiled.is_light(FORWARD), compiled.nbytes, 4, self._detached,
        )  # fmt: skip

    def _differentiate(
        self, call: _Call, wanted: tuple[int, ...], inputs: Any, made: Any, heads: Sequence[NDArray],
        targets: Sequence[NDArray | None],
    ) -> list[NDArray | None]:  # fmt: skip
        """Enqueue the backward pass of a call; returns a gradient for each input, the target where it has one."""
        if recording.state.get().recording:
            return self._differentiate_recorded(wanted, inputs, heads)
        compiled = call.compiled
        if call.used and (self._random or self._changed[compiled.train]):
            raise AutogradError(
                f"backward: the backward pass before this one used up what {self._name} left, and "
                "running it again would draw other random numbers or move its statistics twice: call it again inside "
                "autograd.record(), or hybridize(False)"
            )
        read_inputs, read_outputs, read_heads = compiled.read_backward
        looked_at = range(len(inputs)) if call.used else read_inputs  # all, where the forward pass runs again
        arrays = [cast("NDArray", inputs[i] if i in looked_at else inputs.unchecked(i)) for i in range(len(inputs))]
        for i in read_outputs:
            made[i]  # refused where it was changed since
        results = compiled.results
        found: list[NDArray | None] = [None] * len(inputs)
        made_for: dict[Node, NDArray] = {}
        for i in wanted:
            if self._variables[i] in results.gradients:
                target = targets[i] if targets else None
                if target is None:
                    target = cast("NDArray", allocate(compiled.device, arrays[i]._shape, arrays[i]._dtype))
                found[i] = made_for[self._variables[i]] = target
        given = [head if i in read_heads else None for i, head in enumerate(heads)]
        reads = [each._storage for each in (*arrays, *given) if each is not None]
        reads += [made.unchecked(i)._storage for i in range(len(made))]
        again = arrays if call.used else None
        for number, piece in enumerate(results.pieces):
            begins = (given, again, [made.unchecked(i) for i in range(len(made))]) if not number else None
            gradients = {node: made_for[node] for node in piece.gradients}
            core.push_on(
                compiled.device, _backward, (call, number, gradients, begins),
                (*reads, call), (call, *(each._storage for each in gradients.values())),
                f"{self._name}.backward", compiled.is_light(number), 0, 4, self._detached,
            )  # fmt: skip
        call.used = True
        return found

    def _differentiate_recorded(
        self, wanted: tuple[int, ...], inputs: Any, heads: Sequence[NDArray]
    ) -> list[NDArray | None]:
        """The gradients as another cached graph, which the tape records in turn: for gradients of gradients.

        Raises:
            AutogradError: the graph, which runs anew, would draw other random numbers.
        """
        if self._random:
            raise AutogradError(
                f"backward: {self._name} draws random numbers, and would draw others in a recorded backward pass "
                "(create_graph=True), so the gradient would be wrong: call hybridize(False) before the forward pass"
            )
        arrays = [cast("NDArray", inputs[i]) for i in range(len(inputs))]
        op, positions = self._gradient_op(wanted, arrays)
        results = op(*arrays, *heads) if positions else []
        results = results if isinstance(results, list) else [results]
        found: list[NDArray | None] = [None] * len(arrays)
        for position, result in zip(positions, results, strict=True):
            found[position] = result
        return found

    def _gradient_op(self, wanted: tuple[int, ...], arrays: Sequence[NDArray]) -> tuple[_Function, list[int]]:
        key = (wanted, autograd.is_training(), *[(each._shape, each._dtype) for each in arrays])
        known = self._gradients.get(key)
        if known is None:
            if len(self._gradients) >= _KEPT:
                self._gradients.clear()
            known = self._gradients[key] = self._make_gradient_op(wanted, arrays)
        return known

    def _make_gradient_op(self, wanted: tuple[int, ...], arrays: Sequence[NDArray]) -> tuple[_Function, list[int]]:
        entries, shapes, dtypes = self._inferred(arrays, core.casting if self._may_cast else None)
        nodes = [self._variables[i] for i in wanted]
        graph = graph_of(entries, nodes, shapes, dtypes, autograd.is_training())
        positions = [i for i in wanted if self._variables[i] in graph.gradients]
        found = [graph.gradients[self._variables[i]] for i in positions]
        return _Function(found, [*self._variables, *graph.heads]), positions


class _Function:
    """A cached graph of entries, called with arrays for these variables, whether it reads them or not."""

    def __init__(self, entries: Sequence[Entry], variables: Sequence[Any]) -> None:
        self._op = CachedOp(Symbol(entries), may_cast=False)
        at = {node: position for position, node in enumerate(variables)}
        self._positions = [at[node] for node in self._op._variables]

    def __call__(self, *args: NDArray) -> Any:
        return self._op(*[args[position] for position in self._positions])


# Networks have hundreds of arrays, which are looked at in each call.
_storage_of, _shape_of, _dtype_of = attrgetter("_storage"), attrgetter("_shape"), attrgetter("_dtype")
_device_of, _version_of = attrgetter("device"), attrgetter("version")


def _has_sparse(shapes: Sequence[Any]) -> bool:
    """Tell whether one of some arrays is sparse, from their shapes: a plan has dense ones alone."""
    return any(issubclass(kind, SparseShape) for kind in {*map(type, shapes)})


def _has_sparse_gradient(array: NDArray) -> bool:
    """Tell whether the gradient of an array is to be sparse."""
    leaf = array._past
    return type(leaf) is recording.Leaf and leaf.grad is not None and isinstance(leaf.grad._shape, SparseShape)


class _Call(Variable):
    """One recorded call: the state that its forward pass leaves for the backward pass, as a variable of the engine."""

    runner: Runner | None = None

    def __init__(self, compiled: Compiled) -> None:
        super().__init__("values of a cached graph")
        self.compiled = compiled
        self.used = False

    def __del__(self) -> None:
        # Nobody asks for its backward pass any more.
        if self.runner is not None:
            self.compiled.pool.give(self.runner)


def _forward(
    compiled: Compiled, call: _Call | None, args: Sequence[NDArray], outputs: Sequence[NDArray],
    versions: Sequence[Any],
) -> None:  # fmt: skip
    """The operation of a call."""
    runner = compiled.forward([each._read() for each in args], [each._written() for each in outputs], versions)
    if call is None:
        compiled.pool.give(runner)
    else:
        call.runner = runner


_forward.captured_by = lambda compiled, call, *_: (compiled, "forward", compiled.launches)  # type: ignore[attr-defined]

_Beginning = tuple[Sequence[NDArray | None], Sequence[NDArray] | None, Sequence[NDArray]]
"""Inputs of a backward pass's first piece: the gradients of the outputs, the forward pass's inputs where that must run
again (else None), and the outputs."""


def _backward(call: _Call, piece: int, gradients: dict[Node, NDArray], beginning: _Beginning | None) -> None:
    """The operation of a piece of a backward pass."""
    compiled = call.compiled
    if beginning is not None:
        _begin_backward(call, *beginning)
    runner, call.runner = call.runner, None
    assert runner is not None
    compiled.backward(runner, piece, {node: each._written() for node, each in gradients.items()})
    if piece + 1 == len(compiled.results.pieces):
        compiled.pool.give(runner)
    else:
        call.runner = runner


_backward.captured_by = lambda call, piece, *_: (call.compiled, piece, 1)  # type: ignore[attr-defined]


def _begin_backward(
    call: _Call, heads: Sequence[NDArray | None], again: Sequence[NDArray] | None, outputs: Sequence[NDArray]
) -> None:
    """Prepare a backward pass; the forward pass runs again where another one used up what it left."""
    compiled = call.compiled
    if again is not None or call.runner is None:
        assert again is not None
        results = [compiled.device.allocate(each._shape, each._dtype) for each in outputs]
        call.runner = compiled.forward([each._read() for each in again], results, ())
    compiled.begin_backward(call.runner, [None if each is None else each._read() for each in heads])
