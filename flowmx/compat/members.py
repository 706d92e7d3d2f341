"""Private attributes of MXNet's objects that packages read and write.

Importing this module adds them to flowmx's classes, as properties over flowmx's attributes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from flowmx.attribute import AttrScope
from flowmx.compat import block_saving
from flowmx.compat.base_helpers import SymbolHandle
from flowmx.compat.executor_groups import DataParallelExecutorGroup
from flowmx.devices import Context
from flowmx.executor import Executor
from flowmx.gluon.base_block import Block
from flowmx.gluon.hybrid import Compiled, HybridBlock
from flowmx.gluon.parameter import Parameter
from flowmx.gluon.symbol_block import SymbolBlock
from flowmx.gluon.trainer import Trainer
from flowmx.graph.graph import Graph
from flowmx.graph.node import Entry, Node
from flowmx.graph.passes.common_subexpressions import merge_common
from flowmx.kvstore.choice import is_distributed
from flowmx.module import BucketingModule, Module
from flowmx.name import NameManager
from flowmx.ndarray import NDArray, views
from flowmx.ndarray.recording import Leaf
from flowmx.ops.registry.operators import lookup
from flowmx.symbol import Symbol

__all__ = ["MEMBERS"]


class _Slot:
    """An object whose ``value`` is an attribute of a class, in the form of MXNet's thread-local attributes."""

    def __init__(self, owner: type, name: str) -> None:
        self._owner, self._name = owner, name

    @property
    def value(self) -> Any:
        """The current value."""
        return getattr(self._owner, self._name)

    @value.setter
    def value(self, current: object) -> None:
        setattr(self._owner, self._name, current)


# -- parameters ----------------------------------------------------------------------------------------


class _Arrays(list[NDArray]):
    """The arrays of a parameter by device; assigning an item replaces the parameter's array."""

    def __init__(self, arrays: Mapping[Context, NDArray], store: Callable[[Sequence[NDArray]], object]) -> None:
        super().__init__(arrays.values())
        self._store = store

    def __setitem__(self, place: Any, value: Any) -> None:
        super().__setitem__(place, value)
        self._store(self)


def _data(param: Parameter) -> _Arrays | None:
    return None if param._arrays is None else _Arrays(param._arrays, partial(_set_data, param))


def _grad(param: Parameter) -> _Arrays | None:
    return None if param._grads is None else _Arrays(param._grads, partial(_set_grad, param))


def _map_by_context(arrays: Sequence[NDArray] | None) -> dict[Context, NDArray] | None:
    return None if arrays is None else {array.context: array for array in arrays}


def _set_data(param: Parameter, arrays: Sequence[NDArray] | None) -> None:
    param.replace_arrays(_map_by_context(arrays))


def _set_grad(param: Parameter, arrays: Sequence[NDArray] | None) -> None:
    param.replace_grads(_map_by_context(arrays))


def _set_deferred(param: Parameter, deferred: Sequence[object]) -> None:
    param.defer(deferred)


def _contexts_of(param: Parameter) -> list[Context] | None:
    return list(param._arrays) if param._arrays is not None else param._deferred and param._deferred.contexts


def _context_map(param: Parameter) -> list[list[int | None]]:
    """Return the positions in the list of devices, by MXNet's device type number and device id."""
    positions: list[list[int | None]] = [[], []]
    for place, ctx in enumerate(_contexts_of(param) or ()):
        row = positions[ctx.device_typeid & 1]
        row += [None] * (ctx.device_id + 1 - len(row))
        row[ctx.device_id] = place
    return positions


def _ignore_contexts(param: Parameter, value: object) -> None:
    """Do nothing: the arrays determine the contexts."""


def _check_and_get(param: Parameter, arr_list: Sequence[NDArray] | None, ctx: Any) -> NDArray | list[NDArray]:
    """Return the array of a parameter on a device, or all arrays if ``ctx`` is ``list``.

    Raises:
        RuntimeError: there is no such array.
    """
    return list(arr_list) if ctx is list and arr_list is not None else param._array_on(_map_by_context(arr_list), ctx)


# -- trainers ------------------------------------------------------------------------------------------


def _kvstore_params(trainer: Trainer) -> dict[str, object]:
    return {"kvstore": trainer._kvstore_argument, "update_on_kvstore": trainer._update_on_kvstore}


# -- blocks --------------------------------------------------------------------------------------------


def _first_form(block: HybridBlock) -> Any:
    return next((json.loads(form) for form in block._compiled), None)


def _first_compiled(block: HybridBlock) -> Compiled | None:
    return next(iter(block._compiled.values()), None)


def _out_format(block: HybridBlock) -> Any:
    if isinstance(block, SymbolBlock):
        return block._traced.form
    compiled = _first_compiled(block)
    return None if compiled is None else compiled.traced.form


def _set_out_format(block: HybridBlock, form: object) -> None:
    if isinstance(block, SymbolBlock):
        block.set_output_form(form)


def _in_format(block: HybridBlock) -> Any:
    if isinstance(block, SymbolBlock):
        inputs = block._traced.inputs
        return 0 if len(inputs) == 1 else [0] * len(inputs)
    return _first_form(block)


def _ignore(owner: object, value: object) -> None:
    """Do nothing: the value is computed at every access."""


def _cached_op(block: HybridBlock) -> Any:
    compiled = _first_compiled(block)
    return None if compiled is None else compiled.op


# -- modules and executors -----------------------------------------------------------------------------


def _exec_group(module: Module) -> DataParallelExecutorGroup | None:
    group = module._group
    return None if group is None else DataParallelExecutorGroup.around(group, module._state_names)


def _exec_bytes(module: Module) -> int:
    """Return the size of the memory for internal values, in bytes; modules that share memory have equal numbers."""
    group = module._group
    return 0 if group is None else sum(arena.nbytes for arena in {executor.arena for executor in group.execs})


def _optimize(executor: Executor) -> Symbol:
    """Return the symbol after common subexpression elimination; duplicate outputs are copied."""
    graph = Graph(tuple(executor._entries), {}, executor._shapes, executor._dtypes, True)
    outputs: list[Entry] = []
    for entry in merge_common(graph, executor._options).outputs:
        node = entry.node
        copy = Node(lookup("_copy").create(), f"{node.name}_{entry.index}_copy", (entry,), node.attributes)
        outputs.append(Entry(copy, 0) if entry in outputs and node.op is not None else entry)
    return Symbol(outputs)


# -- arrays and symbols --------------------------------------------------------------------------------

_stale_versions: WeakKeyDictionary[Leaf, int] = WeakKeyDictionary()
"""The version of a variable's gradient when ``_fresh_grad`` was last set to False."""
_INITIAL_VERSION = 1


def _fresh_grad(array: NDArray) -> bool:
    """Return whether a backward pass has written the gradient since ``_fresh_grad`` was last set to False."""
    leaf = views.variable_of(array)
    if leaf is None or leaf.grad is None:
        return False
    return leaf.grad.storage.version != _stale_versions.get(leaf, _INITIAL_VERSION)


def _set_fresh_grad(array: NDArray, value: bool) -> None:
    leaf = views.variable_of(array)
    if leaf is not None and leaf.grad is not None:
        _stale_versions[leaf] = -1 if value else leaf.grad.storage.version


def _gen_atomic_symbol(symbol: Symbol) -> Symbol:
    """Return the symbol's operator, applied to variables instead of its inputs.

    Raises:
        ValueError: the symbol is a variable.
    """
    node = symbol.entries[0].node
    if node.op is None:
        raise ValueError(f"_gen_atomic_symbol: {node.name!r} is a variable, expected an operator")
    names = (*node.op.inputs(), *node.op.auxiliary)
    inputs = tuple(Entry(Node(None, f"{node.name}_{name}"), 0) for name in names)
    alone = Node(node.op, node.name, inputs, node.attributes, node.user_parameters, node.origin)
    return Symbol([Entry(alone, index) for index in range(node.visible_outputs())])


def _is_contiguous(slc_key: Sequence[Any], shape: Sequence[int]) -> bool:
    """Return whether basic indices (ints and slices, one per axis) select a contiguous part of a C-ordered array."""
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
        "get_optimized_symbol": _optimize,
    },
    Parameter: {
        "_data": property(_data, _set_data),
        "_grad": property(_grad, _set_grad),
        "_deferred_init": property(lambda param: param._deferred or (), _set_deferred),
        "_ctx_list": property(_contexts_of, _ignore_contexts),
        "_ctx_map": property(_context_map, _ignore_contexts),
        "_check_and_get": _check_and_get,
    },
    Trainer: {
        "_param2idx": property(lambda trainer: {param.name: i for i, param in enumerate(trainer._params)}),
        "_kvstore_params": property(_kvstore_params),
        "_distributed": property(lambda trainer: is_distributed(trainer._kvstore)),
        "_contains_sparse_weight": property(lambda trainer: any(p._stype != "default" for p in trainer._params)),
        "_contains_sparse_grad": property(lambda trainer: any(p._grad_stype != "default" for p in trainer._params)),
    },
    Block: {"save": block_saving.save, "load": block_saving.load},
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
    },
    BucketingModule: {"_curr_module": property(lambda module: module._current)},
}
"""The members to add, by class."""

for _owner, _added in MEMBERS.items():
    for _name, _member in _added.items():
        setattr(_owner, _name, _member)
