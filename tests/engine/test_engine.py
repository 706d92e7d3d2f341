"""The engine's user interface: pushing, awaiting, bulks, limits, the checking mode, scopes of tasks."""

import asyncio
import functools
import gc
import os
import threading
import time
import types
import warnings
from pathlib import Path

import numpy as np
import pytest
import uvloop

import flowmx as mx
from flowmx.engine import BlockingInCoroutineWarning, loops
from flowmx.engine.workers import ThreadActor
from flowmx.errors import EngineError, OperationCancelled, UndeclaredWriteError
from tests.waiting import until

KINDS = ["NaiveEngine", "ThreadedEngine", "ThreadedEnginePerDevice"]
THREADED = KINDS[1:]


@pytest.fixture(autouse=True)
def quiet_engine():
    """Start and end each test with an idle engine without unreported errors."""
    mx.engine.engine.wait_all(throw=False)
    mx.engine.engine.failures.clear()
    yield
    mx.engine.engine.wait_all(throw=False)
    mx.engine.engine.failures.clear()
    mx.engine.engine.scheduler.check_invariants()


@pytest.fixture(params=KINDS)
def kind(request):
    with mx.engine.using(engine_type=request.param):
        yield request.param


class Gate:
    """An operation that blocks later ones until it is released."""

    def __init__(self, *writes, device=None):
        self._open = threading.Event()
        self._started = threading.Event()
        self.op = mx.engine.push(self._work, writes=writes, device=device, name="gate")
        assert self._started.wait(60)  # else a thread that waits for something might run it

    def _work(self):
        self._started.set()
        assert self._open.wait(60)

    def open(self):
        self._open.set()

    def open_when_somebody_waits_for(self, op):
        def watch():
            while not op.waiters and not op.done():
                time.sleep(0)
            self.open()

        threading.Thread(target=watch).start()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.open()


# -- pushing -----------------------------------------------------------------------------------------------


class Callable:
    def __call__(self):
        return 7

    def method(self):
        return 7


class AsyncCallable:
    async def __call__(self):
        await asyncio.sleep(0)
        return 7

    async def method(self):
        return 7


async def seven(value=7):
    await asyncio.sleep(0)
    return value


@pytest.mark.parametrize(
    "function",
    [
        lambda: 7,
        Callable(),
        Callable().method,
        functools.partial(int, "7"),
        seven,
        functools.partial(seven, 7),
        functools.partial(functools.partial(seven), value=7),
        AsyncCallable(),
        AsyncCallable().method,
    ],
)
async def test_any_callable_can_be_pushed_and_gives_its_result(kind, function):
    handle = mx.engine.push(function)
    assert await handle == 7
    assert handle.done()
    assert handle.wait() == 7


@pytest.mark.parametrize("arguments", [(3,), (lambda: 1, [3]), (lambda: 1, (), ["v"]), (lambda: 1, (), (), "cpu")])
def test_invalid_pushes_are_refused_at_once(arguments):
    with pytest.raises(TypeError, match=r"expected"):
        mx.engine.push(*arguments)


def test_pushing_returns_before_the_work_is_done():
    variable = mx.engine.Variable()
    with Gate(variable) as gate:
        handle = mx.engine.push(lambda: 1, reads=[variable])
        assert not gate.op.done()
        assert not handle.done()
    assert handle.wait() == 1


def test_an_operation_sees_and_changes_the_arrays_that_it_names(kind):
    a, b = mx.nd.array([1, 2, 3]), mx.nd.zeros((3,))

    def work():
        np.from_dlpack(b)[:] = np.from_dlpack(a) * 10

    mx.engine.push(work, reads=[a], writes=[b])
    a += 1
    b += 1
    assert b.asnumpy().tolist() == [11, 21, 31]
    assert a.asnumpy().tolist() == [2, 3, 4]


@pytest.mark.parametrize("is_coroutine", [False, True])
async def test_its_own_arrays_can_be_read_inside_however_much_is_pushed_after(is_coroutine):
    a, b = mx.nd.array([1, 2]), mx.nd.zeros((2,))
    with Gate(a) as gate:

        def work():
            np.from_dlpack(b)[:] = a.asnumpy() + np.from_dlpack(a)
            a.wait_to_write()
            return b.asnumpy().tolist()

        async def work_async():
            await a
            await b
            return work()

        handle = mx.engine.push(work_async if is_coroutine else work, reads=[a], writes=[b])
        a += 1
        b += 1
        gate.open()
        assert await handle == [2, 4]
    await b
    assert b.asnumpy().tolist() == [3, 5]


def test_higher_priorities_run_earlier_among_ready_operations():
    ran = []
    with Gate(device=mx.cpu(0)):
        handles = [
            mx.engine.push(functools.partial(ran.append, (priority, i)), priority=priority)
            for i, priority in enumerate([-2, -1, 0, 0, -1, -2])
        ]
        # One above 0 may use further threads, and need not wait for running ones.
        assert mx.engine.push(lambda: "urgent", priority=1).wait() == "urgent"
        assert not ran
    for handle in handles:
        handle.wait()
    assert ran == [(0, 2), (0, 3), (-1, 1), (-1, 4), (-2, 0), (-2, 5)]


def test_concurrent_pushes_from_many_threads_all_run(kind):
    total = mx.nd.zeros((2,))
    own = [mx.nd.zeros((200, 100)) for _ in range(8)]

    def add(ours):
        for _ in range(200):
            ours += 1
            total.__iadd__(ours[0, :2] * 0 + 1)

    threads = [threading.Thread(target=add, args=(ours,)) for ours in own]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert total.asnumpy().tolist() == [1600, 1600]
    assert all((ours.asnumpy() == 200).all() for ours in own)


# -- waiting -----------------------------------------------------------------------------------------------


async def test_cancelling_an_await_abandons_the_wait_and_not_the_work():
    a = mx.nd.zeros((2,))
    with Gate(a) as gate:
        handle = mx.engine.push(lambda: 5, reads=[a])
        a += 1
        for awaitable in (handle, a, mx.engine.waitall_async()):
            task = asyncio.ensure_future(_await(awaitable))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert not handle.done()
        gate.open()
        assert await handle == 5
    assert (await a).asnumpy().tolist() == [1, 1]


async def _await(awaitable):
    return await awaitable


async def test_a_cancelled_operation_never_runs_and_its_outputs_raise():
    a = mx.nd.zeros((2,))
    ran = []
    with Gate(a):
        handle = mx.engine.push(lambda: ran.append(1), writes=[a])
        reader = mx.engine.push(lambda: ran.append(2), reads=[a])
        assert handle.cancel()
        assert not handle.cancel(), "it is already cancelled"
        assert handle.done()
        with pytest.raises(OperationCancelled):
            await handle
    with pytest.raises(OperationCancelled):
        await reader
    with pytest.raises(OperationCancelled):
        await a
    assert not ran
    a[:] = 3
    assert (await a).asnumpy().tolist() == [3, 3]


@pytest.mark.parametrize("cancelled_as", ["reads", "writes"])
def test_operations_after_a_cancelled_one_still_wait_for_earlier_ones(cancelled_as):
    variable = mx.engine.Variable()
    log = []
    # The copies' actor would be free to run the last one immediately.
    other = mx.cpu(1)
    with Gate(variable) as gate:
        mx.engine.push(lambda: log.append("first"), writes=[variable])
        cancelled = mx.engine.push(lambda: log.append("cancelled"), **{cancelled_as: [variable]})
        last = mx.engine.push(lambda: log.append("last"), writes=[variable], device=other)
        assert cancelled.cancel()
        unrelated = mx.engine.push(lambda: 1, device=other)
        assert unrelated.wait() == 1
        assert log == []
        gate.open()
        last.wait()
    assert log == ["first", "last"]


def test_an_operation_that_is_ready_but_has_no_worker_yet_is_over_once_it_is_cancelled():
    go, begun, device = threading.Event(), threading.Event(), mx.cpu(5)
    mx.engine.push(lambda: (begun.set(), go.wait(10)), device=device)
    assert begun.wait(10)
    try:
        waiting = mx.engine.push(lambda: 1, device=device)
        assert waiting.cancel() and waiting.done()
        with pytest.raises(OperationCancelled):
            waiting.wait()
    finally:
        go.set()


def test_ten_thousand_operations_can_be_cancelled_in_a_row():
    variable = mx.engine.Variable()
    with mx.engine.using(engine_max_ops=20_000), Gate(variable):
        handles = [mx.engine.push(lambda: 1, writes=[variable]) for _ in range(10_000)]
        assert all(handle.cancel() for handle in reversed(handles))
    assert mx.engine.push(lambda: 2, writes=[variable]).wait() == 2
    assert not mx.engine.engine.pending


async def test_cancelling_a_coroutine_that_runs_stops_it_at_its_next_await():
    a = mx.nd.zeros((2,))
    events = []

    async def work():
        events.append("started")
        try:
            await asyncio.Event().wait()
        finally:
            events.append("cleaned up")

    handle = mx.engine.push(work, writes=[a])
    await until(lambda: events)
    assert handle.cancel()
    with pytest.raises(OperationCancelled):
        await handle
    assert events == ["started", "cleaned up"]
    with pytest.raises(OperationCancelled):
        await a


def test_running_or_completed_operations_cannot_be_cancelled():
    handle = mx.engine.push(lambda: 1)
    handle.wait()
    assert not handle.cancel()
    with Gate() as gate:
        assert not gate.op.cancel()


async def test_waitall_waits_for_everything_pushed_so_far(kind):
    done = []

    async def slowly():
        for _ in range(10):
            await asyncio.sleep(0)
        done.append(1)

    for _ in range(5):
        mx.engine.push(slowly)
        mx.engine.push(lambda: done.append(1), device=mx.cpu(1))
    await mx.nd.waitall_async()
    assert len(done) == 10
    mx.nd.waitall()  # nothing is left: it does not block, so it may be called here


@pytest.mark.parametrize("engine_type", KINDS)
def test_operations_may_wait_for_others_of_the_same_device_inside_themselves(engine_type):
    def nested(depth):
        return 1 + (mx.engine.push(lambda: nested(depth - 1)).wait() if depth else 0)

    with mx.engine.using(engine_type=engine_type):
        assert mx.engine.push(lambda: nested(20)).wait() == 21
        assert mx.engine.push(lambda: (mx.nd.ones((300, 300)) * 2).asnumpy().sum()).wait() == 180_000


@pytest.mark.parametrize("engine_type", KINDS)
async def test_a_coroutine_operation_may_push_and_await_operations(engine_type):
    with mx.engine.using(engine_type=engine_type):
        a = mx.nd.ones((300, 300))

        async def nested(depth):
            if not depth:
                return float((await (a * 2)).asnumpy().sum())
            inner = mx.engine.push(functools.partial(nested, depth - 1), reads=[a])
            follower = mx.engine.push(lambda: 1, reads=[a])
            return await inner + await follower

        assert await mx.engine.push(functools.partial(nested, 10)) == 180_010


def test_what_follows_a_coroutine_that_an_operation_pushed_runs_though_nobody_asks_for_it():
    ran = threading.Event()

    async def pushing():
        x = mx.engine.Variable()
        mx.engine.push(functools.partial(asyncio.sleep, 0.05), writes=[x])
        mx.engine.push(ran.set, reads=[x])

    with mx.engine.using(engine_type="NaiveEngine"):
        mx.engine.push(pushing).wait()
        assert ran.wait(10)


@pytest.mark.parametrize("is_coroutine", [False, True])
async def test_waiting_inside_for_a_later_operation_is_refused_and_does_not_hang(is_coroutine):
    variable = mx.engine.Variable()
    later = []
    ready = threading.Event()

    def work():
        assert ready.wait(60)
        later[0].wait()

    async def work_async():
        while not ready.is_set():
            await asyncio.sleep(0)
        await later[0]

    handle = mx.engine.push(work_async if is_coroutine else work, writes=[variable])
    middle = mx.engine.push(lambda: 1, reads=[variable], writes=[other := mx.engine.Variable()])
    later.append(mx.engine.push(lambda: 2, reads=[other]))
    ready.set()
    with pytest.raises(EngineError, match="inside itself"):
        await handle
    with pytest.raises(EngineError):  # it wrote what they read
        await middle
    with pytest.raises(EngineError):
        await later[0]


@pytest.mark.parametrize("is_coroutine", [False, True])
async def test_waitall_inside_an_operation_skips_its_dependents(is_coroutine):
    variable, other = mx.engine.Variable(), mx.engine.Variable()
    ready = threading.Event()
    done = []

    def work():
        assert ready.wait(60)
        mx.nd.waitall()
        return list(done)

    async def work_async():
        while not ready.is_set():
            await asyncio.sleep(0)
        await mx.nd.waitall_async()
        return list(done)

    handle = mx.engine.push(work_async if is_coroutine else work, writes=[variable])
    after = mx.engine.push(lambda: done.append("after"), reads=[variable])
    mx.engine.push(lambda: done.append("independent"), writes=[other], device=mx.cpu(1))
    ready.set()
    assert await handle == ["independent"]
    await after


# -- bulks -------------------------------------------------------------------------------------------------


def test_a_bulk_gives_the_same_results_in_fewer_operations(kind):
    def compute():
        a = mx.nd.ones((300, 300))
        before = mx.engine.stats()["pushed"]
        for _ in range(40):
            a = a * 0.5 + 1
        pushed = mx.engine.stats()["pushed"] - before
        return a, pushed

    plain, many = compute()
    with mx.engine.bulk(16):
        bulked, few = compute()
    assert (plain.asnumpy() == bulked.asnumpy()).all()
    assert many == 80
    assert few == (80 if kind == "NaiveEngine" else 5)


def test_an_error_inside_a_bulk_stays_with_its_own_arrays():
    a, good = mx.nd.ones((3,)), mx.nd.ones((3,))
    with pytest.raises(ZeroDivisionError):
        mx.engine.push(lambda: 1 / 0, writes=[a]).wait()
    with mx.engine.bulk(8):
        bad = a + 1
        good = good + 1
        worse = bad * good
        a[:] = 5  # heals
        healed = a + 1
    assert good.asnumpy().tolist() == [2, 2, 2]
    assert healed.asnumpy().tolist() == [6, 6, 6]
    for array in (bad, worse):
        with pytest.raises(ZeroDivisionError):
            array.asnumpy()


async def test_waits_copies_and_scopes_inside_a_bulk_never_hang(kind):
    a = mx.nd.ones((3,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BlockingInCoroutineWarning)
        with mx.engine.bulk(100):
            b = a + 1
            assert b.asnumpy().tolist() == [2, 2, 2]
            c = (b * 2).as_in_context(mx.cpu(1)) + 1
            with mx.engine.bulk(3):
                d = c.as_in_context(mx.cpu(0)) + b
                e = d * c.as_in_context(mx.cpu(0))
            a += e
            await d
            assert await mx.engine.push(lambda: 4, reads=[a]) == 4
            await mx.nd.waitall_async()
    assert a.asnumpy().tolist() == [36, 36, 36]


def test_another_thread_may_wait_for_operations_of_an_open_bulk():
    results = []
    with mx.engine.bulk(100):
        a = mx.nd.ones((300, 300)) + 1
        thread = threading.Thread(target=lambda: results.append(a.asnumpy().sum()))
        thread.start()
        thread.join(60)
        assert results == [180_000]


async def test_tasks_and_operations_that_outlive_a_bulk_scope_push_as_usual():
    arrays = []
    go_on = asyncio.Event()

    async def later():
        await go_on.wait()
        arrays.append(mx.nd.ones((300, 300)) + 1)

    with mx.engine.bulk(100):
        task = asyncio.create_task(later())
        handle = mx.engine.push(lambda: arrays.append(mx.nd.ones((300, 300)) + 2))
        await asyncio.sleep(0)
    go_on.set()
    await task
    await handle
    await until(lambda: not mx.engine.engine.pending)  # nobody waits for the arrays, and yet they are computed
    assert sorted(float(array.asnumpy()[0, 0]) for array in arrays) == [2, 3]


def test_an_invalid_bulk_size_is_refused():
    with pytest.raises(ValueError, match="at least 1"), mx.engine.bulk(0):
        pass


# -- run-ahead ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("engine_type", THREADED)
def test_the_operations_in_flight_stay_below_their_limit(engine_type, threads):
    most = [0]
    pending = mx.engine.engine.pending

    def work():
        most[0] = max(most[0], len(pending))

    def push():
        for _ in range(2000):
            mx.engine.push(work)

    with mx.engine.using(engine_type=engine_type, engine_max_ops=50):
        pushers = [threading.Thread(target=push) for _ in range(threads)]
        for thread in pushers:
            thread.start()
        for thread in pushers:
            thread.join()
        mx.nd.waitall()
    assert 10 < most[0] <= 50 + threads - 1


@pytest.mark.parametrize("size", [10, 25, 60, 200])
def test_the_bytes_in_flight_stay_below_their_limit(size):
    """``size`` is in percent of the limit; a larger operation runs alone."""
    rows = size * 10  # of a thousand bytes
    limit = 1_000_000
    most = [0]
    with mx.engine.using(engine_max_bytes=limit):
        a = mx.nd.ones((rows, 250))
        for _ in range(30):
            a = a * 0.5
            most[0] = max(most[0], mx.engine.stats()["pending_bytes"])
        mx.nd.waitall()
        assert mx.engine.stats()["pending_bytes"] == 0
    assert most[0] <= max(limit, rows * 1000)


def resident():
    """Return the resident bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize(
    "count", [100_000, pytest.param(1_000_000, marks=[pytest.mark.soak, pytest.mark.timeout(600)])]
)
@pytest.mark.parametrize("what", ["functions", "operators"])
def test_a_loop_that_never_waits_holds_bounded_memory_and_does_not_slow_down(what, count):
    array = mx.nd.ones((10, 10))
    tenth = count // 10

    def push(number):
        began = time.perf_counter()
        if what == "functions":
            for _ in range(number):
                mx.engine.push(_nothing, writes=[array])
        else:
            nonlocal_array = array
            for _ in range(number):
                nonlocal_array = nonlocal_array * 1.0
        return time.perf_counter() - began

    push(20_000)
    gc.collect()
    before = resident()
    times = []
    for _ in range(10):
        times.append(push(tenth))
        assert len(mx.engine.engine.pending) <= mx.engine.engine.config.engine_max_ops
        assert resident() - before < 60e6
    mx.nd.waitall()
    print(
        f"{count} {what}: last tenth / first tenth {times[-1] / times[0]:.2f}, {min(times) / tenth * 1e6:.1f} µs each"
    )
    # Generous: other processes also take memory. A leak or a growing list would cause a factor of 10 or more.
    assert min(times[5:]) < 3 * min(times[:5])


def _nothing():
    pass


async def test_a_coroutine_that_awaits_room_stays_below_the_limit_and_lets_others_run():
    ticks = [0]

    async def tick():
        while True:
            ticks[0] += 1
            await asyncio.sleep(0)

    ticker = asyncio.create_task(tick())
    with mx.engine.using(engine_max_ops=20):
        a = mx.nd.ones((200, 200))
        for _ in range(500):
            a = a * 1.0
            await mx.engine.wait_for_capacity()
            assert len(mx.engine.engine.pending) <= 10
        await a
    ticker.cancel()
    assert ticks[0] > 5


# -- inspection --------------------------------------------------------------------------------------------


def test_stats_count_pushed_completed_and_failed_operations(kind):
    before = mx.engine.stats()
    for _ in range(5):
        mx.engine.push(lambda: 1)
    with pytest.raises(ValueError, match="x"):
        mx.engine.push(functools.partial(_raise, ValueError("x"))).wait()
    mx.nd.waitall()
    after = mx.engine.stats()
    assert after["kind"] == kind
    assert after["pushed"] - before["pushed"] == after["completed"] - before["completed"] == 6
    assert after["failed"] - before["failed"] == 1
    assert after["pending"] == after["pending_bytes"] == 0


def _raise(error):
    raise error


def test_a_variable_is_deleted_once_the_work_on_it_is_done():
    variable = mx.engine.Variable("mine")
    log = []
    with Gate(variable):
        mx.engine.push(lambda: log.append("work"), reads=[variable])
        handle = mx.engine.delete_variable(variable, lambda: log.append("deleted"))
        with pytest.raises(EngineError, match=r"mine.*deleted"):
            mx.engine.push(lambda: 1, reads=[variable])
        assert log == []
    handle.wait()
    assert log == ["work", "deleted"]


# -- the checking mode -------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_coroutine", [False, True])
@pytest.mark.parametrize("declared", [False, True])
async def test_the_checking_mode_finds_a_write_that_was_declared_as_read(declared, is_coroutine):
    a, out = mx.nd.ones((3,)), mx.nd.zeros((3,))

    def work():
        np.from_dlpack(a)[1] = 7
        np.from_dlpack(out)[:] = np.from_dlpack(a)

    async def work_async():
        await asyncio.sleep(0)
        work()

    writes = [out, a] if declared else [out]
    with mx.engine.using(engine_check=True):
        handle = mx.engine.push(work_async if is_coroutine else work, reads=[a], writes=writes)
        if declared:
            await handle
            assert out.asnumpy().tolist() == [1, 7, 1]
        else:
            with pytest.raises(UndeclaredWriteError, match="declared as read"):
                await handle
            with pytest.raises(UndeclaredWriteError):
                await out


def test_the_checking_mode_accepts_all_operators():
    with mx.engine.using(engine_check=True):
        x = mx.nd.random.normal(shape=(4, 3, 5, 5))
        x[0, 0] = x[1, 1]
        scale, shift, mean, var = (mx.nd.ones((3,)) for _ in range(4))
        with mx.autograd.record():
            y = mx.nd.Dropout(mx.nd.BatchNorm(x, scale, shift, mean, var, fix_gamma=False))
        y[:] = mx.nd.zeros((5,))
        view = y[1:, :, ::2]
        view += x[1:, :, ::2]
        mx.nd.waitall()


# -- Law 2: what may wait, and where -----------------------------------------------------------------------


def blocking_read(array):
    return array.asnumpy()


async def test_a_read_that_blocks_inside_a_coroutine_warns_once_for_each_place():
    async def read_here():
        array = mx.nd.ones((2,)) + 1
        with Gate(array) as gate:
            handle = mx.engine.push(lambda: None, writes=[array])
            gate.open_when_somebody_waits_for(handle)
            blocking_read(array)

    with pytest.warns(BlockingInCoroutineWarning, match="await") as caught:
        await read_here()
    assert Path(caught[0].filename).name == "test_engine.py"
    assert "return array.asnumpy()" in Path(caught[0].filename).read_text().splitlines()[caught[0].lineno - 1]
    await read_here()  # warnings are errors here: a second one would raise


async def test_a_read_that_blocks_inside_a_coroutine_can_be_made_an_error():
    with mx.engine.using(blocking_in_loop="error"), Gate() as gate:
        handle = mx.engine.push(lambda: None)
        with pytest.raises(EngineError, match=r"test_engine\.py:\d+: a blocking read"):
            handle.wait()
        gate.open()
        await handle


@pytest.mark.parametrize("notebook", [False, True])
async def test_a_read_that_blocks_inside_a_coroutine_can_be_allowed_and_is_in_notebooks(notebook, monkeypatch):
    if notebook:
        monkeypatch.setitem(__import__("sys").modules, "IPython", types.SimpleNamespace(get_ipython=object))
    gated = mx.engine.Variable()
    with mx.engine.using(blocking_in_loop="warn" if notebook else "allow"), Gate(gated) as gate:
        handle = mx.engine.push(lambda: 3, reads=[gated])
        gate.open_when_somebody_waits_for(handle)
        assert handle.wait() == 3


async def test_reading_a_ready_array_never_warns():
    a = mx.nd.ones((300, 300)) * 2
    await a
    assert a.asnumpy()[0, 0] == 2
    a.wait_to_read()
    mx.nd.waitall()
    assert await asyncio.to_thread(lambda: (a + 1).asnumpy()[0, 0]) == 3  # a plain thread may block


async def test_blocking_the_engines_own_loop_for_what_runs_there_is_refused():
    async def work():
        return mx.engine.push(seven).wait()

    with pytest.raises(EngineError, match="await it instead"):
        await mx.engine.push(work)


# -- tasks and loops ---------------------------------------------------------------------------------------


async def test_scopes_of_two_tasks_are_independent():
    met = asyncio.Barrier(2)

    async def task(recording, device, attribute, size):
        values = []

        def look():
            attributes = mx.AttrScope().get(None)
            values.append((mx.autograd.is_recording(), mx.current_context(), attributes.get("group")))

        await met.wait()
        with mx.autograd.record() if recording else mx.autograd.pause(), device, mx.AttrScope(group=attribute):
            await met.wait()
            look()
            with mx.engine.bulk(size), mx.Context("cpu", 3):
                await (mx.nd.ones((2,)) + 1)
                await met.wait()
            if recording:  # the two leave their scopes in turn, in the order they came
                await met.wait()
            look()
        if not recording:
            await met.wait()
        look()
        return values

    one = task(True, mx.cpu(1), "one", 2)
    two = task(False, mx.cpu(1), "two", 5)
    first, second = await asyncio.gather(one, two)
    assert first == [(True, mx.cpu(1), "one")] * 2 + [(False, mx.cpu(0), None)]
    assert second == [(False, mx.cpu(1), "two")] * 2 + [(False, mx.cpu(0), None)]


async def test_contexts_left_in_another_order_than_entered_stay_each_tasks_own():
    met = asyncio.Barrier(2)

    async def task(outer, first_to_leave):
        with outer:
            await met.wait()
            with mx.cpu(5):
                await met.wait()
                if not first_to_leave:
                    await met.wait()
            inside = mx.current_context()
            if first_to_leave:
                await met.wait()
        return inside

    assert await asyncio.gather(task(mx.cpu(1), True), task(mx.cpu(2), False)) == [mx.cpu(1), mx.cpu(2)]


async def test_a_task_that_awaits_tiny_operations_in_a_loop_does_not_starve_another():
    turns = [0]
    done = asyncio.Event()

    async def neighbor():
        while not done.is_set():
            turns[0] += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(neighbor())
    a = mx.nd.ones((2,))
    for _ in range(2000):
        a = a * 1.0
        await a
    done.set()
    await task
    assert turns[0] >= 20


async def _use():
    a = mx.nd.ones((300, 300))
    b = a * 2 + 1
    await b
    assert await mx.engine.push(seven, reads=[b]) == 7
    await asyncio.gather(*(_await(a * i) for i in range(10)))
    assert b.asnumpy()[0, 0] == 3


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("debug", [False, True])
def test_every_event_loop_works_in_debug_mode_too(factory, debug):
    with asyncio.Runner(debug=debug, loop_factory=factory) as runner:
        runner.run(_use())
        runner.run(_use())
    mx.run(_use())


def test_eager_tasks_await_arrays():
    def without(loop, coroutine, *, name=None, context=None):
        return asyncio.Task(coroutine, loop=loop, name=name, context=context)

    async def main():
        factory = getattr(asyncio, "eager_task_factory", loops.without_eager_start(without))  # from Python 3.12 on
        asyncio.get_running_loop().set_task_factory(factory)
        await _use()

    mx.run(main())
    assert asyncio.run(_through(loops.without_eager_start(without), eager_start=True)) == 7


async def _through(factory, **kwargs):
    return await factory(asyncio.get_running_loop(), _await_seven(), name="seven", **kwargs)


async def _await_seven():
    return await mx.engine.push(seven)


def test_loops_in_several_threads_share_the_engine():
    errors = []

    def work():
        try:
            mx.run(_use())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []


def test_an_actor_that_is_dropped_before_its_coroutine_began_leaves_none_behind():
    mx.nd.ones(1).wait_to_read()
    engine, hold = mx.engine.engine, threading.Event()
    loop = engine.hosting.loop
    loop.call_soon_threadsafe(hold.wait)  # the loop comes to nothing meanwhile
    actor = ThreadActor("short-lived")
    engine.hosting.start_actor(actor)
    engine.retire(actor)
    hold.set()

    async def left():
        return [task.get_name() for task in asyncio.all_tasks() if "short-lived" in task.get_name()]

    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(30)
    assert asyncio.run_coroutine_threadsafe(left(), loop).result(30) == []


def test_draining_ends_when_the_engine_is_idle_or_at_its_timeout():
    engine, slow, may_go = mx.engine.engine, mx.engine.Variable(), threading.Event()
    assert engine.drain(60)
    mx.engine.push(may_go.wait, writes=[slow])
    assert not engine.drain(0.01)
    may_go.set()
    assert engine.drain(60)
    assert engine.stats()["pending"] == 0


def test_other_settings_wait_for_pending_operations_where_the_kind_changes_alone(monkeypatch):
    waiting = mx.engine.engine.waiting
    waits = []

    def wait_all(throw=True, real=waiting.wait_all):
        waits.append(throw)
        gate.open()
        real(throw)

    with mx.engine.using(engine_type="ThreadedEngine"), Gate() as gate:
        monkeypatch.setattr(waiting, "wait_all", wait_all)
        with mx.engine.using(engine_type="ThreadedEnginePooled", engine_check=True):  # another name of the same kind
            assert mx.engine.stats()["kind"] == "ThreadedEngine"
        assert not waits and not gate.op.done()
        with mx.engine.using(engine_type="ThreadedEnginePerDevice"):
            assert waits == [False] and gate.op.done()


def test_a_failure_before_the_kind_changes_is_raised_where_the_program_waits():
    def fails():
        raise OSError("no disk")

    with mx.engine.using(engine_type="ThreadedEngine"):
        mx.engine.push(fails)
        with mx.engine.using(engine_type="NaiveEngine"), pytest.raises(OSError, match="no disk"):
            mx.engine.waitall()


@pytest.mark.parametrize("priority", ["high", None, 0.5])
def test_a_priority_that_is_no_int_is_refused_before_anything_is_enqueued(priority):
    x = mx.nd.ones((2,))
    with pytest.raises(TypeError, match=r"priority is .*, expected an int"):
        mx.engine.push(lambda: None, writes=[x], priority=priority)
    assert x.asnumpy().tolist() == [1, 1]
