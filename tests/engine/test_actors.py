"""Actors: each coroutine drives its device, dead workers are replaced, waits inside operations release their slot."""

import asyncio
import ctypes
import dataclasses
import functools
import gc
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import pytest

import flowmx as mx
from flowmx import devices
from flowmx.devices.streams import StreamActor
from flowmx.engine import BatchActor, LoopActor, ThreadActor
from flowmx.engine.loops import start_locked
from flowmx.engine.scheduler import READY
from flowmx.engine.workers import Worker
from flowmx.errors import EngineError

engine = mx.engine.engine


@pytest.fixture(autouse=True)
def quiet():
    engine.wait_all(throw=False)
    engine.failures.clear()
    yield
    engine.wait_all(throw=False)
    engine.failures.clear()


def until(condition):
    """Yield to other threads until a condition holds; the test's timeout is the limit."""
    while not condition():
        time.sleep(0)


def turn_of_the_loop(loop):
    """Wait until an event loop has run the callbacks scheduled so far."""

    async def nothing():
        return None

    for _ in range(3):
        asyncio.run_coroutine_threadsafe(nothing(), loop).result(30)


# -- the coroutine runs the device -------------------------------------------------------------------------


async def does_nothing(self):
    return None


def on_threads():
    return functools.partial(mx.engine.push, int, device=ThreadActor("threads of a test"))


def on_a_loop():
    async def work():
        return 0

    return functools.partial(mx.engine.push, work, device=LoopActor("loop of a test"))


def on_a_stream():
    x = mx.nd.ones((4,), ctx=mx.sim(11))
    x.wait_to_read()

    def push():
        y = x * 2
        return y.variable.writer or y

    return push


KINDS = {"threads": (ThreadActor, on_threads), "a loop": (BatchActor, on_a_loop), "streams": (BatchActor, on_a_stream)}


def test_coroutines_run_on_the_loop_actor_that_is_passed():
    actor = LoopActor("files of a test")

    async def work():
        return asyncio.current_task().get_name()

    assert mx.engine.push(work, device=actor, name="reading").wait() == "reading"
    assert actor.executed == 1
    assert mx.engine.push(work, device=mx.cpu()).wait() == "work"  # a device has no loop for user code
    assert actor.executed == 1
    with pytest.raises(TypeError, match="'threads', expected a LoopActor"):
        mx.engine.push(work, device=ThreadActor("threads"))


@pytest.mark.parametrize("kind", KINDS)
def test_operations_run_without_a_wait(kind):
    op = KINDS[kind][1]()()
    until(lambda: not isinstance(op, mx.engine.Operation) or op.done() if hasattr(op, "done") else op.state == 3)


@pytest.mark.parametrize("kind", ["threads", "a loop"])
def test_no_operation_runs_if_the_coroutine_does_nothing(kind, monkeypatch):
    base, make = KINDS[kind]
    push = make()
    monkeypatch.setattr(base, "run", does_nothing)
    op = push()
    turn_of_the_loop(engine.hosting.loop)
    assert not op.done()
    engine.abandon([op], "the test is over")
    assert op.done()


def test_nothing_is_launched_if_the_coroutine_of_a_device_does_nothing(monkeypatch):
    context = mx.sim(12)
    device = devices.get(context)
    monkeypatch.setattr(StreamActor, "run", does_nothing)
    x = mx.nd.ones((4,), ctx=context)
    until(lambda: device.compute.engine is not None)
    turn_of_the_loop(engine.hosting.loops[device.compute.home].loop)
    op = x.variable.writer
    assert op is not None
    assert op.state != mx.engine.State.DONE
    assert device.pool.used == 0
    engine.abandon([each for each in engine.pending if each.actor is device.compute], "the test is over")
    device.close()
    del devices._devices[context]


@pytest.mark.filterwarnings("ignore::flowmx.errors.CrossDeviceWarning")
def test_infinities_are_ordinary_values_on_each_device():
    for context in (mx.cpu(0), mx.sim(11)):
        x = mx.nd.full((200, 200), 1000, ctx=context)
        assert x.exp().asnumpy()[0, 0] == float("inf")


def test_actors_of_one_device_share_an_event_loop_in_a_separate_thread():
    x = mx.nd.ones((4,), ctx=mx.sim(11))
    y = x.as_in_context(mx.cpu()).as_in_context(mx.sim(11))
    y.wait_to_read()
    device = devices.get(mx.sim(11))
    homes = {actor.home for actor in device.actors}
    assert homes == {"sim(11)"}
    assert engine.hosting.loops["sim(11)"].thread.name == "flowmx-sim(11)"
    assert engine.hosting.loops["sim(11)"].thread is not engine.hosting.loop_thread


def test_closing_a_device_ends_its_thread():
    context = mx.sim(13)
    (mx.nd.ones((4,), ctx=context) * 2).wait_to_read()
    thread = engine.hosting.loops["sim(13)"].thread
    devices.get(context).close()
    del devices._devices[context]
    thread.join(30)
    assert not thread.is_alive()


def test_operations_pushed_to_a_closed_device_run_and_affect_no_other():
    context = mx.sim(14)
    x = mx.nd.ones((4,), ctx=context)
    x.wait_to_read()
    device = devices.get(context)
    thread = engine.hosting.loops["sim(14)"].thread
    device.close()
    y = x + 1  # while its coroutine ends
    thread.join(30)
    z = x + 2  # when it has
    assert (y + z).asnumpy().tolist() == [5, 5, 5, 5]
    device.close()
    del devices._devices[context]


def test_an_operation_that_its_actor_does_not_take_fails_and_harms_nothing_else():
    class Refuses(ThreadActor):
        def accept(self, op):
            raise ValueError("no room")

    actor = Refuses("refuses")
    variable = mx.engine.Variable()
    first = mx.engine.push(lambda: 3, writes=[variable])
    op = mx.engine.push(int, writes=[variable], device=actor)
    with pytest.raises(ValueError, match="no room"):
        op.wait()
    with pytest.raises(ValueError, match="no room"):
        mx.engine.push(int, device=actor).wait()
    turn_of_the_loop(engine.hosting.loop)
    engine.retire(actor)
    assert first.wait() == 3
    assert mx.engine.push(lambda: 5, writes=[variable]).wait() == 5


@pytest.mark.parametrize(
    ("plain", "urgent", "running", "called", "started"),
    [
        (5, 0, 0, 0, 3),  # as many as there are slots
        (2, 0, 0, 0, 2),  # as there are operations
        (5, 0, 1, 1, 1),  # those that run, or are about to, have theirs
        (5, 0, 3, 0, 0),
        (5, 1, 3, 0, 2),  # urgent operations have separate slots
        (0, 1, 3, 0, 1),
        (5, 1, 5, 0, 0),
        (5, -1, 3, 0, 0),  # low-priority operations have not
        (5, 1, 9, 0, 0),  # never negative, even after the number of slots changed
    ],
)
def test_the_number_of_workers_to_start(plain, urgent, running, called, started):
    actor = ThreadActor("counted", slots=3, urgent_slots=2)
    for number, priority in enumerate([0] * plain + [urgent] * bool(urgent)):
        actor.mailbox.put(Mock(priority=priority, serial=number, state=READY))
    actor.running, actor._woken_count = running, called
    assert actor._missing_workers() == started


def test_a_failed_coroutine_is_reported_and_its_actor_restarts(monkeypatch, caplog):
    actor = ThreadActor("actor of a test")
    failed = []

    async def fails(self):
        if not failed:
            failed.append(True)
            raise ValueError("broken")
        await ThreadActor_run(self)

    ThreadActor_run = ThreadActor.run
    monkeypatch.setattr(ThreadActor, "run", fails)
    op = mx.engine.push(int, device=actor)
    until(op.done)
    with pytest.raises(EngineError, match="died"):
        op.wait()
    assert "actor of a test died" in caplog.text
    until(lambda: actor.engine is None)
    op = mx.engine.push(lambda: 5, device=actor)
    until(op.done)
    assert op.wait() == 5


def test_work_that_a_helping_thread_leaves_is_run_by_a_worker(monkeypatch):
    actor, gate = ThreadActor("helped"), threading.Event()
    may_begin, started, go_on = asyncio.Event(), threading.Event(), threading.Event()

    async def later(self):
        if self is actor:
            await may_begin.wait()
        await run(self)

    def hold():
        started.set()
        assert go_on.wait(60)

    run = ThreadActor.run
    monkeypatch.setattr(ThreadActor, "run", later)
    variable = mx.engine.Variable()
    mx.engine.push(gate.wait, writes=[variable], device=ThreadActor("gate"))
    light = mx.engine.Operation(hold, (), (variable,), (), actor, "light", light=True)
    engine.enqueue(light)
    gate.set()
    until(lambda: light.state == mx.engine.State.READY)
    helper = threading.Thread(target=engine.runner.help, args=(actor, None, True))
    helper.start()
    assert started.wait(60)
    heavy = mx.engine.push(lambda: 5, device=actor)
    engine.hosting.loop.call_soon_threadsafe(may_begin.set)
    until(lambda: actor._wake_event is not None)
    turn_of_the_loop(engine.hosting.loop)
    go_on.set()
    helper.join(60)
    until(heavy.done)
    assert heavy.wait() == 5


def test_earlier_work_runs_concurrently_with_user_code():
    actor, gate = ThreadActor("mixed"), threading.Event()

    def polls():
        until(lambda: len(pushed) == 3 and pushed[2].done())
        return 3

    first = mx.engine.Operation(gate.wait, (), (), (), actor, "first")
    engine.enqueue(first)
    until(lambda: first.state == mx.engine.State.RUNNING)
    pushed = [first, mx.engine.push(polls, device=actor)]
    pushed.append(mx.engine.push(lambda: 5, device=actor))
    gate.set()
    until(pushed[1].done)
    assert (pushed[1].wait(), pushed[2].wait()) == (3, 5)
    assert actor.slots == 1


# -- workers that die --------------------------------------------------------------------------------------


def test_a_worker_that_is_killed_asleep_is_replaced():
    actor = ThreadActor("killed")
    op = mx.engine.push(int, device=actor)
    until(op.done)
    (worker,) = actor.workers
    until(lambda: worker in actor.idle)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(worker.thread.ident), ctypes.py_object(SystemExit))
    op = mx.engine.push(lambda: 5, device=actor)
    until(op.done)
    assert op.wait() == 5
    worker.thread.join(30)
    until(lambda: worker not in actor.workers and len(actor.workers) == 1)
    assert (actor.running, actor.slots) == (0, 1)


def test_the_operation_of_a_worker_that_dies_fails_and_the_next_one_runs(monkeypatch):
    actor = ThreadActor("dying")
    variable = mx.engine.Variable()

    def work(turn, op, *more):
        if isinstance(turn, Worker) and op.name == "last":
            raise SystemExit
        return run(turn, op, *more)

    run = engine.work
    monkeypatch.setattr(engine, "work", work)
    last = mx.engine.push(int, writes=[variable], device=actor, name="last")
    after = mx.engine.push(lambda: 5, device=actor)
    until(last.done)
    with pytest.raises(EngineError, match=r"worker of dying .* has died"):
        last.wait()
    until(after.done)
    assert after.wait() == 5
    with pytest.raises(EngineError, match="has died"):
        mx.engine.push(int, reads=[variable]).wait()


def test_if_no_thread_can_be_started_the_work_fails_and_later_work_does_not(monkeypatch, caplog):
    def start(thread):
        if "threadless" in thread.name:
            raise RuntimeError("can't start new thread")
        started(thread)

    started = threading.Thread.start
    actor = ThreadActor("threadless")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        op = mx.engine.push(int, device=actor)
        until(op.done)
    with pytest.raises(EngineError, match=r"threadless died: .*can't start new thread"):
        op.wait()
    until(lambda: actor.engine is None)
    op = mx.engine.push(lambda: 5, device=actor)
    until(op.done)
    assert op.wait() == 5


# -- exceptions of every kind ------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    code: int


class Refuses(Exception):
    def add_note(self, note):
        raise RuntimeError("no notes")

    def with_traceback(self, trace):
        raise RuntimeError("no traceback")


class Odd(Exception):
    __notes__ = None  # type: ignore[assignment]
    __slots__ = ()


class Hides(Exception):
    @property
    def __notes__(self):
        raise RuntimeError("hidden")

    def __setattr__(self, name, value):
        raise RuntimeError("fixed")


ERRORS = [Frozen(3), Refuses(), Odd(), Hides()]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("is_coroutine", [False, True])
def test_any_exception_of_user_code_is_raised_and_the_worker_continues(error, is_coroutine):
    def work():
        raise error

    async def work_async():
        raise error

    for _ in range(3):
        op = mx.engine.push(work_async if is_coroutine else work)
        until(op.done)
        with pytest.raises(type(error)) as caught:
            op.wait()
        assert caught.value is error
    after = mx.engine.push(lambda: 5)
    until(after.done)
    assert after.wait() == 5


def test_an_exception_that_refuses_notes_still_names_its_origin():
    with pytest.raises(Frozen) as caught:
        mx.engine.push(functools.partial(_raise, Frozen(3)), name="mine").wait()
    assert any("'mine'" in note for note in caught.value.__notes__)


def _raise(error):
    raise error


@pytest.mark.parametrize("error", [asyncio.CancelledError, StopIteration, StopAsyncIteration, GeneratorExit])
async def test_an_operation_that_raises_what_ends_coroutines_fails_and_cancels_nobody(error):
    op = mx.engine.push(functools.partial(_raise, error("mine")))
    array = mx.nd.ones((2,))
    poisoned = mx.engine.push(functools.partial(_raise, error("mine")), writes=[array])

    async def waits():
        with pytest.raises(EngineError, match="mine") as caught:
            await op
        assert isinstance(caught.value.__cause__, error)
        with pytest.raises(EngineError, match="mine"):
            await array
        return 7

    task = asyncio.create_task(waits())
    assert await task == 7
    assert not task.cancelled()
    assert poisoned.done()


# -- waits that come from inside an operation --------------------------------------------------------------


def heavy():
    x = mx.nd.ones((300, 300))
    for _ in range(3):
        x = mx.nd.dot(x, x) * 0.001
    return x


async def awaits():
    return (await heavy()).shape


def in_threads():
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(lambda i: float((mx.nd.ones((3,)) * i).sum().asnumpy()[0]), range(4)))


def in_threads_of_user_code():
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda i: mx.engine.push(lambda: i).wait(), range(4)))


def in_a_loop_of_another_thread():
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(awaits())).result()


def user_code_in_a_loop_of_another_thread():
    async def main():
        return await mx.engine.push(lambda: 7)

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(main())).result()


def in_to_thread():
    async def main():
        return await asyncio.to_thread(lambda: float(heavy().sum().asscalar()) > 0)

    return asyncio.run(main())


INSIDE = {
    "another loop": (lambda: mx.run(awaits()), (300, 300)),
    "asyncio's own": (lambda: asyncio.run(awaits()), (300, 300)),
    "a thread of the loop": (in_to_thread, True),
    "a pool of threads": (in_threads, [0.0, 3.0, 6.0, 9.0]),
    "a pool that pushes functions": (in_threads_of_user_code, [0, 1, 2, 3]),
    "a loop of another thread": (in_a_loop_of_another_thread, (300, 300)),
    "functions awaited on a loop of another thread": (user_code_in_a_loop_of_another_thread, 7),
}


@pytest.mark.parametrize("inside", INSIDE)
@pytest.mark.parametrize("waits", [False, True])
def test_work_that_an_operation_starts_elsewhere_may_wait_for_the_same_device(inside, waits):
    work, expected = INSIDE[inside]
    op = mx.engine.push(work, writes=[mx.engine.Variable()])
    if not waits:  # not run by this waiting thread, but on the device's own worker
        until(op.done)
    assert op.wait() == expected
    actor = devices.get(mx.cpu()).compute
    until(lambda: (actor.slots, actor.running) == (1, 0))


@pytest.mark.parametrize("through", [mx.run, asyncio.run])
def test_a_cycle_through_another_loop_is_named(through):
    variable = mx.engine.Variable()

    async def main():
        return await mx.engine.push(int, reads=[variable])

    op = mx.engine.push(lambda: through(main()), writes=[variable])
    until(op.done)
    with pytest.raises(EngineError, match="waits inside itself"):
        op.wait()


# -- the run-ahead limit on an event loop ------------------------------------------------------------------


async def test_a_push_at_the_limit_lets_a_loop_go_on_that_pending_work_needs():
    loop = asyncio.get_running_loop()
    variable = mx.engine.Variable()

    async def needs_this_loop():
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asyncio.sleep(0, 5), loop))

    first = mx.engine.push(needs_this_loop, writes=[variable])
    for _ in range(engine.config.engine_max_ops + 500):
        mx.engine.push(int, reads=[variable])
    assert await first == 5
    await mx.engine.waitall_async()


async def test_a_push_at_the_limit_warns_once_a_line_inside_a_coroutine():
    with mx.engine.using(engine_max_ops=8):
        x = mx.nd.ones((400, 400))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(40):
                x = mx.nd.dot(x, x) * 0
        assert [each.category for each in caught] == [mx.engine.BlockingInCoroutineWarning]
        assert "a push inside a coroutine" in str(caught[0].message)
        await x


def test_threads_that_an_operation_starts_never_wait_for_room_that_only_it_can_make(caplog):
    variable = mx.engine.Variable()

    def starts_a_thread():
        def pushes():
            for _ in range(40):
                mx.engine.push(int, reads=[variable])

        thread = threading.Thread(target=pushes)
        thread.start()
        thread.join()
        return 5

    caplog.set_level("WARNING", "flowmx.engine")
    mx.engine.engine.waiting._has_logged_stall = False
    with mx.engine.using(engine_max_ops=8):
        op = mx.engine.push(starts_a_thread, writes=[variable])
        until(op.done)
        assert op.wait() == 5
    assert [record.getMessage().partition(" (")[0] for record in caplog.records] == ["8 operations are pending"]
    assert "running user code: 'starts_a_thread'" in caplog.text


# -- endings of variables, priorities, waiters -------------------------------------------------------------


def test_operators_refuse_an_array_whose_variable_was_deleted():
    array = mx.nd.ones((3,))
    mx.engine.delete_variable(array).wait()
    for use in (lambda: array + 1, lambda: array.__iadd__(1), lambda: mx.engine.push(int, reads=[array])):
        with pytest.raises(EngineError, match="deleted"):
            use()
    assert (mx.nd.ones((3,)) + 1).asnumpy().tolist() == [2, 2, 2]


def test_dependencies_of_an_urgent_operation_are_as_urgent():
    go, started = threading.Event(), threading.Event()
    order = []
    actor = ThreadActor("queue")
    variable = mx.engine.Variable()
    mx.engine.push(lambda: started.set() or go.wait(60), device=actor)
    assert started.wait(60)
    for number in range(20):
        mx.engine.push(functools.partial(order.append, number), device=actor)
    mx.engine.push(functools.partial(order.append, "needed"), writes=[variable], device=actor)
    urgent = mx.engine.push(functools.partial(order.append, "urgent"), reads=[variable], device=actor, priority=9)
    go.set()
    urgent.wait()
    engine.wait_all()
    assert order[:2] == ["needed", "urgent"]
    assert order[2:] == list(range(20))


async def test_many_tasks_may_wait_for_one_handle():
    go = asyncio.Event()

    async def gate():
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(go.wait(), loop))
        return 3

    loop = asyncio.get_running_loop()
    handle = mx.engine.push(gate)

    async def wait():
        return await handle

    tasks = [asyncio.create_task(wait()) for _ in range(3000)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    await asyncio.gather(*tasks[::2], return_exceptions=True)
    assert len(handle.waiters) == len(tasks[1::2])
    go.set()
    assert await asyncio.gather(*tasks[1::2]) == [3] * 1500


def test_completed_operations_are_freed():
    import gc
    import weakref

    class Result:
        pass

    class Local:
        pass

    weak = []

    def gives():
        weak.append(weakref.ref(result := Result()))
        return result

    def fails():
        local = Local()
        weak.append(weakref.ref(local))
        raise ValueError("x")

    variable = mx.engine.Variable()
    go = threading.Event()
    mx.engine.push(go.wait, writes=[variable])
    for _ in range(200):
        mx.engine.push(gives, reads=[variable])
        mx.engine.push(fails, reads=[variable])

    def alive():
        gc.collect()
        return sum(each() is not None for each in weak)

    go.set()
    engine.wait_all(throw=False)
    # The worker that made the operations ready may have its list of them a moment longer.
    until(lambda: alive() <= 1)  # the first failure is kept as it was
    engine.failures.clear()
    until(lambda: not alive())


def test_awaiting_without_asyncio_is_refused_at_once():
    array = mx.nd.ones((3,))
    array.wait_to_read()
    for each in (array, mx.engine.push(int)):
        with pytest.raises(EngineError, match="asyncio"):
            each.__await__().send(None)


def test_a_coroutine_that_caught_an_exception_continues_while_others_fail_with_it():
    """Unreported failures release the local variables of their frames; a frame that waits in a handler keeps them."""
    caught, go_on = [], threading.Event()

    async def recovers():
        try:
            raise ValueError("caught")
        except ValueError as error:
            caught.append(error)
            while not go_on.is_set():
                await asyncio.sleep(0)
            return 3

    def fails():
        raise caught[0]

    recovering = mx.engine.push(recovers)
    try:
        while not caught:
            time.sleep(0)
        for _ in range(3):
            failed = mx.engine.push(fails)
            while not failed.done():
                time.sleep(0)
    finally:
        go_on.set()
    assert recovering.wait() == 3
    mx.engine.engine.failures.clear()


# -- garbage -----------------------------------------------------------------------------------------------


class Garbage:
    """A cycle whose finalizer takes the engine's lock, as those of arrays may."""

    def __init__(self, took):
        self.took, self.itself = took, self

    def __del__(self):
        took = engine.lock.acquire(timeout=0.5)
        self.took.append(took)
        if took:
            engine.lock.release()


def test_no_garbage_is_collected_in_a_thread_that_starts_while_the_lock_is_held():
    took = []

    class Allocates(threading.Thread):
        def _set_ident(self):  # the first step of a new thread, for which `start` waits
            super()._set_ident()
            [[] for _ in range(100_000)]

    thread = Allocates(target=int)
    gc.collect()
    with engine.lock:
        Garbage(took)
        start_locked(thread)
    thread.join()
    assert gc.isenabled()
    gc.collect()
    assert took == [True]


def test_a_coroutine_of_an_actor_that_is_collected_takes_no_lock():
    actor = LoopActor("collected")
    coroutine = engine.hosting._run(actor)
    actor.run = lambda: Forever()
    coroutine.send(None)
    held, ended = threading.Event(), threading.Event()

    def hold():
        with engine.lock:
            held.set()
            ended.wait(30)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(30)
    try:
        closing = threading.Thread(target=coroutine.close)
        closing.start()
        closing.join(5)
        assert not closing.is_alive()
    finally:
        ended.set()
        holder.join()
        closing.join()


class Forever:
    def __await__(self):
        while True:
            yield
