"""Asynchronous libraries other than asyncio: calls that would block or hang them raise an error that names the library.

Stand-ins replace the libraries, except gevent where it is installed. flowmx imports none of them: it asks those that
are loaded whether they run the current code.
"""

import asyncio
import contextlib
import subprocess
import sys
import threading
import types

import numpy as np
import pytest

import flowmx as mx
from flowmx import event_loops
from flowmx.errors import EngineError


def trio(is_running):
    def current_task():
        if not is_running[0]:
            raise RuntimeError("must be called from async context")

    return {"trio": types.SimpleNamespace(lowlevel=types.SimpleNamespace(current_task=current_task))}


def curio(is_running):
    return {"curio.meta": types.SimpleNamespace(curio_running=lambda: is_running[0])}


def gevent(is_running):
    class Greenlet:
        pass

    return {"gevent": types.SimpleNamespace(Greenlet=Greenlet, getcurrent=lambda: Greenlet() if is_running[0] else 0)}


LIBRARIES = {"trio": trio, "curio": curio, "gevent": gevent}


@pytest.fixture(params=LIBRARIES)
def name(request):
    return request.param


@pytest.fixture
def inside(name, monkeypatch):
    """A flag: whether the library runs the tests' code."""
    is_running = [False]
    monkeypatch.setattr(event_loops, "_modules_without", -1)  # the stand-in replaces an installed library
    for module, stand_in in LIBRARIES[name](is_running).items():
        monkeypatch.setitem(sys.modules, module, stand_in)
    yield is_running
    is_running[0] = False


def driven(coroutine):
    """Run a coroutine as a loop that does not know asyncio's futures would."""
    try:
        waited = coroutine.send(None)
    except StopIteration as end:
        return end.value
    coroutine.close()
    raise AssertionError(f"it waits for {waited!r}")


def predictor():
    net = mx.gluon.nn.Dense(3)
    net.initialize()
    return mx.serve.Predictor(net, shape=(5,))


async def first(batches):
    return await anext(aiter(batches), None)


class Numbers(mx.io.DataIter):
    def next(self):
        raise StopIteration


WAITS = {
    "array": lambda asked: awaited(mx.nd.ones((3,))),
    "operation": lambda asked: awaited(mx.engine.push(lambda: 3)),
    "predict": lambda asked: asked([1, 2, 3, 4, 5]),
    "ready": lambda asked: asked.ready(),
    "start": lambda asked: awaited(asked.start()),
    "drain": lambda asked: asked.drain(),
    "swap": lambda asked: asked.swap(mx.gluon.nn.Dense(3)),
    "loader": lambda asked: first(mx.gluon.data.DataLoader(mx.gluon.data.ArrayDataset(np.ones((4, 2))), 2)),
    "iterator": lambda asked: first(Numbers()),
    "store": lambda asked: mx.kv.create_async("local"),
}


async def awaited(it):
    return await it


@pytest.mark.parametrize("wait", WAITS)
def test_awaiting_in_another_library_is_refused_by_name(name, inside, wait):
    model = predictor()
    inside[0] = True
    with pytest.raises(EngineError, match=f"awaited under {name}.* but supports only asyncio: wait in a thread"):
        driven(WAITS[wait](model))
    inside[0] = False
    asyncio.run(model.drain())


def test_blocking_reads_are_refused_by_name_and_ready_arrays_are_read(name, inside):
    begun = mx.nd.ones((2,))
    begun.wait_to_read()
    with held() as waiting:
        inside[0] = True
        assert begun.asnumpy().tolist() == [1, 1]
        for read in (waiting.asnumpy, waiting.wait_to_read, mx.nd.waitall):
            with pytest.raises(EngineError, match=f"waits for .* under {name}, whose loop it would block"):
                read()
        inside[0] = False
    assert waiting.asnumpy().tolist() == [2, 2]


def test_blocking_may_be_allowed(inside):
    with mx.engine.using(blocking_in_loop="allow"), held(0.01) as waiting:
        inside[0] = True
        assert waiting.asnumpy().tolist() == [2, 2]


@contextlib.contextmanager
def held(seconds=20):
    """Provide an array that is pending until the block ends, or some seconds have passed."""
    let, array = threading.Event(), mx.nd.ones((2,))
    array.wait_to_read()
    mx.engine.push(lambda: let.wait(seconds), writes=[array])
    yield array + 1
    let.set()


def test_training_loops_are_refused_by_name(name, inside):
    module = mx.mod.Module(mx.sym.var("data") * 1, label_names=None)
    data = mx.io.NDArrayIter(np.ones((4, 2), "f"), batch_size=2)
    module.bind(data.provide_data, for_training=False)
    module.init_params()
    inside[0] = True
    for run in (lambda: module.predict(data), lambda: mx.run(awaited(mx.nd.ones((3,))))):
        with pytest.raises(EngineError, match=f"runs to completion under {name}"):
            run()


def test_asyncio_inside_of_another_library_works(inside):
    """As in trio-asyncio. Where trio is a guest of asyncio, trio's tasks are distinguished from asyncio's."""
    inside[0] = True

    async def main():
        assert event_loops.library() is None
        return (await (mx.nd.ones((2,)) * 2)).asnumpy().tolist()

    assert asyncio.run(main()) == [2, 2]

    async def guest():
        loop, actual = asyncio.get_running_loop(), asyncio.Event()

        def step():
            names.append(event_loops.library())
            actual.set()

        loop.call_soon(step)
        await actual.wait()

    names = []
    asyncio.run(guest())
    assert names[0] is not None


def test_pushes_at_the_limit_do_not_hold_up_its_loop(inside):
    with mx.engine.using(engine_max_ops=4), held() as waiting:
        inside[0] = True
        for _ in range(20):
            waiting = waiting + 1
        inside[0] = False
    mx.nd.waitall()


def test_without_any_loop_the_error_says_what_to_run():
    with pytest.raises(EngineError, match=r"without a running asyncio event loop.*mx.run\(main\(\)\)"):
        driven(awaited(mx.nd.ones((3,))))


PATCHED = """
import gevent.monkey
gevent.monkey.patch_all({})
import flowmx as mx
try:
    print((mx.nd.ones((2,)) + 1).asnumpy())
except mx.MXNetError as error:
    print(error)
"""


def test_threads_that_gevent_has_patched_are_refused():
    pytest.importorskip("gevent")
    outputs = [
        subprocess.run(
            [sys.executable, "-c", PATCHED.format(options)], capture_output=True, text=True, timeout=60, check=True
        ).stdout
        for options in ("", "thread=False")
    ]
    assert "gevent has patched the threading module" in outputs[0] and "patch_all(thread=False)" in outputs[0]
    assert outputs[1] == "[2. 2.]\n"
