"""Hooks of blocks inside a compiled block: those that are registered after its graph was traced.

A hook that exists when a graph is traced is called with symbols, once for the graph, as in MXNet. A hook that is
registered later would never be called, so the compiled block runs layer by layer while there is one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flowmx.engine.origin import warn_user
from flowmx.gluon.utils import HookHandle

__all__ = ["HookWatch"]

Hook = tuple[Any, Any]
"""A block, and a hook of it."""

_warned_lines: set[tuple[str, int]] = set()
"""The user's lines with a warning about such hooks."""


class HookWatch:
    """The hooks inside one block, since its graph was traced."""

    __slots__ = ("_changes", "_has_new", "_traced")

    def __init__(self) -> None:
        self._changes = -1
        self._has_new = False
        self._traced: list[Hook] = []

    def begin(self, block: Any) -> None:
        """Record the hooks inside a block when its first graph is traced."""
        self._changes, self._has_new, self._traced = HookHandle.changes, False, list(_inner_hooks(block))

    def has_new(self, block: Any) -> bool:
        """Return whether a block with a compiled graph has hooks inside that were registered after it was traced."""
        if self._changes != HookHandle.changes:
            self._look(block)
        return self._has_new

    def _look(self, block: Any) -> None:
        traced = {(id(owner), id(hook)) for owner, hook in self._traced} if block._compiled else None
        new_owners = {
            id(owner): owner for owner, hook in _inner_hooks(block)
            if traced is not None and (id(owner), id(hook)) not in traced
        }  # fmt: skip
        if new_owners:
            names = ", ".join(repr(owner.name) for owner in new_owners.values())
            warn_user(
                f"hooks of {names} were registered after {block.name!r} was compiled, whose graph does not call them: "
                f"{block.name!r} runs layer by layer, more slowly, as long as they exist. Hooks of {block.name!r} "
                "itself, and register_op_hook, keep the graph", _warned_lines,
            )  # fmt: skip
        for child in block._children.values():
            _mark(child, new_owners)
        self._changes, self._has_new = HookHandle.changes, bool(new_owners)


def _mark(block: Any, owners: dict[int, Any]) -> bool:
    """Make the blocks around some blocks run layer by layer; return whether a block is one of them or around one."""
    is_around = False
    for child in block._children.values():
        is_around |= _mark(child, owners)
    watch = getattr(block, "_hook_watch", None)
    if watch is not None:  # the other blocks look for new hooks again when they are called
        watch._changes, watch._has_new = HookHandle.changes if is_around else -1, is_around
    return is_around or id(block) in owners


def _inner_hooks(block: Any) -> Iterator[Hook]:
    """Iterate over the hooks of the blocks inside a block."""
    for child in block._children.values():
        for hook in (*child._forward_pre_hooks.values(), *child._forward_hooks.values()):
            yield child, hook
        yield from _inner_hooks(child)
