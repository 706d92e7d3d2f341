"""Sessions of a predictor: order, shared batches, streams, failures, cancellation, limits, memory."""

import asyncio
import gc
import os
import threading
import warnings

import numpy as np
import pytest

import flowmx as mx
from flowmx.comm.metrics import Metrics
from flowmx.serve import InvalidInput, Overloaded, Predictor, SessionClosed, State, Unavailable, command
from flowmx.serve.sessions.states import StateRows
from tests.waiting import until

XS = np.random.default_rng(5).standard_normal((40, 25, 3)).astype(np.float32)


class Sums(mx.gluon.Block):
    """The sum of all inputs of a session, and the number of its calls; a NaN fails."""

    let = threading.Event()
    batches: list[int] = []  # noqa: RUF012 - reset by the fixture

    def forward(self, x, total, count):
        Sums.batches.append(len(x))
        assert Sums.let.wait(30)
        if np.isnan(x.asnumpy()).any():
            raise ArithmeticError("a NaN")
        total, count = total + x, count + 1
        return mx.nd.concat(total, count.expand_dims(1), dim=1), total, count


@pytest.fixture(autouse=True)
def opened():
    Sums.let.set()
    Sums.batches.clear()
    yield
    Sums.let.set()


def summing(**options):
    options = {"max_batch": 8, "metrics": Metrics(), "states": [(2,), State(())], **options}
    return Predictor(Sums(), (2,), **options)


async def closed(predictor, session):
    """Close the gate, and start a call that waits for it."""
    await predictor.ready()
    Sums.let.clear()
    Sums.batches.clear()
    task = asyncio.create_task(session([1, 1]))
    await until(lambda: Sums.batches)
    return task


def in_child(function):
    """Call a function in the child of a fork; return its exit status."""
    child = os.fork()
    if not child:
        status = 1
        try:
            function()
            status = 0
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1]


def recurrent(cell, xs):
    """Return the outputs of a cell for sequences (session, time, features), computed on another thread."""
    outputs = []

    def run():
        states = cell.begin_state(len(xs))
        for step in range(xs.shape[1]):
            y, states = cell(mx.nd.array(xs[:, step]), states)
            outputs.append(y.asnumpy())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return np.stack(outputs, 1)


@pytest.mark.parametrize("kind", [mx.gluon.rnn.GRUCell, mx.gluon.rnn.LSTMCell])
async def test_sessions_of_a_cell_share_batches_and_equal_separate_runs(kind):
    cell = kind(6, input_size=3)
    cell.initialize()
    expected, metrics = recurrent(cell, XS), Metrics()

    async def client(place):
        async with predictor.session() as session:
            if place % 2:
                return [y async for y in session.stream(XS[place])]
            return [await session(x) for x in XS[place]]

    async with Predictor(cell, (3,), states=True, max_batch=16, metrics=metrics) as predictor:
        actual = await asyncio.gather(*map(client, range(len(XS))))
        alone = await predictor(XS[0, 0])
    np.testing.assert_allclose(np.array(actual), expected, atol=1e-6)
    np.testing.assert_allclose(alone, expected[0, 0], atol=1e-6)  # a call without a session begins with zeros
    batches = metrics.histogram("flowmx_serve_batch_rows", "Rows of batches.", ["model"]).counts("model")
    assert sum(batches) < XS.shape[0] * XS.shape[1] / 4


async def test_layers_take_their_states_as_a_list():
    layer = mx.gluon.rnn.LSTM(4, 2, "NTC", input_size=3)
    layer.initialize()
    results = []
    thread = threading.Thread(target=lambda: results.append(layer(mx.nd.array(XS[:2])).asnumpy()))
    thread.start()
    thread.join()
    async with Predictor(layer, (5, 3), states=True, max_batch=4) as predictor, predictor.session() as session:
        parts = [await session(part) for part in np.split(XS[1], 5)]
    np.testing.assert_allclose(np.concatenate(parts), results[0][1], atol=1e-6)


async def test_a_symbol_pairs_states_with_outputs():
    x, total = mx.sym.var("x"), mx.sym.var("total")
    after = mx.sym.broadcast_add(total, x, name="after")
    symbol = mx.sym.Group([after, mx.sym.square(after, name="y")])
    states = {"total": State((2,), initial=1.0, output="after_output")}
    async with Predictor(symbol, {"x": (2,)}, params={}, states=states) as predictor:
        assert predictor.outputs == ("y_output",)
        async with predictor.session() as session:
            assert [(await session([1, k])).tolist() for k in range(3)] == [[4, 1], [9, 4], [16, 16]]


async def test_calls_of_a_session_run_in_order_even_if_they_are_made_at_once():
    async with summing() as predictor, predictor.session() as session:
        results = await asyncio.gather(*(session([k, 0]) for k in range(20)))
    assert [tuple(result) for result in results] == [(k * (k + 1) / 2, 0, k + 1) for k in range(20)]


async def test_a_stream_runs_ahead_only_so_far():
    read = []

    async def inputs():
        for k in range(50):
            read.append(k)
            yield [1, k]

    async with summing() as predictor, predictor.session() as session:
        count = 0
        async for y in session.stream(inputs(), ahead=4):
            count += 1
            assert y[2] == count
            assert len(read) <= count + 4
        assert count == len(read) == 50
        with pytest.raises(ValueError, match="ahead is 0"):
            await anext(session.stream([], ahead=0))


async def test_a_failed_call_leaves_the_states_and_ends_its_stream():
    async with summing() as predictor, predictor.session("alice") as alice, predictor.session("bob") as bob:
        inputs = [[1, 0], [2, 0], [np.nan, 0], [100, 0], [100, 0]]
        stream = alice.stream(inputs)
        assert [(await anext(stream))[0] for _ in range(2)] == [1, 3]
        with pytest.raises(ArithmeticError, match="a NaN") as info:
            await anext(stream)
        assert "the call was of session 'alice'" in "".join(info.value.__notes__)
        good, bad = await asyncio.gather(bob([5, 0]), alice([np.nan, 0]), return_exceptions=True)
        assert good[0] == 5  # though it may have shared the batch
        assert isinstance(bad, ArithmeticError)
        assert (await alice([4, 0])).tolist() == [7, 0, 3]


async def test_the_error_of_the_inputs_follows_the_results():
    def inputs():
        yield [1, 0]
        raise LookupError("no more")

    async with summing() as predictor, predictor.session() as session:
        stream = session.stream(inputs())
        assert (await anext(stream))[0] == 1
        with pytest.raises(LookupError, match="no more"):
            await anext(stream)


async def test_a_cancelled_call_has_no_effect():
    async with summing() as predictor, predictor.session() as session:
        running = await closed(predictor, session)
        waiting = [asyncio.create_task(session([10 * k, 0])) for k in (1, 2, 3)]
        await until(lambda: predictor._sessions._table.waiting == 3)
        running.cancel()
        waiting[1].cancel()
        await asyncio.wait([running, waiting[1]])
        Sums.let.set()
        assert [(await waiting[k])[0] for k in (0, 2)] == [10, 40]
        assert session.steps == 2


async def test_a_closed_session_frees_its_memory_and_names_itself():
    async with summing() as predictor:
        sessions = [predictor.session(k) for k in range(200)]
        await asyncio.gather(*(session([1, 1]) for session in sessions))
        assert predictor.describe()["sessions"]["bytes"] >= 200 * 12
        for session in sessions:
            session.close()
        await until(lambda: predictor.describe()["sessions"]["bytes"] == 0)
        with pytest.raises(SessionClosed, match="session 7 is closed: open a new session"):
            await sessions[7]([1, 1])
        assert "<Session 7 of 'model': is closed>" in repr(sessions[7])


async def test_a_close_fails_the_unfinished_calls():
    async with summing() as predictor:
        session = predictor.session()
        calls = [await closed(predictor, session), asyncio.create_task(session([2, 2]))]
        await until(lambda: predictor._sessions._table.waiting == 1)
        session.close()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(result) for result in results] == [SessionClosed, SessionClosed]
        assert predictor.describe()["sessions"]["open"] == 0
        Sums.let.set()


async def test_deleted_and_idle_sessions_are_closed():
    async with summing() as predictor:
        lasting, idle = predictor.session(), predictor.session(idle=0.05)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            session = predictor.session()
            await session([1, 1])
            del session
            gc.collect()
        await until(lambda: predictor.describe()["sessions"]["open"] == 1)
        with pytest.raises(SessionClosed, match=r"was closed after 0.05 s without a call"):
            await idle([1, 1])
        assert not lasting.is_closed
        text = predictor.metrics.text()
        for line in ('reason="deleted"} 1', 'reason="idle"} 1', 'flowmx_serve_sessions{model="model"} 1'):
            assert line in text


async def test_limits_on_sessions_calls_and_bytes():
    limits = {"sessions": 2, "calls": 2, "nbytes": 1000}
    async with summing(sessions=limits) as predictor:
        first, _second = predictor.session("a"), predictor.session("b")
        with pytest.raises(Overloaded, match="2 sessions are open, at most 2") as info:
            predictor.session()
        assert info.value.retry_after > 0
        running = await closed(predictor, first)
        waiting = asyncio.create_task(first([1, 1]))
        await until(lambda: predictor._sessions._table.waiting == 1)
        with pytest.raises(Overloaded, match="session 'a' has 2 unfinished calls"):
            await first([1, 1])
        Sums.let.set()
        assert [(await task)[2] for task in (running, waiting)] == [1, 2]


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"states": []}, ValueError, "states is empty"),
        ({"states": True}, ValueError, r"Sums has no state_info\(\)"),
        ({"states": [(0,), ()]}, ValueError, "state state0 has the shape"),
        ({"states": {"a": "b"}}, TypeError, "the state a is a string"),
        ({"states": [State((2,), axis=3)]}, ValueError, "state state0 has its batch axis at 3"),
        ({"states": [State((2,), initial=[1, 2, 3])]}, ValueError, "state state0 has an invalid dtype or initial"),
        ({"sessions": {"rooms": 3}}, ValueError, "sessions is .* expected positive numbers for sessions, nbytes"),
        ({"states": False, "sessions": {"calls": 3}}, ValueError, "expected states="),
        ({"constants": {"sr": 16000}}, ValueError, "constants are sr, expected none"),
    ],
)
def test_wrong_arguments_are_refused(options, error, match):
    with pytest.raises(error, match=match):
        summing(**options)


class Forgetful(mx.gluon.Block):
    def forward(self, x, *states):
        return x if len(states) == 1 else (x, *states[1:], x)


@pytest.mark.parametrize(
    ("states", "match"),
    [
        ([(2,)], r"the model has 1 states and returned 1 arrays, expected \(outputs, \*next states\)"),
        ([(5,), (2,)], r"takes the state state0 as float32 \(1, 5\) and returns it as float32 \(1, 2\)"),
    ],
)
async def test_a_model_that_returns_other_states_is_refused(states, match):
    predictor = Predictor(Forgetful(), (2,), states=states)
    with pytest.raises(ValueError, match=match):
        await predictor.ready()
    with pytest.raises(Unavailable, match="failed to warm up"):
        predictor.session()


async def test_wrong_inputs_are_refused_with_the_name_of_the_session():
    async with summing() as predictor, predictor.session("carol") as session:
        with pytest.raises(InvalidInput, match="session 'carol': input data has shape"):
            await session([1, 2, 3])
        with pytest.raises(InvalidInput, match="session 'carol': the input has 2 samples with a batch axis"):
            await session(np.zeros((2, 2)))
        with pytest.raises(ValueError, match="session 'carol' is already open"):
            predictor.session("carol")
    net = mx.gluon.nn.Dense(2)
    net.initialize()
    with pytest.raises(TypeError, match="model has no states, expected a predictor with states"):
        Predictor(net, (3,)).session()


async def test_a_drain_answers_calls_and_closes_sessions():
    predictor = summing()
    session = predictor.session()
    call = await closed(predictor, session)
    draining = asyncio.create_task(predictor.drain())
    await until(lambda: not predictor.is_ready)
    with pytest.raises(Unavailable):
        predictor.session()
    with pytest.raises(Unavailable):
        await session([1, 1])
    Sums.let.set()
    assert (await call)[0] == 1
    await draining
    assert session.is_closed
    await predictor.ready()
    with pytest.raises(SessionClosed, match="was closed because model was drained"):
        await session([1, 1])
    async with predictor.session() as other:
        assert (await other([3, 3]))[0] == 3
    await predictor.drain()


async def test_a_swap_keeps_the_sessions():
    first, second = (mx.gluon.rnn.RNNCell(2, input_size=3) for _ in range(2))
    for cell, value in ((first, 0.1), (second, 0.2)):
        cell.initialize(mx.init.Constant(value))
    async with Predictor(first, (3,), states=True) as predictor, predictor.session() as session:
        y = await session([1, 1, 1])
        await predictor.swap(second)
        z = await session([1, 1, 1])
        np.testing.assert_allclose(z, np.tanh(0.2 * 3 + 0.2 * y.sum() + 0.2 * 0), atol=1e-6)
        wide = mx.gluon.rnn.RNNCell(5, input_size=3)
        wide.initialize()
        with pytest.raises(ValueError, match=r"the new model has the states float32 \(5,\)"):
            await predictor.swap(wide)


async def test_new_weights_take_effect_at_the_next_call():
    cell = mx.gluon.rnn.RNNCell(2, input_size=1)
    cell.initialize(mx.init.Constant(0.1))
    async with Predictor(cell, (1,), states=True) as predictor, predictor.session() as session:
        y = await session([1])
        for parameter in cell.collect_params(".*i2h_weight").values():
            parameter.set_data(mx.nd.full((2, 1), 0.7))
        z = await session([1])
    np.testing.assert_allclose(z, np.tanh(0.7 + 0.1 * y.sum()), atol=1e-6)


async def test_a_stack_of_cells_and_a_checkpoint_are_models_with_states(tmp_path):
    stack = mx.gluon.rnn.HybridSequentialRNNCell()
    stack.add(mx.gluon.rnn.LSTMCell(4, input_size=3))
    stack.add(mx.gluon.rnn.GRUCell(2, input_size=4))
    stack.initialize()
    expected = recurrent(stack, XS[:1])[0]
    inputs = [mx.sym.var(name) for name in ("x", "h", "c", "g")]
    y, states = stack(inputs[0], inputs[1:])
    symbol = mx.sym.Group([y, *states])
    symbol.save(f"{tmp_path}/stack-symbol.json")
    arrays = {name: parameter.data() for name, parameter in stack.collect_params().items()}
    mx.nd.save(f"{tmp_path}/stack-0000.params", {f"arg:{name}": array for name, array in arrays.items()})
    names = symbol.list_outputs()
    pairs = {
        name: State((size,), output=output) for name, size, output in zip("hcg", (4, 4, 2), names[1:], strict=True)
    }
    for model, shape, states in ((stack, (3,), True), (f"{tmp_path}/stack", {"x": (3,)}, pairs)):
        async with Predictor(model, shape, states=states, sizes=(2,)) as predictor, predictor.session() as session:
            actual = [y async for y in session.stream(XS[0])]
        np.testing.assert_allclose(actual, expected, atol=1e-6)


async def test_sessions_of_several_loops_share_a_predictor():
    results = []

    async def other():
        async with predictor.session() as session:
            results.extend([(await session([k, 0]))[0] for k in range(10)])

    async with summing() as predictor:
        thread = threading.Thread(target=lambda: asyncio.run(other()))
        thread.start()
        async with predictor.session() as session:
            assert [(await session([k, 0]))[0] for k in range(10)] == [k * (k + 1) / 2 for k in range(10)]
        await asyncio.to_thread(thread.join)
    assert results == [k * (k + 1) / 2 for k in range(10)]


def test_the_command_has_options_for_states(capsys):
    parse = command._parser().parse_args
    options = parse(["vad.onnx", "--states", "state=stateN", "--states", "h=hN", "--constant", "sr=16000"])
    assert command._session_options(options) == {
        "states": {"state": "stateN", "h": "hN"}, "constants": {"sr": 16000},
    }  # fmt: skip
    options = parse(["vad.onnx", "--states", "--max-sessions", "9"])
    assert command._session_options(options) == {"states": True, "sessions": {"sessions": 9}}
    for wrong in (["--states", "state"], ["--constant", "sr=high"]):
        with pytest.raises(SystemExit):
            parse(["vad.onnx", *wrong])
    assert "expected INPUT=OUTPUT" in capsys.readouterr().err


def test_states_may_be_tables_of_their_attributes():
    spec = {"shape": [2], "initial": 1, "output": "after_output"}
    predictor = summing(states={"a": spec, "b": {"shape": []}})
    assert [each["shape"] for each in predictor.describe()["states"]] == [[2], []]
    with pytest.raises(TypeError, match="state a has size, expected shape and some of shape, dtype"):
        summing(states={"a": {"size": 3}})


def test_the_child_of_a_fork_has_no_sessions_and_opens_its_own():
    predictor = summing()
    session = predictor.session("first")

    async def total(of):
        return float((await of([1, 1]))[0])

    async def check():
        with pytest.raises(SessionClosed, match="session 'first' belongs to the process that was forked"):
            await session([1, 1])
        assert await total(predictor.session("first")) == 1

    assert asyncio.run(total(session)) == 1
    assert in_child(lambda: asyncio.run(check())) == 0
    assert asyncio.run(total(session)) == 2


async def test_a_lack_of_memory_fails_the_calls_and_not_the_sessions(monkeypatch):
    async with summing() as predictor, predictor.session() as session:
        with monkeypatch.context() as patch:
            patch.setattr(StateRows, "scatter", lambda *args: (_ for _ in ()).throw(MemoryError("no memory")))
            with pytest.raises(MemoryError, match="no memory"):
                await session([1, 1])
        assert (await session([2, 2])).tolist() == [2, 2, 1]
