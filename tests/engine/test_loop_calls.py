"""The event loop while many operations end or are cancelled at once: it still serves other tasks."""

import asyncio
import functools
import threading

import pytest

import flowmx as mx
from flowmx.engine import Variable
from flowmx.engine.loops import LoopCalls
from flowmx.engine.runtime import engine
from flowmx.errors import OperationCancelled


class Turns:
    """The turns of the running loop, counted while it is the context of a block."""

    def __init__(self):
        self.count = 0

    def _next(self):
        self.count += 1
        self._handle = self._loop.call_soon(self._next)

    def __enter__(self):
        self._loop = asyncio.get_running_loop()
        self._next()
        return self

    def __exit__(self, *_):
        self._handle.cancel()


async def test_calls_of_other_threads_share_wake_ups_and_come_in_portions(monkeypatch):
    loop, woken, came = asyncio.get_running_loop(), [], []
    original = loop.call_soon_threadsafe
    monkeypatch.setattr(loop, "call_soon_threadsafe", lambda *arguments: woken.append(1) or original(*arguments))
    calls, done = LoopCalls(loop), asyncio.Event()
    with Turns() as turns:
        before = turns.count

        def note(number):
            came.append((number, turns.count - before))
            if number == 999:
                done.set()

        def hand_over():
            for number in range(1000):
                calls.add(note, number)

        thread = threading.Thread(target=hand_over)
        thread.start()
        thread.join()  # the loop has not run meanwhile
        await done.wait()
    assert [number for number, _ in came] == [*range(1000)]
    assert len(woken) == 1
    turns_of = [turn for _, turn in came]
    assert max(map(turns_of.count, turns_of)) <= 64


def test_calls_for_a_closed_loop_are_dropped():
    loop = asyncio.new_event_loop()
    calls = LoopCalls(loop)
    loop.close()
    calls.add(pytest.fail, "it ran")
    calls.add(pytest.fail, "it ran")


async def test_waiters_of_operations_that_end_together_wake_in_order_and_in_portions():
    gate, awake = Variable("gate"), []
    opened = threading.Event()
    first = mx.engine.push(opened.wait, writes=[gate])
    handles = [mx.engine.push(lambda: None, reads=[gate]) for _ in range(300)]

    async def wait(number):
        await handles[number]
        awake.append((number, turns.count))

    with Turns() as turns:
        tasks = [asyncio.create_task(wait(number)) for number in range(300)]
        await asyncio.sleep(0)
        opened.set()
        await asyncio.gather(first, *tasks)
    at = [turn for _, turn in awake]
    assert max(map(at.count, at)) <= 128
    assert {number for number, _ in awake} == {*range(300)}


async def test_pushing_coroutines_beyond_the_limit_does_not_hold_up_the_loop(monkeypatch):
    order = []

    async def work(number):
        order.append(number)

    monkeypatch.setattr(engine.waiting, "_sleep_for_room", lambda *_: pytest.fail("the loop slept"))
    variable = Variable("v")
    with mx.engine.using(engine_max_ops=4):
        handles = [mx.engine.push(functools.partial(work, number), writes=[variable]) for number in range(200)]
        await asyncio.gather(*handles)
    assert order == [*range(200)]


@pytest.mark.parametrize("tags", [[], [Variable("v")]], ids=["free", "in a row"])
async def test_all_of_many_coroutines_are_cancelled(tags):
    async def forever():
        await asyncio.Event().wait()

    handles = [mx.engine.push(forever, writes=tags) for _ in range(300)]
    waiting = asyncio.gather(*handles, return_exceptions=True)
    await asyncio.sleep(0)
    assert [each.cancel() for each in handles] == [True] * 300
    ends = await waiting
    assert all(isinstance(each, OperationCancelled) for each in ends)
