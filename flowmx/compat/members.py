"""The attributes that packages read, and write, of MXNet's objects though their names are private.

Importing this gives them to flowmx's classes, as properties over what those have themselves.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from flowmx.attribute import AttrScope
from flowmx.compat import saving
from flowmx.compat.base import SymbolHandle
from flowmx.compat.modules import DataParallelExecutorGroup
from flowmx.devices import Context
from flowmx.executor import Executor
from flowmx.gluon.base import Block
from flowmx.gluon.hybrid import Compiled, HybridBlock
from flowmx.gluon.parameter import Parameter, _Deferred
from flowmx.gluon.symbol_block import SymbolBlock
from flowmx.gluon.trainer import Trainer
from flowmx.graph.graph import Graph
from flowmx.graph.node import Entry, Node
from flowmx.graph.passes.simplify import merge_common
from flowmx.module import BucketingModule, Module
from flowmx.name import NameManager
from flowmx.ndarray import NDArray, views
from flowmx.ndarray.recording import Leaf
from flowmx.ops.registry.operators import lookup
from flowmx.symbol import Symbol

__all__ = ["MEMBERS"]


class _Slot:
    """An object whose ``value`` is a class's attribute, as MXNet keeps what is current for each thread."""

    def __init__(self, owner: type, name: str) -> None:
        self._owner, self._name = owner, name

    @property
    def value(self) -> Any:
        """The current value."""
        return getattr(self._owner, self._name)

    @value.setter
    def value(self, given: Any) -> None:
        setattr(self._owner, self._name, given)


# -- parameters ----------------------------------------------------------------------------------------


class _Arrays(list[NDArray]):
    """A parameter's arrays, device by device: what is put in the place of one is the parameter's from then on."""

    def __init__(self, arrays: Mapping[Context, NDArray], keep: Callable[[Sequence[NDArray]], object]) -> None:
        super().__init__(arrays.values())
        self._keep = keep

    def __setitem__(self, place: Any, value: Any) -> None:
        super().__setitem__(place, value)
        self._keep(self)


def _data(param: Parameter) -> _Arrays | None:
    return None if param._arrays is None else _Arrays(param._arrays, partial(_set_data, param))


def _grad(param: Parameter) -> _Arrays | None:
    return None if param._grads is None else _Arrays(param._grads, partial(_set_grad, param))


def _by_context(arrays: Sequence[NDArray] | None) -> dict[Context, NDArray] | None:
    return None if arrays is None else {each.context: each for each in arrays}


def _set_data(param: Parameter, arrays: Sequence[NDArray] | None) -> None:
    param._arrays = _by_context(arrays)


def _set_grad(param: Parameter, arrays: Sequence[NDArray] | None) -> None:
    param._grads = _by_context(arrays)


def _set_deferred(param: Parameter, deferred: Sequence[Any]) -> None:
    param._deferred = _Deferred(deferred[0], list(deferred[1]), *deferred[2:]) if deferred else None


def _contexts_of(param: Parameter) -> list[Context] | None:
    return list(param._arrays) if param._arrays is not None else param._deferred and param._deferred.contexts


def _numbers_of(param: Parameter) -> list[list[int | None]]:
    """By MXNet's number of the device type, and then by that of the device, its place in the list of devices."""
    found: list[list[int | None]] = [[], []]
    for place, ctx in enumerate(_contexts_of(param) or ()):
        row = found[ctx.device_typeid & 1]
        row += [None] * (ctx.device_id + 1 - len(row))
        row[ctx.device_id] = place
    return found


def _follow_arrays(param: Parameter, value: Any) -> None:
    """Take no notice: the arrays say where they are."""


def _check_and_get(param: Parameter, arr_list: Sequence[NDArray] | None, ctx: Any) -> Any:
    """Of a list of a parameter's arrays, the one on a device; all of them where ``ctx`` is ``list``.

    Raises:
        RuntimeError: there is none.
    """
    return list(arr_list) if ctx is list and arr_list is not None else param._array_on(_by_context(arr_list), ctx)


# -- trainers ------------------------------------------------------------------------------------------


def _is_initialized(trainer: Trainer) -> bool:
    return trainer._kvstore is None or trainer._update_on_kvstore is not None


def _set_initialized(trainer: Trainer, value: bool) -> None:
    if not value:  # every parameter is initialized in the store again
        trainer._started = {}


def _init_kvstore(trainer: Trainer) -> None:
    """Decide who updates the weights, as the first step does."""
    trainer._on_kvstore(otherwise=None)


def _params_to_init(trainer: Trainer) -> list[Parameter]:
    if trainer._kvstore is None:
        return []
    return [param for index, param in enumerate(trainer._params) if index not in trainer._started]


def _init_params(trainer: Trainer) -> None:
    """Tell the store of the parameters that are there, as steps do."""
    there = [(i, param) for i, param in enumerate(trainer._params) if param._arrays is not None]
    for index, param in there:
        if trainer._kvstore is not None and index not in trainer._started:
            trainer._started[index] = param.data(trainer._contexts[0])
            trainer._kvstore.broadcast(index, param.data(trainer._contexts[0]), out=param.list_data())


# -- blocks --------------------------------------------------------------------------------------------


def _first_form(block: HybridBlock) -> Any:
    return next((json.loads(form) for form in block._compiled), None)


def _first_compiled(block: HybridBlock) -> Compiled | None:
    return next(iter(block._compiled.values()), None)


def _out_format(block: HybridBlock) -> Any:
    if isinstance(block, SymbolBlock):
        return block._traced.form
    made = _first_compiled(block)
    return None if made is None else made.traced.form


def _set_out_format(block: HybridBlock, form: Any) -> None:
    if isinstance(block, SymbolBlock):
        block._traced = block._traced._replace(form=form)
        block._clear_cached_op()


def _in_format(block: HybridBlock) -> Any:
    if isinstance(block, SymbolBlock):
        inputs = block._traced.inputs
        return 0 if len(inputs) == 1 else [0] * len(inputs)
    return _first_form(block)


def _ignore(owner: Any, value: Any) -> None:
    """Take no notice: what is asked is found anew at each call."""


def _cached_op(block: HybridBlock) -> Any:
    made = _first_compiled(block)
    return None if made is None else made.op


# -- modules and executors -----------------------------------------------------------------------------


def _exec_group(module: Module) -> DataParallelExecutorGroup | None:
    group = module._group
    return None if group is None else DataParallelExecutorGroup.around(group, module._state_names)


def _exec_bytes(module: Module) -> int:
    """The bytes of memory for internal values; modules that share it have one number."""
    group = module._group
    return 0 if group is None else sum(arena.nbytes for arena in {each.arena for each in group.execs})


def _optimized(executor: Executor) -> Symbol:
    """The symbol that is computed, after what is common to several nodes was merged; outputs are never one array."""
    graph = Graph(tuple(executor._entries), {}, executor._shapes, executor._dtypes, True)
    outputs: list[Entry] = []
    for entry in merge_common(graph, executor._options).outputs:
        node = entry.node
        again = Node(lookup("_copy").create(), f"{node.name}_{entry.index}_copy", (entry,), node.attributes)
        outputs.append(Entry(again, 0) if entry in outputs and node.op is not None else entry)
    return Symbol(outputs)


# -- arrays and symbols --------------------------------------------------------------------------------

_seen: WeakKeyDictionary[Leaf, int] = WeakKeyDictionary()
"""The version of a variable's gradient when ``_fresh_grad`` was last set to False."""
_AS_MARKED = 1


def _fresh_grad(array: NDArray) -> bool:
    """True where a backward pass has written the gradient since ``_fresh_grad`` was last set to False."""
    leaf = views.variable_of(array)
    if leaf is None or leaf.grad is None:
        return False
    return leaf.grad._storage.version != _seen.get(leaf, _AS_MARKED)


def _set_fresh_grad(array: NDArray, value: bool) -> None:
    leaf = views.variable_of(array)
    if leaf is not None and leaf.grad is not None:
        _seen[leaf] = -1 if value else leaf.grad._storage.version


def _gen_atomic_symbol(symbol: Symbol) -> Symbol:
    """The symbol's operator alone, on variables in the place of its inputs.

    Raises:
        ValueError: it is a variable.
    """
    node = symbol._entries[0].node
    if node.op is None:
        raise ValueError(f"_gen_atomic_symbol: {node.name!r} is a variable, and no operator")
    names = (*node.op.inputs(), *node.op.auxiliary)
    inputs = tuple(Entry(Node(None, f"{node.name}_{each}"), 0) for each in names)
    alone = Node(node.op, node.name, inputs, node.attributes, node.given, node.origin)
    return Symbol([Entry(alone, index) for index in range(node.visible_outputs())])


def _is_contiguous(slc_key: Sequence[Any], shape: Sequence[int]) -> bool:
    """True where basic indices (ints and slices, one per axis) select a contiguous part of a C-ordered array."""
    whole = True
    for index, length in reversed(list(zip(slc_key, shape, strict=False))):
        start, stop, step = index.indices(length) if isinstance(index, slice) else (index, index + 1, 1)
        count = len(range(start, stop, step))
        if not whole and count > 1:
            return False
        if step != 1 and count > 1:
            return False
        whole = whole and count == length
    return True


MEMBERS: dict[type, dict[str, Any]] = {
    AttrScope: {
        "_current": _Slot(AttrScope, "current"),
        "_attr": property(lambda scope: scope._attributes),
    },
    NameManager: {"_current": _Slot(NameManager, "current")},
    Context: {"_default_ctx": _Slot(Context, "default_ctx")},
    NDArray: {
        "_fresh_grad": property(_fresh_grad, _set_fresh_grad),
        "_basic_indexing_slice_is_contiguous": staticmethod(_is_contiguous),
    },
    Symbol: {
        "_gen_atomic_symbol": _gen_atomic_symbol,
        "handle": property(lambda symbol: SymbolHandle().fill(symbol)),
    },
    Executor: {
        "_ctx": property(lambda executor: executor._device.context),
        "get_optimized_symbol": _optimized,
    },
    Parameter: {
        "_data": property(_data, _set_data),
        "_grad": property(_grad, _set_grad),
        "_deferred_init": property(lambda param: param._deferred or (), _set_deferred),
        "_ctx_list": property(_contexts_of, _follow_arrays),
        "_ctx_map": property(_numbers_of, _follow_arrays),
        "_check_and_get": _check_and_get,
    },
    Trainer: {
        "_kv_initialized": property(_is_initialized, _set_initialized),
        "_params_to_init": property(_params_to_init, _ignore),
        "_init_kvstore": _init_kvstore,
        "_init_params": _init_params,
    },
    Block: {"save": saving.save, "load": saving.load},
    HybridBlock: {
        "_in_format": property(_in_format, _ignore),
        "_out_format": property(_out_format, _set_out_format),
        "_cached_op": property(_cached_op, _ignore),
    },
    Module: {
        "_exec_group": property(_exec_group),
        "_context": property(lambda module: module._contexts),
        "_total_exec_bytes": property(_exec_bytes),
        "_data_shapes": property(lambda module: module.data_shapes if module.binded else None),
        "_label_shapes": property(lambda module: module.label_shapes if module.binded else None),
        "_fixed_param_names": property(lambda module: module._fixed),
        "_sync_params_from_devices": lambda module: module.get_params() and None,
    },
    BucketingModule: {"_curr_module": property(lambda module: module._current)},
}
"""By class, what is added to it."""

for _owner, _added in MEMBERS.items():
    for _name, _member in _added.items():
        setattr(_owner, _name, _member)
