"""Waiting: blocking reads for plain threads, awaits for coroutines, and what must not be waited for.

A thread that waits lends itself: where the operation it waits for has not started and its actor has a free slot, the
thread runs the actor's ready operations instead of sleeping, which is what makes push-and-wait cost microseconds and
not a thread hop.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import warnings
from collections.abc import Generator, Iterable, Iterator
from time import monotonic
from typing import Any

from flowmx.engine.actor import Actor, ThreadActor
from flowmx.engine.loops import running
from flowmx.engine.origin import user_frame
from flowmx.engine.scheduler import DONE, READY, RUNNING, Marks, Operation, Token, Variable
from flowmx.engine.state import EngineState, Wait, current
from flowmx.errors import EngineError

# Every so many awaits that needed no wait, yield to the loop all the same, so that a task which awaits
# tiny operations in a loop does not starve its neighbours (64 of them take about half a millisecond).
_YIELD_EVERY = 64
_PRIVATE_FRAMES_HIDDEN = 2
# Seconds after which a blocked thread looks whether what it waits for has been lost.
_LOOK_AFTER = 1.0


class BlockingInCoroutineWarning(UserWarning):
    """A blocking read was used inside a coroutine, where an awaited one belongs."""


class _Circle(EngineError):
    """An operation would wait for one that waits for it."""


class Waiting(EngineState):
    """What waits for operations."""

    def wait(self, op: Operation) -> None:
        """Block this thread until an operation is complete (without raising its error)."""
        if op.state == DONE:
            return
        if asyncio._get_running_loop() is not None:
            self._blocking_in_coroutine(op)
        self._wait(op)

    def _wait(self, op: Operation) -> None:
        if self.open_bulks:
            self._flush_bulks()
        if current.get() is not None:
            with self._waiting_inside(op):
                self._wait_lending(op)
        else:
            self._wait_lending(op)

    def _wait_lending(self, op: Operation) -> None:
        inside = self.here.actor
        if not isinstance(inside, ThreadActor):
            self._lend(op.actor, op, False)
            if op.state != DONE:
                self._block(op)
            return
        with self.lock:
            inside.yield_slot()
        try:
            # What runs user code would stand on top of this operation's own stack, and may wait for it.
            if current.get() is None:
                self._lend(op.actor, op, False)
            self._block(op)
        finally:
            with self.lock:
                inside.regain_slot()

    def _lend(self, actor: Actor, until: Operation | None, light: bool) -> None:
        """Run ready operations of an actor on this thread, until one is done or nothing (light) is ready."""
        op: Operation | None = None
        here = self.here
        inside = here.actor
        try:
            with self.lock:
                if not actor.may_lend or (until is not None and until.state == DONE) or not actor.claim():
                    return
                op = actor.mailbox.take(light)
                if op is None:
                    actor.release()
                    return
                op.state = RUNNING
            here.actor = actor
            with self.guard():
                while op is not None:
                    op = self.execute(op, actor, None, until, light)
            here.actor = inside
            with self.lock:
                actor.release()
        except BaseException as error:
            here.actor = inside
            self._mend(op, error)
            raise

    def _block(self, op: Operation) -> None:
        gate = threading.Lock()
        gate.acquire()
        with self.lock:
            if op.state == DONE:
                return
            op.waiters = [*(op.waiters or ()), gate.release]
        try:
            self.waits[gate] = Wait(op, monotonic(), threading.get_ident())
            while not gate.acquire(timeout=_LOOK_AFTER):
                self._find_lost()
        finally:
            self.waits.pop(gate, None)

    def _find_lost(self) -> None:
        """Hand over again what is ready and in no mailbox: an interrupt between two bytecodes lost it."""
        with self.lock:
            ready = [each for each in self.pending if each.state == READY]
            queued = {each for actor in self.actors.values() for each in actor.mailbox}
            for each in ready:
                if each not in queued:
                    each.actor.accept(each)

    def must_yield(self) -> bool:
        """True at every 64th await that needs no wait: it yields to the loop all the same."""
        self._awaits += 1
        return self._awaits % _YIELD_EVERY == 0

    def wait_async(self, op: Operation) -> Generator[Any, None, None]:
        """Await an operation (``yield from`` in an ``__await__``); cancelling abandons only the wait."""
        if self.must_yield():
            yield
        if op.state == DONE:
            return
        if self.open_bulks:
            self._flush_bulks()
        if op.light:
            self._lend(op.actor, op, True)
            if op.state == DONE:
                return
        if current.get() is None:
            yield from self._wait_in_loop(op)
        else:
            with self._waiting_inside(op):
                yield from self._wait_in_loop(op)

    def _wait_in_loop(self, op: Operation) -> Generator[Any, None, None]:
        loop = asyncio.get_running_loop()
        if loop not in running:
            running[loop] = threading.get_ident()
        future: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            try:
                loop.call_soon_threadsafe(_resolve, future)
            except RuntimeError:  # the waiter's loop is closed: nobody waits any more
                pass

        with self.lock:
            if op.state == DONE:
                return
            op.waiters = [*(op.waiters or ()), wake]
        try:
            self.waits[future] = Wait(op, monotonic(), threading.get_ident(), asyncio.current_task(loop))
            yield from future
        finally:
            self.waits.pop(future, None)
            if not future.done() or future.cancelled():
                with self.lock:
                    if op.waiters and wake in op.waiters:
                        op.waiters.remove(wake)

    def wait_variable(self, variable: Variable) -> None:
        """Block until the writes pushed on a variable so far are done; raises what poisoned it."""
        writer = variable.writer
        if writer is not None and writer.state != DONE:
            if self.holds(variable):
                return
            self.wait(writer)
        if variable.marks is not None:
            self._wait_for_device(variable.marks)
        if variable.failure is not None:
            variable.failure.throw()

    def wait_variable_async(self, variable: Variable) -> Generator[Any, None, None]:
        """The awaited form of :meth:`wait_variable`."""
        writer = variable.writer
        if writer is not None:
            if writer.state != DONE and self.holds(variable):
                return
            yield from self.wait_async(writer)
        elif self.must_yield():
            yield
        if variable.marks is not None:
            yield from self.wait_for_device(variable.marks)
        if variable.failure is not None:
            variable.failure.throw()

    def _wait_for_device(self, marks: Marks) -> None:
        """Block until what was launched has been done; raises what went wrong on the device."""
        if not marks.done() and asyncio._get_running_loop() is not None:
            self._warn_of_blocking("a device")
        failure = marks.finish()
        if failure is not None:
            failure.throw()

    def wait_for_device(self, waited: Marks | Token) -> Generator[Any, None, None]:
        """The awaited form: a thread beside the loop waits."""
        if not waited.done():
            yield from asyncio.get_running_loop().run_in_executor(None, waited.finish)
        failure = waited.finish()
        if failure is not None:
            failure.throw()

    @contextlib.contextmanager
    def standing_aside(self) -> Iterator[None]:
        """While this thread waits for a device, let another worker take its place, where it is one."""
        inside = self.here.actor
        if not isinstance(inside, ThreadActor):
            yield
            return
        with self.lock:
            inside.yield_slot()
        try:
            yield
        finally:
            with self.lock:
                inside.regain_slot()

    def holds(self, variable: Variable) -> bool:
        """True inside an operation that reads or writes the variable: it is there, and later writers wait."""
        op = current.get()
        return op is not None and (variable in op.reads or variable in op.writes)

    def _behind(self) -> set[Operation]:
        """The operation that this code runs in and all that wait for it (usually: none)."""
        inside = current.get()
        if inside is None or inside.state == DONE:
            return set()
        with self.lock:
            return self._after([inside])

    def _after(self, ops: Iterable[Operation]) -> set[Operation]:
        """These operations and all that can not end before one of them does (locked)."""
        found = set(ops)
        todo = list(found)
        while todo:
            op = todo.pop()
            later = {*(op.dependents or ()), *(outer for outer, inner in self._waits_inside if inner is op)} - found
            found |= later
            todo += later
        return found

    @contextlib.contextmanager
    def _waiting_inside(self, op: Operation) -> Iterator[None]:
        """Say that the operation which this code runs in waits for another one.

        Raises:
            EngineError: that one can not end before this one does.
        """
        inside = current.get()
        assert inside is not None
        wait = (inside, op)
        with self.lock:
            if op in self._behind():
                raise _Circle(
                    f"an operation waits inside itself for {op.name!r}, which can not end before it does: wait "
                    "outside, or push what is to come later without waiting"
                )
            self._waits_inside.append(wait)
        try:
            yield
        finally:
            with self.lock:
                self._waits_inside.remove(wait)

    def wait_all(self, throw: bool = True) -> None:
        """Block until everything pushed so far is complete; raises the first error nobody has seen."""
        with self.lock:
            waiting = list(self.pending)
        in_loop = asyncio._get_running_loop() is not None
        # The last first: when it is done, most are.
        for op in reversed(waiting):
            if op.state != DONE and op not in self._behind():
                if in_loop:
                    self._blocking_in_coroutine(op)
                with contextlib.suppress(_Circle):
                    self._wait(op)
        for synchronize in list(self.synchronizers):
            synchronize()
        if throw:
            self._throw_unseen()

    def wait_all_async(self) -> Generator[Any, None, None]:
        """The awaited form of :meth:`wait_all`."""
        with self.lock:
            waiting = list(self.pending)
        for op in reversed(waiting):
            if op.state != DONE:
                with contextlib.suppress(_Circle):
                    yield from self.wait_async(op)
        for synchronize in list(self.synchronizers):
            yield from asyncio.get_running_loop().run_in_executor(None, synchronize)
        self._throw_unseen()

    def _throw_unseen(self) -> None:
        with self.lock:
            unseen = [failure for failure in self.failures if not failure.seen]
            self.failures.clear()
        if unseen:
            for failure in unseen:
                failure.seen = True
            min(unseen, key=lambda failure: failure.serial).throw()  # several workers may have failed in any order

    def _blocking_in_coroutine(self, op: Operation) -> None:
        """Law 2: a blocking read inside a coroutine warns once per place, or is an error."""
        if threading.current_thread() is self._loop_thread:
            with self.lock:
                # What does not lend its work runs on this loop, or is code that may wait for it.
                needing = [
                    each
                    for each in self.pending
                    if not (each.actor.may_lend or (each.actor.launches and each.bulkable))
                    and each is not current.get()
                ]
                if op in self._after(needing):
                    raise EngineError(
                        f"a coroutine operation would block the engine's own loop until {op.name!r} is complete, "
                        "which needs that loop: await it instead"
                    )
            return
        self._warn_of_blocking(repr(op.name))

    def _warn_of_blocking(self, what: str) -> None:
        """A blocking read inside a coroutine waits: warn once per place, or raise."""
        mode = self.config.blocking_in_loop
        if mode == "allow" or _in_notebook():
            return
        frame = user_frame(_PRIVATE_FRAMES_HIDDEN)
        place = (frame.f_code.co_filename, frame.f_lineno) if frame is not None else ("?", 0)
        message = (
            f"a blocking read inside a coroutine waits for {what} and holds up the event loop: "
            "write `await array` first (or `await mx.nd.waitall_async()`), then read it"
        )
        if mode == "error":
            raise EngineError(f"{place[0]}:{place[1]}: {message}")
        if place in self._warned:
            return
        self._warned.add(place)
        warnings.warn_explicit(message, BlockingInCoroutineWarning, place[0], place[1])


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _in_notebook() -> bool:
    """True inside an IPython kernel or shell, where a loop always runs and blocking reads are normal."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None
