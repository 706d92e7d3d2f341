"""``CachedOp``: a symbol as a function of arrays, compiled once for each combination of shapes.

A call is one engine operation, and its backward pass is another; the tape records the call as one operator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from itertools import repeat
from operator import attrgetter, is_
from typing import Any, cast
from weakref import ref

from flowmx import autograd, forks
from flowmx.bounded_tables import make_room
from flowmx.cached_op.compiled import FORWARD, Compiled, Versions
from flowmx.cached_op.operator_hooks import observed
from flowmx.cached_op.repeated_call import RepeatedCall, repetition_of
from flowmx.devices import Device
from flowmx.devices.launch_traits import LaunchTraits, set_launch_traits
from flowmx.engine import capture
from flowmx.engine.runtime import engine
from flowmx.engine.scheduler import Variable
from flowmx.errors import AutogradError, DeviceError
from flowmx.graph import collector
from flowmx.graph.capacity import GraphCache, tick
from flowmx.graph.casts import infer_outputs
from flowmx.graph.compiler import graph_of
from flowmx.graph.graph import fixed_variables, written_variables
from flowmx.graph.node import Entry, Node
from flowmx.graph.running.arenas import Blocks
from flowmx.graph.running.runner import Runner
from flowmx.graph.storage_types import makes_sparse
from flowmx.ndarray import core, recording
from flowmx.ndarray.array import NDArray
from flowmx.ndarray.core import allocate
from flowmx.ndarray.fixing import set_to_ones
from flowmx.ops.sparse.shapes import SparseShape
from flowmx.symbol.symbol import Symbol

_GRADIENT_LIMIT = 256
"""Maximum number of cached gradient graphs for higher derivatives, one for each combination of shapes."""


class CachedOp:
    """A symbol as a function of arrays.

    Args:
        symbol: the symbol, whose inputs in the order of ``list_inputs`` are the function's arguments.
        static_alloc: whether the arrays of parameters stay the same from call to call.
        static_shape: whether all shapes stay the same. With both, filters are also cached in the kernels' layout.
        data_names: the names of the inputs that are data, not parameters.
        may_cast: whether mixed precision may insert casts.
        owner: the name of the block that owns the graph, for messages (default: the symbol's).

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
        owner: str = "",
    ) -> None:
        self._symbol = symbol
        self._name = symbol.name or "cached graph"
        self._packs_filters = static_alloc and static_shape
        self._may_cast = may_cast
        self._nodes = symbol.nodes()
        self._variables = [node for node in self._nodes if node.is_variable]
        names = [node.name for node in self._variables]
        data = names if data_names is None else data_names
        self._data = [i for i, name in enumerate(names) if name in data]
        self._data_names = () if data_names is None else tuple(data_names)
        ops = [node.op for node in self._nodes if node.op is not None]
        self._draws_random = any(op.traits.uses_random for op in ops)
        self._runs_user_code = any(op.traits.detached for op in ops)
        self._is_dynamic = any(op.traits.dynamic or makes_sparse(op) for op in ops)
        written_nodes = [written_variables(self._nodes, train) for train in (False, True)]
        self._updated_inputs = [
            [i for i, node in enumerate(self._variables) if node in nodes] for nodes in written_nodes
        ]
        """Positions of the inputs that a call changes: in prediction, and in training."""
        ones = fixed_variables(self._nodes)
        self._fixed = [i for i, node in enumerate(self._variables) if node in ones]
        self._cache = GraphCache(owner or self._name)
        self._compiled: dict[Any, Compiled] = self._cache.graphs
        self._last: tuple[Any, ref[Compiled]] | None = None
        """The key of the last call, and its graph."""
        self._repeated: RepeatedCall | None = None
        """The last call of :meth:`call_with`, if it was a short prediction."""
        self._blocks: dict[Device, Blocks] = {}
        self._gradients: dict[Any, tuple[_Function, list[int]]] = {}
        self._lock = forks.lock()

    def __call__(self, *args: NDArray) -> Any:
        """Enqueue the graph on these arrays; return its output, or a list of outputs, immediately.

        Raises:
            TypeError: the number of arguments is wrong.
            DeviceError: they are on several devices.
            ShapeError, TypeInferenceError: they do not match the graph.
        """
        return self._call(args)[0]

    def call_with(self, parameters: Sequence[NDArray | None], data: Sequence[NDArray]) -> Any:
        """Call the graph with parameters that rarely change, as :meth:`__call__` with all arrays does.

        Args:
            parameters: the inputs, with None in place of the data; the same list in each call until one changes.
            data: the arrays that belong in the gaps, in order.
        """
        repeated = self._repeated
        if repeated is not None and repeated.parameters is parameters:
            outputs = repeated(data)
            if outputs is not None:
                return outputs
        remaining = iter(data)
        args = [next(remaining) if array is None else array for array in parameters]
        versions = [array.storage.version for array in parameters if array is not None]  # first: they may change
        outputs, compiled = self._call(args)
        if compiled is not None:
            casting = core.casting if self._may_cast else None
            self._repeated = repetition_of(compiled, parameters, versions, data, casting, self._result_class(args))
        return outputs

    def _call(self, args: Sequence[NDArray]) -> tuple[Any, Compiled | None]:
        """Return the results of a call, and the compiled graph if the call was a prediction that ran at once."""
        if len(args) != len(self._variables):
            raise TypeError(f"CachedOp: {len(args)} arrays were given, expected {len(self._variables)}")
        storages = [*map(_storage_of, args)]
        device = self._device(storages)
        mode = recording.state.get()
        shapes = tuple(map(_shape_of, args))
        if self._is_dynamic or _has_sparse(shapes) or (mode.recording and any(map(_has_sparse_gradient, args))):
            results = observed(
                self._symbol, {node.name: arg for node, arg in zip(self._variables, args, strict=True)}, ()
            )
            return results[0] if len(results) == 1 else results, None
        argnums = tuple([i for i, arg in enumerate(args) if arg.tape_entry is not None]) if mode.recording else ()
        compiled = self._compile(device, mode.training, argnums, args, shapes)
        kind = self._result_class(args)
        outputs = [cast("NDArray", allocate(device, *result, None, kind)) for result in compiled.output_types]
        call = _Call(compiled) if argnums else None
        if self._fixed and mode.training:
            set_to_ones([args[i] for i in self._fixed])
        if compiled.is_short and call is None and self._call_at_once(compiled, args, storages, outputs, mode):
            return outputs[0] if len(outputs) == 1 else outputs, None if mode.training else compiled
        self._push(compiled, call, args, storages, outputs, mode.training)
        if call is not None:
            core.record(self._name, _Gradient(self, call, argnums), args, outputs, len(outputs), capture(2))
        return outputs[0] if len(outputs) == 1 else outputs, None

    def _result_class(self, args: Sequence[NDArray]) -> type[NDArray]:
        """Return the class of the outputs: the ``mx.np`` array class if a data input has it."""
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
            (node.name, storage.device)
            for node, storage in zip(self._variables, storages, strict=True)
            if storage.device is not device
        )
        raise DeviceError(
            f"CachedOp: {self._variables[0].name} is on {device} and {name} on {other}: "
            "move them to one device with as_in_context"
        )

    # -- compiling -------------------------------------------------------------------------------------

    def _compile(
        self, device: Device, train: bool, argnums: tuple[int, ...], args: Sequence[NDArray], shapes: Sequence[object]
    ) -> Compiled:  # fmt: skip
        """Return the symbol compiled for arrays like these."""
        casting = core.casting if self._may_cast else None
        input_types = shapes, tuple(map(_dtype_of, args))
        key = (device, train, casting, argnums, input_types)
        # Hashing hundreds of shapes takes longer than comparing them with those of the last call.
        last = self._last
        if last is not None and last[0] == key:
            compiled = last[1]()
        else:
            compiled = self._compiled.get(key)
            self._last = None if compiled is None else (key, ref(compiled))
        if compiled is not None:
            compiled.used = tick()
            return compiled
        with collector.paused():
            entries, all_shapes, dtypes = self._infer(args, casting)
        with self._lock:
            blocks = self._blocks.setdefault(device, Blocks(device))
            compiled = Compiled(
                entries, self._variables, [self._variables[i] for i in argnums], all_shapes, dtypes,
                device, train, self._packs_filters and not train, blocks, self._data, self._data_names,
            )  # fmt: skip
        self._cache.add(key, compiled)
        return compiled

    def _infer(self, args: Sequence[NDArray], casting: core.Casting | None) -> Any:
        """Return the outputs with casts for mixed precision, and all shapes and dtypes, for arrays like these."""
        shapes = {node: arg.dims for node, arg in zip(self._variables, args, strict=True)}
        dtypes = {node: arg.element_type for node, arg in zip(self._variables, args, strict=True)}
        return infer_outputs(self._symbol.entries, shapes, dtypes, casting)

    # -- running ---------------------------------------------------------------------------------------

    def _call_at_once(
        self, compiled: Compiled, args: Sequence[NDArray], storages: Sequence[core.Storage], outputs: Sequence[NDArray],
        mode: recording.State,
    ) -> bool:  # fmt: skip
        """Run a short call that only writes its outputs, without an operation; return False if it must be pushed."""
        if self._updated_inputs[mode.training] or self._draws_random or self._runs_user_code or mode.notes is not None:
            return False
        versions = compiled.versions(storages)
        if not engine.run_light(
            compiled.device.compute, tuple(storages), _predict_shortly, compiled, args, outputs, versions
        ):
            return False
        for output in outputs:
            output.storage.version = 1
        return True

    def _push(
        self, compiled: Compiled, call: _Call | None, args: Sequence[NDArray], storages: Sequence[core.Storage],
        outputs: Sequence[NDArray], train: bool,
    ) -> None:  # fmt: skip
        writes: list[Variable] = [output.storage for output in outputs]
        writes += [storages[i] for i in self._updated_inputs[train]]
        if call is not None:
            writes.append(call)
        if self._draws_random:
            writes.append(compiled.device.generator)
        versions = compiled.versions(storages)
        core.push_on(
            compiled.device, _forward, (compiled, call, args, outputs, versions), tuple(storages), tuple(writes),
            self._name, compiled.is_light(FORWARD), compiled.nbytes, 4, self._runs_user_code,
        )  # fmt: skip

    def _differentiate(
        self, call: _Call, argnums: tuple[int, ...], inputs: Any, saved: Any, heads: Sequence[NDArray],
        targets: Sequence[NDArray | None],
    ) -> list[NDArray | None]:  # fmt: skip
        """Enqueue the backward pass of a call; return a gradient for each input, in its target if it has one."""
        if recording.state.get().recording:
            return self._differentiate_recorded(argnums, inputs, heads)
        compiled = call.compiled
        if call.used and (self._draws_random or self._updated_inputs[compiled.train]):
            raise AutogradError(
                f"backward: the previous backward pass used up the values of {self._name}, and "
                "running it again would draw other random numbers or update its statistics twice: call it again inside "
                "autograd.record(), or hybridize(False)"
            )
        if not compiled.is_planned and asyncio._get_running_loop() is not None:
            return self._differentiate_unplanned(call, argnums, inputs, saved, heads, targets)
        read_inputs, read_outputs, read_heads = compiled.read_backward
        checked = (
            range(len(inputs)) if call.used else read_inputs
        )  # the forward pass, if it runs again, reads all inputs
        arrays = [cast("NDArray", inputs[i] if i in checked else inputs.unchecked(i)) for i in range(len(inputs))]
        for i in read_outputs:
            saved[i]  # raises an error if the array has changed
        results = compiled.results
        all_gradients = self._targets(compiled, argnums, results.gradients, arrays, targets)
        gradient_of = {self._variables[i]: all_gradients[i] for i in argnums if all_gradients[i] is not None}
        head_arrays = [head if i in read_heads else None for i, head in enumerate(heads)]
        reads = [array.storage for array in (*arrays, *head_arrays) if array is not None]
        reads += [saved.unchecked(i).storage for i in range(len(saved))]
        rerun = arrays if call.used else None
        for number, piece in enumerate(results.pieces):
            beginning = (head_arrays, rerun, [saved.unchecked(i) for i in range(len(saved))]) if not number else None
            gradients = {node: cast("NDArray", gradient_of[node]) for node in piece.gradients}
            core.push_on(
                compiled.device, _backward, (call, number, gradients, beginning),
                (*reads, call), (call, *(array.storage for array in gradients.values())),
                f"{self._name}.backward", compiled.is_light(number), 0, 4, self._runs_user_code,
            )  # fmt: skip
        call.used = True
        return all_gradients

    def _targets(
        self, compiled: Compiled, argnums: tuple[int, ...], differentiated: Collection[Node], arrays: Sequence[NDArray],
        targets: Sequence[NDArray | None],
    ) -> list[NDArray | None]:  # fmt: skip
        """Return the array for the gradient of each input: its target, or a new array; None without a gradient."""
        result: list[NDArray | None] = [None] * len(arrays)
        for i in argnums:
            if self._variables[i] in differentiated:
                target = targets[i] if targets else None
                if target is None:
                    target = cast("NDArray", allocate(compiled.device, arrays[i].dims, arrays[i].element_type))
                result[i] = target
        return result

    def _differentiate_unplanned(
        self, call: _Call, argnums: tuple[int, ...], inputs: Any, saved: Any, heads: Sequence[NDArray],
        targets: Sequence[NDArray | None],
    ) -> list[NDArray | None]:  # fmt: skip
        """Enqueue the backward pass of a call without making the event loop wait for the plan.

        The pass is one operation, which declares all reads that the plan may need.
        """
        compiled = call.compiled
        arrays = [cast("NDArray", inputs[i] if call.used else inputs.unchecked(i)) for i in range(len(inputs))]
        outputs = [cast("NDArray", saved.unchecked(i)) for i in range(len(saved))]
        all_gradients = self._targets(compiled, argnums, compiled.differentiated, arrays, targets)
        gradients = {self._variables[i]: target for i in argnums if (target := all_gradients[i]) is not None}
        errors = _stale_errors(inputs, len(inputs)), _stale_errors(saved, len(saved))
        rerun = arrays if call.used else None
        core.push_on(
            compiled.device, _backward_whole, (call, gradients, heads, rerun, outputs, errors),
            (*(array.storage for array in (*arrays, *outputs, *heads)), call),
            (call, *(array.storage for array in gradients.values())), f"{self._name}.backward", False, 0, 4,
            self._runs_user_code,
        )  # fmt: skip
        call.used = True
        return all_gradients

    def _differentiate_recorded(
        self, argnums: tuple[int, ...], inputs: Any, heads: Sequence[NDArray]
    ) -> list[NDArray | None]:
        """Return the gradients as outputs of another recorded graph, for higher derivatives.

        Raises:
            AutogradError: the second run of the graph would draw other random numbers.
        """
        if self._draws_random:
            raise AutogradError(
                f"backward: {self._name} draws random numbers, and would draw others in a recorded backward pass "
                "(create_graph=True), so the gradient would be wrong: call hybridize(False) before the forward pass"
            )
        arrays = [cast("NDArray", inputs[i]) for i in range(len(inputs))]
        op, positions = self._gradient_op(argnums, arrays)
        results = op(*arrays, *heads) if positions else []
        results = results if isinstance(results, list) else [results]
        gradients: list[NDArray | None] = [None] * len(arrays)
        for position, result in zip(positions, results, strict=True):
            gradients[position] = result
        return gradients

    def _gradient_op(self, argnums: tuple[int, ...], arrays: Sequence[NDArray]) -> tuple[_Function, list[int]]:
        key = (argnums, autograd.is_training(), *[(array.dims, array.element_type) for array in arrays])
        entry = self._gradients.get(key)
        if entry is None:
            make_room(self._gradients, _GRADIENT_LIMIT)
            entry = self._gradients[key] = self._make_gradient_op(argnums, arrays)
        return entry

    def _make_gradient_op(self, argnums: tuple[int, ...], arrays: Sequence[NDArray]) -> tuple[_Function, list[int]]:
        entries, shapes, dtypes = self._infer(arrays, core.casting if self._may_cast else None)
        nodes = [self._variables[i] for i in argnums]
        graph = graph_of(entries, nodes, shapes, dtypes, autograd.is_training())
        positions = [i for i in argnums if self._variables[i] in graph.gradients]
        outputs = [graph.gradients[self._variables[i]] for i in positions]
        return _Function(outputs, [*self._variables, *graph.heads]), positions


class _Function:
    """A cached graph, called with arrays for a list of variables, including unused ones."""

    def __init__(self, entries: Sequence[Entry], variables: Sequence[object]) -> None:
        self._op = CachedOp(Symbol(entries), may_cast=False)
        at = {node: position for position, node in enumerate(variables)}
        self._positions = [at[node] for node in self._op._variables]

    def __call__(self, *args: NDArray) -> Any:
        return self._op(*[args[position] for position in self._positions])


# attrgetter is fast: each call inspects all arrays of a network, often hundreds.
_storage_of, _shape_of, _dtype_of = attrgetter("storage"), attrgetter("dims"), attrgetter("element_type")
_device_of = attrgetter("device")


def _has_sparse(shapes: Sequence[object]) -> bool:
    """Return whether any shape is that of a sparse array, which plans do not support."""
    return any(issubclass(kind, SparseShape) for kind in {*map(type, shapes)})


def _has_sparse_gradient(array: NDArray) -> bool:
    """Return whether the gradient of an array must be sparse."""
    leaf = array.history
    return type(leaf) is recording.Leaf and leaf.grad is not None and isinstance(leaf.grad.dims, SparseShape)


class _Call(Variable):
    """A recorded call: an engine variable for the values that the backward pass reads."""

    runner: Runner | None = None

    def __init__(self, compiled: Compiled) -> None:
        super().__init__("values of a cached graph")
        self.compiled = compiled
        self.used = False

    def __del__(self) -> None:
        # No backward pass can follow.
        if self.runner is not None:
            self.compiled.pool.give(self.runner)


class _Gradient:
    """The gradient function of one recorded call."""

    __slots__ = ("_argnums", "_call", "_op", "symbol")
    takes_targets = True

    def __init__(self, op: CachedOp, call: _Call, argnums: tuple[int, ...]) -> None:
        self._op, self._call, self._argnums = op, call, argnums
        self.symbol = op._symbol

    def __call__(
        self, F: object, inputs: object, saved: object, heads: Sequence[NDArray], targets: Sequence[NDArray | None] = ()
    ) -> Sequence[NDArray | None]:  # fmt: skip
        """Compute the gradients of the inputs."""
        return self._op._differentiate(self._call, self._argnums, inputs, saved, heads, targets)


def _forward(
    compiled: Compiled, call: _Call | None, args: Sequence[NDArray], outputs: Sequence[NDArray],
    versions: Versions,
) -> None:  # fmt: skip
    """Run a call (the operation)."""
    arrays = [arg.raw() for arg in args], [output.raw_for_writing() for output in outputs]
    if call is None:
        compiled.predict(*arrays, versions)
    else:
        call.runner = compiled.forward(*arrays, versions)


def _predict_shortly(
    compiled: Compiled, args: Sequence[NDArray], outputs: Sequence[NDArray], versions: Versions
) -> None:  # fmt: skip
    """Run a short call on the calling thread."""
    compiled.predict_shortly(
        [arg.raw() for arg in args], [output.raw_for_writing() for output in outputs], versions
    )  # fmt: skip


set_launch_traits(
    _forward, LaunchTraits(captured_by=lambda compiled, call, *_: (compiled, "forward", compiled.launches))
)

_Beginning = tuple[Sequence[NDArray | None], Sequence[NDArray] | None, Sequence[NDArray]]
"""Inputs of the first piece of a backward pass: the gradients of the outputs; the inputs of the forward pass if it must
run again, else None; and the outputs."""


def _backward(call: _Call, piece: int, gradients: dict[Node, NDArray], beginning: _Beginning | None) -> None:
    """Run a piece of a backward pass (the operation)."""
    compiled = call.compiled
    if beginning is not None:
        _begin_backward(call, *beginning)
    runner, call.runner = call.runner, None
    assert runner is not None
    compiled.backward(runner, piece, {node: array.raw_for_writing() for node, array in gradients.items()})
    if piece + 1 == len(compiled.results.pieces):
        compiled.pool.give(runner)
    else:
        call.runner = runner


set_launch_traits(_backward, LaunchTraits(captured_by=lambda call, piece, *_: (call.compiled, piece, 1)))


def _backward_whole(
    call: _Call, gradients: dict[Node, NDArray], heads: Sequence[NDArray], rerun: Sequence[NDArray] | None,
    outputs: Sequence[NDArray], errors: tuple[StaleErrors, StaleErrors],
) -> None:  # fmt: skip
    """Run a whole backward pass, waiting for the plan (the operation)."""
    compiled = call.compiled
    read_inputs, read_outputs, read_heads = compiled.read_backward
    for positions, stale in zip((read_inputs, read_outputs), errors, strict=True):
        for position in sorted(positions & stale.keys()):
            raise stale[position]
    head_arrays = [head if i in read_heads else None for i, head in enumerate(heads)]
    for number, piece in enumerate(compiled.results.pieces):
        beginning = None if number else (head_arrays, rerun, outputs)
        _backward(call, number, {node: gradients[node] for node in piece.gradients}, beginning)


StaleErrors = dict[int, AutogradError]
"""The errors to raise if the pass reads a changed array, by the array's position."""


def _stale_errors(saved: Any, count: int) -> StaleErrors:
    errors: StaleErrors = {}
    for position in range(count):
        try:
            saved[position]
        except AutogradError as error:
            errors[position] = error
    return errors


def _begin_backward(
    call: _Call, heads: Sequence[NDArray | None], rerun: Sequence[NDArray] | None, outputs: Sequence[NDArray]
) -> None:
    """Prepare a backward pass; run the forward pass again if another backward pass used up its values."""
    compiled = call.compiled
    if rerun is not None or call.runner is None:
        assert rerun is not None
        results = [compiled.device.allocate(output.dims, output.element_type) for output in outputs]
        call.runner = compiled.forward(
            [array.raw() for array in rerun], results, compiled.versions([array.storage for array in rerun])
        )
    compiled.begin_backward(call.runner, [None if head is None else head.raw() for head in heads])
