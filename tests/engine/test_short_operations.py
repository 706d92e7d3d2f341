"""Short operations: the pushing thread runs them itself if that has no other effect."""

import asyncio
import threading

import numpy as np
import pytest

import flowmx as mx
from flowmx import devices
from flowmx.engine.runtime import engine
from flowmx.engine.scheduler import DONE, Operation
from flowmx.ops.kernels.onednn import library as onednn
from flowmx.ops.kernels.onednn.layouts import dense, pointer
from flowmx.ops.kernels.onednn.matmul import Product
from flowmx.ops.kernels.onednn.work import plan


def push(function, writes=(), short=True):
    op = Operation(function, (), (), tuple(writes), devices.get(mx.cpu()).compute, "work")
    op.short = short
    engine.enqueue(op)
    return op


@pytest.fixture(autouse=True)
def idle():
    mx.nd.waitall()
    yield
    engine.wait_all(throw=False)
    engine.failures.clear()
    engine.scheduler.check_invariants()


def test_the_thread_that_pushes_one_runs_it():
    threads = []
    push(lambda: threads.append(threading.get_ident()))
    assert threads == [threading.get_ident()]


def test_a_worker_runs_longer_operations():
    threads = []
    engine.wait(push(lambda: threads.append(threading.get_ident()), short=False))
    assert len(threads) == 1


def test_a_short_operation_runs_after_its_dependencies():
    opened, order = threading.Event(), []
    var = mx.engine.Variable()

    def first():
        assert opened.wait(60)
        order.append("first")

    push(first, [var], short=False)
    last = push(lambda: order.append("last"), [var])
    assert order == []
    opened.set()
    engine.wait(last)
    assert order == ["first", "last"]


def test_an_error_is_raised_by_the_wait():
    var = mx.engine.Variable()

    def fail():
        raise ValueError("no")

    push(fail, [var])  # not here
    with pytest.raises(ValueError, match="no"):
        engine.wait_variable(var)


def test_an_interrupt_leaves_nothing_behind():
    var, threads = mx.engine.Variable(), []

    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        push(interrupt, [var])
    engine.wait_all(throw=False)
    push(lambda: threads.append(1))
    assert threads == [1]


def test_an_event_loop_is_not_blocked():
    threads = []

    async def main():
        op = push(lambda: threads.append(threading.get_ident()))
        await asyncio.to_thread(engine.wait, op)

    asyncio.run(main())
    assert len(threads) == 1
    assert threads[0] != threading.get_ident()


def test_inside_an_operation_they_are_handed_to_workers():
    var, threads = mx.engine.Variable(), []

    def outer():
        push(lambda: threads.append("inner"), [var])
        threads.append("outer")

    engine.wait(push(outer, short=False))
    engine.wait_variable(var)
    assert threads == ["outer", "inner"]


def test_products_in_the_middle_run_where_they_are_pushed():
    a, b = (mx.nd.array(np.random.default_rng(0).standard_normal((200, 200), "float32")) for _ in range(2))
    mx.nd.dot(a, b).wait_to_read()
    c = mx.nd.dot(a, b)
    assert c.storage.writer is None or c.storage.writer.state == DONE
    np.testing.assert_allclose(c.asnumpy(), a.asnumpy() @ b.asnumpy(), rtol=1e-3, atol=1e-3)


@pytest.mark.skipif(onednn.library() is None, reason="oneDNN is missing")
def test_small_primitives_take_one_thread():
    lib = onednn.library()
    before = lib.threads()
    lib.use_threads(2)
    try:
        small, large = ((size, size) for size in (64, 1024))
        assert plan(Product, *[dense(small)] * 3).threads == 1
        assert plan(Product, *[dense(large)] * 3).threads == 2
        assert lib.threads() == 2
        a, b, c = (np.full((64, 64), 0.5, "float32") for _ in range(3))
        plan(Product, *[dense(small)] * 3)(*map(pointer, (a, b, c)))
        assert (c == 16).all()
        assert lib.threads() == 2
    finally:
        lib.use_threads(before)
