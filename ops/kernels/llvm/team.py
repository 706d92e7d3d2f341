"""Threads that help with a call, without the interpreter: the caller never waits for a helper that has not started.

A compiled function takes its tasks from a counter, so the caller alone could do them all. :func:`run` opens a
gate for helpers, works itself until no task is left, closes the gate, and waits for the helpers that passed it.
A helper that the system schedules too late finds the gate closed. libgomp's barrier, in contrast, waits for
every thread of its team: where the cores are busy, or threads sleep, a barrier costs more than
the second core brings. (A softmax of a million elements took 0.12 ms on one thread, and 0.2 ms on libgomp next to the
engine's threads, with outliers of milliseconds.)

The two functions are written in LLVM assembly. They share these words:

    gate     twice the number of helpers inside, plus 1 while it is open
    left     how many helpers have left; a futex that the caller sleeps on
    waits    1 while the caller sleeps, or is about to
    calls    counts calls; a futex that helpers sleep on
        asleep   the number of sleeping helpers
        busy     1 during a call; a concurrent call is then run by its caller alone
        function, words, limit: the function that helpers call, its argument, and the maximum number of helpers
"""

from __future__ import annotations

import ctypes
import platform
import sys
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

from flowmx import process_hooks, settings
from flowmx.devices.threads import kernel_threads
from flowmx.ops.kernels.llvm import compiler
from flowmx.ops.kernels.llvm.background_compilation import Program
from flowmx.ops.kernels.recording import current
from flowmx.ops.registry.operators import Array

_FUTEX = {"x86_64": 202, "aarch64": 98}
_WAIT, _WAKE = 128, 129  # with FUTEX_PRIVATE_FLAG

_SPINS = 400
"""The number of times a helper polls for the next call, yielding to other threads in between, before it sleeps."""

_PATIENCE = 300
"""The number of times a caller checks whether its helpers have left (about 50 µs in all) before it sleeps. The system
may have taken their core away."""

# Each on a separate cache line.
_WORDS = {name: 8 * number for number, name in enumerate(
    ("gate", "left", "waits", "calls", "asleep", "busy", "function", "words", "limit"))}  # fmt: skip
_SIZE = 64 * len(_WORDS)

_COMMON = """
declare i64 @syscall(i64, ...)
declare i32 @sched_yield()
"""

_RUN = """
define void @kernel(ptr %team, ptr %function, ptr %words, i64 %limit) nounwind {
entry:
  {places}
  %taken = cmpxchg ptr %busy, i64 0, i64 1 acquire monotonic
  %free = extractvalue {i64, i1} %taken, 1
  br i1 %free, label %open, label %alone
alone:
  call void %function(ptr %words)
  ret void
open:
  store ptr %function, ptr %function_at
  store ptr %words, ptr %words_at
  store i64 %limit, ptr %limit_at
  store i64 0, ptr %left
  store atomic i64 1, ptr %gate release, align 8
  %before = atomicrmw add ptr %calls, i64 1 seq_cst
  %sleeping = load atomic i64, ptr %asleep seq_cst, align 8
  %any = icmp ne i64 %sleeping, 0
  br i1 %any, label %wake, label %work
wake:
  %woken = call i64 (i64, ...) @syscall(i64 {futex}, ptr %calls, i32 {wake}, i32 1024, ptr null, ptr null, i32 0)
  br label %work
work:
  call void %function(ptr %words)
  %was = atomicrmw and ptr %gate, i64 -2 acq_rel
  %inside = lshr i64 %was, 1
  br label %look
look:
  %round = phi i64 [0, %work], [%next, %pause]
  %gone = load atomic i64, ptr %left acquire, align 8
  %all = icmp eq i64 %gone, %inside
  br i1 %all, label %done, label %wait
wait:
  %next = add i64 %round, 1
  %long = icmp ugt i64 %round, {patience}
  br i1 %long, label %rest, label %pause
pause:
  {pause}
  br label %look
rest:
  store atomic i64 1, ptr %waits seq_cst, align 8
  %seen = load atomic i64, ptr %left seq_cst, align 8
  %ended = icmp eq i64 %seen, %inside
  br i1 %ended, label %risen, label %sleep
sleep:
  %low = trunc i64 %seen to i32
  %slept = call i64 (i64, ...) @syscall(i64 {futex}, ptr %left, i32 {wait}, i32 %low, ptr null, ptr null, i32 0)
  br label %rest
risen:
  store atomic i64 0, ptr %waits monotonic, align 8
  br label %done
done:
  store atomic i64 0, ptr %busy release, align 8
  ret void
}
"""

_HELP = """
define void @kernel(ptr %team) nounwind {
entry:
  {places}
  br label %rest
rest:
  %known = phi i64 [-1, %entry], [%call, %leave], [%call, %sleep]
  br label %look
look:
  %round = phi i64 [0, %rest], [%next, %yield]
  %call = load atomic i64, ptr %calls acquire, align 8
  %at = load atomic i64, ptr %gate acquire, align 8
  %bit = and i64 %at, 1
  %is_open = icmp ne i64 %bit, 0
  %is_new = icmp ne i64 %call, %known
  %come = and i1 %is_open, %is_new
  br i1 %come, label %room, label %stay
room:
  %inside = lshr i64 %at, 1
  %limit = load i64, ptr %limit_at
  %fits = icmp ult i64 %inside, %limit
  br i1 %fits, label %enter, label %stay
enter:
  %more = add i64 %at, 2
  %tried = cmpxchg ptr %gate, i64 %at, i64 %more acq_rel monotonic
  %entered = extractvalue {i64, i1} %tried, 1
  br i1 %entered, label %work, label %stay
work:
  %function = load ptr, ptr %function_at
  %words = load ptr, ptr %words_at
  call void %function(ptr %words)
  %gone = atomicrmw add ptr %left, i64 1 seq_cst
  %awaited = load atomic i64, ptr %waits seq_cst, align 8
  %sleeps = icmp ne i64 %awaited, 0
  br i1 %sleeps, label %rouse, label %leave
rouse:
  %roused = call i64 (i64, ...) @syscall(i64 {futex}, ptr %left, i32 {wake}, i32 1, ptr null, ptr null, i32 0)
  br label %leave
leave:
  br label %rest
stay:
  %next = add i64 %round, 1
  %tired = icmp ugt i64 %round, {spins}
  br i1 %tired, label %sleep, label %yield
yield:
  {pause}
  %yielded = call i32 @sched_yield()
  br label %look
sleep:
  %one_more = atomicrmw add ptr %asleep, i64 1 seq_cst
  %low = trunc i64 %call to i32
  %slept = call i64 (i64, ...) @syscall(i64 {futex}, ptr %calls, i32 {wait}, i32 %low, ptr null, ptr null, i32 0)
  %one_less = atomicrmw sub ptr %asleep, i64 1 seq_cst
  br label %rest
}
"""


def _text(template: str) -> str:
    names = {name: f"{name}_at" if name in ("function", "words", "limit") else name for name in _WORDS}
    places = [f"%{names[name]} = getelementptr i64, ptr %team, i64 {at}" for name, at in _WORDS.items()]
    pause = "call void @llvm.x86.sse2.pause()" if platform.machine() == "x86_64" else ""
    values = {
        "{places}": "\n  ".join(places),
        "{futex}": str(_FUTEX[platform.machine()]),
        "{wait}": str(_WAIT),
        "{wake}": str(_WAKE),
        "{spins}": str(_SPINS),
        "{patience}": str(_PATIENCE),
        "{pause}": "\n  ".join([pause] * 8),
    }
    for key, value in values.items():
        template = template.replace(key, value)
    return _COMMON + ("declare void @llvm.x86.sse2.pause()\n" if pause else "") + template


class Runner(NamedTuple):
    """The address of the function that runs tasks on several threads, and of the team, its first argument."""

    function: int
    team: int


class Team:
    """The helper threads of this process, started on demand; they live as long as the process."""

    def __init__(self) -> None:
        self._memory = ctypes.create_string_buffer(_SIZE + 64)
        self._team = -(-ctypes.addressof(self._memory) // 64) * 64
        self._helpers = 0
        self._lock = threading.RLock()
        self._run: Any = None

    def run(self, function: compiler.Compiled, words: bytes, threads: int) -> None:
        """Call a function of tasks on at most ``threads`` threads, including the caller's."""
        if self._helpers < threads - 1 and not self._grow(threads - 1):
            function.call(words)
        else:
            self._run(self._team, function.address, words, threads - 1)

    def runner(self, threads: int) -> Runner | None:
        """Return how native code calls a function of tasks on several threads; None if there are no helpers (yet)."""
        if self._helpers < threads - 1 and not self._grow(threads - 1):
            return None
        program = _run_program.get()
        return None if program is None else Runner(program.address, self._team)

    def _grow(self, count: int) -> bool:
        """Start helpers up to this number; return False if none can be started (yet)."""
        run, helper = _run_program.get(), _help_program.get()
        if run is None or helper is None:
            return False
        with self._lock:
            if self._run is None:
                prototype = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64)
                self._run = prototype(run.address)
                compiler.keep(self._memory)  # helpers read it as long as the process lives
            serve = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(helper.address)
            while self._helpers < count:
                # The threads never return, so they never need the interpreter again.
                name = f"flowmx-helper-{self._helpers}"
                try:
                    threading.Thread(target=serve, args=(self._team,), name=name, daemon=True).start()
                except RuntimeError:  # the interpreter is about to end
                    return False
                self._helpers += 1
        return True


supported = sys.platform.startswith("linux") and platform.machine() in _FUTEX

_run_program = Program(lambda features: _text(_RUN))
_help_program = Program(lambda features: _text(_HELP))
_team = Team()
_count: tuple[Any, int] = (None, 1)


def count() -> int:
    """Return the number of threads that one call may use."""
    global _count
    config = settings.get()
    if _count[0] is not config:
        _count = (config, kernel_threads(config))
    return _count[1]


def run(
    function: compiler.Compiled, words: bytes, threads: int, arrays: Sequence[Array] | None = None,
    needs_lines: bool = False, addresses: Sequence[int] | None = None,
) -> None:  # fmt: skip
    """Call a compiled function, which takes its tasks from a counter in ``words``.

    Args:
        function: the function.
        words: its arguments.
        threads: the maximum number of threads.
        arrays: the arrays that the last words stand for.
        needs_lines: whether each row of the arrays must begin at a cache line.
        addresses: the addresses that are the last words, instead of arrays. With neither, the call is not recorded.
    """
    recording = current()
    if recording is not None:
        if arrays is not None:
            recording.add_loop(function.address, words, arrays, threads, needs_lines)
        elif addresses is not None:
            recording.add_loop_at(function.address, words, addresses, threads)
        else:
            recording.is_complete = False
    if threads > 1 and supported:
        _team.run(function, words, threads)
    else:
        function.call(words)


def runner(threads: int) -> Runner | None:
    """Return how native code calls a function of tasks on several threads; None if it must call it directly."""
    return _team.runner(threads) if supported else None


def _after_fork() -> None:
    """Replace the team in a forked child, which has no helper threads."""
    global _team
    _team = Team()


process_hooks.at_fork(after_in_child=_after_fork)
