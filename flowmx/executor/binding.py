"""Binding: ``bind`` and ``simple_bind`` create an :class:`Executor` from their arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from flowmx import devices, settings
from flowmx.devices import Context, Device
from flowmx.errors import ShapeError
from flowmx.executor.dynamic_shapes import DynamicExecutor, is_dynamic
from flowmx.executor.executor import Executor
from flowmx.executor.sparse import SparseExecutor, is_sparse
from flowmx.graph import collector, infer, storage_types
from flowmx.graph.node import Entry, Node
from flowmx.ndarray.array import NDArray, check_request
from flowmx.ndarray.creation import fill_with_zeros, unfilled, zeros_of
from flowmx.ops.registry.dtypes import DType, as_dtype
from flowmx.ops.registry.operators import Shape
from flowmx.suggestions import did_you_mean
from flowmx.symbol.symbol import Symbol


def _resolve_contexts(
    ctx: Context | None, group2ctx: Mapping[str, object] | None, symbol: Symbol
) -> tuple[Device, dict[str, Context]]:
    """Return the default device, and the contexts of the symbol's groups."""
    context = Context(ctx) if ctx is not None else devices.current_context()
    return devices.get(context), used_groups(context, group2ctx, symbol)


def used_groups(context: Context, group2ctx: Mapping[str, Any] | None, symbol: Symbol) -> dict[str, Context]:
    """Return the contexts of a symbol's groups, except groups on the default device."""
    used_names = {node.attributes.get(_GROUP) for node in symbol.nodes()}
    groups: dict[str, Context] = {}
    for group, other in (group2ctx or {}).items():
        if isinstance(other, (list, tuple)):
            if len(other) != 1:
                raise ValueError(f"group2ctx: {group!r} is on {len(other)} devices, and the executor on one: {context}")
            other = other[0]
        if group in used_names and Context(other) is not context:
            groups[group] = Context(other)
    _check_groups(used_names - {None}, group2ctx or {})
    return groups


def _check_groups(used_names: set[Any], devices: Mapping[str, object]) -> None:
    """Raise ValueError if ``group2ctx`` has an unknown group and lacks one of the symbol's: probably a misspelling."""
    unknown, missing = sorted(devices.keys() - used_names), sorted(used_names - devices.keys())
    if unknown and missing:
        raise ValueError(
            f"group2ctx: there is no ctx_group {unknown[0]!r} in the symbol, and its group {missing[0]!r} has no "
            f"device: its groups are {', '.join(map(repr, sorted(used_names)))}"
        )


def _assign_groups(
    symbol: Symbol, default: Context, groups: dict[str, Context], arrays: Mapping[str, NDArray] | None = None
) -> Symbol:
    """Add a ``ctx_group`` to every node without one, placing nodes as MXNet does.

    A variable is placed with its array, or with the first operator that reads it; an operator with its first input.

    Args:
        symbol: the symbol to bind.
        default: the executor's device.
        groups: the devices of groups; new groups are added.
        arrays: the arrays of the variables, if they exist.
    """
    if not groups:
        return symbol
    nodes = symbol.nodes()
    readers: dict[Node, Node] = {}
    for node in reversed(nodes):
        readers.update((entry.node, node) for entry in node.inputs if _GROUP in node.attributes)
    copies: dict[Node, Node] = {}
    for node in nodes:
        inputs = tuple([Entry(copies[entry.node], entry.index) for entry in node.inputs])
        group = node.attributes.get(_GROUP)
        if group is None and node.is_variable:
            where = arrays[node.name].context if arrays is not None else _context(readers.get(node), default, groups)
            group = next((name for name, context in groups.items() if context is where), None)
            if group is None and where is not default:
                group = str(where)
                groups[group] = where
        elif group is None and inputs:
            group = inputs[0].node.attributes.get(_GROUP)
        attributes = {**node.attributes, **({} if group is None else {_GROUP: group})}
        copies[node] = Node(node.op, node.name, inputs, attributes, node.user_parameters, node.origin, node.versions)
    return Symbol([Entry(copies[entry.node], entry.index) for entry in symbol.entries])


_GROUP = "__ctx_group__"


def _context(node: Node | None, default: Context, groups: Mapping[str, Context]) -> Context:
    return default if node is None else groups.get(node.attributes.get(_GROUP, ""), default)


def _arrays_by_name(kind: str, names: Sequence[str], values: Any, complete: bool) -> dict[str, NDArray]:
    """Return arrays by name, from a list in order or a dict."""
    if values is None:
        values = {}
    if not isinstance(values, Mapping):
        if len(values) != len(names):
            raise ValueError(f"bind: {len(values)} {kind} were given, expected {len(names)}: {', '.join(names)}")
        values = {name: value for name, value in zip(names, values, strict=True) if value is not None}
    missing = [name for name in names if name not in values]
    if complete and missing:
        raise ValueError(f"bind: {kind} are missing for {', '.join(missing)}")
    for name in names:
        if name in values and not isinstance(values[name], NDArray):
            raise TypeError(f"bind: {name} is {type(values[name]).__name__}, expected an NDArray")
    return {name: values[name] for name in names if name in values}


def requests_of(names: Sequence[str], grad_req: Any) -> dict[str, str]:
    """Return the gradient request of each argument by name: ``write``, ``add`` or ``null``."""
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
    symbol: Symbol, ctx: Context | None, args: object, args_grad: object, grad_req: object, aux_states: object,
    group2ctx: Any, shared_exec: Executor | None = None,
) -> Executor:  # fmt: skip
    """See :meth:`flowmx.sym.Symbol.bind`."""
    device, groups = _resolve_contexts(ctx, group2ctx, symbol)
    names, aux_names = symbol.list_arguments(), symbol.list_auxiliary_states()
    bound = _arrays_by_name("arguments", names, args, True)
    grads = _arrays_by_name("gradients", names, args_grad, False)
    aux = _arrays_by_name("auxiliary states", aux_names, aux_states, True)
    arena = shared_exec.arena if shared_exec is not None else None
    symbol = _assign_groups(symbol, device.context, groups, {**bound, **aux})
    kind: type[Executor] = DynamicExecutor if is_dynamic(symbol) else Executor
    if is_sparse(symbol, {**bound, **aux}, grads):
        kind = SparseExecutor
    symbol = _partition(symbol, bound, aux)
    return kind(symbol, device, bound, grads, requests_of(names, grad_req), aux, groups, arena)


def _partition(symbol: Symbol, args: Mapping[str, NDArray], aux: Mapping[str, NDArray]) -> Symbol:
    """Return the symbol, partitioned by the backend of the settings, if any."""
    backend = settings.get().subgraph_backend
    return symbol.optimize_for(backend, args, aux) if backend else symbol


def _unknown_names(names: Iterable[str], *variables: Sequence[Node]) -> str:
    """Return the end of a message about a missing shape: the names that are not variables."""
    known_names = [node.name for nodes in variables for node in nodes]
    return "".join(
        f"; {name!r} was given, but is not a variable of the symbol{did_you_mean(name, known_names)}"
        for name in names if name not in known_names
    )  # fmt: skip


@collector.paused()
def simple_bind(
    symbol: Symbol, ctx: Context | None, grad_req: object, type_dict: Mapping[str, Any] | None, group2ctx: Any,
    shared_arg_names: Sequence[str] | None, shared_exec: Executor | None, shared_buffer: dict[str, NDArray] | None,
    shapes: Mapping[str, object],
) -> Executor:  # fmt: skip
    """See :meth:`flowmx.sym.Symbol.simple_bind`."""
    device, groups = _resolve_contexts(ctx, group2ctx, symbol)
    symbol = _assign_groups(symbol, device.context, groups)
    arguments, auxiliary = symbol._variables()
    arg_shapes, _, aux_shapes = symbol._infer_shape((), shapes)
    declared = {name: as_dtype(value) for name, value in (type_dict or {}).items()}
    dtypes = infer.infer_types(symbol.nodes(), {node: declared.get(node.name) for node in (*arguments, *auxiliary)})
    requests = requests_of([node.name for node in arguments], grad_req)
    stypes = _storage_types(symbol, arguments, auxiliary, arg_shapes, aux_shapes, dtypes, requests)
    allocator = _Allocator(
        lambda node: _context(node, device.context, groups),
        dtypes,
        stypes,
        shared_arg_names,
        shared_exec,
        shared_buffer,
    )
    args = {}
    for node, shape in zip(arguments, arg_shapes, strict=True):
        try:
            arg_shape = infer.known_shape(shape, f"{node.name!r}")
        except ShapeError as error:
            raise ShapeError(f"{error}{_unknown_names(shapes, arguments, auxiliary)}") from None
        args[node.name] = allocator.argument(node, arg_shape)
    grads = {name: allocator.gradient(name, bound) for name, bound in args.items() if requests[name] != "null"}
    aux = {
        node.name: allocator.state(node, infer.known_shape(shape, f"{node.name!r}"))
        for node, shape in zip(auxiliary, aux_shapes, strict=True)
    }
    fill_with_zeros(allocator.unfilled)
    arena = shared_exec.arena if shared_exec is not None else None
    kind = SparseExecutor if stypes.sparse else Executor
    symbol = _partition(symbol, args, aux)
    return kind(symbol, device, args, grads, requests, aux, groups, arena)


class _Allocator:
    """Creates the arrays of ``simple_bind``, or reuses those of another executor or a buffer.

    Args:
        context_of: returns the device of a variable.
        dtypes: the dtypes of all entries.
        stypes: the storage types.
        shared_arg_names: the arguments that may be shared (None: all).
        shared_exec: an executor whose arrays are shared.
        shared_buffer: arrays to share by name; new ones are added.

    Attributes:
        unfilled: the new dense arrays that must be filled with zeros.
    """

    def __init__(
        self, context_of: Callable[[Node], Context], dtypes: Mapping[Entry, DType], stypes: _StorageTypes,
        shared_arg_names: Sequence[str] | None, shared_exec: Executor | None,
        shared_buffer: dict[str, NDArray] | None,
    ) -> None:  # fmt: skip
        self._context_of = context_of
        self._dtypes = dtypes
        self._stypes = stypes
        self._shared_names = shared_arg_names
        self._shared_exec = shared_exec
        self._shared_buffer = shared_buffer
        self.unfilled: list[NDArray] = []

    def argument(self, node: Node, shape: Shape) -> NDArray:
        """Return the array of an argument."""
        name, context = node.name, self._context_of(node)
        dtype, stype = self._dtypes[Entry(node, 0)], self._stypes.arrays.get(name, "default")
        may_share = self._shared_names is None or name in self._shared_names
        for pool in (self._shared_exec.arg_dict if self._shared_exec else {}, self._shared_buffer or {}):
            old = pool.get(name)
            if may_share and old is not None and _matches(old, shape, dtype, context, stype):
                return old
        if self._shared_buffer is None:
            return self._zeros(stype, shape, context, dtype)
        array = self._shared_buffer[name] = zeros_of(stype, shape, context, dtype)
        return array

    def gradient(self, name: str, bound: NDArray) -> NDArray:
        """Return the array of the gradient of an argument."""
        other = self._shared_exec
        if other is not None and name in (self._shared_names or ()) and other.arg_dict.get(name) is bound:
            old = other.grad_dict[name]
            if old is not None:  # gradients accumulate over all buckets
                return old
        stype = self._stypes.gradients.get(name, "default")
        return self._zeros(stype, bound.shape, bound.context, bound.element_type)

    def state(self, node: Node, shape: Shape) -> NDArray:
        """Return the array of an auxiliary state."""
        context = self._context_of(node)
        old = self._shared_exec.aux_dict.get(node.name) if self._shared_exec else None
        if old is not None and old.shape == shape and old.context is context:
            return old
        return self._zeros("default", shape, context, self._dtypes[Entry(node, 0)])

    def _zeros(self, stype: str, shape: Shape, context: Context, dtype: DType) -> NDArray:
        if stype != "default":
            return zeros_of(stype, shape, context, dtype)
        self.unfilled.append(unfilled(shape, context, dtype))
        return self.unfilled[-1]


def _matches(array: NDArray, shape: object, dtype: object, context: Context, stype: str) -> bool:
    return array.shape == shape and array.element_type == dtype and array.context is context and array.stype == stype


class _StorageTypes(NamedTuple):
    """The storage types of the arrays of ``simple_bind``.

    Attributes:
        arrays: the storage types of sparse variables, by name.
        gradients: the storage types of their gradients, by name.
        sparse: whether any value of the graph is sparse.
    """

    arrays: dict[str, str]
    gradients: dict[str, str]
    sparse: bool


def _storage_types(
    symbol: Symbol, arguments: Sequence[Node], auxiliary: Sequence[Node], arg_shapes: Sequence[Any],
    aux_shapes: Sequence[Any], dtypes: Mapping[Entry, Any], requests: Mapping[str, str],
) -> _StorageTypes:  # fmt: skip
    declared = {node: storage_types.declared_stype(node) for node in arguments}
    nodes = symbol.nodes()
    if not storage_types.may_be_sparse(nodes, declared):
        return _StorageTypes({}, {}, False)
    shapes = dict(zip((*arguments, *auxiliary), (*arg_shapes, *aux_shapes), strict=True))
    all_shapes = infer.known_shapes(nodes, shapes)
    stypes = storage_types.infer_storage_types(nodes, declared, all_shapes)
    grad_nodes = [node for node in arguments if requests[node.name] != "null"]
    gradients = dict(declared)  # default: the variable's storage type
    if grad_nodes:
        gradients |= storage_types.gradient_storage_types(symbol.entries, grad_nodes, stypes, all_shapes, dtypes)
    all_stypes = [*stypes.values(), *gradients.values()]
    return _StorageTypes(
        {node.name: stype for node, stype in declared.items()},
        {node.name: stype for node, stype in gradients.items()},
        any(stype != "default" for stype in all_stypes),
    )
