"""Bulking: several small operations pushed as one, as ``mxnet.engine.bulk`` does.

Inside ``with bulk(size):`` the operations of one actor are gathered into one open operation, which takes
on their reads and writes as they come and is let go when it is full, when the scope ends, or when anybody
waits for something. An operation that would make the open one wait for something pushed after
it starts a new bulk: a later operation may already depend on the open one, and the two would wait for
each other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

from flowmx.engine.runtime import Engine, SettledArguments
from flowmx.engine.scheduler import DONE, Operation, Variable

_scope: ContextVar[_Scope | None] = ContextVar("flowmx_bulk", default=None)


class _Scope:
    """The operations that one ``with bulk`` block has gathered so far."""

    def __init__(self, engine: Engine, size: int) -> None:
        self.engine = engine
        self.size = size
        self.parts: list[Operation] = []
        self.op: Operation | None = None
        self.closed = False

    def add(self, part: Operation) -> None:
        """Gather an operation; it is pushed with the others when the bulk is let go."""
        with self.engine.lock:
            try:
                self._add(part)
            except BaseException as error:
                self._give_up(error)
                raise

    def _add(self, part: Operation) -> None:
        if self.op is not None and (part.actor is not self.op.actor or self._waits_for_later(part, self.op)):
            self.flush()
        if self.op is None:
            self.parts = []
            self.op = Operation(
                _run_parts,
                SettledArguments((self.engine, self.parts)),
                (),
                (),
                part.actor,
                "bulk",
                part.origin,
            )
            self.engine.scheduler.push(self.op, hold=1)
            self.engine.open_bulks[self] = None
        op = self.op
        self.engine.scheduler.tag(op, part.reads, part.writes)
        op.reads += part.reads
        op.writes += part.writes
        op.nbytes += part.nbytes
        self.engine.pending_bytes += part.nbytes
        self.parts.append(part)
        if len(self.parts) >= self.size:
            self.flush()

    def flush(self) -> None:
        """Let the open operation go."""
        with self.engine.lock:
            op = self.op
            if op is None:
                return
            try:
                self.engine.open_bulks.pop(self, None)
                self.op = None
                if self.engine.scheduler.unhold(op):
                    op.actor.accept(op)
            except BaseException as error:
                self.op = op
                self._give_up(error)
                raise

    def _give_up(self, error: BaseException) -> None:
        """An interrupt struck: the open operation fails (locked)."""
        op, self.op = self.op, None
        self.engine.open_bulks.pop(self, None)
        if op is not None:
            op.held = 0
        self.engine._mend(op, error)

    @staticmethod
    def _waits_for_later(part: Operation, op: Operation) -> bool:
        def later(variable: Variable, read: bool) -> bool:
            blockers = (variable.writer,) if read else (variable.writer, *(variable.readers or ()))
            return any(b is not None and b.state != DONE and b.serial > op.serial for b in blockers)

        return any(later(v, True) for v in part.reads) or any(later(v, False) for v in part.writes)


def _run_parts(engine: Engine, parts: list[Operation]) -> None:
    for part in parts:
        engine.settle(part)
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
    engine.use_bulks(_scope)
    try:
        yield
    finally:
        _scope.reset(token)
        scope.closed = True  # tasks and operations begun inside may still see it
        scope.flush()
