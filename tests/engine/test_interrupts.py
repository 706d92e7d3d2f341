"""Ctrl-C never takes the content of an array: operations that the main thread runs end first."""

import asyncio
import os
import signal
import threading
from types import SimpleNamespace

import pytest

import flowmx as mx
from flowmx.engine.interrupts import InterruptHandler
from tests.python_processes import run

TRAINING = """
from flowmx import gluon

net = gluon.nn.HybridSequential()
net.add(gluon.nn.Dense(64, activation="relu"), gluon.nn.BatchNorm(), gluon.nn.Dense(3))
net.initialize()
if {hybrid}:
    net.hybridize()
trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 1e-3})
loss = gluon.loss.SoftmaxCrossEntropyLoss()
x, y = mx.nd.random.uniform(shape=(128, 100)), mx.nd.zeros((128,))
small, big = mx.nd.zeros((2,)), mx.nd.ones((300, 300))

def step():
    with mx.autograd.record():
        out = loss(net(x), y).mean()
    out.backward()
    trainer.step(1)
    small[:] += 1
    (big * 1.0 + small[0]).asnumpy()
    big[:] = big * 0.5
    out.asscalar()

def interrupt():
    global armed
    while not ended:
        time.sleep(rng.random() / 100)
        if armed:
            armed = False
            os.kill(os.getpid(), signal.SIGINT)

step()
sys.unraisablehook = lambda error: None  # Python drops an interrupt of a finalizer
armed = ended = False
thread = threading.Thread(target=interrupt)
thread.start()
for _ in range({count}):
    try:
        since = 0
        while True:
            if time.monotonic() > since + 1:
                armed, since = True, time.monotonic()
            step()
    except KeyboardInterrupt:
        pass
    for parameter in net.collect_params().values():
        parameter.data().asnumpy()
    small.asnumpy(), big.asnumpy()
    mx.nd.waitall()
ended = True
thread.join()
"""


@pytest.mark.parametrize("count", [60, pytest.param(2000, marks=[pytest.mark.soak, pytest.mark.timeout(900)])])
@pytest.mark.parametrize("hybrid", [False, True])
def test_an_interrupted_training_keeps_the_content_of_all_arrays(hybrid, count):
    program = TRAINING.replace("{hybrid}", str(hybrid)).replace("{count}", str(count))
    code, _, err = run(program, seed=count)
    assert code == 0, err


class Thread:
    """A thread that is busy, or not."""

    is_busy = True

    def __call__(self):
        return self.is_busy


@pytest.fixture
def thread():
    return Thread()


@pytest.fixture
def handler(thread):
    handler, old = InterruptHandler(thread), signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, handler)
    yield handler
    thread.is_busy = False
    handler._is_delayed = False
    signal.signal(signal.SIGINT, old)


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)


def test_an_idle_thread_is_interrupted_at_once(handler, thread):
    thread.is_busy = False
    with pytest.raises(KeyboardInterrupt):
        interrupt()


def test_a_busy_thread_is_interrupted_as_soon_as_it_is_idle(handler, thread):
    interrupt()
    interrupt()
    thread.is_busy = False
    with pytest.raises(KeyboardInterrupt):
        threading.Event().wait(20)
    threading.Event().wait(0.01)  # the signal comes once


def test_a_later_signal_interrupts_a_thread_that_stays_busy(handler, monkeypatch):
    interrupt()
    handler._since -= 1
    with pytest.raises(KeyboardInterrupt):
        interrupt()


def test_operations_of_user_code_are_interrupted_at_once():
    def function():
        interrupt()
        return threading.Event().wait(20)

    handle = mx.engine.push(function)
    with pytest.raises(KeyboardInterrupt):
        handle.wait()
    with pytest.raises(mx.MXNetError, match="was interrupted by KeyboardInterrupt"):
        handle.wait()


def test_asyncio_still_cancels_the_main_task():
    (mx.nd.ones((2,)) + 1).asnumpy()
    events = []

    async def main():
        try:
            interrupt()
            await asyncio.sleep(20)
        except asyncio.CancelledError:
            events.append("cancelled")
            raise

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    assert events == ["cancelled"]


def test_removed_hooks_restore_the_handler():
    program = """
    before = signal.getsignal(signal.SIGINT), signal.default_int_handler
    (mx.nd.ones((2,)) + 1).asnumpy()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler is not before[0]
    mx.process_hooks.uninstall()
    assert (signal.getsignal(signal.SIGINT), signal.default_int_handler) == before
    """
    assert run(program) == (0, "", "")


def test_a_handler_of_the_program_stays():
    program = """
    def handle(number, frame):
        print("interrupted", flush=True)
    signal.signal(signal.SIGINT, handle)
    (mx.nd.ones((2,)) + 1).asnumpy()
    os.kill(os.getpid(), signal.SIGINT)
    """
    assert run(program) == (0, "interrupted\n", "")


def test_the_child_of_a_fork_has_no_delayed_signal(thread, monkeypatch):
    monkeypatch.setattr("flowmx.engine.interrupts._thread", SimpleNamespace(start_new_thread=lambda *arguments: None))
    handler = InterruptHandler(thread)
    handler(signal.SIGINT, None)
    handler._since -= 1
    handler.after_fork_in_child()
    handler(signal.SIGINT, None)  # the first one of the child: it waits
    handler._since -= 1
    with pytest.raises(KeyboardInterrupt):
        handler(signal.SIGINT, None)
