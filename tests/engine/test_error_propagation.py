"""Law 3: an error reaches only what depends on it, keeps its type, and names its origin."""

import asyncio
import functools
import inspect
import traceback

import numpy as np
import pytest

import flowmx as mx
from flowmx.engine.failure import Failure
from flowmx.errors import MXNetError

KINDS = ["NaiveEngine", "ThreadedEngine", "ThreadedEnginePerDevice"]


@pytest.fixture(autouse=True)
def quiet_engine():
    mx.engine.engine.wait_all(throw=False)
    mx.engine.engine.failures.clear()
    yield
    mx.engine.engine.wait_all(throw=False)
    mx.engine.engine.failures.clear()


@pytest.fixture(params=KINDS, autouse=True)
def kind(request):
    with mx.engine.using(engine_type=request.param):
        yield request.param


def boom(error):
    raise error


def poisoned(error, shape=(3,), ctx=None):
    """An array that carries an error."""
    array = mx.nd.zeros(shape, ctx=ctx)
    mx.engine.push(functools.partial(boom, error), writes=[array])
    return array


def carried(array):
    """The error that an array carries."""
    try:
        array.wait_to_read()
    except Exception as error:
        return error
    return None


# -- an error in the middle of much work -------------------------------------------------------------------


async def test_one_failure_among_ten_thousand_operations_is_raised_where_it_belongs():
    arrays = [mx.nd.zeros((2,)) for _ in range(10)]

    def add(index, step):
        if (index, step) == (4, 500):
            raise LookupError("the record is gone")
        np.from_dlpack(arrays[index])[:] += 1

    line = inspect.currentframe().f_lineno + 5
    for step in range(1000):
        for index in range(10):
            layer = mx.engine.layer_scope("encoder") if index == 4 else mx.engine.layer_scope("decoder")
            with layer, mx.engine.layer_scope(f"step{step}"):
                mx.engine.push(functools.partial(add, index, step), writes=[arrays[index]], name="add")
    for index, array in enumerate(arrays):
        if index != 4:
            assert (await array).asnumpy().tolist() == [1000, 1000]
    # Pushes that came later have written the array again; they never read what the failed one would have left.
    assert (await arrays[4]).asnumpy().tolist() == [999, 999]
    with pytest.raises(LookupError, match="the record is gone") as caught:
        await mx.nd.waitall_async()
    notes = "\n".join(caught.value.__notes__)
    assert "operation 'add'" in notes
    assert "in layer 'encoder/step500'" in notes
    assert f"{__file__}:{line} in test_one_failure" in notes
    assert "mx.engine.push(functools.partial(add, index, step)" in notes
    assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "add", "the traceback is the operation's"
    await mx.nd.waitall_async()
    assert (await (arrays[4] + 1)).asnumpy().tolist() == [1000, 1000]


def test_the_statement_that_called_an_operator_is_named():
    a, b = poisoned(ValueError("bad")), mx.nd.ones((3, 4))
    error = carried(a)
    assert any(f"{__file__}:" in note and "mx.engine.push(" in note for note in error.__notes__)
    picked = b[mx.nd.array([9], dtype="int32")]  # found to be out of range only when it runs
    line = inspect.currentframe().f_lineno - 1
    error = carried(picked)
    assert isinstance(error, IndexError)
    assert any(f"{__file__}:{line} " in note for note in error.__notes__)


# -- where it goes -----------------------------------------------------------------------------------------


def test_errors_propagate_through_chains_devices_and_views():
    good = mx.nd.ones((4, 3))
    bad = poisoned(KeyError("k"), (4, 3))
    chain = bad
    for _ in range(100):
        chain = chain * 2 + good
    there = chain.as_in_context(mx.cpu(1)) * 2
    view = bad[1:3]
    reshaped = view.reshape((6,))
    from_view = reshaped + 1
    good_after = good * 2
    target = mx.nd.ones((4, 3))
    bad.copyto(target)
    target_view = target[2]
    for array in (bad, chain, there, view, reshaped, from_view, target, target_view):
        assert type(carried(array)) is KeyError
    assert (good_after.asnumpy() == 2).all()
    assert (good.asnumpy() == 1).all()


def test_an_operation_that_reads_an_error_is_not_run():
    ran = []
    bad = poisoned(ValueError("x"))
    out = mx.nd.zeros((3,))

    async def coroutine():
        ran.append(1)

    handles = [
        mx.engine.push(lambda: ran.append(1), reads=[bad], writes=[out]),
        mx.engine.push(coroutine, reads=[out]),
    ]
    for handle in handles:
        with pytest.raises(ValueError, match="x"):
            handle.wait()
    assert not ran


def test_a_later_full_write_clears_the_error_and_a_partial_one_does_not():
    bad = poisoned(ValueError("x"), (2, 3))
    bad[0] = 1
    assert type(carried(bad)) is ValueError
    bad[0:1, 1:] = mx.nd.ones((1, 2))
    assert type(carried(bad)) is ValueError
    before = bad + 1
    bad[:] = 5
    after = bad + 1
    assert (bad.asnumpy() == 5).all()
    assert (after.asnumpy() == 6).all()
    assert type(carried(before)) is ValueError

    for heal in (
        lambda array: mx.nd.ones((2, 3)).copyto(array),
        lambda array: mx.nd.broadcast_add(mx.nd.ones((2, 3)), mx.nd.zeros((2, 3)), out=array),
        lambda array: array.reshape((3, 2)).reshape((2, 3)).__setitem__(slice(None), 1),
        lambda array: mx.engine.push(lambda: np.from_dlpack(array).fill(1), writes=[array]),
    ):
        array = poisoned(ValueError("x"), (2, 3))
        heal(array)
        assert (array.asnumpy() == 1).all()


def test_in_place_arithmetic_does_not_clear_the_error():
    bad = poisoned(ValueError("x"))
    bad += 1
    bad *= mx.nd.ones((3,))
    assert type(carried(bad)) is ValueError


def test_of_two_errors_the_first_read_is_propagated():
    one, two = poisoned(ValueError("one")), poisoned(KeyError("two"))
    assert type(carried(one + two)) is ValueError
    assert type(carried(two + one)) is KeyError


# -- its report ---------------------------------------------------------------------------------------------


async def test_every_way_of_waiting_raises_the_same_error_again_and_again():
    error = ValueError("x")
    array = mx.nd.zeros((3,))
    handle = mx.engine.push(functools.partial(boom, error), writes=[array])
    for _ in range(3):
        for wait in (array.asnumpy, array.wait_to_read, array.tolist, handle.wait):
            with pytest.raises(ValueError, match="x") as caught:
                await asyncio.to_thread(wait)
            assert caught.value is error
        for awaitable in (array, handle):
            with pytest.raises(ValueError, match="x") as caught:
                await awaitable
            assert caught.value is error
    assert len(error.__notes__) == 2, "each wait must not add its own"
    assert "failed: ValueError: x" in repr(array)


def test_waitall_raises_the_first_unseen_error_once():
    observed = poisoned(ValueError("seen"))
    carried(observed)
    poisoned(KeyError("first"))
    after = poisoned(ZeroDivisionError("second"))
    with pytest.raises(KeyError, match="first"):
        mx.nd.waitall()
    mx.nd.waitall()
    assert type(carried(after)) is ZeroDivisionError, "an array tells its error whenever it is asked"


def test_waitall_raises_the_first_of_many():
    for i in range(500):
        poisoned(ValueError(f"number {i}"))
    with pytest.raises(ValueError, match="number") as caught:
        mx.nd.waitall()
    assert str(caught.value) == "number 0"


def test_waitall_raises_the_first_of_many_though_it_ends_last(kind):
    if kind == "NaiveEngine":
        pytest.skip("operations end in the order pushed")
    others_ended = asyncio.Event()

    async def last():
        await others_ended.wait()
        raise ValueError("number 0")

    async def tell():
        others_ended.set()

    with mx.engine.using(cpu_worker_nthreads=2):
        mx.engine.push(last)
        for number in range(1, 200):
            poisoned(ValueError(f"number {number}"))
        mx.engine.push(tell)
        with pytest.raises(ValueError, match="number") as caught:
            mx.nd.waitall()
    assert str(caught.value) == "number 0"


class Odd(Exception):
    """An exception that cannot be made from its text, pickled or copied."""

    def __init__(self, code, *, detail):
        super().__init__(code)
        self.code, self.detail = code, detail

    def __str__(self):
        return f"{self.code}: {self.detail}"


class Rude(Exception):
    """An exception whose text cannot be formatted."""

    def __str__(self):
        raise RuntimeError("no text")

    __repr__ = __str__


class Slotted(Exception):
    __slots__ = ("value",)


@pytest.mark.parametrize(
    "error",
    [Odd(3, detail="d"), Rude(), Slotted(), ExceptionGroup("several", [ValueError(1), KeyError(2)]), MXNetError("m")],
    ids=lambda error: type(error).__name__,
)
async def test_any_exception_is_raised_as_the_same_object(error):
    array = poisoned(error)
    with pytest.raises(type(error)) as caught:
        await (array + 1)
    assert caught.value is error
    assert isinstance(repr(array) if not isinstance(error, Rude) else "", str)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
@pytest.mark.parametrize("is_coroutine", [False, True])
async def test_an_operation_that_raises_an_exit_exception_fails_and_the_engine_continues(error, is_coroutine, kind):
    def work():
        raise error("end")

    async def work_async():
        await asyncio.sleep(0)
        raise error("end")

    if kind == "NaiveEngine" and not is_coroutine and error is KeyboardInterrupt:
        pytest.skip("the naive engine runs it where a person's own interrupt would arrive")
    array = mx.nd.zeros((3,))
    handle = mx.engine.push(work_async if is_coroutine else work, writes=[array])
    assert await asyncio.to_thread(_error_of, handle.wait) is error
    assert await asyncio.to_thread(_error_of, array.wait_to_read) is error
    mx.engine.engine.failures.clear()
    assert await mx.engine.push(lambda: 1) == 1

    async def two():
        return 2

    assert await mx.engine.push(two) == 2


def _error_of(wait):
    try:
        wait()
    except BaseException as error:
        return type(error)
    return None


async def test_an_operation_may_raise_stop_iteration():
    handle = mx.engine.push(functools.partial(boom, StopIteration("end")))
    # It can leave neither a coroutine nor a future: Python makes it a RuntimeError there.
    with pytest.raises(RuntimeError) as caught:
        await handle
    assert isinstance(caught.value.__cause__, StopIteration)
    with pytest.raises(StopIteration):
        handle.wait()


def test_an_error_that_an_operation_hands_on_from_another_names_both():
    first = mx.engine.push(functools.partial(boom, ValueError("x")), name="first")
    second = mx.engine.push(lambda: first.wait(), name="second")
    with pytest.raises(ValueError, match="x") as caught:
        second.wait()
    notes = "\n".join(caught.value.__notes__)
    assert "'first'" in notes and "'second'" in notes


def test_memory_of_a_failure_is_bounded():
    """The same exception object, raised again and again, does not grow."""
    error = ValueError("shared")
    for _ in range(200):
        handle = mx.engine.push(functools.partial(boom, error))
        with pytest.raises(ValueError, match="shared"):
            handle.wait()
    assert len(error.__notes__) < 50
    assert len(mx.engine.engine.failures) <= 64


# -- inside a bound graph ----------------------------------------------------------------------------------


def test_a_failure_deep_in_a_bound_graph_names_the_node_and_the_line_that_made_it():
    x = mx.sym.Variable("x")
    index = mx.sym.Variable("index")
    net = mx.sym.exp(x, name="warm_up")
    for depth in range(5):
        net = mx.sym.broadcast_add(net, x, name=f"layer{depth}")
    net = mx.sym.take(net, index, mode="raise", name="lookup_of_words")
    line = inspect.currentframe().f_lineno - 1
    net = mx.sym.exp(net, name="after")
    executor = net.bind(mx.cpu(), {"x": mx.nd.ones((4, 2)), "index": mx.nd.array([1, 99])})
    out = executor.forward()[0]
    with pytest.raises((IndexError, ValueError)) as caught:
        out.asnumpy()
    notes = "\n".join(caught.value.__notes__)
    assert "'lookup_of_words'" in notes
    assert f"{__file__}:{line}" in notes
    executor.arg_dict["index"][:] = 1
    assert executor.forward()[0].shape == (2, 2)
    assert np.isfinite(executor.outputs[0].asnumpy()).all()


def test_failures_and_their_notes_can_be_inspected_without_waiting():
    handle = mx.engine.push(functools.partial(boom, ValueError("x")))
    mx.engine.engine.wait_all(throw=False)
    assert isinstance(handle.failure, Failure)
    assert type(handle.failure.exception) is ValueError
