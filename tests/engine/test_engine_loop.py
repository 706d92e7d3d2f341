"""The engine's event loop keeps running, whatever users' coroutines do on it."""

import asyncio
import sys

import pytest

import flowmx as mx
from flowmx.engine import LoopActor, engine
from flowmx.errors import OperationCancelled


async def forever():
    await asyncio.sleep(1000)


async def three():
    return 3


def check_that_all_goes_on():
    assert mx.engine.push(three).wait() == 3
    assert mx.engine.push(lambda: 4).wait() == 4
    assert (mx.nd.ones((300, 300), ctx=mx.cpu(1)) * 2)[0, 0].asscalar() == 2


def stop_the_engine():
    """Stop the engine's threads, as for a fork."""
    engine.ending.before_fork()
    engine.ending.after_fork_in_parent()


async def cancel_all_tasks():
    for task in asyncio.all_tasks():
        task.cancel()
    await asyncio.sleep(0)


async def stop_the_loop():
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0)


async def close_the_loop():
    asyncio.get_running_loop().close()


async def exit_in_a_callback():
    asyncio.get_running_loop().call_soon(sys.exit)
    await asyncio.sleep(0.01)


async def exit_in_a_task():
    async def ends():
        raise KeyboardInterrupt

    done, _ = await asyncio.wait([asyncio.ensure_future(ends())])
    assert isinstance(done.pop().exception(), KeyboardInterrupt)


async def shut_down_executor():
    await asyncio.get_running_loop().shutdown_default_executor()


@pytest.mark.parametrize(
    "harm", [cancel_all_tasks, stop_the_loop, close_the_loop, exit_in_a_callback, exit_in_a_task, shut_down_executor]
)
@pytest.mark.parametrize("uvloop", [True, False])
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
def test_a_coroutine_cannot_end_the_engine(harm, uvloop):
    stop_the_engine()  # it restarts with the loop that is set
    with mx.engine.using(uvloop=uvloop):
        for _ in range(2):
            handle = mx.engine.push(harm)
            try:
                handle.wait()
            except (OperationCancelled, RuntimeError):
                pass
            check_that_all_goes_on()
    stop_the_engine()


def test_a_coroutine_sees_only_user_coroutines():
    async def names():
        return {task.get_name() for task in asyncio.all_tasks()}

    (mx.nd.ones((300, 300), ctx=mx.cpu(1)) * 2).wait_to_read()
    waiting = mx.engine.push(forever)
    assert mx.engine.push(names).wait() == {"forever", "names"}
    assert waiting.cancel()


def test_another_cancelled_coroutine_ends_as_cancelled():
    async def cancel_the_others():
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    others = [mx.engine.push(forever) for _ in range(3)]
    mx.engine.push(cancel_the_others).wait()
    for each in others:
        with pytest.raises(OperationCancelled, match="forever"):
            each.wait()


def test_a_coroutine_that_was_taken_and_has_no_task_yet_is_cancelled(monkeypatch):
    begin = LoopActor.begin
    cancelled = []

    async def cancelling(self, batch):
        cancelled.extend(op.cancel() for op in batch if op.name == "forever")
        await begin(self, batch)

    monkeypatch.setattr(LoopActor, "begin", cancelling)
    handle = mx.engine.push(forever)
    with pytest.raises(OperationCancelled):
        handle.wait()
    assert cancelled == [True]


def test_cancelling_right_after_the_push_always_works():
    handles = []
    for number in range(400):
        handles.append(mx.engine.push(forever))
        for _ in range(number % 20):  # cancels at another moment each time
            pass
        assert handles[-1].cancel()
    for handle in handles:
        with pytest.raises(OperationCancelled):
            handle.wait()


def test_a_coroutine_that_a_cancelled_task_never_began_is_over(monkeypatch):
    """Its task may be cancelled before the first step, by any code that sees it."""
    begin = LoopActor.begin

    async def cancelling(self, batch):
        await begin(self, batch)
        for op, task in self.tasks():
            if op.name == "forever":
                task.cancel()

    monkeypatch.setattr(LoopActor, "begin", cancelling)
    with pytest.raises(OperationCancelled, match="forever"):
        mx.engine.push(forever).wait()
    monkeypatch.undo()
    check_that_all_goes_on()
