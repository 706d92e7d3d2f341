"""Private helpers of ``mxnet.gluon.block`` and ``mxnet.gluon`` that packages import."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from flowmx.devices import Context
from flowmx.gluon import scope
from flowmx.gluon.base import Block
from flowmx.gluon.parameter_dict import ParameterDict
from flowmx.gluon.utils import brief_list, indented
from flowmx.ndarray import NDArray
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
"""The types that a parameter of a graph may have."""

_indent = indented
_brief_print_list = brief_list


def _flatten(args: Any, inout_str: str) -> tuple[list[Any], Any]:
    """The arrays or symbols of a nested list in order, and how they nest.

    A None counts as an item. In the second value 0 stands for an item, -1 for None, a number for a symbol with so many
    outputs, and a list for a list.

    Raises:
        ValueError: something is neither an array, a symbol, None nor a list; the message has ``inout_str``.
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
    parts = [_flatten(each, inout_str) for each in args]
    return [item for items, _ in parts for item in items], [form for _, form in parts]


def _regroup(args: Any, fmt: Any) -> tuple[Any, Any]:
    """Nest the first items of a flat list in the format that `_flatten` returned; returns them and the rest.

    Raises:
        ValueError: there is no list, or something in the place of a None.
    """
    if not isinstance(args, (list, tuple)):
        raise ValueError(f"_regroup: expected a list, found {type(args).__name__}")
    if isinstance(fmt, int):
        if fmt == -1 and args[0] is not None:
            raise ValueError("_regroup: expected None in this place, found " + type(args[0]).__name__)
        return (args[0], args[1:]) if fmt <= 0 else (args[:fmt], args[fmt:])
    found = []
    for each in fmt:
        item, args = _regroup(args, each)
        found.append(item)
    return found, args


def _gather_type_ctx_info(args: Any) -> tuple[bool, bool, set[Context], Context | None]:
    """Inspect nested lists: (symbols among them, arrays among them, the arrays' devices, the first array's device)."""
    if isinstance(args, NDArray):
        return False, True, {args.context}, args.context
    if not isinstance(args, (list, tuple)):
        return isinstance(args, Symbol), False, set(), None
    parts = [_gather_type_ctx_info(each) for each in args]
    firsts = [first for *_, first in parts if first is not None]
    contexts = {context for _, _, some, _ in parts for context in some}
    return any(part[0] for part in parts), any(part[1] for part in parts), contexts, firsts[0] if firsts else None


def _common_prefix(names: Sequence[str]) -> str:
    """The longest common prefix of the names."""
    start = ""
    for letters in zip(*names, strict=False):
        if len(set(letters)) > 1:
            break
        start += letters[0]
    return start


def _check_same_symbol_type(symbols: Iterable[Symbol]) -> type[Symbol]:
    """The class of some symbols: there is one."""
    del symbols
    return Symbol


def _check_all_np_ndarrays(out: Any) -> None:
    """Raise where something is no array of ``mx.np``, of which there are none.

    Raises:
        TypeError: always.
    """
    raise TypeError(f"expected arrays of mx.np, found {type(out).__name__}")


class _CurrentScope:
    """The scope that is entered here, as MXNet keeps it for each thread."""

    @property
    def value(self) -> scope.Scope | None:
        """The scope, or None outside of all."""
        return scope._current.get()

    @value.setter
    def value(self, entered: scope.Scope | None) -> None:
        scope._current.set(entered)


class _BlockScope:
    """The naming scope of a block's children; ``with`` enters it.

    Args:
        block: the block, or something with its ``prefix`` and ``_empty_prefix``.
    """

    _current = _CurrentScope()

    def __init__(self, block: Any) -> None:
        self._block = block
        own = isinstance(block, Block)
        self._scope = (
            block._scope if own else scope.Scope(block.prefix, ParameterDict(block.prefix), block._empty_prefix)
        )
        self._entered: list[AbstractContextManager[Any]] = []

    @staticmethod
    def create(prefix: str | None, params: ParameterDict | None, hint: str) -> tuple[str, ParameterDict]:
        """The prefix and the parameters of a new block, in the scope that is entered here."""
        return scope.named(prefix, params, hint)

    def __enter__(self) -> _BlockScope:
        self._entered.append(self._scope.entered())
        self._entered[-1].__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._entered.pop().__exit__(*error)
