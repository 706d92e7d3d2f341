"""Executors: a symbol bound to arrays, run through the engine.

Binding infers every shape and dtype, differentiates the graph, and makes a plan. ``forward``, ``backward``
and ``forward_backward`` each push one operation that runs the plan's steps, tagged with the bound arrays:
an update of a parameter pushed between two of them needs no wait.
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
from flowmx.graph.casts import inferred
from flowmx.graph.compiler import compile_graph, graph_of, in_room, options_of
from flowmx.graph.node import Entry, Node
from flowmx.graph.plan import Plan
from flowmx.graph.plan_cache import plan_of
from flowmx.graph.reports.unfolded import sliced
from flowmx.graph.running.memory import Arena, expected
from flowmx.ndarray import core
from flowmx.ndarray.array import NDArray, full, zeros_of
from flowmx.ndarray.core import allocate
from flowmx.ndarray.views import is_contiguous, reshaped
from flowmx.ops.registry.dtypes import DType, name_of
from flowmx.ops.registry.operators import Shape
from flowmx.symbol.symbol import Symbol


class Executor:
    """A bound symbol. Made by :meth:`flowmx.sym.Symbol.bind` and ``simple_bind``.

    Attributes:
        arg_dict, grad_dict, aux_dict: the bound arrays by name.
        arg_arrays, grad_arrays, aux_arrays: the same in the symbol's order (None: no gradient).
        outputs: the output arrays; each ``forward`` writes them anew.
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
        self._wanted = [node for node in arguments if self._differentiates(node)]
        self._monitor: Monitor | None = None
        self._monitored: Monitored | None = None
        self._last_train: bool | None = None
        self._prepare(outputs)

    def _prepare(self, outputs: Sequence[NDArray]) -> None:
        """Infer shapes and types, and compile; outputs of another executor may be written to where they fit."""
        self._options = options_of(self._device.context.kernels)
        shapes = {node: bound.shape for node, bound in self._arrays.items()}
        dtypes = {node: bound._dtype for node, bound in self._arrays.items()}
        self._entries, self._shapes, self._dtypes = inferred(self._symbol._entries, shapes, dtypes, core.casting)
        for node, bound in self._arrays.items():
            check_bound(node, bound, self._shapes[Entry(node, 0)], self._dtypes[Entry(node, 0)], self._on(node))
        self.outputs = [
            cast("NDArray", allocate(self._on(entry.node), self._shapes[entry], self._dtypes[entry]))
            if old is None or math.prod(self._shapes[entry]) > old.size else _resized(old, self._shapes[entry])
            for entry, old in itertools.zip_longest(self._entries, outputs)
        ]  # fmt: skip
        self._heads: list[NDArray | None] = [None] * len(self.outputs)
        self._heads_given = False
        self._modes: dict[bool, Mode] = {}
        self._joint: Mode | None = None
        self._went_joint = False
        self._went_monitored = False
        self._differentiates_prediction = False
        if self._wanted and self._options.budget is not None:
            self._joint = self._compile(True, joint=True)
            if not sliced(self._joint.plan):
                self._modes[True] = self._joint
        else:
            self._mode(bool(self._wanted))
        self._used_up = False

    def _differentiates(self, node: Node) -> bool:
        return self.grad_dict.get(node.name) is not None and self._requests.get(node.name, "null") != "null"

    def _on(self, node: Node) -> Device:
        """The device of a node."""
        context = self._groups.get(node.attributes.get("__ctx_group__", ""))
        return self._device if context is None else devices.get(context)

    # -- compiling -------------------------------------------------------------------------------------

    def _mode(self, train: bool) -> Mode:
        """The compiled graph for training or for prediction, compiled at first use."""
        known = self._modes.get(train)
        if known is None:
            known = self._modes[train] = self._compile(train)
        return known

    def _mode_to_differentiate(self, train: bool) -> Mode:
        """The compiled graph with a backward pass; for prediction it is compiled on demand."""
        if not train and not self._differentiates_prediction:
            self._differentiates_prediction = True
            self._modes.pop(False, None)
        return self._mode(train)

    @collector.paused()
    def _compile(self, train: bool, joint: bool = False) -> Mode:
        entries, context = self._entries, self._device.context
        wanted = self._wanted if train or self._differentiates_prediction else []
        gradients = {node: self._gradient(node) for node in wanted}
        options = replace(self._options, joint=joint)
        if self._wanted:  # the arena of training is there anyway
            options = replace(options, slice=max(0, options.slice))
        elif not self._groups:
            options = in_room(options, self._device, self._coming(), self.arena.held(self._device))
        straight = [
            node for node in wanted
            if self._requests[node.name] == "write" and gradients[node]._dtype == self._dtypes[Entry(node, 0)]
        ]  # fmt: skip
        strided = [node for node, bound in self._arrays.items() if not is_contiguous(bound)]
        shapes, dtypes = self._shapes, self._dtypes
        if self._groups:
            graph = graph_of(entries, wanted, shapes, dtypes, train, context, self._groups)
            plan = compile_graph(graph, straight, strided, options)
        else:
            plan = plan_of(entries, wanted, shapes, dtypes, train, context, options, straight, strided)
            graph = plan.graph
        for where, nbytes in plan.arenas.items():
            self.arena.expect(self._device if where is None else devices.get(where), nbytes)
        arrays = dict(self._arrays)
        read = {e.node for node in (*plan.forward, *plan.backward) for e in node.inputs}
        read |= {e.node for e in plan.gradients.values()}
        for position, head in enumerate(graph.heads):
            if head in read:
                arrays[head] = self._head(position, graph.shapes[Entry(head, 0)], graph.dtypes[Entry(head, 0)])
        used: dict[Context | None, Device] = {each: devices.get(each) for each in self._groups.values()}
        requests = {node: self._requests[node.name] for node in wanted}
        return Mode(
            plan, train, {**used, context: self._device}, self.arena, arrays, self.outputs, gradients, requests
        )  # fmt: skip

    def _coming(self) -> int:
        """The bytes that bound arrays will take which have no memory yet, and other executors when they first run."""
        storages = {array._storage for array in (*self._arrays.values(), *self.outputs)}
        arrays = sum(
            math.prod(each.shape) * each.dtype.itemsize
            for each in storages
            if each.array is None and each.device is self._device
        )
        return arrays + expected(self._device, self.arena)

    def _head(self, position: int, shape: Shape, dtype: DType) -> NDArray:
        """The gradient of an output, which all modes read."""
        head = self._heads[position]
        if head is None:
            context = self._on(self._entries[position].node).context
            head = self._heads[position] = full(shape, 1, context, dtype)
        return head

    def _gradient(self, node: Node) -> NDArray:
        found = self.grad_dict[node.name]
        assert found is not None
        return found

    @property
    def plan(self) -> Plan:
        """The plan of a training step, or of prediction where no gradients are bound."""
        return (self._joint or self._modes[bool(self._wanted)]).plan

    def internal_bytes(self) -> int:
        """Bytes of internal values by the plan."""
        return self.plan.internal_bytes()

    # -- running ---------------------------------------------------------------------------------------

    def forward(self, is_train: bool = False, **kwargs: Any) -> list[NDArray]:
        """Enqueue the forward pass; returns the output arrays at once.

        Args:
            is_train: training mode.
            **kwargs: arrays to copy into arguments first, by name.

        Raises:
            ValueError: a name that is no argument.
            ShapeError: an array has another shape than the argument.
        """
        self._feed(kwargs)
        self._push("forward", is_train, True, False)
        return self.outputs

    def backward(self, out_grads: Any = None, is_train: bool = True) -> None:
        """Enqueue the backward pass of the last forward pass, into the gradient arrays; nothing where none are bound.

        A backward pass uses up what the forward pass left. For another one the forward pass is run again, with the
        random numbers that it drew; moving statistics are then updated again, too.

        Args:
            out_grads: gradients of the outputs, one or a list (default: ones; losses ignore them, and superfluous ones
                are ignored).
            is_train: training mode, where there was no forward pass; else that of the forward pass counts.

        Raises:
            ValueError: gradients of some outputs were given, and one that is needed was not.
            ShapeError: a gradient has another shape than its output.
            NotImplementedError: a second backward pass through random numbers that a GPU drew.
        """
        if not self._wanted:
            return
        train = is_train if self._last_train is None else self._last_train
        joint = self._joint if self._went_joint else None
        mode = joint or self._mode_to_differentiate(train)
        used_up = not self._went_monitored and (joint is not None or self._used_up or self.arena.holder is not mode)
        if used_up:
            mode.check_repeatable()
        self._feed_heads(out_grads)
        self._push("backward", train, used_up, True)

    def forward_backward(self, out_grads: Any = None, **kwargs: Any) -> list[NDArray]:
        """Enqueue both passes as one operation, in training mode; returns the output arrays."""
        self._feed(kwargs)
        self._feed_heads(out_grads)
        self._push("forward_backward", True, True, bool(self._wanted))
        return self.outputs

    def _feed(self, given: Mapping[str, Any]) -> None:
        for name, value in given.items():
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
        given = [out_grads] if isinstance(out_grads, NDArray) else list(out_grads or [])
        for position, (head, output) in enumerate(zip(self._heads, self.outputs, strict=True)):
            if head is None:
                continue  # nothing reads it
            if given and position >= len(given):
                raise ValueError(
                    f"backward: {len(given)} out_grads were given, the symbol has {len(self.outputs)} outputs"
                )
            value = given[position] if given else None
            if value is not None and value.shape != output.shape:
                raise ShapeError(f"backward: out_grad {position} has shape {value.shape}, expected {output.shape}")
            if value is not None or self._heads_given:
                head[:] = 1 if value is None else value
        self._heads_given = bool(given)

    def _push(self, name: str, train: bool, forward: bool, backward: bool) -> None:
        if self._is_monitored(forward):
            self._went_joint = False
            self._push_monitored(train, forward, backward)
            return
        again = forward and name == "backward"
        if forward:
            self._went_joint = backward and self._joint is not None and (self._went_joint or not again)
        mode = self._joint if self._went_joint and self._joint is not None else self._mode(train)
        if forward:
            self._used_up, self._last_train = False, train
        if backward:
            self._used_up = not mode.plan.keeps_values
        self.arena.holder = mode
        mode.push(f"{self._symbol.name or 'graph'}.{name}", forward, backward, again)

    # -- monitoring ------------------------------------------------------------------------------------

    def set_monitor_callback(
        self, callback: Callable[[str, NDArray], Any] | None, monitor_all: bool = False,
        is_active: Callable[[], bool] | None = None,
    ) -> None:  # fmt: skip
        """Have a function called with the name and the array of every value that is computed.

        Each operator is then an operation of its own, with nothing fused; the arrays are enqueued when it is called.

        Args:
            callback: the function (None: no longer).
            monitor_all: call it with the inputs of operators too.
            is_active: says at each pass whether to; where not, it runs as ever.
        """
        self._monitor = None if callback is None else Monitor(callback, monitor_all, is_active or (lambda: True))

    def _is_monitored(self, forward: bool) -> bool:
        """Tell whether to show a pass to the monitor; a backward pass is shown if its forward pass was."""
        if forward:
            self._went_monitored = self._monitor is not None and self._monitor.is_active()
        return self._went_monitored and self._monitor is not None

    def _push_monitored(self, train: bool, forward: bool, backward: bool) -> None:
        assert self._monitor is not None
        if forward:
            self._last_train, self._used_up = train, False
            for made, output in zip(self._one_by_one().forward(train, self._monitor), self.outputs, strict=True):
                made.copyto(output)
        if backward:
            heads = self._heads if self._heads_given else [None] * len(self.outputs)
            self._take_gradients(self._one_by_one().backward(heads, train, self._monitor))

    def _one_by_one(self) -> Monitored:
        """The graph, to be computed operator by operator."""
        if self._monitored is None:
            self._monitored = Monitored(
                self._entries, self._arrays, self._wanted, lambda node: self._on(node).context, self._shapes
            )
        return self._monitored

    def _take_gradients(self, found: Mapping[Node, NDArray]) -> None:
        for node in self._wanted:
            self._take_gradient(node, found.get(node))

    def _take_gradient(self, node: Node, found: NDArray | None) -> None:
        """Write or add a gradient (None: the outputs do not depend on the variable) to the user's array."""
        target = self._gradient(node)
        if self._requests[node.name] == "add":
            if found is not None:
                target += found
        elif found is None:
            target[:] = 0
        else:
            target[:] = found

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
        self, arg_params: Mapping[str, Any], aux_params: Mapping[str, Any] | None = None,
        allow_extra_params: bool = False,
    ) -> None:  # fmt: skip
        """Copy arrays into arguments and auxiliary states, by name.

        Raises:
            ValueError: a name that is not bound, unless extra ones are allowed.
        """
        for kind, table, given in (
            ("argument", self.arg_dict, arg_params),
            ("auxiliary state", self.aux_dict, aux_params),
        ):
            for name, value in (given or {}).items():
                if name in table:
                    table[name][:] = value
                elif not allow_extra_params:
                    raise ValueError(f"copy_params_from: there is no {kind} {name!r}, expected one of {list(table)}")

    def reshape(
        self, partial_shaping: bool = False, allow_up_sizing: bool = False, **kwargs: Sequence[int]
    ) -> Executor:
        """An executor for other input shapes, which shares the memory of this one's arrays.

        An array whose shape changes begins where it began, and so with the same elements; outputs, too. One that grows
        is new, and filled with zeros. Use one of the two executors at a time.

        Args:
            partial_shaping: let shapes change that were not named.
            allow_up_sizing: let arrays grow.
            **kwargs: new shapes by name.

        Raises:
            ShapeError: a shape would change that may not.

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
        found = dict(zip(self._symbol.list_arguments(), arguments, strict=True))
        found |= zip(self._symbol.list_auxiliary_states(), auxiliary, strict=True)

        def fitted(name: str, old: NDArray) -> NDArray:
            wanted = infer.known_shape(found[name], name)
            if wanted != old.shape and name not in kwargs and not partial_shaping:
                raise ShapeError(
                    f"reshape: {name} would change from {old.shape} to {wanted}; name its shape, or pass "
                    "partial_shaping=True"
                )
            if math.prod(wanted) > math.prod(old.shape) and not allow_up_sizing:
                raise ShapeError(f"reshape: {name} would grow from {old.shape} to {wanted}; pass allow_up_sizing=True")
            return _resized(old, wanted)

        made = {name: fitted(name, old) for name, old in self.arg_dict.items()}
        aux = {name: fitted(name, old) for name, old in self.aux_dict.items()}
        grads = {name: _resized(old, made[name].shape) for name, old in self.grad_dict.items() if old is not None}
        other = type(self)(
            self._symbol, self._device, made, grads, self._requests, aux, self._groups, self.arena, self.outputs
        )
        other._monitor = self._monitor
        return other

    @property
    def _ctx(self) -> Context:
        """The device, under MXNet's private name, which scripts use."""
        return self._device.context

    def debug_str(self) -> str:
        """The steps in order, and the memory that the plan needs."""
        plan = self.plan.unfolded()
        lines = [describe_graph(self._symbol._entries), "", "Steps:"]
        for phase, nodes in (("forward", plan.forward), ("backward", plan.backward)):
            for node in nodes:
                entry = Entry(node, 0)
                lines.append(
                    f"  {phase:8} {node.name:32} {getattr(node.op, 'name', ''):24} {plan.graph.shapes[entry]} "
                    f"{plan.nbytes(entry)} bytes"
                )
        mib = 1 << 20
        bound = sum(a.size * a._dtype.itemsize for a in self._arrays.values())
        grads = sum(g.size * g._dtype.itemsize for g in self.grad_dict.values() if g is not None)
        lines += [
            "",
            f"Arguments and auxiliary states: {bound / mib:.2f} MiB; gradients: {grads / mib:.2f} MiB",
            f"Internal values: {plan.unshared_bytes() / mib:.2f} MiB unshared",
            f"Total {math.ceil(plan.internal_bytes() / mib)} MB allocated for internal values",
        ]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<Executor of {self._symbol!r} on {self._device}>"


def _resized(array: NDArray, shape: Shape) -> NDArray:
    """An array of another shape with the first elements of a given one, in its memory; or a new one, where it grows."""
    if shape == array.shape:
        return array
    if array.stype != "default":
        return zeros_of(array.stype, shape, array.context, array._dtype)
    size = math.prod(shape)
    if size > array.size:
        return full(shape, 0, array.context, array._dtype)
    with autograd.pause():
        flat = cast("NDArray", reshaped(array, (array.size,)))
        return cast("NDArray", reshaped(flat[:size], shape))


def check_bound(node: Node, bound: NDArray, shape: Shape, dtype: DType, device: Device) -> None:
    """Raise where an array does not fit its variable."""
    if bound.shape != shape:
        raise ShapeError(f"bind: {node.name} has shape {bound.shape}, expected {shape}")
    if bound._dtype != dtype:
        raise TypeInferenceError(f"bind: {node.name} has dtype {name_of(bound._dtype)}, expected {name_of(dtype)}")
    if bound._storage.device is not device:
        raise DeviceError(f"bind: {node.name} is on {bound.context}, the executor on {device}")
