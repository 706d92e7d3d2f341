"""Scopes in generators end wherever the generators are closed: no setting stays in force, no work is held back."""

import asyncio
import contextlib
import gc
import threading

import pytest

import flowmx as mx
from flowmx.engine import bulking, engine
from flowmx.gluon import scope as block_scope
from flowmx.profiler.recorder import scope_name

# For each scope: how it is made, what is in force, and what that is outside it.
SCOPES = {
    "record": (mx.autograd.record, mx.autograd.is_recording, False),
    "pause": (lambda: mx.autograd.pause(train_mode=True), mx.autograd.is_training, False),
    "train_mode": (mx.autograd.train_mode, mx.autograd.is_training, False),
    "context": (lambda: mx.cpu(3), mx.current_context, mx.cpu(0)),
    "attributes": (lambda: mx.AttrScope(a="1"), lambda: mx.attribute.current().get("a"), None),
    "names": (lambda: mx.name.Prefix("p_"), lambda: type(mx.name.NameManager.current), mx.name.NameManager),
    "np_array": (lambda: mx.util.np_array(True), mx.util.is_np_array, False),
    "np_shape": (lambda: mx.util.np_shape(True), mx.util.is_np_shape, False),
    "profiler": (lambda: mx.profiler.scope("x"), lambda: scope_name.get().value, ""),
    "layer": (lambda: mx.engine.layer_scope("layer"), mx.engine.current_layer, None),
    "bulk": (lambda: mx.engine.bulk(100), bulking.is_inside, False),
    "block": (lambda: mx.gluon.nn.Dense(1).name_scope(), lambda: block_scope._current.get().value, None),
}


@pytest.fixture(params=SCOPES)
def scope(request):
    yield Tried(*SCOPES[request.param])
    assert not engine.open_bulks


class Tried:
    def __init__(self, make, look, outside):
        self.make, self.look, self.outside = make, look, outside

    def generator(self):
        with self.make():
            mx.nd.ones(3) * 2
            yield

    async def async_generator(self):
        with self.make():
            mx.nd.ones(3) * 2
            yield

    def check_outside(self):
        assert self.look() == self.outside

    def check_inside(self):
        assert self.look() != self.outside


def in_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def test_a_generator_that_is_closed(scope):
    generator = scope.generator()
    next(generator)
    scope.check_inside()
    generator.close()
    scope.check_outside()


def test_a_generator_that_is_dropped(scope):
    generator = scope.generator()
    next(generator)
    del generator
    gc.collect()
    scope.check_outside()


def test_a_generator_that_another_thread_closes(scope):
    generator = scope.generator()
    next(generator)
    in_thread(generator.close)
    scope.check_outside()


def test_a_generator_that_another_thread_began(scope):
    generator = scope.generator()
    in_thread(lambda: next(generator))
    scope.check_outside()
    generator.close()
    scope.check_outside()


def test_generators_closed_in_the_order_of_their_beginning(scope):
    first, second = scope.generator(), scope.generator()
    next(first)
    next(second)
    first.close()
    scope.check_inside()
    second.close()
    scope.check_outside()


@pytest.mark.parametrize("is_first", [True, False])
def test_generators_that_another_thread_closes(scope, is_first):
    generators = [scope.generator(), scope.generator()]
    for each in generators:
        next(each)
    in_thread(generators[0 if is_first else 1].close)
    in_thread(generators[1 if is_first else 0].close)
    scope.check_outside()


def test_a_generator_closed_inside_of_a_scope(scope):
    generator = scope.generator()
    next(generator)
    with scope.make():
        generator.close()
        scope.check_inside()
    scope.check_outside()


def test_a_generator_begun_inside_of_a_scope(scope):
    generator = scope.generator()
    with scope.make():
        next(generator)
    generator.close()
    scope.check_outside()


def test_a_scope_of_the_caller_stays_when_a_generator_is_closed_in_it(scope):
    generator = scope.generator()
    in_thread(lambda: next(generator))
    with scope.make():
        generator.close()
        scope.check_inside()
    scope.check_outside()


def test_exit_stacks(scope):
    with contextlib.ExitStack() as stack:
        stack.enter_context(scope.make())
        stack.enter_context(scope.make())
        scope.check_inside()
    scope.check_outside()
    stack.enter_context(scope.make())
    in_thread(stack.close)
    scope.check_outside()


async def begin(generator):
    await anext(generator)


async def test_an_asynchronous_generator_that_another_task_closes(scope):
    generator = scope.async_generator()
    await begin(generator)
    scope.check_inside()
    await asyncio.create_task(generator.aclose())
    scope.check_outside()


async def test_an_asynchronous_generator_that_another_task_began(scope):
    generator = scope.async_generator()
    await asyncio.create_task(begin(generator))
    scope.check_outside()
    await generator.aclose()
    scope.check_outside()


async def test_an_asynchronous_generator_between_two_tasks(scope):
    generator = scope.async_generator()
    await asyncio.create_task(begin(generator))
    await asyncio.create_task(generator.aclose())
    scope.check_outside()


async def test_an_asynchronous_generator_that_is_dropped(scope):
    generator = scope.async_generator()
    await begin(generator)
    del generator
    gc.collect()
    for _ in range(5):  # the loop closes it in a separate task
        await asyncio.sleep(0)
    scope.check_outside()


def test_an_asynchronous_generator_that_ends_with_its_loop(scope):
    generators = []

    async def main():
        generators.append(scope.async_generator())
        await anext(generators[0])

    asyncio.run(main())
    scope.check_outside()


async def test_tasks_started_inside_a_scope_keep_it(scope):
    go_on = asyncio.Event()

    async def child():
        await go_on.wait()
        return scope.look()

    with scope.make():
        task = asyncio.create_task(child())
    scope.check_outside()
    go_on.set()
    assert (await task != scope.outside) or scope.make is SCOPES["bulk"][0]  # a bulk that has ended gathers nothing


def test_settings_made_inside_end_with_the_scope():
    with mx.cpu(1):
        mx.Context.default_ctx = mx.cpu(2)
        assert mx.current_context() == mx.cpu(2)
    assert mx.current_context() == mx.cpu(0)
    with mx.autograd.record():
        mx.autograd.set_recording(False)
        mx.autograd.set_training(False)
        assert not mx.autograd.is_recording()
    assert not mx.autograd.is_recording()


async def test_a_generator_of_one_task_ends_no_scope_of_another():
    """Contexts are one object for all, so the scope that is left is known by its generator."""
    scope = Tried(*SCOPES["context"])
    generators = [scope.async_generator(), scope.async_generator()]
    ready, go_on = asyncio.Semaphore(0), asyncio.Event()

    async def task(generator):
        await begin(generator)
        ready.release()
        await go_on.wait()
        return mx.current_context()

    tasks = [asyncio.create_task(task(each)) for each in generators]
    for _ in tasks:
        await ready.acquire()
    await asyncio.create_task(generators[0].aclose())
    go_on.set()
    assert await asyncio.gather(*tasks) == [mx.cpu(0), mx.cpu(3)]
    await generators[1].aclose()


def test_work_of_a_bulk_in_a_generator_that_another_task_closes_is_not_held_back():
    async def main():
        generator = Tried(*SCOPES["bulk"]).async_generator()
        await asyncio.create_task(begin(generator))
        assert engine.open_bulks
        await asyncio.create_task(generator.aclose())

        while mx.engine.stats()["pending"]:
            await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(main(), 30))
