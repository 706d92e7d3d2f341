"""Names of blocks: a block made inside another's ``name_scope()`` has that one's prefix before its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from flowmx import name
from flowmx.gluon.parameter_dict import ParameterDict


class Scope:
    """The naming scope of one block's children.

    Args:
        prefix: the block's.
        params: the block's.
        nameless: True for a block with an empty prefix, whose children are named as if it were not there.
    """

    def __init__(self, prefix: str, params: ParameterDict, nameless: bool) -> None:
        self._prefix = prefix
        self._params = params
        self._nameless = nameless
        self._counts: dict[str, int] = {}

    def child(self, prefix: str | None, params: ParameterDict | None, hint: str) -> tuple[str, ParameterDict]:
        """The prefix and the parameters of a block made in here."""
        if prefix is None:
            number = self._counts.get(hint, 0)
            self._counts[hint] = number + 1
            prefix = f"{hint}{number}_"
        if params is None:
            own = ParameterDict(self._params.prefix + prefix, self._params._shared)
        else:
            own = ParameterDict(params.prefix, params)
        return self._prefix + prefix, own

    @contextmanager
    def entered(self) -> Iterator[Scope]:
        """Make it the task's current scope; operators composed inside get the prefix too."""
        if self._nameless:
            yield self
            return
        token = _current.set(self)
        try:
            with name.Prefix(self._prefix):
                yield self
        finally:
            _current.reset(token)


_current: ContextVar[Scope | None] = ContextVar("flowmx_block_scope", default=None)


def named(prefix: str | None, params: ParameterDict | None, hint: str) -> tuple[str, ParameterDict]:
    """The prefix and the parameters of a new block, in the scope that is entered here.

    Args:
        prefix: its own, or None for ``hint`` with the next number.
        params: those to share, or None.
        hint: the stem of names of its kind of blocks.
    """
    scope = _current.get()
    if scope is not None:
        return scope.child(prefix, params, hint)
    if prefix is None:
        prefix = name.current().get(None, hint) + "_"
    return prefix, ParameterDict(prefix) if params is None else ParameterDict(params.prefix, params)
