"""Forks: both processes continue, and a fork followed by ``exec`` does not block an event loop.

Children are forks of the test's process. They end by themselves after some seconds: a hang is a failure.
"""

import asyncio
import contextlib
import os
import pty
import signal
import subprocess
import sys
import threading
import time
import traceback
import urllib.request

import numpy as np
import pytest
import uvloop

import flowmx as mx
from flowmx import event_loops, forks
from flowmx.engine.runtime import engine
from flowmx.errors import EngineError, StateError
from tests.fixtures import record_images as recorded

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork"),
    pytest.mark.filterwarnings(
        "ignore:This process:DeprecationWarning"
    ),  # from 3.12 on, of any fork in a process with threads
]
LONG = 20
"""Seconds after which a child counts as hanging."""


def status(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def in_child(body):
    """Run a function in a child."""
    pid = os.fork()
    if not pid:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(LONG)
        try:
            body()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert status(pid) == 0


@contextlib.contextmanager
def user_code():
    """Run a function on the engine until the block ends; return its handle and the array that it writes."""
    begun, let = threading.Event(), threading.Event()
    written = mx.nd.ones((2,))
    written.wait_to_read()

    def wait():
        begun.set()
        let.wait()

    handle = mx.engine.push(wait, writes=[written])
    begun.wait()
    try:
        yield handle, written
    finally:
        let.set()
        handle.wait()


@contextlib.contextmanager
def coroutine():
    """Run a coroutine on the engine until the block ends."""
    begun = threading.Event()

    async def wait():
        begun.set()
        await asyncio.Event().wait()

    handle = mx.engine.push(wait)
    begun.wait()
    try:
        yield handle
    finally:
        handle.cancel()
        with contextlib.suppress(mx.errors.OperationCancelled):
            handle.wait()


# -- the engine --------------------------------------------------------------------------------------------


def test_a_child_runs_queued_operations_but_no_user_code():
    with user_code() as (handle, written):
        later = mx.engine.push(lambda: None, reads=[written])
        free = (mx.nd.ones((2,)) + 1) * 3
        poisoned = written + 1

        def child():
            assert free.asnumpy().tolist() == [6, 6]
            for lost in (handle.wait, later.wait, poisoned.asnumpy):
                with pytest.raises(EngineError, match="still pending in the parent process at the fork"):
                    lost()
            written[:] = 7
            assert (written * 2).asnumpy().tolist() == [14, 14]
            assert mx.run(asyncio.sleep(0, mx.nd.ones((1,)))).asnumpy() == 1

        in_child(child)
    assert (free + poisoned).asnumpy().tolist() == [8, 8]


def test_a_child_continues_a_queue_that_a_paused_engine_left():
    """The child's first wait starts the operations that had not started at the fork, in order."""
    with user_code():
        with engine.lock:  # whatever the workers would begin by now
            total = mx.nd.zeros((200, 200))
            for _ in range(50):
                total = total + 1
                total += 1
        engine.ending._pause(0)
        try:

            def child():
                assert (total.asnumpy() == 100).all()

            in_child(child)
        finally:
            for actor in engine.actors.values():
                actor.unpause()
    assert (total.asnumpy() == 100).all()


def test_a_child_that_never_uses_the_engine_ends_at_once_and_forks_again():
    with user_code():
        waiting = mx.nd.ones((300, 300)) * 2

        def child():
            start = time.monotonic()
            in_child(lambda: waiting.wait_to_read())
            engine.shutdown()
            assert time.monotonic() - start < 4  # the exit's limit is 5 s

        in_child(child)


def test_locks_of_other_threads_are_free_in_a_child():
    lock, held, let = forks.lock(), threading.Event(), threading.Event()

    def hold():
        with lock:
            held.set()
            let.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()

    def child():
        with lock:
            pass

    try:
        in_child(child)
    finally:
        let.set()
        thread.join()
    with lock:
        in_child(lambda: lock.release())  # the forking thread's own


def test_a_child_ignores_its_parents_loops():
    async def main():
        await mx.engine.push(lambda: None)
        assert asyncio.get_running_loop() in event_loops.running
        in_child(lambda: pytest.fail("the parent's") if event_loops.running else None)

    asyncio.run(main())


# -- exec --------------------------------------------------------------------------------------------------


async def started():
    process = await asyncio.create_subprocess_exec(sys.executable, "-S", "-c", "")
    assert await process.wait() == 0


async def shell():
    process = await asyncio.create_subprocess_shell("true")
    assert await process.wait() == 0


def by_pty():
    pid, descriptor = pty.fork()
    if not pid:
        os.execv("/bin/true", ["true"])
    with contextlib.suppress(OSError):
        os.read(descriptor, 100)
    os.close(descriptor)
    assert status(pid) == 0


STARTS = {
    "subprocess": lambda: subprocess.run(["/bin/true"], check=True),
    "subprocess with preexec_fn": lambda: subprocess.run(["/bin/true"], check=True, preexec_fn=lambda: None),
    "posix_spawn": lambda: status(os.posix_spawn("/bin/true", ["true"], os.environ)),
    "pty.fork": by_pty,
    "fork and exec": lambda: status(os.fork() or os.execv("/bin/true", ["true"])),
    "asyncio": lambda: asyncio.run(started()),
    "uvloop": lambda: uvloop.run(started()),
    "uvloop, a shell": lambda: uvloop.run(shell()),
}


@pytest.mark.parametrize("work", [user_code, coroutine])
@pytest.mark.parametrize("how", STARTS)
def test_starting_a_program_waits_for_no_pending_work(how, work):
    with work():
        start = time.monotonic()
        STARTS[how]()
        assert time.monotonic() - start < 3  # a fork waited for 5 s


def test_a_fork_on_a_loop_waits_for_no_long_operation():
    start = time.monotonic()
    with user_code() as (_, written):
        written += 1

        async def main():
            in_child(lambda: None)

        asyncio.run(main())
    assert time.monotonic() - start < 3
    assert written.asnumpy().tolist() == [2, 2]


# -- users of threads --------------------------------------------------------------------------------------


def predictor(**options):
    net = mx.gluon.nn.Dense(3)
    net.initialize(mx.init.One())
    return mx.serve.Predictor(net, shape=(5,), max_batch=4, **options)


async def answer(predictor_):
    assert (await predictor_([1, 2, 3, 4, 5])).tolist() == [15, 15, 15]
    return predictor_


async def drained(predictor_):
    await (await answer(predictor_)).drain()


@pytest.mark.parametrize("before", ["nothing", "started", "warm", "used", "drained"])
def test_a_predictor_answers_on_both_sides(before):
    predictor_ = predictor()
    if before == "started":
        predictor_.start()
    if before == "warm":
        asyncio.run(predictor_.ready())
    if before == "used":
        asyncio.run(answer(predictor_))
    if before == "drained":
        asyncio.run(drained(predictor_))

    def child():
        if before == "drained":
            with pytest.raises(mx.serve.Unavailable):
                asyncio.run(answer(predictor_))
            asyncio.run(predictor_.ready())
        asyncio.run(answer(predictor_))
        assert predictor_.is_ready
        asyncio.run(drained(predictor_))

    in_child(child)
    if before != "drained":
        asyncio.run(drained(predictor_))


def test_a_predictor_with_requests_under_way_serves_the_childs_own():
    async def main():
        predictor_ = predictor(max_latency=0.5)
        await predictor_.ready()
        waiting = asyncio.ensure_future(predictor_([1, 1, 1, 1, 1]))
        await asyncio.sleep(0)

        def child():
            assert not predictor_._runner.pending
            with asyncio.Runner() as runner:
                runner.run(drained(predictor_))

        in_child(child)
        assert (await waiting).tolist() == [5, 5, 5]
        await predictor_.drain()

    asyncio.run(main())


class Slow(mx.gluon.data.Dataset):
    """Samples, some of which are always in progress."""

    def __len__(self):
        return 12

    def __getitem__(self, index):
        time.sleep(0.002)
        return np.float32(index)


def firsts(batches):
    return [int(batch.asnumpy()[0]) for batch in batches]


@pytest.mark.parametrize("options", [{}, {"num_workers": 2, "thread_pool": True}], ids=str)
def test_a_loaders_epoch_and_the_next_continue_on_both_sides(options):
    loader = mx.gluon.data.DataLoader(Slow(), 2, **options)
    epoch = iter(loader)
    assert firsts([next(epoch)]) == [0]

    def child():
        assert firsts(epoch) == [2, 4, 6, 8, 10]
        assert firsts(loader) == [0, 2, 4, 6, 8, 10]

    in_child(child)
    child()


def test_record_files_can_still_be_read_on_both_sides():
    images = mx.io.ImageRecordIter(
        path_imgrec=str(recorded.FOLDER / "small.rec"), data_shape=(3, 8, 8), batch_size=1, prefetch_buffer=3
    )
    assert images.next().index.tolist() == [0]

    def child():
        assert [int(batch.index[0]) for batch in images] == list(range(1, recorded.IMAGES))

    in_child(child)
    child()


class Blocked(mx.io.DataIter):
    """An iterator that waits in the middle of its batches."""

    def __init__(self):
        super().__init__(1)
        self.count, self.begun, self.let = 0, threading.Event(), threading.Event()
        self.provide_data, self.provide_label = [mx.io.DataDesc("data", (1,))], []

    def reset(self):
        self.count = 0
        self.let.set()

    def next(self):
        self.count += 1
        if self.count > 2:
            raise StopIteration
        if self.count == 2:
            self.begun.set()
            self.let.wait()
        return mx.io.DataBatch([mx.nd.array([self.count])], [], 0)


def test_a_batch_that_was_being_fetched_ahead_is_refused_until_a_reset():
    source = Blocked()
    ahead = mx.io.PrefetchingIter(source)
    ahead.next()
    source.begun.wait()

    def child():
        with pytest.raises(EngineError, match="in the parent process at the fork"):
            ahead.next()
        ahead.reset()
        assert len(list(ahead)) == 2

    try:
        in_child(child)
    finally:
        source.let.set()
    assert len(list(ahead)) == 1


def test_a_batch_that_a_task_was_waiting_for_is_refused_until_a_reset():
    source = Blocked()

    async def main():
        await anext(source)
        waiting = asyncio.ensure_future(anext(source))
        await asyncio.to_thread(source.begun.wait)
        waiting.cancel()

        def child():
            for ask in (lambda: next(source), source.next):
                with pytest.raises(StateError, match=r"call reset\(\)"):
                    ask()
            source.reset()
            assert len(list(source)) == 2

        try:
            in_child(child)
        finally:
            source.let.set()
        assert len([batch async for batch in source]) == 1

    asyncio.run(main())


def test_the_dashboard_and_the_profiler_restart(tmp_path):
    mx.profiler.set_config(filename=str(tmp_path / "trace.json"), profile_all=True)
    mx.profiler.set_state("run")
    dashboard = mx.dashboard.start()

    def read(one):
        with urllib.request.urlopen(one.url, timeout=10) as response:
            return response.status

    def child():
        (mx.nd.ones((3,)) * 2).wait_to_read()
        mx.profiler.set_state("stop")
        mx.profiler.dump()
        assert (tmp_path / "trace.json").stat().st_size
        with mx.dashboard.start() as own:
            assert read(own) == 200

    try:
        assert read(dashboard) == 200
        in_child(child)
        assert read(dashboard) == 200
    finally:
        mx.profiler.set_state("stop")
        dashboard.stop()


class Twice(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], in_data[0] * 2)


class TwiceAsync(Twice):
    async def forward(self, is_train, req, in_data, out_data, aux):
        await asyncio.sleep(0)
        super().forward(is_train, req, in_data, out_data, aux)


@mx.operator.register("fork_twice")
class TwiceProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, shapes, dtypes):
        return Twice()


@mx.operator.register("fork_twice_async")
class TwiceAsyncProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, shapes, dtypes):
        return TwiceAsync()


@pytest.mark.parametrize("kind", ["fork_twice", "fork_twice_async"])
def test_custom_operators_work_on_both_sides(kind):
    def check():
        assert mx.nd.Custom(mx.nd.ones((2,)), op_type=kind).asnumpy().tolist() == [2, 2]

    check()
    in_child(check)
    check()


def test_a_local_store_works_on_both_sides():
    kv = mx.kv.create("local")
    kv.init("a", mx.nd.ones((2,)))

    def check():
        out = mx.nd.zeros((2,))
        kv.push("a", mx.nd.full((2,), 4))
        kv.pull("a", out=out)
        assert out.asnumpy().tolist() == [4, 4]

    check()
    in_child(check)
    check()
