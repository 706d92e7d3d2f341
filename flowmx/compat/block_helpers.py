"""Private helpers of ``mxnet.gluon.block`` and ``mxnet.gluon`` that packages import."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from flowmx.devices import Context
from flowmx.gluon import scope
from flowmx.gluon.base_block import Block
from flowmx.gluon.parameter_dict import ParameterDict
from flowmx.gluon.utils import brief_list, indent
from flowmx.ndarray import NDArray
from flowmx.scopes import Value, assign
from flowmx.symbol import Symbol

__all__ = [
    "_BlockScope",
    "_brief_print_list",
    "_flatten",
    "_gather_type_ctx_info",
    "_indent",
    "_regroup",
    "tensor_types",
]

tensor_types = (Symbol, NDArray)
"""The types of inputs that a graph accepts."""

_indent = indent
_brief_print_list = brief_list


def _flatten(args: object, inout_str: str) -> tuple[list[Any], Any]:
    """Return the arrays or symbols of nested lists in order, and the structure of the nesting.

    None counts as an item. In the structure, 0 is an item, -1 is None, a larger number is the number of outputs of a
    symbol, and a list is a list.

    Raises:
        ValueError: an object is neither an array, a symbol, None nor a list; the message contains ``inout_str``.
    """
    if args is None:
        return [None], -1
    if isinstance(args, NDArray):
        return [args], 0
    if isinstance(args, Symbol):
        outputs = len(args.list_outputs())
        return [args], outputs if outputs > 1 else 0
    if not isinstance(args, (list, tuple)):
        raise ValueError(
            f"{inout_str}: expected arrays, symbols or None in (nested) lists, found {type(args).__name__} {args!r}"
        )
    parts = [_flatten(part, inout_str) for part in args]
    return [item for items, _ in parts for item in items], [form for _, form in parts]


def _regroup(args: Any, fmt: Any) -> tuple[Any, Any]:
    """Nest the first items of a flat list in the structure that `_flatten` returned; return them and the rest.

    Raises:
        ValueError: ``args`` is not a list, or has an item in place of a None.
    """
    if not isinstance(args, (list, tuple)):
        raise ValueError(f"_regroup: expected a list, found {type(args).__name__}")
    if isinstance(fmt, int):
        if fmt == -1 and args[0] is not None:
            raise ValueError("_regroup: expected None, found " + type(args[0]).__name__)
        return (args[0], args[1:]) if fmt <= 0 else (args[:fmt], args[fmt:])
    items = []
    for part in fmt:
        item, args = _regroup(args, part)
        items.append(item)
    return items, args


def _gather_type_ctx_info(args: object) -> tuple[bool, bool, set[Context], Context | None]:
    """Inspect nested lists: return (has symbols, has arrays, devices of the arrays, device of the first array)."""
    if isinstance(args, NDArray):
        return False, True, {args.context}, args.context
    if not isinstance(args, (list, tuple)):
        return isinstance(args, Symbol), False, set(), None
    parts = [_gather_type_ctx_info(part) for part in args]
    firsts = [first for *_, first in parts if first is not None]
    contexts = {context for _, _, each, _ in parts for context in each}
    return any(part[0] for part in parts), any(part[1] for part in parts), contexts, firsts[0] if firsts else None


def _common_prefix(names: Sequence[str]) -> str:
    """Return the longest common prefix of the names."""
    start = ""
    for letters in zip(*names, strict=False):
        if len(set(letters)) > 1:
            break
        start += letters[0]
    return start


def _check_same_symbol_type(symbols: Iterable[Symbol]) -> type[Symbol]:
    """Return the class of symbols."""
    del symbols
    return Symbol


def _check_all_np_ndarrays(out: object) -> None:
    """Always raise TypeError: no flowmx array is an instance of MXNet's ``mx.np.ndarray``.

    Raises:
        TypeError: always.
    """
    raise TypeError(f"expected arrays of mx.np, found {type(out).__name__}")


class _CurrentScope:
    """The current scope, in the form of MXNet's thread-local attribute."""

    @property
    def value(self) -> scope.Scope | None:
        """The scope, or None outside scopes."""
        return scope._current.get().value

    @value.setter
    def value(self, current: scope.Scope | None) -> None:
        assign(scope._current, Value(current))


class _BlockScope:
    """The naming scope of a block's children; a context manager.

    Args:
        block: the block, or an object with ``prefix`` and ``_empty_prefix``.
    """

    _current = _CurrentScope()

    def __init__(self, block: Any) -> None:
        self._block = block
        is_block = isinstance(block, Block)
        self._scope = (
            block._scope if is_block else scope.Scope(block.prefix, ParameterDict(block.prefix), block._empty_prefix)
        )
        self._entered: list[AbstractContextManager[Any]] = []

    @staticmethod
    def create(prefix: str | None, params: ParameterDict | None, hint: str) -> tuple[str, ParameterDict]:
        """Return the prefix and the parameters of a new block in the current scope."""
        return scope.name_block(prefix, params, hint)

    def __enter__(self) -> _BlockScope:
        self._entered.append(self._scope.entered())
        self._entered[-1].__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._entered.pop().__exit__(*error)
