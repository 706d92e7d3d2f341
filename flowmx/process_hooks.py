"""Hooks of the process: what flowmx does at exit, around forks, and with uncaught exceptions.

Importing flowmx changes nothing in the process. Modules register their functions here, and :func:`install` registers
one function with Python for each kind of event. The engine installs the hooks at its first operation, the command line
at its start, and objects that own threads or processes when they are created. :func:`uninstall` undoes this.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, NamedTuple

from flowmx import tracebacks

__all__ = [
    "at_exit",
    "at_fork",
    "at_install",
    "ensure_installed",
    "fold_uncaught",
    "install",
    "is_installed",
    "show_folded",
    "show_uncaught",
    "uninstall",
]

_ExceptHook = Callable[[type[BaseException], BaseException, TracebackType | None], Any]


class _ForkHooks(NamedTuple):
    """Functions that are called around a fork."""

    before: Callable[[], object] | None
    after_in_parent: Callable[[], object] | None
    after_in_child: Callable[[], object] | None


_exit_functions: list[Callable[[], object]] = []
_fork_hooks: list[_ForkHooks] = []
_install_functions: list[Callable[[], object]] = []
_uninstall_functions: list[Callable[[], object]] = []
_previous_excepthook: _ExceptHook = sys.excepthook
_lock = threading.Lock()
_installed = False
_is_uninstalled = False
_are_forks_hooked = False
_is_shown = False
"""True if :func:`fold_uncaught` has set ``sys.excepthook``."""


class _Local(threading.local):
    """The state of a thread.

    Attributes:
        forking: the hooks of the fork that the thread performs; hooks that are registered meanwhile are not among them.
        is_showing: whether the thread handles an uncaught exception.
    """

    forking: tuple[_ForkHooks, ...] = ()
    is_showing = False


_local = _Local()


def at_exit(function: Callable[[], object]) -> None:
    """Call a function when the interpreter exits, before those that were registered earlier."""
    _exit_functions.append(function)


def at_fork(
    *,
    before: Callable[[], object] | None = None,
    after_in_parent: Callable[[], object] | None = None,
    after_in_child: Callable[[], object] | None = None,
) -> None:
    """Call functions around each fork, in the order of registration; `before` in reverse, as Python does."""
    _fork_hooks.append(_ForkHooks(before, after_in_parent, after_in_child))


def at_install(function: Callable[[], object], undo: Callable[[], object] | None = None) -> None:
    """Call a function when the hooks are installed, immediately if they already are; `undo` when they are removed."""
    _install_functions.append(function)
    if undo is not None:
        _uninstall_functions.append(undo)
    if _installed:
        function()


def show_uncaught(hook: _ExceptHook) -> None:
    """Set the function that is called with an uncaught exception, in place of :data:`sys.excepthook`."""
    global _excepthook
    _excepthook = hook


def show_folded(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Show an uncaught exception without flowmx's frames, or call the hook that the program has set."""
    is_default = _previous_excepthook is sys.__excepthook__
    (tracebacks.show if is_default else _previous_excepthook)(kind, error, trace)


_excepthook: _ExceptHook = show_folded


def is_installed() -> bool:
    """Return whether the hooks are installed."""
    return _installed


def ensure_installed() -> None:
    """Install the hooks, unless the program has uninstalled them."""
    if not (_installed or _is_uninstalled):
        install()


def fold_uncaught() -> None:
    """Show uncaught exceptions without flowmx's frames from now on, unless the program has uninstalled the hooks.

    Errors call this when they are raised, because they may be raised before the first operation.
    """
    global _is_shown, _previous_excepthook
    if not (_is_shown or _is_uninstalled):
        _is_shown = True
        if sys.excepthook is not _show:
            _previous_excepthook, sys.excepthook = sys.excepthook, _show


def install() -> None:
    """Install the hooks. Calling it again does nothing."""
    global _installed, _is_uninstalled, _are_forks_hooked, _previous_excepthook
    with _lock:
        if _installed:
            return
        atexit.register(_run_exit_functions)
        if not _are_forks_hooked and hasattr(os, "register_at_fork"):  # Python has no way to unregister these
            _are_forks_hooked = True
            os.register_at_fork(before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
        if sys.excepthook is not _show:
            _previous_excepthook, sys.excepthook = sys.excepthook, _show
        _installed, _is_uninstalled = True, False
    for function in _install_functions:
        function()


def uninstall() -> None:
    """Remove the hooks until :func:`install` is called, and restore the previous ``sys.excepthook``.

    A ``sys.excepthook`` that the program has set since then is not changed. Without the hooks, operations that are
    pending at exit, or in the parent of a fork, are lost.
    """
    global _installed, _is_uninstalled, _is_shown
    with _lock:
        _is_uninstalled, _is_shown = True, False
        if sys.excepthook is _show:
            sys.excepthook = _previous_excepthook
        if not _installed:
            return
        _installed = False
        atexit.unregister(_run_exit_functions)
    for undo in _uninstall_functions:
        undo()


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Handle an uncaught exception (a ``sys.excepthook``)."""
    if _local.is_showing:  # the previous hook calls this one, which it replaced earlier
        sys.__excepthook__(kind, error, trace)
        return
    _local.is_showing = True
    try:
        (_previous_excepthook if _is_uninstalled else _excepthook)(kind, error, trace)
    finally:
        _local.is_showing = False


def _run_exit_functions() -> None:
    _call_all(reversed(_exit_functions))


def _before_fork() -> None:
    _local.forking = tuple(_fork_hooks) if _installed else ()
    _call_all(hooks.before for hooks in reversed(_local.forking))


def _after_in_parent() -> None:
    forking, _local.forking = _local.forking, ()
    _call_all(hooks.after_in_parent for hooks in forking)


def _after_in_child() -> None:
    global _lock
    _lock = threading.Lock()  # another thread may have held it
    forking, _local.forking = _local.forking, ()
    _call_all(hooks.after_in_child for hooks in forking)


def _call_all(functions: Iterable[Callable[[], object] | None]) -> None:
    """Call all functions, even if some of them raise; the last error is raised at the end."""
    with contextlib.ExitStack() as stack:
        for function in reversed(list(functions)):
            if function is not None:
                stack.callback(function)
