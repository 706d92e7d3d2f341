"""Scopes: each runs work under special conditions and returns the result."""

import asyncio
import contextlib
import gc
import os
import pickle
import signal
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvloop

import flowmx as mx
from flowmx.engine.runtime import engine
from flowmx.observability.dashboard.feed import Viewer
from flowmx.observability.dashboard.sampler_thread import sampling_thread

Work = Callable[[], Any]
PATIENCE = 20
"""Seconds that the child of a fork may take."""


def forked(work: Work) -> Any:
    """In the child of a fork, while the engine of the parent works."""
    x = mx.nd.ones((100, 100))
    busy = mx.nd.dot(x, x)
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks in processes with threads
        pid = os.fork()
    if not pid:
        signal.alarm(PATIENCE)  # ends a child that hangs
        try:
            result, error = work(), ""
        except BaseException:
            result, error = None, traceback.format_exc()
        with os.fdopen(write, "wb") as pipe:
            pickle.dump((result, error), pipe)
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(pid, 0)
    busy.wait_to_read()
    assert not status, f"the child ended with status {os.waitstatus_to_exitcode(status)}"
    result, error = pickle.loads(answer)
    assert not error, error
    return result


def in_thread(work: Work) -> Any:
    """On a second thread."""
    answer: list[Any] = []
    thread = threading.Thread(target=lambda: answer.append(work()))
    thread.start()
    thread.join()
    return answer[0]


def on_loop(work: Work) -> Any:
    """In a coroutine on asyncio's loop."""
    return _on(asyncio.new_event_loop, work)


def on_uvloop(work: Work) -> Any:
    """In a coroutine on uvloop, which starts a subprocess before and after."""

    async def truth():
        process = await asyncio.create_subprocess_exec("true")
        assert await process.wait() == 0

    return _on(uvloop.new_event_loop, work, truth)


def _on(make: Callable[[], asyncio.AbstractEventLoop], work: Work, around: Any = None) -> Any:
    async def main() -> Any:
        if around is not None:
            await around()
        with warnings.catch_warnings():  # the work waits as ordinary code does
            warnings.simplefilter("ignore", mx.engine.BlockingInCoroutineWarning)
            result = work()
        if around is not None:
            await around()
        return result

    def run() -> Any:
        with asyncio.Runner(loop_factory=make) as runner:
            return runner.run(main())

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return run()
    return in_thread(run)  # a loop already runs here


def cancelled(work: Work) -> Any:
    """Next to tasks that wait for arrays and are cancelled repeatedly."""
    stop = threading.Event()

    async def cancel() -> None:
        x = mx.nd.ones((50, 50))
        while not stop.is_set():
            task = asyncio.ensure_future(_awaited(mx.nd.dot(x, x)))
            await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            await asyncio.sleep(0.001)

    thread = threading.Thread(target=asyncio.run, args=(cancel(),))
    thread.start()
    try:
        return work()
    finally:
        stop.set()
        thread.join()


async def _awaited(array: Any) -> None:
    await array


def bulked(work: Work) -> Any:
    """In a bulk scope, which gathers operations."""
    with mx.engine.bulk(8):
        return work()


def naive(work: Work) -> Any:
    """With the naive engine."""
    with mx.engine.using(engine_type="NaiveEngine"):
        return work()


def profiled(work: Work) -> Any:
    """While the profiler runs."""
    with tempfile.TemporaryDirectory() as folder:
        mx.profiler.set_config(filename=str(Path(folder) / "trace.json"), profile_all=True)
        mx.profiler.set_state("run")
        try:
            return work()
        finally:
            mx.profiler.set_state("stop")
            mx.profiler.dump()
            mx.profiler.dumps(reset=True)
            mx.profiler.set_config(filename="profile.json", profile_all=True)


def watched(work: Work) -> Any:
    """While every result is searched for NaN."""
    with mx.anomaly.stop_at_nan():
        return work()


def poisoned(work: Work) -> Any:
    """Next to a failed operation whose error was not read."""
    variable = mx.engine.Variable("poisoned")

    def fail() -> None:
        raise ValueError("a failure next to the work")

    mx.engine.push(fail, writes=[variable])
    try:
        return work()
    finally:
        mx.engine.push(lambda: None, writes=[variable]).wait()
        engine.failures.clear()


def budgeted(work: Work) -> Any:
    """Under a budget for the memory of graphs."""
    with mx.engine.using(exec_memory_budget=1 << 20):
        return work()


def checked(work: Work) -> Any:
    """While the engine and plans check themselves, in random legal orders."""
    with mx.engine.using(engine_check=True):
        return work()


def recording_abandoned(work: Work) -> Any:
    """After a recording generator was abandoned."""

    def generator():
        with mx.autograd.record(), mx.engine.bulk(4), mx.AttrScope(ctx_group="lost"), mx.np_shape(True):
            yield mx.nd.ones((2,)) + 1

    given_up = generator()
    next(given_up)
    del given_up
    gc.collect()
    assert not mx.autograd.is_recording()
    return work()


def collected(work: Work) -> Any:
    """While the garbage collector runs at nearly every allocation."""
    before = gc.get_threshold()
    gc.set_threshold(20, 2, 2)
    try:
        return work()
    finally:
        gc.set_threshold(*before)


def dashboard(work: Work) -> Any:
    """While a dashboard looks at the process."""
    stop = threading.Event()

    async def view() -> None:
        with Viewer(sampling_thread):
            started.set()
            await asyncio.to_thread(stop.wait)

    started = threading.Event()
    viewer = threading.Thread(target=asyncio.run, args=(view(),))
    viewer.start()
    started.wait()
    try:
        return work()
    finally:
        stop.set()
        viewer.join()


def named(work: Work) -> Any:
    """Within scopes of names and attributes."""
    with mx.name.Prefix("scope_"), mx.AttrScope(note="scope"):
        return work()


def cached(work: Work) -> Any:
    """With room for hardly any compiled graph."""
    with mx.engine.using(graph_cache=0):
        return work()
