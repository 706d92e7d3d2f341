"""Bulking: several small operations pushed as one, as ``mxnet.engine.bulk`` does.

Inside ``with bulk(size):`` the operations of one actor are gathered into one open operation, which takes
on their reads and writes as they come and is pushed when it is full, when the scope ends, or when anybody
waits for something. An operation that would make the open one wait for something pushed after it starts a new bulk
(:meth:`flowmx.engine.scheduler.Scheduler.extend`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

from flowmx.engine.runtime import Engine
from flowmx.engine.scheduler import DONE, Operation

_scope: ContextVar[_Scope | None] = ContextVar("flowmx_bulk", default=None)


class _Scope:
    """The operations that one ``with bulk`` block has gathered so far.

    Attributes:
        open: the operation that takes on others, and what it has gathered. There may be another one for a moment, where
            a finaliser or a signal handler came while one was begun.
    """

    def __init__(self, engine: Engine, size: int) -> None:
        self.engine = engine
        self.size = size
        self.open: dict[Operation, list[Operation]] = {}
        self.closed = False

    def add(self, part: Operation) -> None:
        """Gather an operation; it is pushed together with the others."""
        engine = self.engine
        with engine.lock:
            engine.settle()
            op = next(iter(list(self.open)), None)
            while op is None or op.actor is not part.actor or not self._extend(op, part):
                self.flush()
                op = self._begin(part)
            if len(self.open.get(op, ())) >= self.size:
                self.flush()

    def _extend(self, op: Operation, part: Operation) -> bool:
        """Add a part to the operation, if it can take it on."""
        return op.state != DONE and self.engine.scheduler.extend(op, part, self.open.get(op, []))

    def _begin(self, part: Operation) -> Operation:
        """A new bulk."""
        parts: list[Operation] = []
        op = Operation(_run_parts, (self.engine, parts), (), (), part.actor, "bulk", part.origin)
        op.settles = True
        self.open[op] = parts
        self.engine.open_bulks[self] = None
        self.engine.books.push(op, hold=True)
        return op

    def flush(self) -> None:
        """Push the open bulk."""
        with self.engine.lock:
            self.engine.settle()
            for op in list(self.open):
                if self.engine.scheduler.is_held(op):
                    self.engine.scheduler.unhold(op)
                if op.serial:  # else it is just being pushed, further down on this thread's stack
                    self.open.pop(op, None)
            if not self.open:
                self.engine.open_bulks.pop(self, None)


def _run_parts(engine: Engine, parts: list[Operation]) -> None:
    for part in parts:
        engine.run_part(part)
    parts.clear()


@contextlib.contextmanager
def bulk(engine: Engine, size: int) -> Iterator[None]:
    """Gather the operators called inside into operations of up to ``size`` of them each.

    Raises:
        ValueError: ``size`` is below 1.
    """
    if size < 1:
        raise ValueError(f"bulk: size is {size}, expected at least 1")
    scope = _Scope(engine, size)
    token = _scope.set(scope)
    try:
        engine.use_bulks(_scope, scope)
        yield
    finally:
        scope.closed = True  # first: tasks and operations begun inside may still see it, and an interrupt may come
        _scope.reset(token)
        scope.flush()
        engine.leave_bulks()


def is_inside() -> bool:
    """True where pushes of this context may be gathered by a scope."""
    return _scope.get() is not None


def leave() -> None:
    """Push each operation by itself from here on in this context, whatever scope it was copied in."""
    _scope.set(None)
