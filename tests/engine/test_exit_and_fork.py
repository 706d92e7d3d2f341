"""Law 5: exit, interrupt, fork and cancellation never hang and never crash.

Endings of processes are tested in separate processes. A hang shows as a timeout, which is a failure.
"""

import contextlib
import contextvars
import faulthandler
import functools
import os
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import flowmx as mx
from flowmx import devices
from flowmx.cached_op import CachedOp
from flowmx.engine import State, pushing
from flowmx.engine.scheduler import Operation
from flowmx.errors import EngineError, OperationCancelled
from tests.interruptions import strike
from tests.python_processes import finish, run, start

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="written for systems with fork and signals"),
    pytest.mark.usefixtures("whole_endings"),
]

KINDS = ["NaiveEngine", "ThreadedEngine", "ThreadedEnginePerDevice"]


def run_all(jobs):
    """Run ``(script, seed, settings)`` two at a time, and return ``(code, out, err)`` of each."""
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda job: run(job[0], job[1], **job[2]), jobs))


# -- exit --------------------------------------------------------------------------------------------------

SILENT = {
    "many operations": """
        a = mx.nd.ones((10, 10))
        for _ in range(rng.randrange(3000)):
            a = a * 0.5 + 1
    """,
    "heavy operations": """
        a = mx.nd.random.normal(shape=(500, 500))
        for _ in range(rng.randrange(1, 40)):
            a = mx.nd.dot(a, a) * 0.01
    """,
    "functions": """
        x = mx.engine.Variable()
        for i in range(rng.randrange(2000)):
            mx.engine.push(lambda: sum(range(100)), writes=[x] if i % 2 else [], priority=i % 3 - 1)
    """,
    "coroutines": """
        async def work():
            await asyncio.sleep(rng.random() / 100)
        for _ in range(rng.randrange(200)):
            mx.engine.push(work)
    """,
    "copies between devices": """
        a = mx.nd.ones((300, 300))
        for i in range(rng.randrange(300)):
            a = a.as_in_context(mx.cpu(i % 2)) * 1.0
    """,
    "a coroutine that never waits": """
        async def main():
            a = mx.nd.ones((300, 300))
            for _ in range(rng.randrange(200)):
                a = a * 1.0
        mx.run(main())
    """,
    "a bulk": """
        scope = mx.engine.bulk(10)
        scope.__enter__()
        a = mx.nd.ones((300, 300))
        for _ in range(rng.randrange(100)):
            a = a * 1.0
    """,
    "threads that push": """
        def push():
            a = mx.nd.ones((300, 300))
            for _ in range(rng.randrange(300)):
                a = a * 1.0
        for _ in range(3):
            threading.Thread(target=push).start()
    """,
    "a thread that pushes first when the program ends": """
        def push():
            while threading.main_thread().is_alive():
                time.sleep(0)
            a = mx.nd.ones((300, 300))
            for _ in range(3):
                a = a * 2
            assert a.asnumpy()[0, 0] == 8
        threading.Thread(target=push).start()
    """,
    "sys.exit": """
        a = mx.nd.ones((300, 300))
        for _ in range(rng.randrange(300)):
            a = a * 1.0
        sys.exit(0)
    """,
    "an await that was cancelled": """
        async def main():
            a = mx.nd.random.normal(shape=(500, 500))
            for _ in range(20):
                a = mx.nd.dot(a, a) * 0.01
            try:
                await asyncio.wait_for(_wait(a), rng.random() / 100)
            except TimeoutError:
                pass
        async def _wait(a):
            await a
        mx.run(main())
    """,
    "a loop closed with awaits pending": """
        if os.environ.get("FLOWMX_ENGINE_TYPE") == "NaiveEngine":
            sys.exit(0)  # it would run the wait at the push, and never return
        go_on = threading.Event()
        if mx.engine.stats()["kind"] == "NaiveEngine":
            go_on.set()
        handle = mx.engine.push(go_on.wait)
        async def wait():
            await handle
        loop = mx.engine.new_event_loop(rng.random() < 0.5)
        task = loop.create_task(wait())
        loop.run_until_complete(asyncio.sleep(0))
        task._log_destroy_pending = False
        loop.close()
        go_on.set()
    """,
}


@pytest.mark.parametrize("count", [24, pytest.param(200, marks=[pytest.mark.soak, pytest.mark.timeout(1200)])])
def test_exit_with_pending_work_is_silent_and_successful(count):
    names = list(SILENT)
    jobs = [(SILENT[names[i % len(names)]], i, {"engine_type": KINDS[-1 - i // len(names) % 3]}) for i in range(count)]
    for i, (code, out, err) in enumerate(run_all(jobs)):
        assert (code, out, err) == (0, "", ""), f"{names[i % len(names)]}, seed {i}, {jobs[i][2]}"


PREFETCHING = """
class Source(mx.io.DataIter):
    def __init__(self, seconds, error=None):
        super().__init__(1)
        self.seconds, self.error = seconds, error
        self.provide_data, self.provide_label = [mx.io.DataDesc("data", (1,))], []
    def reset(self):
        pass
    def next(self):
        time.sleep(self.seconds)
        if self.error:
            raise self.error
        return mx.io.DataBatch([mx.nd.ones((1,)) * 2], [], 0)

batches = mx.io.PrefetchingIter([Source(rng.choice(SECONDS)) for _ in range(2)])
"""
SOON, NEVER = "SECONDS = 0, 0.001, 0.02\n" + PREFETCHING, "SECONDS = [3600]\n" + PREFETCHING
WITH_BATCHES_AHEAD = {
    "at once": (SOON, 0, ""),
    "after some": (SOON + "for _ in range(rng.randrange(30)): next(batches)", 0, ""),
    "at a reset": (SOON + "next(batches)\nbatches.reset()", 0, ""),
    "in a loop": (SOON + "async def main():\n async for _ in batches: break\nasyncio.run(main())", 0, ""),
    "by an exception": (SOON + "next(batches)\n{}['mine']", 1, "KeyError: 'mine'"),
    "by sys.exit": (SOON + "sys.exit(3)", 3, ""),
    "dropped": (
        SOON + "next(batches)\ndel batches\nwhile any('prefetch' in each.name for each in threading.enumerate()): "
        "time.sleep(0.01)", 0, "",
    ),
    "a source that never answers": (NEVER, 0, ""),
    "a source that never answers, by an exception": (NEVER + "{}['mine']", 1, "KeyError: 'mine'"),
    "a source that fails": (SOON + "batches = mx.io.PrefetchingIter(Source(0, OSError('lost')))", 0, ""),
    "a source that fails, asked": (
        SOON + "batches = mx.io.PrefetchingIter(Source(0, OSError('lost')))\nnext(batches)", 1, "OSError: lost",
    ),
}  # fmt: skip


def test_exit_with_prefetched_batches():
    kinds = KINDS[1:]  # the other one fetches on request
    jobs = [(script, i, {"engine_type": kinds[i % 2]}) for i, (script, _, _) in enumerate(WITH_BATCHES_AHEAD.values())]
    for (name, (_, status, message)), (code, out, err) in zip(WITH_BATCHES_AHEAD.items(), run_all(jobs), strict=True):
        assert (code, out) == (status, ""), f"{name}: {err}"
        assert (message in err and err.count("Traceback") == 1) if message else not err, f"{name}: {err}"


LOUD = {
    "a coroutine that never ends": (
        """
        async def forever():
            await asyncio.Event().wait()
        mx.engine.push(forever)
        a = mx.nd.ones((2,))
        mx.engine.push(forever, writes=[a])
        a += 1
        """,
        0,
        "still pending",
    ),
    "a coroutine that will not be stopped": (
        """
        async def forever():
            while True:
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    pass
        mx.engine.push(forever)
        """,
        0,
        "still pending",
    ),
    "slow values that nobody reads": (  # 501 operations
        """
        import numpy as np
        np.linalg.svd = lambda *args, **how: threading.Event().wait(3600)
        net = mx.gluon.nn.Sequential()
        for _ in range(100):
            net.add(mx.gluon.nn.Dense(4, in_units=4))
        net.initialize(mx.init.Orthogonal())
        """,
        0,
        None,
    ),
    "slow values that the user's code reads": (
        """
        import numpy as np
        np.linalg.svd = lambda *args, **how: threading.Event().wait(3600)
        weight = mx.gluon.Parameter("weight", shape=(4, 4), init=mx.init.Orthogonal())
        weight.initialize()
        mx.engine.push(print, reads=[weight.data()])
        """,
        0,
        "still pending",
    ),
    "a function that never ends": ("mx.engine.push(lambda: threading.Event().wait(), name='sleeper')", 0, "'sleeper'"),
    "an error that nobody waited for": (
        """
        a = mx.nd.ones((2,))
        mx.engine.push(lambda: {}["lost"], writes=[a])
        b = a + 1
        """,
        1,
        "KeyError: 'lost'",
    ),
    "an operation that was cancelled": (
        """
        may_end = threading.Event()
        mx.engine.push(may_end.wait)
        mx.engine.push(lambda: None).cancel()
        may_end.set()
        """,
        0,
        "",
    ),
    "an error that nobody waited for, where that is no failure": (
        """
        import os
        os.environ["FLOWMX_EXIT_FAILS"] = "0"
        mx.settings.reload()
        mx.engine.push(lambda: {}["lost"])
        """,
        0,
        "KeyError: 'lost'",
    ),
    "an exception of the program": ("a = mx.nd.ones((300, 300)) * 2\n{}['mine']", 1, "KeyError: 'mine'"),
    "sys.exit in an operation somebody waits for": ("mx.engine.push(lambda: sys.exit(5)).wait()", 5, ""),
    "sys.exit in a coroutine somebody waits for": (
        """
        async def leave():
            sys.exit(6)
        mx.engine.push(leave).wait()
        """,
        6,
        "",
    ),
    "sys.exit in an operation nobody waits for": ("mx.engine.push(lambda: sys.exit(7))", 1, "SystemExit: 7"),
    "sys.exit in a task": (
        """
        async def main():
            await (mx.nd.ones((300, 300)) * 2)
            sys.exit(8)
        mx.run(main())
        """,
        8,
        "",
    ),
    "a thread that pushes on": (
        """
        started = threading.Event()
        def push():
            a = mx.nd.ones((300, 300))
            try:
                while True:
                    a = a * 1.0
                    started.set()
            except mx.engine.EngineError as error:
                assert "shut down" in str(error)
        threading.Thread(target=push, daemon=True).start()
        started.wait()
        """,
        0,
        None,
    ),
}


@pytest.mark.parametrize("name", LOUD)
def test_exit_reports_failures_and_nothing_else(name):
    script, expected, message = LOUD[name]
    code, out, err = run(script, exit_timeout=0.3)
    assert (code, out) == (expected, ""), err
    assert (message in err) if message else (message is None or not err)
    for noise in ("Fatal", "never awaited", "was destroyed", "Exception ignored"):
        assert noise not in err


# -- forks -------------------------------------------------------------------------------------------------

FORKS = {
    "os.fork": """
        a = mx.nd.ones((300, 300))
        b = mx.nd.random.normal(shape=(400, 400))
        async def work():
            await asyncio.sleep(rng.random() / 100)
            return 3
        handle = mx.engine.push(work)
        for _ in range(rng.randrange(100)):
            a = a * 1.0
            b = mx.nd.dot(b, b) * 0.01
        pid = os.fork()
        assert (a * 2 + 1).asnumpy().sum() == 270_000
        assert mx.engine.push(work).wait() == 3
        assert handle.wait() == 3
        async def main():
            await b
            return (await (a.as_in_context(mx.cpu(1)) * 2)).asnumpy()[0, 0]
        assert mx.run(main()) == 2
        if not pid:
            sys.exit(9)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
        assert (a + 1).asnumpy()[0, 0] == 2
    """,
    "multiprocessing": """
        import multiprocessing
        a = mx.nd.ones((300, 300))
        for _ in range(rng.randrange(100)):
            a = a * 1.0
        def double(i):
            return float((a * i).asnumpy()[0, 0])
        with multiprocessing.get_context("fork").Pool(2) as pool:
            b = a * 3
            assert pool.map(double, range(8)) == list(range(8))
        assert b.asnumpy()[0, 0] == 3
    """,
    "while other threads push": """
        mx.nd.ones((2,)).asnumpy()  # a fork while another thread imports modules is beyond anybody's help
        stop = threading.Event()
        totals = []
        def push():
            total = mx.nd.zeros((300, 300))
            count = 0
            while not stop.is_set():
                total += 1
                count += 1
            totals.append(total.asnumpy()[0, 0] == count)
        threads = [threading.Thread(target=push) for _ in range(2)]
        for thread in threads:
            thread.start()
        for _ in range(5):
            pid = os.fork()
            if not pid:
                assert (mx.nd.ones((300, 300)) * 2).asnumpy()[0, 0] == 2
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
        stop.set()
        for thread in threads:
            thread.join()
        assert totals == [True, True]
    """,
    "with work that cannot be finished before": """
        a = mx.nd.ones((2,))
        never = mx.engine.push(threading.Event().wait, writes=[a])
        late = mx.engine.push(lambda: 1, reads=[a], writes=[a])
        again = mx.engine.push(lambda: 2, writes=[a])
        pid = os.fork()
        if not pid:
            for handle in (never, late, again):
                try:
                    handle.wait()
                except mx.MXNetError as error:
                    assert "at the fork" in str(error)
                else:
                    raise AssertionError
            a[:] = 5
            assert (a * 2).asnumpy().tolist() == [10, 10]
            sys.stdout.flush()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        os._exit(0)
    """,
}


@pytest.mark.parametrize("count", [10, pytest.param(52, marks=[pytest.mark.soak, pytest.mark.timeout(1200)])])
def test_both_sides_of_a_fork_continue(count):
    names = list(FORKS)
    jobs = [
        (FORKS[names[i % len(names)]], i, {"exit_timeout": 0.3 if "cannot" in names[i % len(names)] else 10})
        for i in range(count)
    ]
    for i, (code, out, err) in enumerate(run_all(jobs)):
        assert (code, out, err) == (0, "", ""), f"{names[i % len(names)]}, seed {i}"


# -- interrupts --------------------------------------------------------------------------------------------

INTERRUPTED = {
    "a loop that pushes": """
        a = mx.nd.ones((100, 100))
        print("ready", flush=True)
        while True:
            a = a * 1.0
            mx.engine.push(int, writes=[a])
    """,
    "a blocking wait": """
        handle = mx.engine.push(threading.Event().wait)
        print("ready", flush=True)
        handle.wait()
    """,
    "waits for tiny operations": """
        a = mx.nd.ones((2,))
        print("ready", flush=True)
        while True:
            mx.engine.push(int, writes=[a]).wait()
            (a + 1).asnumpy()
    """,
    "an await": """
        async def main():
            async def forever():
                await asyncio.Event().wait()
            handle = mx.engine.push(forever)
            print("ready", flush=True)
            await handle
        mx.run(main())
    """,
    "awaits of tiny operations": """
        async def main():
            a = mx.nd.ones((2,))
            print("ready", flush=True)
            while True:
                await mx.engine.push(int, writes=[a])
                await (a + 1)
        mx.run(main())
    """,
}


@pytest.mark.parametrize("count", [20, pytest.param(150, marks=[pytest.mark.soak, pytest.mark.timeout(1200)])])
def test_an_interrupt_at_any_moment_ends_the_program_as_usual(count):
    names = list(INTERRUPTED)
    rng = random.Random(count)

    def interrupt(i):
        process = start(INTERRUPTED[names[i % len(names)]], i, exit_timeout=0.5)
        assert process.stdout.readline() == "ready\n"
        time.sleep(rng.random() / 20)  # at an arbitrary moment
        process.send_signal(signal.SIGINT)
        return finish(process)

    with ThreadPoolExecutor(2) as pool:
        for i, (code, _, err) in enumerate(pool.map(interrupt, range(count))):
            assert code in (-signal.SIGINT, 128 + signal.SIGINT), f"{names[i % len(names)]}: {err}"
            assert "KeyboardInterrupt" in err
            assert "Fatal" not in err


@pytest.mark.parametrize("wait", [lambda handle: handle.wait(), lambda _: mx.nd.waitall()])
def test_a_wait_is_interrupted_by_a_signal_that_another_thread_receives(wait):
    began, over = threading.Event(), threading.Event()
    handle = mx.engine.push(lambda: (began.set(), over.wait()))
    began.wait()

    def strike_elsewhere():
        while not mx.engine.runtime.engine.waiting.waits:
            time.sleep(0)
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    thread = threading.Thread(target=strike_elsewhere)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        wait(handle)
    thread.join()
    over.set()
    handle.wait()


SURVIVES = """
count = 0
def interrupt():
    while count < {count}:
        time.sleep(rng.random() / 200)
        if armed:
            os.kill(os.getpid(), signal.SIGINT)
armed = False
thread = threading.Thread(target=interrupt)
thread.start()
a = mx.nd.zeros((2,))
big = mx.nd.ones((200, 200))
def work():
    global a, big
    while True:
        a = a + 1
        a += 1
        big = big * 1.0
        mx.engine.push(int, reads=[big], writes=[a])
        with mx.engine.bulk(3):
            (a * 2).as_in_context(mx.cpu(1))
        if rng.random() < 0.3:
            mx.engine.push(int, writes=[a]).wait()
        if rng.random() < 0.1:
            big.asnumpy()
while count < {count}:
    try:
        armed = True
        work()
    except (KeyboardInterrupt, mx.MXNetError) as error:
        armed = False
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, [])
            time.sleep(0.002)
        except KeyboardInterrupt:
            pass
        if isinstance(error, KeyboardInterrupt):
            count += 1
    mx.engine.engine.wait_all(throw=False)
    mx.engine.engine.scheduler.check_invariants()
    a, big = mx.nd.zeros((2,)), mx.nd.ones((200, 200))
    assert (a + 1).asnumpy().tolist() == [1, 1]
    assert mx.engine.push(lambda: 3, reads=[a]).wait() == 3
    assert (big.as_in_context(mx.cpu(1)) * 2).asnumpy()[0, 0] == 2
thread.join()
mx.engine.engine.failures.clear()
assert mx.engine.stats()["pending"] == mx.engine.stats()["pending_bytes"] == 0
"""


@pytest.mark.parametrize("count", [150, pytest.param(3000, marks=[pytest.mark.soak, pytest.mark.timeout(600)])])
def test_a_program_that_catches_interrupts_has_a_consistent_engine(count):
    code, out, err = run(SURVIVES.replace("{count}", str(count)), seed=count)
    assert (code, out, err) == (0, "", "")


ENGINE_FILES = {str(path) for path in Path(mx.engine.__file__).parent.glob("*.py")}


def use_the_engine(a, big):
    """Use each part of the engine that changes its state on the calling thread."""
    a = a + 1
    mx.engine.push(int, reads=[a], writes=[big])
    with mx.engine.bulk(3):
        a += 1
        big = big * 1.0
        big = big * 1.0
    mx.engine.push(int, writes=[a], priority=-1)
    cancelled = mx.engine.push(int, reads=[big], writes=[a])
    cancelled.cancel()
    mx.engine.push(int, writes=[a]).wait()
    mx.engine.push(int, reads=[big], writes=[a], priority=3)
    big.asnumpy()
    mx.engine.engine.wait_all(throw=False)


def interrupt(a, big):
    raise KeyboardInterrupt


def push_more(a, big):
    """A finalizer that pushes more work."""
    mx.engine.push(int, reads=[big], writes=[a])
    mx.engine.push(int, writes=[a, big])


def read_others(a, big):
    """A signal handler that reads a mean of values that it computes itself, large and small."""
    c = mx.nd.ones((200, 200))
    assert (c * 2).asnumpy()[0, 0] == 2
    assert (c[0:1] + 1).asnumpy()[0, 0] == 2
    assert mx.engine.push(lambda: 3, reads=[c]).wait() == 3


def read_the_same(a, big):
    """A signal handler that reads the values being computed; waiting for them there is an error."""
    for work in (lambda: (big * 2).asnumpy(), lambda: mx.engine.push(int, writes=[a]).wait()):
        with contextlib.suppress(EngineError):
            work()


@mx.operator.register("struck")
class StruckProp(mx.operator.CustomOpProp):
    """A custom operator that waits for values of another thread."""

    def create_operator(self, *_):
        class Struck(mx.operator.CustomOp):
            def forward(self, is_train, req, in_data, out_data, aux):
                with ThreadPoolExecutor(1) as pool:
                    factor = pool.submit(lambda: (mx.nd.ones(3) * 2).asnumpy()[0]).result(20)
                self.assign(out_data[0], req[0], in_data[0] * float(factor))

        return Struck()


STRUCK = CachedOp(mx.sym.Custom(mx.sym.var("data"), op_type="struck") + 1)


def run_user_code(a, big):
    """A handler that calls a compiled graph with a custom operator."""
    assert STRUCK(mx.nd.ones((1, 3))).asnumpy().tolist() == [[3, 3, 3]]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("step", [11, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("blow", [interrupt, push_more, read_others, read_the_same, run_user_code])
def test_an_exception_at_any_moment_leaves_the_engine_consistent(blow, step, capfd):
    """Interrupt at each moment at which the interpreter may run other code, not at random ones."""
    with capfd.disabled():  # shows the stacks if the test hangs
        strike_at_each_moment(blow, step)


def runs_at_push():
    """Return whether a small operation runs at its push while the engine is idle."""
    runner, ran = type(mx.engine.engine.runner), []
    usual = runner.run_at_push
    a = mx.nd.zeros((2,))
    a + 1  # the first push after a bulk looks for one
    mx.engine.engine.wait_all(throw=False)
    actor = devices.get(mx.cpu()).compute
    while not actor.is_idle():  # the worker finishes the last operation
        time.sleep(0)
    runner.run_at_push = lambda self, op: (ran.append(op.name), usual(self, op))
    try:
        a += 1
    finally:
        runner.run_at_push = usual
    return bool(ran)


def strike_at_each_moment(blow, step):
    struck = 0
    for moment in range(random.randrange(step), 100_000, step):
        a, big = mx.nd.zeros((2,)), mx.nd.ones((200, 200))
        mx.engine.engine.wait_all(throw=False)
        # In a separate context: a `with bulk` interrupted at its last line leaves its scope behind there.
        work = functools.partial(contextvars.copy_context().run, use_the_engine, a, big)
        came = False
        try:
            came = watched(lambda w=work, m=moment, a=a, b=big: strike(w, m, ENGINE_FILES, lambda: blow(a, b)))
        except KeyboardInterrupt:
            came = True
        for _ in range(2):
            watched(lambda: mx.engine.engine.wait_all(throw=False))
        mx.engine.engine.scheduler.check_invariants()
        c = mx.nd.ones((200, 200))
        assert watched(lambda c=c: mx.engine.push(lambda: 3, writes=[c]).wait()) == 3, moment
        assert watched(lambda c=c: (c * 2).asnumpy()[0, 0]) == 2
        assert mx.engine.stats()["pending_bytes"] == 0
        assert not mx.engine.engine.open_bulks, moment
        for device in (mx.cpu(0), mx.cpu(1)):  # not by a waiting thread, but by the device's worker
            watched(functools.partial(spin_until_done, mx.engine.push(lambda: 3, device=device)))
            actor = devices.get(device).compute
            with mx.engine.engine.lock:  # a handle is done a moment before its worker releases the operation
                assert (actor.slots, actor.running) == (1, 0), moment
        assert runs_at_push(), moment
        mx.engine.engine.failures.clear()
        if not came:
            break
        struck += 1
    assert struck > 700 / step


def test_what_runs_at_its_push_is_not_ended_by_others_while_a_handler_in_its_middle_waits():
    """A wait lets other threads take the lock; they must not treat an operation below on this stack as an orphan."""
    a, b = mx.nd.zeros((2,)), mx.nd.zeros((2,))
    mx.nd.waitall()
    actor = devices.get(mx.cpu()).compute
    while not actor.is_idle():
        time.sleep(0)

    def work():  # a handler that comes while an operation runs at its push
        mx.engine.push(int, reads=[a], writes=[b])
        mx.engine.engine.waiting._block(mx.engine.push(lambda: 3, device=mx.cpu(1)))  # a worker does it
        states.append(op.state)

    states, op = [], Operation(work, (), (), (a.storage,), actor, "work", light=True)
    mx.engine.engine.enqueue(op)
    assert states == [State.RUNNING]
    assert (a + b).asnumpy().tolist() == [0, 0]


@pytest.mark.parametrize("pushes", [False, True])
def test_work_aborted_by_two_interrupts_blocks_no_other(pushes, monkeypatch):
    """The second interrupt strikes before the interrupted operation of the first could be ended."""
    a, b = mx.nd.zeros((2,)), mx.nd.zeros((2,))
    mx.nd.waitall()
    actor = devices.get(mx.cpu()).compute
    while not actor.is_idle():
        time.sleep(0)

    def broken_off(*_):
        raise KeyboardInterrupt

    def work():
        if pushes:
            mx.engine.push(int, writes=[b])
        raise KeyboardInterrupt

    monkeypatch.setattr(pushing, "retry", broken_off)
    with pytest.raises(KeyboardInterrupt):
        mx.engine.engine.enqueue(Operation(work, (), (), (a.storage,), actor, "work", light=True))
    monkeypatch.undo()
    with pytest.raises(OperationCancelled, match="'work' was interrupted"):
        (a + 1).asnumpy()
    assert (b + 1).asnumpy().tolist() == [1, 1]
    mx.engine.engine.wait_all(throw=False)
    mx.engine.engine.failures.clear()


@pytest.mark.timeout(60)
@pytest.mark.filterwarnings("ignore::flowmx.engine.BlockingInCoroutineWarning")
@pytest.mark.parametrize("wait", [lambda handle: handle.wait(), lambda handle: mx.run(awaited(handle))])
def test_an_operation_that_ends_as_its_waiter_goes_to_sleep_wakes_it(wait, capfd):
    """A signal handler on the waiter's thread waits too, which lets another thread end the operation meanwhile."""
    with capfd.disabled():
        for moment in range(1000):
            go_on = threading.Event()
            handle = mx.engine.push(go_on.wait)
            while handle.state == State.READY:  # else the waiter runs it
                time.sleep(0)

            def blow(go_on=go_on, handle=handle):
                go_on.set()
                handle.wait()

            # Without an interrupt, it ends a little later by itself.
            timer = threading.Timer(0.1, go_on.set)
            timer.start()
            came = watched(lambda h=handle, m=moment, b=blow: strike(lambda: wait(h), m, ENGINE_FILES, b))
            timer.cancel()
            if not came:
                break
        assert moment > 10


async def awaited(handle):
    await handle


def spin_until_done(handle):
    while not handle.done():
        time.sleep(0)


def watched(work):
    """Run a function on this thread; if it hangs, print every thread's stack."""
    faulthandler.dump_traceback_later(20, exit=True)
    try:
        return work()
    finally:
        faulthandler.cancel_dump_traceback_later()
