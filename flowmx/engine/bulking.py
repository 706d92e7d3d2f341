"""Bulking: push several small operations as one, as ``mxnet.engine.bulk`` does.

Inside ``with bulk(size):`` the operations of one actor are gathered into one open operation, which adopts their reads
and writes. It is pushed when it is full, when the scope ends, or when any code waits for an operation. An operation
starts a new bulk if it would make the open one wait for something that was pushed after it
(:meth:`flowmx.engine.scheduler.Scheduler.extend`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

from flowmx.engine.runtime import Engine
from flowmx.engine.scheduler import DONE, Operation
from flowmx.scopes import Value, assign, enter, leave

_scope: ContextVar[Value[_Scope | None]] = ContextVar("flowmx_bulk", default=Value(None))  # noqa: B039


class _Scope:
    """The operations that one ``with bulk`` block has gathered so far.

    Attributes:
        open: the open operation and the operations it has gathered. There may briefly be a second one if a finalizer or
        a signal handler ran while one was being created.
    """

    def __init__(self, engine: Engine, size: int) -> None:
        self.engine = engine
        self.size = size
        self.open: dict[Operation, list[Operation]] = {}
        self.closed = False

    def add(self, part: Operation) -> None:
        """Gather an operation, to be pushed together with the others."""
        engine = self.engine
        with engine.lock:
            engine.recover()
            op = next(iter(list(self.open)), None)
            while op is None or op.actor is not part.actor or not self._extend(op, part):
                self.flush()
                op = self._begin(part)
            if len(self.open.get(op, ())) >= self.size:
                self.flush()

    def _extend(self, op: Operation, part: Operation) -> bool:
        """Add a part to an open operation; return False if that is impossible."""
        return op.state != DONE and self.engine.scheduler.extend(op, part, self.open.get(op, []))

    def _begin(self, part: Operation) -> Operation:
        """Start a new bulk."""
        parts: list[Operation] = []
        op = Operation(_run_parts, (self.engine, parts), (), (), part.actor, "bulk", part.origin)
        op.handles_failures = True
        try:
            self.open[op] = parts
            self.engine.open_bulks[self] = None
            self.engine.books.push(op, hold=True)
        except BaseException:  # an interrupt, before or after the push
            if not op.serial:
                self.open.pop(op, None)
            self.flush()
            raise
        return op

    def flush(self) -> None:
        """Push the open bulk."""
        with self.engine.lock:
            self.engine.recover()
            for op in list(self.open):
                if self.engine.scheduler.is_held(op):
                    self.engine.scheduler.unhold(op)
                if op.serial:  # else it is being pushed further down this thread's stack
                    self.open.pop(op, None)
            if not self.open:
                self.engine.open_bulks.pop(self, None)


def _run_parts(engine: Engine, parts: list[Operation]) -> None:
    for part in parts:
        engine.run_part(part)
    parts.clear()


@contextlib.contextmanager
def bulk(engine: Engine, size: int) -> Iterator[None]:
    """Gather the operators called inside into operations of up to ``size`` operators.

    Raises:
        ValueError: ``size`` is below 1.
    """
    if size < 1:
        raise ValueError(f"bulk: size is {size}, expected at least 1")
    scope = _Scope(engine, size)
    frame = enter(_scope, Value(scope))
    try:
        engine.use_bulks(_scope, scope)
        yield
    finally:
        scope.closed = True  # before the rest: tasks and operations started inside may still see the scope
        leave(_scope, frame)
        scope.flush()
        engine.leave_bulks()


def is_inside() -> bool:
    """Return whether a scope may gather the pushes of this context."""
    return _scope.get().value is not None


def leave_scope() -> None:
    """Push each operation separately from here on in this context, even if it was copied inside a scope."""
    assign(_scope, Value(None))
