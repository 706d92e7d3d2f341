"""Executors: a symbol bound to arrays, run through the engine.

Binding infers every shape and dtype, differentiates the graph, and makes a plan. ``forward``, ``backward``
and ``forward_backward`` each push one operation that runs the plan's steps, tagged with the bound arrays:
an update of a parameter pushed between two of them needs no wait.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from flowmx import devices, settings
from flowmx.devices import Context, Device
from flowmx.engine.scheduler import Variable
from flowmx.errors import DeviceError, ShapeError, TypeInferenceError
from flowmx.graph import infer
from flowmx.graph.fuse import fuse
from flowmx.graph.gradient import gradient
from flowmx.graph.node import Entry, Node, topological
from flowmx.graph.plan import Plan, make_plan
from flowmx.ndarray import core
from flowmx.ndarray.array import NDArray, check_request, full
from flowmx.ndarray.core import allocate, forward_of
from flowmx.ops import kernels
from flowmx.ops.dtypes import DType, as_dtype, name_of
from flowmx.ops.registry import Run, Shape
from flowmx.symbol.symbol import Symbol

Step = tuple[Callable[..., None], list[Any], list[Any], Node]


class Executor:
    """A bound symbol. Made by :meth:`flowmx.sym.Symbol.bind` and ``simple_bind``.

    Attributes:
        arg_dict, grad_dict, aux_dict: the bound arrays by name.
        arg_arrays, grad_arrays, aux_arrays: the same in the symbol's order (None: no gradient).
        outputs: the output arrays; each ``forward`` writes them anew.
    """

    def __init__(
        self,
        symbol: Symbol,
        device: Device,
        args: dict[str, NDArray],
        grads: dict[str, NDArray],
        requests: dict[str, str],
        aux: dict[str, NDArray],
    ) -> None:
        self._symbol = symbol
        self._device = device
        self.arg_dict = args
        self.aux_dict = aux
        self.grad_dict: dict[str, NDArray | None] = {name: grads.get(name) for name in args}
        self._requests = requests
        arguments, auxiliary = symbol._variables()
        self._arrays = {node: args[node.name] for node in arguments}
        self._arrays |= {node: aux[node.name] for node in auxiliary}
        nodes = symbol._nodes()
        known_shapes = {node: bound.shape for node, bound in self._arrays.items()}
        inferred = infer.infer_shapes(nodes, known_shapes)
        self._dtypes = infer.infer_types(nodes, {node: bound._dtype for node, bound in self._arrays.items()})
        self._shapes: dict[Entry, Shape] = {
            entry: infer.known_shape(shape, entry.node.output_name(entry.index)) for entry, shape in inferred.items()
        }
        for node, bound in self._arrays.items():
            _check_bound(node, bound, self._shapes[Entry(node, 0)], self._dtypes[Entry(node, 0)], device)
        self.outputs = [
            cast("NDArray", allocate(device, self._shapes[entry], self._dtypes[entry])) for entry in symbol._entries
        ]
        self._heads: dict[Entry, Node] = {}
        self._plan = self._make_plan({node for node in arguments if self._differentiates(node)})
        self._workspace = Variable("workspace")
        memo: dict[Any, Any] = {}
        self._runs = {train: Run(device, train, memo) for train in (False, True)}
        self._steps: tuple[list[Step], list[Step]] | None = None
        self._ran_training = False
        self._used_up = False
        plan = self._plan
        read = {entry.node for node in plan.backward for entry in node.inputs} | {
            e.node for e in plan.gradients.values()
        }
        self._arrays |= {
            head: full(self._shapes[entry], 1, device.context, self._dtypes[entry])
            for entry, head in self._heads.items()
            if head in read
        }
        self._heads_given = False
        steps = [node for node in (*plan.forward, *plan.backward) if node.op is not None]
        self._random = any(node.op.uses_random for node in steps if node.op is not None)
        self._detached = any(node.op.detached for node in steps if node.op is not None)
        changed = [node.inputs[i].node for node in steps if node.op is not None for i in node.op.updates]
        self._changed = [self._arrays[node]._storage for node in changed if node in self._arrays]

    def _differentiates(self, node: Node) -> bool:
        return self.grad_dict.get(node.name) is not None and self._requests.get(node.name, "null") != "null"

    def _make_plan(self, wanted: set[Node]) -> Plan:
        entries = self._symbol._entries
        gradients: dict[Node, Entry] = {}
        if wanted:
            # The gradient of each output is a variable of its own: ones, unless backward() is given others.
            for entry in entries:
                head = Node(None, f"{entry.node.output_name(entry.index)}_grad", origin=entry.node.origin)
                self._heads[entry] = head
                self._shapes[Entry(head, 0)] = self._shapes[entry]
                self._dtypes[Entry(head, 0)] = self._dtypes[entry]
            heads = [Entry(self._heads[entry], 0) for entry in entries]
            gradients = gradient(entries, heads, wanted, self._shapes, self._dtypes)
        config = settings.get()
        outputs, gradients = fuse(entries, gradients, self._shapes, self._dtypes)
        self._direct = self._written_directly(gradients)
        external = {*self._direct, *(entry for entry in outputs if not entry.node.is_variable)}
        return make_plan(
            outputs, gradients, self._shapes, self._dtypes, external, config.exec_enable_inplace,
            config.exec_match_range > 0, lay_out=kernels.like_channels_last(self._device.context.device_type),
        )  # fmt: skip

    def _written_directly(self, gradients: Mapping[Node, Entry]) -> dict[Entry, NDArray]:
        """Gradients that their operator can write straight into the bound array."""
        forward = set(topological(self._symbol._entries))
        counts: dict[Entry, int] = {}
        for entry in gradients.values():
            counts[entry] = counts.get(entry, 0) + 1
        direct: dict[Entry, NDArray] = {}
        for node, entry in gradients.items():
            target = self.grad_dict[node.name]
            assert target is not None
            if (
                self._requests[node.name] == "write"
                and counts[entry] == 1
                and entry.node not in forward
                and not entry.node.is_variable
                and target._dtype == self._dtypes[entry]
            ):
                direct[entry] = target
        return direct

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
        """Enqueue the backward pass, into the gradient arrays.

        Args:
            out_grads: gradients of the outputs, one or a list (default: ones; losses ignore them).
            is_train: training mode, as in the forward pass.

        Raises:
            ValueError: nothing was bound for gradients, or forward(is_train=True) has not run. A backward pass uses up
                what the forward pass left; for another one the forward pass is run again, and where that would not
                give the same (random numbers, moving statistics) the second backward pass is refused.
        """
        if not self._ran_training:
            raise ValueError("backward: call forward(is_train=True) first")
        if self._used_up and (self._random or self.aux_dict):
            raise ValueError(
                "backward: the backward pass before this one used up what the forward pass left, and another forward "
                "pass would not give the same: call forward(is_train=True) again, or bind with "
                "FLOWMX_EXEC_ENABLE_INPLACE=0 and FLOWMX_EXEC_MATCH_RANGE=0, which keep it"
            )
        self._feed_heads(out_grads)
        self._push("backward", is_train, self._used_up, True)

    def forward_backward(self, out_grads: Any = None, **kwargs: Any) -> list[NDArray]:
        """Enqueue both passes as one operation, in training mode; returns the output arrays."""
        self._feed(kwargs)
        self._feed_heads(out_grads)
        self._push("forward_backward", True, True, True)
        return self.outputs

    def _feed(self, given: Mapping[str, Any]) -> None:
        for name, value in given.items():
            target = self.arg_dict.get(name)
            if target is None:
                raise ValueError(f"forward: there is no argument {name!r}, expected one of {list(self.arg_dict)}")
            shape = getattr(value, "shape", None)
            if shape is not None and tuple(shape) != target.shape:
                raise ShapeError(f"forward: argument {name} has shape {tuple(shape)}, bound with {target.shape}")
            target[:] = value

    def _feed_heads(self, out_grads: Any) -> None:
        if not self._plan.gradients:
            raise ValueError("backward: no gradient arrays were bound (grad_req is null, or args_grad was not given)")
        given = [out_grads] if isinstance(out_grads, NDArray) else list(out_grads or [])
        if given and len(given) != len(self.outputs):
            raise ValueError(f"backward: {len(given)} out_grads were given, the symbol has {len(self.outputs)} outputs")
        for position, entry in enumerate(self._symbol._entries):
            head = self._arrays.get(self._heads[entry])
            value = given[position] if given else None
            if value is not None and value.shape != self._shapes[entry]:
                raise ShapeError(
                    f"backward: out_grad {position} has shape {value.shape}, expected {self._shapes[entry]}"
                )
            if head is not None and (value is not None or self._heads_given):
                head[:] = 1 if value is None else value
        self._heads_given = bool(given)

    def _push(self, name: str, train: bool, forward: bool, backward: bool) -> None:
        reads: list[Variable] = [bound._storage for bound in self._arrays.values()]
        writes: list[Variable] = [self._workspace, *self._changed]
        if forward:
            self._used_up = False
            writes += [output._storage for output in self.outputs]
            if train:
                writes += [bound._storage for bound in self.aux_dict.values()]
                self._ran_training = True
        else:
            reads.append(self._workspace)
        if backward:
            self._used_up = not self._plan.keeps_values
            reads += [output._storage for output in self.outputs if not forward]
            for node in self._plan.gradients:
                target = self.grad_dict[node.name]
                assert target is not None
                writes.append(target._storage)
                if self._requests[node.name] == "add" or target._view is not None:
                    reads.append(target._storage)
        if self._random:
            writes.append(self._device.generator)
        run = self._runs[train]
        core.push_on(
            self._device, self._run, (run, forward, backward), tuple(dict.fromkeys(reads)),
            tuple(dict.fromkeys(writes)), f"{self._symbol.name or 'graph'}.{name}", False, 0, 3, self._detached,
        )  # fmt: skip

    def _run(self, run: Run, forward: bool, backward: bool) -> None:
        """The operation: run the steps (on the device's actor)."""
        if self._steps is None:
            self._steps = self._materialize()
        step: Step | None = None
        try:
            if forward:
                for step in self._steps[0]:
                    step[0](run, step[1], step[2])
            if backward:
                for step in self._steps[1]:
                    step[0](run, step[1], step[2])
        except Exception as error:
            if step is not None:
                _explain(error, step)
            raise

    def _materialize(self) -> tuple[list[Step], list[Step]]:
        """Allocate the buffers and tie every step to its arrays, at the first run."""
        plan, device = self._plan, self._device
        arena = device.allocate((plan.arena.size,), np.dtype(np.uint8))
        arrays: dict[Entry, Any] = {Entry(node, 0): bound._read() for node, bound in self._arrays.items()}
        for entry, output in zip(plan.outputs, self.outputs, strict=True):
            if not entry.node.is_variable and entry not in plan.root:
                arrays.setdefault(entry, output._written())
        for entry, target in self._direct.items():
            if entry not in plan.root:
                arrays[entry] = target._written()
        for entry, place in plan.place.items():
            start = plan.arena.offsets[place]
            part = arena[start : start + plan.nbytes(entry)].view(plan.dtypes[entry])
            arrays[entry] = _shaped(part, plan.shapes[entry], entry in plan.channels_last)
        for node in (*plan.forward, *plan.backward):
            entry = Entry(node, 0)
            if entry in plan.root:
                arrays[entry] = arrays[plan.root[entry]].reshape(plan.shapes[entry])
        forward = self._tie(plan.forward, arrays)
        for entry, output in zip(plan.outputs, self.outputs, strict=True):
            if arrays[entry] is not output._written():
                forward.append((_copy, [arrays[entry]], [output._written()], entry.node))
        backward = self._tie(plan.backward, arrays)
        for node, entry in plan.gradients.items():
            bound = self.grad_dict[node.name]
            assert bound is not None
            if self._requests[node.name] == "add":
                backward.append((_accumulate, [arrays[entry]], [bound._written()], node))
            elif entry not in self._direct or entry in plan.root:
                backward.append((_copy, [arrays[entry]], [bound._written()], node))
        reached = {node.name for node in plan.gradients}
        for name, unreached in self.grad_dict.items():
            if unreached is not None and self._requests.get(name) == "write" and name not in reached:
                unreached._written()[...] = 0
        return forward, backward

    def _tie(self, nodes: Sequence[Node], arrays: Mapping[Entry, Any]) -> list[Step]:
        steps: list[Step] = []
        for node in nodes:
            if Entry(node, 0) in self._plan.root:
                continue
            assert node.op is not None
            ins = [arrays[entry] for entry in node.inputs]
            outs = [arrays[Entry(node, index)] for index in range(node.outputs())]
            if not (any(out.size for out in outs) or node.op.writes_more()):
                continue
            steps.append((forward_of(node.op, self._device), ins, outs, node))
        return steps

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
        """An executor for other input shapes, which shares every array whose shape stays the same.

        Args:
            partial_shaping: let shapes change that were not named.
            allow_up_sizing: let arrays grow.
            **kwargs: new shapes by name.

        Raises:
            ShapeError: a shape would change that may not.
        """
        shapes = {name: bound.shape for name, bound in self.arg_dict.items() if name in kwargs}
        shapes.update({name: tuple(shape) for name, shape in kwargs.items()})
        arguments, _, auxiliary = self._symbol._infer_shape((), shapes)
        made: dict[str, NDArray] = {}
        grads: dict[str, NDArray] = {}
        for (name, old), shape in zip(self.arg_dict.items(), arguments, strict=True):
            wanted = infer.known_shape(shape, name)
            if wanted == old.shape:
                made[name] = old
            elif name not in kwargs and not partial_shaping:
                raise ShapeError(
                    f"reshape: {name} would change from {old.shape} to {wanted}; name its shape, or pass "
                    "partial_shaping=True"
                )
            elif np.prod(wanted) > old.size and not allow_up_sizing:
                raise ShapeError(f"reshape: {name} would grow from {old.shape} to {wanted}; pass allow_up_sizing=True")
            else:
                made[name] = full(wanted, 0, old.context, old._dtype)
            gradient_array = self.grad_dict[name]
            if gradient_array is not None:
                same = gradient_array.shape == wanted
                grads[name] = gradient_array if same else full(wanted, 0, old.context, old._dtype)
        aux = dict(self.aux_dict)
        for (name, old), shape in zip(self.aux_dict.items(), auxiliary, strict=True):
            if shape != old.shape:
                raise ShapeError(f"reshape: auxiliary state {name} would change from {old.shape} to {shape}")
        return Executor(self._symbol, self._device, made, grads, self._requests, aux)

    def debug_str(self) -> str:
        """The steps in order, and the memory that the plan needs."""
        plan = self._plan
        lines = [describe_graph(self._symbol._entries), "", "Steps:"]
        for phase, nodes in (("forward", plan.forward), ("backward", plan.backward)):
            for node in nodes:
                entry = Entry(node, 0)
                lines.append(
                    f"  {phase:8} {node.name:32} {getattr(node.op, 'name', ''):24} {plan.shapes[entry]} "
                    f"{plan.nbytes(entry)} bytes"
                )
        mib = 1 << 20
        bound = sum(a.size * a._dtype.itemsize for a in self._arrays.values())
        grads = sum(g.size * g._dtype.itemsize for g in self.grad_dict.values() if g is not None)
        lines += [
            "",
            f"Arguments and auxiliary states: {bound / mib:.2f} MiB; gradients: {grads / mib:.2f} MiB",
            f"Internal values: {plan.unshared_bytes() / mib:.2f} MiB unshared",
            f"Total {plan.internal_bytes() / mib:.2f} MiB allocated for internal values",
        ]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<Executor of {self._symbol!r} on {self._device}>"


def _copy(run: Run, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
    run.xp.copyto(outputs[0], inputs[0], casting="unsafe")


def _accumulate(run: Run, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
    run.xp.add(outputs[0], inputs[0], out=outputs[0], casting="unsafe")


def _explain(error: Exception, step: Step) -> None:
    _, inputs, _, node = step
    shapes = ", ".join(
        f"{entry.node.output_name(entry.index)}: {tuple(each.shape)} {name_of(each.dtype)}"
        for entry, each in zip(node.inputs, inputs, strict=False)
    )
    error.add_note(f"flowmx: in node {node.name!r} ({node.op!r}) of a bound graph, made at {node.place()}")
    error.add_note(f"flowmx: its inputs: {shapes}")


def _shaped(memory: Any, shape: Shape, is_channels_last: bool) -> Any:
    """Flat memory as an array of this shape."""
    if not is_channels_last:
        return memory.reshape(shape)
    rank = len(shape)
    return memory.reshape(shape[0], *shape[2:], shape[1]).transpose(0, rank - 1, *range(1, rank - 1))


def _check_bound(node: Node, bound: NDArray, shape: Shape, dtype: DType, device: Device) -> None:
    if bound.shape != shape:
        raise ShapeError(f"bind: {node.name} has shape {bound.shape}, expected {shape}")
    if bound._dtype != dtype:
        raise TypeInferenceError(f"bind: {node.name} has dtype {name_of(bound._dtype)}, expected {name_of(dtype)}")
    if bound._storage.device is not device:
        raise DeviceError(f"bind: {node.name} is on {bound.context}, the executor on {device}")


def _device(ctx: Any, group2ctx: Mapping[str, Any] | None, symbol: Symbol) -> Device:
    context = Context(ctx) if ctx is not None else devices.current_context()
    placed = {node.attributes.get("__ctx_group__") for node in symbol._nodes()}
    for group, other in (group2ctx or {}).items():
        if group in placed and Context(other) is not context:
            raise NotImplementedError(
                f"group2ctx puts {group!r} on {other}, and the executor is on {context}: one executor runs on one "
                "device so far"
            )
    return devices.get(context)


def _by_name(what: str, names: Sequence[str], given: Any, complete: bool) -> dict[str, NDArray]:
    """Arrays by name, from a list in order or a dict."""
    if given is None:
        given = {}
    if not isinstance(given, Mapping):
        if len(given) != len(names):
            raise ValueError(f"bind: {len(given)} {what} were given, expected {len(names)}: {', '.join(names)}")
        given = {name: value for name, value in zip(names, given, strict=True) if value is not None}
    missing = [name for name in names if name not in given]
    if complete and missing:
        raise ValueError(f"bind: {what} are missing for {', '.join(missing)}")
    for name in names:
        if name in given and not isinstance(given[name], NDArray):
            raise TypeError(f"bind: {name} is {type(given[name]).__name__}, expected an NDArray")
    return {name: given[name] for name in names if name in given}


def _requests(names: Sequence[str], grad_req: Any) -> dict[str, str]:
    if isinstance(grad_req, str):
        table = dict.fromkeys(names, grad_req)
    elif isinstance(grad_req, Mapping):
        table = {name: grad_req.get(name, "null") for name in names}
    else:
        table = dict(zip(names, grad_req, strict=True))
    for request in table.values():
        check_request(request)
    return table


def bind(
    symbol: Symbol, ctx: Any, args: Any, args_grad: Any, grad_req: Any, aux_states: Any, group2ctx: Any
) -> Executor:
    """See :meth:`flowmx.sym.Symbol.bind`."""
    device = _device(ctx, group2ctx, symbol)
    names, aux_names = symbol.list_arguments(), symbol.list_auxiliary_states()
    bound = _by_name("arguments", names, args, True)
    grads = _by_name("gradients", names, args_grad, False)
    aux = _by_name("auxiliary states", aux_names, aux_states, True)
    return Executor(symbol, device, bound, grads, _requests(names, grad_req), aux)


def simple_bind(
    symbol: Symbol, ctx: Any, grad_req: Any, type_dict: Mapping[str, Any] | None, group2ctx: Any,
    shared_arg_names: Sequence[str] | None, shared_exec: Executor | None, shared_buffer: dict[str, NDArray] | None,
    shapes: Mapping[str, Any],
) -> Executor:  # fmt: skip
    """See :meth:`flowmx.sym.Symbol.simple_bind`."""
    device = _device(ctx, group2ctx, symbol)
    arguments, auxiliary = symbol._variables()
    arg_shapes, _, aux_shapes = symbol._infer_shape((), shapes)
    given = {name: as_dtype(value) for name, value in (type_dict or {}).items()}
    dtypes = infer.infer_types(symbol._nodes(), {node: given.get(node.name) for node in (*arguments, *auxiliary)})
    names = [node.name for node in arguments]
    requests = _requests(names, grad_req)
    context = device.context

    def make(node: Node, shape: Any) -> NDArray:
        wanted = infer.known_shape(shape, f"{node.name!r}")
        dtype = dtypes[Entry(node, 0)]
        shared = shared_arg_names is None or node.name in shared_arg_names
        for pool in (shared_exec.arg_dict if shared_exec else {}, shared_buffer or {}):
            old = pool.get(node.name)
            if shared and old is not None and old.shape == wanted and old._dtype == dtype and old.context is context:
                return old
        made = full(wanted, 0, context, dtype)
        if shared_buffer is not None:
            shared_buffer[node.name] = made
        return made

    args = {node.name: make(node, shape) for node, shape in zip(arguments, arg_shapes, strict=True)}
    grads = {
        name: full(bound.shape, 0, context, bound._dtype) for name, bound in args.items() if requests[name] != "null"
    }
    old_aux = shared_exec.aux_dict if shared_exec else {}
    aux: dict[str, NDArray] = {}
    for node, shape in zip(auxiliary, aux_shapes, strict=True):
        wanted = infer.known_shape(shape, f"{node.name!r}")
        old = old_aux.get(node.name)
        reuse = old is not None and old.shape == wanted
        aux[node.name] = old if reuse and old is not None else full(wanted, 0, context, dtypes[Entry(node, 0)])
    return Executor(symbol, device, args, grads, requests, aux)


def describe_graph(entries: Sequence[Entry]) -> str:
    """Every node with its inputs and, where declared shapes allow, its memory."""
    nodes = topological(entries)
    lines = ["Symbol Outputs:"]
    lines += [f"\toutput[{i}]={e.node.name}({e.index})" for i, e in enumerate(entries)]
    try:
        shapes = infer.infer_shapes(nodes, {})
    except ShapeError:
        shapes = {}
    total = 0
    for node in nodes:
        if node.is_variable:
            lines.append(f"Variable:{node.name}")
        else:
            assert node.op is not None
            lines += ["--------------------", f"Op:{node.op.name}, Name={node.name}", "Inputs:"]
            lines += [f"\targ[{i}]={e.node.name}({e.index})" for i, e in enumerate(node.inputs)]
            if node.given:
                lines += ["Attrs:", *(f"\t{key}={value}" for key, value in node.given.items())]
        for index in range(node.visible_outputs()):
            shape = shapes.get(Entry(node, index))
            if shape is not None and -1 not in shape:
                total += 4 * int(np.prod(shape))
    if total:
        lines.append(f"Values of known shape: {total / (1 << 20):.2f} MiB as float32")
    return "\n".join(lines)
