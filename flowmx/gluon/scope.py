"""Names of blocks: the name of a block created in another block's ``name_scope()`` begins with that block's prefix."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypedDict

from flowmx import name
from flowmx.gluon.parameter_dict import ParameterDict
from flowmx.scopes import Value, frame_scope


class Scope:
    """The naming scope of one block's children.

    Args:
        prefix: the block's prefix.
        params: the block's parameters.
        nameless: whether the block has an empty prefix, so that its children are named as if it did not exist.
    """

    def __init__(self, prefix: str, params: ParameterDict, nameless: bool) -> None:
        self._prefix = prefix
        self._params = params
        self._nameless = nameless
        self._counts: dict[str, int] = {}

    def child(self, prefix: str | None, params: ParameterDict | None, hint: str) -> tuple[str, ParameterDict]:
        """Return the prefix and the parameters of a block created in this scope."""
        if prefix is None:
            number = self._counts.get(hint, 0)
            self._counts[hint] = number + 1
            prefix = f"{hint}{number}_"
        if params is None:
            child_params = ParameterDict(self._params.prefix + prefix, self._params._shared)
        else:
            child_params = ParameterDict(params.prefix, params)
        return self._prefix + prefix, child_params

    @contextmanager
    def entered(self) -> Iterator[Scope]:
        """Make this the task's current scope; operators composed inside get the prefix too."""
        if self._nameless:
            yield self
            return
        with frame_scope(_current, Value(self)), name.Prefix(self._prefix):
            yield self


_current: ContextVar[Value[Scope | None]] = ContextVar("flowmx_block_scope", default=Value(None))  # noqa: B039


class BlockOptions(TypedDict, total=False):
    """The arguments that every block takes."""

    prefix: str | None
    params: ParameterDict | None


def name_block(prefix: str | None, params: ParameterDict | None, hint: str) -> tuple[str, ParameterDict]:
    """Return the prefix and the parameters of a new block, in the current scope.

    Args:
        prefix: the block's prefix, or None for ``hint`` with the next number.
        params: parameters to share, or None.
        hint: the stem of the names of this kind of block.
    """
    scope = _current.get().value
    if scope is not None:
        return scope.child(prefix, params, hint)
    if prefix is None:
        prefix = name.current().get(None, hint) + "_"
    return prefix, ParameterDict(prefix) if params is None else ParameterDict(params.prefix, params)
