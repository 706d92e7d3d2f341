"""Binding: from the arguments of ``bind`` and ``simple_bind`` to an :class:`Executor`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from flowmx import devices, settings
from flowmx.devices import Context, Device
from flowmx.errors import ShapeError
from flowmx.executor.dynamic import DynamicExecutor, is_dynamic
from flowmx.executor.executor import Executor
from flowmx.executor.sparse import SparseExecutor, is_sparse
from flowmx.graph import collector, infer, storage_types
from flowmx.graph.node import Entry, Node
from flowmx.ndarray.array import NDArray, check_request, fill_with_zeros, unfilled, zeros_of
from flowmx.ops.registry.dtypes import DType, as_dtype
from flowmx.ops.registry.operators import Shape
from flowmx.suggestions import did_you_mean
from flowmx.symbol.symbol import Symbol


def _where(ctx: Any, group2ctx: Mapping[str, Any] | None, symbol: Symbol) -> tuple[Device, dict[str, Context]]:
    """The default device, and the contexts of those groups that the symbol has."""
    context = Context(ctx) if ctx is not None else devices.current_context()
    return devices.get(context), used_groups(context, group2ctx, symbol)


def used_groups(context: Context, group2ctx: Mapping[str, Any] | None, symbol: Symbol) -> dict[str, Context]:
    """The contexts of those groups that a symbol has, where they are not the default one."""
    placed = {node.attributes.get(_GROUP) for node in symbol._nodes()}
    groups: dict[str, Context] = {}
    for group, other in (group2ctx or {}).items():
        if isinstance(other, (list, tuple)):
            if len(other) != 1:
                raise ValueError(f"group2ctx: {group!r} is on {len(other)} devices, and the executor on one: {context}")
            other = other[0]
        if group in placed and Context(other) is not context:
            groups[group] = Context(other)
    _check_groups(placed - {None}, group2ctx or {})
    return groups


def _check_groups(placed: set[Any], given: Mapping[str, Any]) -> None:
    """Raise where a device is given for a group that is not there, while one that is there has none: a slip."""
    unknown, missing = sorted(given.keys() - placed), sorted(placed - given.keys())
    if unknown and missing:
        raise ValueError(
            f"group2ctx: there is no ctx_group {unknown[0]!r} in the symbol, and its group {missing[0]!r} has no "
            f"device: its groups are {', '.join(map(repr, sorted(placed)))}"
        )


def _settled(
    symbol: Symbol, default: Context, groups: dict[str, Context], arrays: Mapping[str, NDArray] | None = None
) -> Symbol:
    """The symbol with a ``ctx_group`` for every node without one, as MXNet places them.

    A variable is where its array is, or with the first that reads it; an operator is with its first input.

    Args:
        symbol: what is bound.
        default: the executor's device.
        groups: the devices of groups; those that are made here are added.
        arrays: what is bound to the variables, if that is decided.
    """
    if not groups:
        return symbol
    nodes = symbol._nodes()
    readers: dict[Node, Node] = {}
    for node in reversed(nodes):
        readers.update((entry.node, node) for entry in node.inputs if _GROUP in node.attributes)
    made: dict[Node, Node] = {}
    for node in nodes:
        inputs = tuple([Entry(made[entry.node], entry.index) for entry in node.inputs])
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
        made[node] = Node(node.op, node.name, inputs, attributes, node.given, node.origin, node.versions)
    return Symbol([Entry(made[entry.node], entry.index) for entry in symbol._entries])


_GROUP = "__ctx_group__"


def _context(node: Node | None, default: Context, groups: Mapping[str, Context]) -> Context:
    return default if node is None else groups.get(node.attributes.get(_GROUP, ""), default)


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


def requests_of(names: Sequence[str], grad_req: Any) -> dict[str, str]:
    """The gradient request of each argument, ``write``, ``add`` or ``null``, by name."""
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
    symbol: Symbol, ctx: Any, args: Any, args_grad: Any, grad_req: Any, aux_states: Any, group2ctx: Any,
    shared_exec: Executor | None = None,
) -> Executor:  # fmt: skip
    """See :meth:`flowmx.sym.Symbol.bind`."""
    device, groups = _where(ctx, group2ctx, symbol)
    names, aux_names = symbol.list_arguments(), symbol.list_auxiliary_states()
    bound = _by_name("arguments", names, args, True)
    grads = _by_name("gradients", names, args_grad, False)
    aux = _by_name("auxiliary states", aux_names, aux_states, True)
    arena = shared_exec.arena if shared_exec is not None else None
    symbol = _settled(symbol, device.context, groups, {**bound, **aux})
    kind: type[Executor] = DynamicExecutor if is_dynamic(symbol) else Executor
    if is_sparse(symbol, {**bound, **aux}, grads):
        kind = SparseExecutor
    symbol = _partitioned(symbol, bound, aux)
    return kind(symbol, device, bound, grads, requests_of(names, grad_req), aux, groups, arena)


def _partitioned(symbol: Symbol, args: Mapping[str, NDArray], aux: Mapping[str, NDArray]) -> Symbol:
    """The symbol as the backend of the settings has it."""
    backend = settings.get().subgraph_backend
    return symbol.optimize_for(backend, args, aux) if backend else symbol


def _mistaken(given: Iterable[str], *variables: Sequence[Node]) -> str:
    """The end of a message that a shape is missing: which names were given that are no variable's."""
    names = [node.name for nodes in variables for node in nodes]
    return "".join(
        f"; {each!r} was given, and is no variable of the symbol{did_you_mean(each, names)}"
        for each in given if each not in names
    )  # fmt: skip


@collector.paused()
def simple_bind(
    symbol: Symbol, ctx: Any, grad_req: Any, type_dict: Mapping[str, Any] | None, group2ctx: Any,
    shared_arg_names: Sequence[str] | None, shared_exec: Executor | None, shared_buffer: dict[str, NDArray] | None,
    shapes: Mapping[str, Any],
) -> Executor:  # fmt: skip
    """See :meth:`flowmx.sym.Symbol.simple_bind`."""
    device, groups = _where(ctx, group2ctx, symbol)
    symbol = _settled(symbol, device.context, groups)
    arguments, auxiliary = symbol._variables()
    arg_shapes, _, aux_shapes = symbol._infer_shape((), shapes)
    given = {name: as_dtype(value) for name, value in (type_dict or {}).items()}
    dtypes = infer.infer_types(symbol._nodes(), {node: given.get(node.name) for node in (*arguments, *auxiliary)})
    names = [node.name for node in arguments]
    requests = requests_of(names, grad_req)

    stypes = _storage_types(symbol, arguments, auxiliary, arg_shapes, aux_shapes, dtypes, requests)
    new: list[NDArray] = []

    def zeros(stype: str, shape: Shape, context: Context, dtype: DType) -> NDArray:
        if stype != "default":
            return zeros_of(stype, shape, context, dtype)
        new.append(unfilled(shape, context, dtype))
        return new[-1]

    def make(node: Node, shape: Any) -> NDArray:
        try:
            wanted = infer.known_shape(shape, f"{node.name!r}")
        except ShapeError as error:
            raise ShapeError(f"{error}{_mistaken(shapes, arguments, auxiliary)}") from None
        dtype, stype = dtypes[Entry(node, 0)], stypes.arrays.get(node.name, "default")
        context = _context(node, device.context, groups)
        shared = shared_arg_names is None or node.name in shared_arg_names
        for pool in (shared_exec.arg_dict if shared_exec else {}, shared_buffer or {}):
            old = pool.get(node.name)
            if shared and old is not None and _is_such(old, wanted, dtype, context, stype):
                return old
        if shared_buffer is None:
            return zeros(stype, wanted, context, dtype)
        made = shared_buffer[node.name] = zeros_of(stype, wanted, context, dtype)
        return made

    args = {node.name: make(node, shape) for node, shape in zip(arguments, arg_shapes, strict=True)}

    def gradient(name: str, bound: NDArray) -> NDArray:
        if shared_exec is not None and name in (shared_arg_names or ()) and shared_exec.arg_dict.get(name) is bound:
            old = shared_exec.grad_dict[name]
            if old is not None:  # so that what is added up is so over all buckets
                return old
        return zeros(stypes.gradients.get(name, "default"), bound.shape, bound.context, bound._dtype)

    grads = {name: gradient(name, bound) for name, bound in args.items() if requests[name] != "null"}
    old_aux = shared_exec.aux_dict if shared_exec else {}
    aux: dict[str, NDArray] = {}
    for node, shape in zip(auxiliary, aux_shapes, strict=True):
        wanted = infer.known_shape(shape, f"{node.name!r}")
        old = old_aux.get(node.name)
        context = _context(node, device.context, groups)
        reuse = old is not None and old.shape == wanted and old.context is context
        aux[node.name] = old if reuse and old is not None else zeros("default", wanted, context, dtypes[Entry(node, 0)])
    fill_with_zeros(new)
    arena = shared_exec.arena if shared_exec is not None else None
    kind = SparseExecutor if stypes.sparse else Executor
    symbol = _partitioned(symbol, args, aux)
    return kind(symbol, device, args, grads, requests, aux, groups, arena)


def _is_such(array: NDArray, shape: Any, dtype: Any, context: Context, stype: str) -> bool:
    return array.shape == shape and array._dtype == dtype and array.context is context and array.stype == stype


class _StorageTypes(NamedTuple):
    """The storage types of what ``simple_bind`` makes.

    Attributes:
        arrays: of variables by name, where they are sparse.
        gradients: of their gradients by name, likewise.
        sparse: whether anything in the graph is.
    """

    arrays: dict[str, str]
    gradients: dict[str, str]
    sparse: bool


def _storage_types(
    symbol: Symbol, arguments: Sequence[Node], auxiliary: Sequence[Node], arg_shapes: Sequence[Any],
    aux_shapes: Sequence[Any], dtypes: Mapping[Entry, Any], requests: Mapping[str, str],
) -> _StorageTypes:  # fmt: skip
    known = {node: storage_types.declared(node) for node in arguments}
    nodes = symbol._nodes()
    if not storage_types.may_be_sparse(nodes, known):
        return _StorageTypes({}, {}, False)
    shapes = dict(zip((*arguments, *auxiliary), (*arg_shapes, *aux_shapes), strict=True))
    all_shapes = infer.known_shapes(nodes, shapes)
    stypes = storage_types.infer_storage_types(nodes, known, all_shapes)
    wanted = [node for node in arguments if requests[node.name] != "null"]
    found = dict(known)  # the gradient of a variable that nothing depends on is like it
    if wanted:
        found |= storage_types.gradient_storage_types(symbol._entries, wanted, stypes, all_shapes, dtypes)
    every = [*stypes.values(), *found.values()]
    return _StorageTypes(
        {node.name: stype for node, stype in known.items()},
        {node.name: stype for node, stype in found.items()},
        any(each != "default" for each in every),
    )
