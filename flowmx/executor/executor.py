"""Executors: a symbol bound to arrays, run through the engine.

Binding infers every shape and dtype, differentiates the graph, and makes a plan. ``forward``, ``backward`` and
``forward_backward`` each push one operation that runs the plan's steps and is tagged with the bound arrays. So no wait
is needed before or after a parameter update between two of them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from flowmx import autograd, devices
from flowmx.devices import Context, Device
from flowmx.errors import ArgumentKindError, DeviceError, ShapeError, TypeInferenceError
from flowmx.executor.describe import describe_graph
from flowmx.executor.mode import Mode
from flowmx.executor.monitored import Monitor, Monitored
from flowmx.graph import collector, infer
from flowmx.graph.casts import infer_outputs
from flowmx.graph.compiler import compile_graph, graph_of, options_of, with_memory_limit
from flowmx.graph.graph import fixed_variables
from flowmx.graph.node import Entry, Node
from flowmx.graph.plan import Plan
from flowmx.graph.plan_cache import plan_of
from flowmx.graph.reports.unfolded import sliced_steps
from flowmx.graph.running.arenas import Arena, expected
from flowmx.ndarray import core
from flowmx.ndarray.array import NDArray
from flowmx.ndarray.core import allocate
from flowmx.ndarray.creation import full, zeros_of
from flowmx.ndarray.fixing import set_to_ones
from flowmx.ndarray.views import is_contiguous, reshape_view
from flowmx.ops.registry.dtypes import DType, name_of
from flowmx.ops.registry.operators import Shape
from flowmx.symbol.symbol import Symbol


class Executor:
    """A bound symbol, created by :meth:`flowmx.sym.Symbol.bind` and ``simple_bind``.

    Attributes:
        arg_dict, grad_dict, aux_dict: the bound arrays by name.
        arg_arrays, grad_arrays, aux_arrays: the same arrays in the symbol's order (None: no gradient).
        outputs: the output arrays, overwritten by each ``forward``.
        arena: the memory for internal values, which executors may share.
    """

    @collector.paused()
    def __init__(
        self,
        symbol: Symbol,
        device: Device,
        args: dict[str, NDArray],
        grads: dict[str, NDArray],
        requests: dict[str, str],
        aux: dict[str, NDArray],
        groups: Mapping[str, Context] | None = None,
        arena: Arena | None = None,
        outputs: Sequence[NDArray] = (),
    ) -> None:
        self._symbol = symbol
        self._device = device
        self._groups = dict(groups or {})
        self.arg_dict = args
        self.aux_dict = aux
        self.grad_dict: dict[str, NDArray | None] = {name: grads.get(name) for name in args}
        self.arena = arena or Arena()
        self._requests = requests
        arguments, auxiliary = symbol._variables()
        self._arrays = {node: args[node.name] for node in arguments}
        self._arrays |= {node: aux[node.name] for node in auxiliary}
        ones = fixed_variables(symbol.nodes())
        self._fixed = [bound for node, bound in self._arrays.items() if node in ones]
        self._grad_nodes = [node for node in arguments if self._differentiates(node)]
        self._monitor: Monitor | None = None
        self._monitored: Monitored | None = None
        self._last_train: bool | None = None
        self._prepare(outputs)

    def _prepare(self, outputs: Sequence[NDArray]) -> None:
        """Infer shapes and types, and compile; reuse an executor's output arrays where they are large enough."""
        self._options = options_of(self._device.context.kernels)
        shapes = {node: bound.shape for node, bound in self._arrays.items()}
        dtypes = {node: bound.element_type for node, bound in self._arrays.items()}
        self._entries, self._shapes, self._dtypes = infer_outputs(self._symbol.entries, shapes, dtypes, core.casting)
        for node, bound in self._arrays.items():
            check_bound(node, bound, self._shapes[Entry(node, 0)], self._dtypes[Entry(node, 0)], self._device_of(node))
        self.outputs = [
            cast("NDArray", allocate(self._device_of(entry.node), self._shapes[entry], self._dtypes[entry]))
            if old is None or math.prod(self._shapes[entry]) > old.size else _resize(old, self._shapes[entry])
            for entry, old in itertools.zip_longest(self._entries, outputs)
        ]  # fmt: skip
        self._heads: list[NDArray | None] = [None] * len(self.outputs)
        self._has_heads = False
        self._modes: dict[bool, Mode] = {}
        self._joint: Mode | None = None
        self._is_joint = False
        self._was_monitored = False
        self._differentiates_prediction = False
        if self._grad_nodes and self._options.budget is not None:
            self._joint = self._compile(True, joint=True)
            if not sliced_steps(self._joint.plan):
                self._modes[True] = self._joint
        else:
            self._mode(bool(self._grad_nodes))
        self._used_up = False

    def _differentiates(self, node: Node) -> bool:
        return self.grad_dict.get(node.name) is not None and self._requests.get(node.name, "null") != "null"

    def _device_of(self, node: Node) -> Device:
        """Return the device of a node."""
        context = self._groups.get(node.attributes.get("__ctx_group__", ""))
        return self._device if context is None else devices.get(context)

    # -- compiling -------------------------------------------------------------------------------------

    def _mode(self, train: bool) -> Mode:
        """Return the graph for training or prediction, compiled at first use."""
        mode = self._modes.get(train)
        if mode is None:
            mode = self._modes[train] = self._compile(train)
        return mode

    def _mode_to_differentiate(self, train: bool) -> Mode:
        """Return the compiled graph with a backward pass, which is compiled on demand for prediction."""
        if not train and not self._differentiates_prediction:
            self._differentiates_prediction = True
            self._modes.pop(False, None)
        return self._mode(train)

    @collector.paused()
    def _compile(self, train: bool, joint: bool = False) -> Mode:
        entries, context = self._entries, self._device.context
        grad_nodes = self._grad_nodes if train or self._differentiates_prediction else []
        gradients = {node: self._gradient(node) for node in grad_nodes}
        options = replace(self._options, joint=joint)
        if self._grad_nodes:  # training has an arena anyway
            options = replace(options, slice=max(0, options.slice))
        elif not self._groups:
            options = with_memory_limit(options, self._device, self._expected_bytes(), self.arena.held(self._device))
        direct_grads = [
            node for node in grad_nodes
            if self._requests[node.name] == "write" and gradients[node].element_type == self._dtypes[Entry(node, 0)]
        ]  # fmt: skip
        strided = [node for node, bound in self._arrays.items() if not is_contiguous(bound)]
        shapes, dtypes = self._shapes, self._dtypes
        if self._groups:
            graph = graph_of(entries, grad_nodes, shapes, dtypes, train, context, self._groups)
            plan = compile_graph(graph, direct_grads, strided, options)
        else:
            plan = plan_of(entries, grad_nodes, shapes, dtypes, train, context, options, direct_grads, strided)
            graph = plan.graph
        for where, nbytes in plan.arenas.items():
            self.arena.expect(self._device if where is None else devices.get(where), nbytes)
        arrays = dict(self._arrays)
        read_nodes = {e.node for node in (*plan.forward, *plan.backward) for e in node.inputs}
        read_nodes |= {e.node for e in plan.gradients.values()}
        for position, head in enumerate(graph.heads):
            if head in read_nodes:
                arrays[head] = self._head(position, graph.shapes[Entry(head, 0)], graph.dtypes[Entry(head, 0)])
        group_devices: dict[Context | None, Device] = {group: devices.get(group) for group in self._groups.values()}
        requests = {node: self._requests[node.name] for node in grad_nodes}
        return Mode(
            plan, train, {**group_devices, context: self._device}, self.arena, arrays, self.outputs, gradients, requests
        )  # fmt: skip

    def _expected_bytes(self) -> int:
        """Return the size in bytes of unallocated bound arrays and of other executors' arenas before they run first."""
        storages = {array.storage for array in (*self._arrays.values(), *self.outputs)}
        arrays = sum(
            math.prod(storage.shape) * storage.dtype.itemsize
            for storage in storages
            if storage.array is None and storage.device is self._device
        )
        return arrays + expected(self._device, self.arena)

    def _head(self, position: int, shape: Shape, dtype: DType) -> NDArray:
        """Return the array for an output's gradient, which all modes share."""
        head = self._heads[position]
        if head is None:
            context = self._device_of(self._entries[position].node).context
            head = self._heads[position] = full(shape, 1, context, dtype)
        return head

    def _gradient(self, node: Node) -> NDArray:
        array = self.grad_dict[node.name]
        assert array is not None
        return array

    @property
    def plan(self) -> Plan:
        """The plan of a training step, or of prediction if no gradients are bound."""
        return (self._joint or self._modes[bool(self._grad_nodes)]).plan

    def internal_bytes(self) -> int:
        """Return the planned bytes of internal values."""
        return self.plan.internal_bytes()

    # -- running ---------------------------------------------------------------------------------------

    def forward(self, is_train: bool = False, **kwargs: object) -> list[NDArray]:
        """Enqueue the forward pass; return the output arrays immediately.

        Args:
            is_train: whether to run in training mode.
            **kwargs: arrays to copy into arguments first, by name.

        Raises:
            ValueError: a name is not an argument.
            ShapeError: the shape of an array differs from that of its argument.
        """
        self._feed(kwargs)
        self._push("forward", is_train, True, False)
        return self.outputs

    def backward(self, out_grads: Any = None, is_train: bool = True) -> None:
        """Enqueue the backward pass of the last forward pass, into the gradient arrays (if any).

        A backward pass uses up the values of the forward pass. A second one first runs the forward pass again with the
        same random numbers, which also updates moving statistics again.

        Args:
            out_grads: gradients of the outputs, one or a list (default: ones). Losses ignore them, and extra ones are
                ignored.
            is_train: whether to run in training mode; after a forward pass, its mode is used instead.

        Raises:
            ValueError: a needed gradient is missing from ``out_grads``.
            ShapeError: the shape of a gradient differs from that of its output.
            NotImplementedError: a second backward pass depends on random numbers that a GPU drew.
        """
        if not self._grad_nodes:
            return
        train = is_train if self._last_train is None else self._last_train
        joint = self._joint if self._is_joint else None
        mode = joint or self._mode_to_differentiate(train)
        used_up = not self._was_monitored and (joint is not None or self._used_up or self.arena.holder is not mode)
        if used_up:
            mode.check_repeatable()
        self._feed_heads(out_grads)
        self._push("backward", train, used_up, True)

    def forward_backward(self, out_grads: object = None, **kwargs: object) -> list[NDArray]:
        """Enqueue both passes as one operation, in training mode; return the output arrays."""
        self._feed(kwargs)
        self._feed_heads(out_grads)
        self._push("forward_backward", True, True, bool(self._grad_nodes))
        return self.outputs

    def _feed(self, arrays: Mapping[str, object]) -> None:
        for name, value in arrays.items():
            target = self.arg_dict.get(name)
            if target is None:
                raise ArgumentKindError(
                    f"forward: there is no argument {name!r}, expected one of {list(self.arg_dict)}"
                )
            shape = getattr(value, "shape", None)
            if shape is not None and tuple(shape) != target.shape:
                raise ShapeError(f"forward: argument {name} has shape {tuple(shape)}, bound with {target.shape}")
            target[:] = value

    def _feed_heads(self, out_grads: Any) -> None:
        gradients = [out_grads] if isinstance(out_grads, NDArray) else list(out_grads or [])
        for position, (head, output) in enumerate(zip(self._heads, self.outputs, strict=True)):
            if head is None:
                continue  # the backward pass does not read it
            if gradients and position >= len(gradients):
                raise ValueError(
                    f"backward: {len(gradients)} out_grads were given, the symbol has {len(self.outputs)} outputs"
                )
            value = gradients[position] if gradients else None
            if value is not None and value.shape != output.shape:
                raise ShapeError(f"backward: out_grad {position} has shape {value.shape}, expected {output.shape}")
            if value is not None or self._has_heads:
                head[:] = 1 if value is None else value
        self._has_heads = bool(gradients)

    def _push(self, name: str, train: bool, forward: bool, backward: bool) -> None:
        if self._is_monitored(forward):
            self._is_joint = False
            self._push_monitored(train, forward, backward)
            return
        is_repeated = forward and name == "backward"
        if forward and self._fixed and (train or self._grad_nodes):
            set_to_ones(self._fixed)
        if forward:
            self._is_joint = backward and self._joint is not None and (self._is_joint or not is_repeated)
        mode = self._joint if self._is_joint and self._joint is not None else self._mode(train)
        if forward:
            self._used_up, self._last_train = False, train
        if backward:
            self._used_up = not mode.plan.keeps_values
        self.arena.holder = mode
        mode.push(f"{self._symbol.name or 'graph'}.{name}", forward, backward, is_repeated)

    # -- monitoring ------------------------------------------------------------------------------------

    def set_monitor_callback(
        self, callback: Callable[[str, NDArray], object] | None, monitor_all: bool = False,
        is_active: Callable[[], bool] | None = None,
    ) -> None:  # fmt: skip
        """Call a function with the name and the array of every computed value.

        Each operator then runs as a separate operation, without fusion. The function is called when the arrays are
        enqueued.

        Args:
            callback: the function (None: remove it).
            monitor_all: also call it with the inputs of operators.
            is_active: called before each pass, which runs as usual if the result is False.
        """
        self._monitor = None if callback is None else Monitor(callback, monitor_all, is_active or (lambda: True))

    def _is_monitored(self, forward: bool) -> bool:
        """Return whether the monitor sees a pass; it sees a backward pass if it saw the forward pass."""
        if forward:
            self._was_monitored = self._monitor is not None and self._monitor.is_active()
        return self._was_monitored and self._monitor is not None

    def _push_monitored(self, train: bool, forward: bool, backward: bool) -> None:
        assert self._monitor is not None
        if forward:
            self._last_train, self._used_up = train, False
            for value, output in zip(self._operator_runner().forward(train, self._monitor), self.outputs, strict=True):
                value.copyto(output)
        if backward:
            heads = self._heads if self._has_heads else [None] * len(self.outputs)
            self._write_gradients(self._operator_runner().backward(heads, train, self._monitor))

    def _operator_runner(self) -> Monitored:
        """Return the graph for execution operator by operator."""
        if self._monitored is None:
            self._monitored = Monitored(
                self._entries, self._arrays, self._grad_nodes, lambda node: self._device_of(node).context, self._shapes
            )
        return self._monitored

    def _write_gradients(self, gradients: Mapping[Node, NDArray]) -> None:
        for node in self._grad_nodes:
            self._write_gradient(node, gradients.get(node))

    def _write_gradient(self, node: Node, gradient: NDArray | None) -> None:
        """Write or add a gradient (None: the outputs do not depend on the variable) to the user's array."""
        target = self._gradient(node)
        if self._requests[node.name] == "add":
            if gradient is not None:
                target += gradient
        elif gradient is None:
            target[:] = 0
        else:
            target[:] = gradient

    # -- arrays ----------------------------------------------------------------------------------------

    @property
    def arg_arrays(self) -> list[NDArray]:
        """The bound arguments, in the symbol's order."""
        return list(self.arg_dict.values())

    @property
    def grad_arrays(self) -> list[NDArray | None]:
        """The gradient arrays, in the symbol's order."""
        return list(self.grad_dict.values())

    @property
    def aux_arrays(self) -> list[NDArray]:
        """The auxiliary states, in the symbol's order."""
        return list(self.aux_dict.values())

    @property
    def output_dict(self) -> dict[str, NDArray]:
        """The outputs by name."""
        return dict(zip(self._symbol.list_outputs(), self.outputs, strict=True))

    def copy_params_from(
        self, arg_params: Mapping[str, object], aux_params: Mapping[str, object] | None = None,
        allow_extra_params: bool = False,
    ) -> None:  # fmt: skip
        """Copy arrays into arguments and auxiliary states, by name.

        Raises:
            ValueError: a name is not bound, and ``allow_extra_params`` is False.
        """
        for kind, table, params in (
            ("argument", self.arg_dict, arg_params),
            ("auxiliary state", self.aux_dict, aux_params),
        ):
            for name, value in (params or {}).items():
                if name in table:
                    table[name][:] = value
                elif not allow_extra_params:
                    raise ValueError(f"copy_params_from: there is no {kind} {name!r}, expected one of {list(table)}")

    def reshape(
        self, partial_shaping: bool = False, allow_up_sizing: bool = False, **kwargs: Sequence[int]
    ) -> Executor:
        """Return an executor for other input shapes, which shares the memory of this one's arrays.

        Arrays and outputs of a new shape share the start of the memory, and so the first elements. An array that grows
        is replaced by a new array of zeros. Use only one of the two executors at a time.

        Args:
            partial_shaping: also allow changes of shapes that are not in ``kwargs``.
            allow_up_sizing: allow arrays to grow.
            **kwargs: new shapes by name.

        Raises:
            ShapeError: a shape would change or grow without permission.

        Example:
            >>> executor = (mx.sym.Variable("x") * 2).simple_bind(mx.cpu(), x=(4, 2))
            >>> executor.arg_dict["x"][:] = 1
            >>> executor.reshape(x=(3, 2)).forward()[0].asnumpy()
            array([[2., 2.],
                   [2., 2.],
                   [2., 2.]], dtype=float32)
        """
        shapes = {name: tuple(shape) for name, shape in kwargs.items()}
        arguments, _, auxiliary = self._symbol._infer_shape((), shapes)
        # A backend may have changed the order of variables.
        infer_outputs = dict(zip(self._symbol.list_arguments(), arguments, strict=True))
        infer_outputs |= zip(self._symbol.list_auxiliary_states(), auxiliary, strict=True)

        def resize(name: str, old: NDArray) -> NDArray:
            shape = infer.known_shape(infer_outputs[name], name)
            if shape != old.shape and name not in kwargs and not partial_shaping:
                raise ShapeError(
                    f"reshape: {name} would change from {old.shape} to {shape}; name its shape, or pass "
                    "partial_shaping=True"
                )
            if math.prod(shape) > math.prod(old.shape) and not allow_up_sizing:
                raise ShapeError(f"reshape: {name} would grow from {old.shape} to {shape}; pass allow_up_sizing=True")
            return _resize(old, shape)

        args = {name: resize(name, old) for name, old in self.arg_dict.items()}
        aux = {name: resize(name, old) for name, old in self.aux_dict.items()}
        grads = {name: _resize(old, args[name].shape) for name, old in self.grad_dict.items() if old is not None}
        other = type(self)(
            self._symbol, self._device, args, grads, self._requests, aux, self._groups, self.arena, self.outputs
        )
        other._monitor = self._monitor
        return other

    @property
    def _ctx(self) -> Context:
        """The device, under MXNet's private name, which scripts use."""
        return self._device.context

    def debug_str(self) -> str:
        """Return the steps in order, and the memory that the plan needs."""
        plan = self.plan.unfold()
        lines = [describe_graph(self._symbol.entries), "", "Steps:"]
        for phase, nodes in (("forward", plan.forward), ("backward", plan.backward)):
            for node in nodes:
                entry = Entry(node, 0)
                lines.append(
                    f"  {phase:8} {node.name:32} {getattr(node.op, 'name', ''):24} {plan.graph.shapes[entry]} "
                    f"{plan.nbytes(entry)} bytes"
                )
        mib = 1 << 20
        bound = sum(a.size * a.element_type.itemsize for a in self._arrays.values())
        grads = sum(g.size * g.element_type.itemsize for g in self.grad_dict.values() if g is not None)
        lines += [
            "",
            f"Arguments and auxiliary states: {bound / mib:.2f} MiB; gradients: {grads / mib:.2f} MiB",
            f"Internal values: {plan.unshared_bytes() / mib:.2f} MiB unshared",
            f"Total {math.ceil(plan.internal_bytes() / mib)} MB allocated for internal values",
        ]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<Executor of {self._symbol!r} on {self._device}>"


def _resize(array: NDArray, shape: Shape) -> NDArray:
    """Return an array of a different shape that shares the first elements, or a new array if it would grow."""
    if shape == array.shape:
        return array
    if array.stype != "default":
        return zeros_of(array.stype, shape, array.context, array.element_type)
    size = math.prod(shape)
    if size > array.size:
        return full(shape, 0, array.context, array.element_type)
    with autograd.pause():
        flat = cast("NDArray", reshape_view(array, (array.size,)))
        return cast("NDArray", reshape_view(flat[:size], shape))


def check_bound(node: Node, bound: NDArray, shape: Shape, dtype: DType, device: Device) -> None:
    """Raise an error if an array does not match its variable."""
    if bound.shape != shape:
        raise ShapeError(f"bind: {node.name} has shape {bound.shape}, expected {shape}")
    if bound.element_type != dtype:
        raise TypeInferenceError(
            f"bind: {node.name} has dtype {name_of(bound.element_type)}, expected {name_of(dtype)}"
        )
    if bound.storage.device is not device:
        raise DeviceError(f"bind: {node.name} is on {bound.context}, the executor on {device}")
