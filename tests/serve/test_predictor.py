"""Predictors: models, batches, refusals, cancellation, draining, swapping."""

import asyncio
import threading
import weakref
from typing import ClassVar

import numpy as np
import pytest

import flowmx as mx
from flowmx.cached_op import compiled as compiled_graphs
from flowmx.comm.metrics import Metrics
from flowmx.serve import InvalidInput, Overloaded, Predictor, Unavailable
from tests.waiting import until

ROWS = np.random.default_rng(3).standard_normal((64, 5)).astype(np.float32)


def network(seed=0, outputs=3):
    mx.random.seed(seed)
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Dense(8, activation="relu"), mx.gluon.nn.Dense(outputs))
    net.initialize(mx.init.Xavier())
    return net


def answers(net, rows=ROWS):
    """Return the outputs of a block, computed in a separate thread."""
    results = []
    thread = threading.Thread(target=lambda: results.append(net(mx.nd.array(rows)).asnumpy()))
    thread.start()
    thread.join()
    return results[0]


class Gate(mx.operator.CustomOp):
    """An identity that waits until a test opens the gate, and counts its batches."""

    let = threading.Event()
    batches: ClassVar[list[int]] = []

    def forward(self, is_train, req, in_data, out_data, aux):
        Gate.batches.append(in_data[0].shape[0])
        assert Gate.let.wait(30)
        self.assign(out_data[0], req[0], in_data[0])


@mx.operator.register("serve_gate")
class GateProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, shapes, dtypes):
        return Gate()


@pytest.fixture
def gated():
    """Return an identity network whose batches wait until the test opens the gate."""
    Gate.let.set()
    net = mx.gluon.SymbolBlock(mx.sym.Custom(mx.sym.var("data"), op_type="serve_gate"), mx.sym.var("data"))
    yield Predictor(net, shape=(2,), max_batch=4, max_queue=6, metrics=Metrics())
    Gate.let.set()


async def closed(predictor):
    """Wait until a predictor is ready, close its gate, and send a first row."""
    await predictor.ready()
    Gate.let.clear()
    Gate.batches.clear()
    first = asyncio.create_task(predictor([0, 0]))
    await until(lambda: Gate.batches)
    return first


async def test_rows_of_many_tasks_share_batches_and_get_their_own_answers():
    net, metrics = network(), Metrics()
    expected = answers(net)
    async with Predictor(net, shape=(5,), max_batch=8, max_queue=64, metrics=metrics) as predictor:
        actual = await asyncio.gather(*(predictor(row) for row in ROWS))
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
        several = await predictor(ROWS[:11].tolist())
        np.testing.assert_allclose(several, expected[:11], rtol=1e-5, atol=1e-6)
        again = await predictor(mx.nd.array(ROWS[0]))
        np.testing.assert_allclose(again, expected[0], rtol=1e-5, atol=1e-6)
    text = metrics.text()
    assert 'flowmx_serve_requests_total{model="model",result="answered"} 66' in text
    assert 'flowmx_serve_rows_total{model="model"} 76' in text
    batches = int(text.split('flowmx_serve_batch_rows_count{model="model"} ')[1].split()[0])
    assert batches < 40


def test_any_event_loop_can_send_requests():
    net = network()
    expected = answers(net)
    predictor = Predictor(net, shape=(5,), max_batch=4, max_queue=64)
    wrong = []

    async def ask(start):
        actual = await asyncio.gather(*(predictor(row) for row in ROWS[start : start + 16]))
        if not np.allclose(actual, expected[start : start + 16], rtol=1e-5, atol=1e-6):
            wrong.append(start)

    threads = [threading.Thread(target=asyncio.run, args=(ask(16 * i),)) for i in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong
    asyncio.run(predictor.drain())


async def test_a_full_queue_refuses_with_a_retry_time(gated):
    first = await closed(gated)
    waiting = [asyncio.create_task(gated([i, i])) for i in range(6)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded, match="6 samples are queued, expected at most 6") as refused:
        await gated([9, 9])
    assert refused.value.retry_after > 0
    Gate.let.set()
    assert [list(each) for each in await asyncio.gather(*waiting)] == [[i, i] for i in range(6)]
    assert list(await first) == [0, 0]
    assert list(await gated([9, 9])) == [9, 9]
    await gated.drain()


async def test_a_cancelled_request_is_removed_from_the_queue(gated):
    first = await closed(gated)
    waiting = [asyncio.create_task(gated(np.full((3, 2), i))) for i in range(2)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting[0]
    there = asyncio.create_task(gated(np.full((3, 2), 7)))  # for which there was no room before
    await asyncio.sleep(0)
    Gate.let.set()
    np.testing.assert_array_equal(await there, np.full((3, 2), 7))
    np.testing.assert_array_equal(await waiting[1], np.full((3, 2), 1))
    await first
    assert 'flowmx_serve_rows_total{model="model"} 7\n' in gated.metrics.text()  # none of the cancelled ones
    await gated.drain()


async def test_cancelling_a_running_request_only_abandons_the_wait(gated):
    first = await closed(gated)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    Gate.let.set()
    assert list(await gated([1, 2])) == [1, 2]
    await gated.drain()


async def test_draining_answers_queued_requests_and_refuses_new_ones(gated):
    first = await closed(gated)
    waiting = asyncio.create_task(gated([1, 1]))
    await asyncio.sleep(0)
    draining = asyncio.create_task(gated.drain())
    await asyncio.sleep(0)
    with pytest.raises(Unavailable, match="draining"):
        await gated([2, 2])
    assert not gated.is_ready
    Gate.let.set()
    await draining
    assert list(await waiting) == [1, 1]
    await first


async def test_a_swap_under_load_loses_no_request_and_keeps_each_to_one_model():
    old, new = network(0), network(1)
    both = answers(old), answers(new)
    predictor = await Predictor(old, shape=(5,), max_batch=8, max_queue=64).ready()
    swapped, factors = False, set()

    async def ask(i):
        while not swapped or len(factors) < 2:
            actual = await predictor(ROWS[i : i + 9])
            fits = [np.allclose(actual, each[i : i + 9], rtol=1e-5, atol=1e-6) for each in both]
            assert sum(fits) == 1
            factors.add(fits.index(True))

    tasks = [asyncio.create_task(ask(i)) for i in range(6)]
    await until(lambda: factors)
    await predictor.swap(new)
    swapped = True
    async with asyncio.timeout(20):
        await asyncio.gather(*tasks)
    assert factors == {0, 1}
    assert predictor.version == 1
    np.testing.assert_allclose(await predictor(ROWS[0]), both[1][0], rtol=1e-5, atol=1e-6)
    await predictor.drain()


async def test_a_swap_returns_the_replaced_model():
    async with Predictor(network(), shape=(5,), max_batch=4, metrics=Metrics()) as predictor:
        for _ in range(3):
            old = weakref.ref(predictor._runner.model)
            block = weakref.ref(predictor._runner.model.source.block)
            await predictor.swap(network())
            await until(lambda old=old, block=block: old() is None and block() is None)


async def test_a_new_model_that_cannot_run_leaves_the_old_one_in_place():
    net = network()
    async with Predictor(net, shape=(5,), max_batch=2) as predictor:
        other = mx.gluon.nn.Dense(2, in_units=7)
        other.initialize()
        with pytest.raises(mx.MXNetError):
            await predictor.swap(other)
        assert predictor.version == 0
        assert (await predictor(ROWS[0])).shape == (3,)
        await predictor.swap(network(1))
        assert (predictor.version, predictor.describe()["version"]) == (1, 1)  # the failed swap does not count


async def test_a_failing_model_fails_its_requests_and_nothing_else():
    class Fails(mx.operator.CustomOp):
        def forward(self, is_train, req, in_data, out_data, aux):
            if in_data[0].asnumpy().max() > 5:
                raise ValueError("more than five")
            self.assign(out_data[0], req[0], in_data[0])

    @mx.operator.register("serve_fails")
    class FailsProp(mx.operator.CustomOpProp):
        def create_operator(self, ctx, shapes, dtypes):
            return Fails()

    net = mx.gluon.SymbolBlock(mx.sym.Custom(mx.sym.var("data"), op_type="serve_fails"), mx.sym.var("data"))
    async with Predictor(net, shape=(1,), max_batch=2) as predictor:
        with pytest.raises(ValueError, match="more than five"):
            await predictor([6])
        assert list(await predictor([4])) == [4]


async def test_a_model_that_cannot_be_warmed_raises_at_each_wait():
    net = mx.gluon.nn.HybridLambda(lambda F, x: F.sum(x))
    predictor = Predictor(net, shape=(2,), max_batch=2)
    with pytest.raises(ValueError, match="outputs have a batch axis in front"):
        await predictor([1, 2])
    with pytest.raises(ValueError, match="output0 has shape"):
        await predictor.ready()
    assert not predictor.is_ready


async def test_sequences_are_padded_to_a_few_lengths():
    net = mx.gluon.nn.HybridLambda(lambda F, x: F.sum(x, axis=1))
    async with Predictor(net, shape=(None, 2), lengths=(4, 8), max_batch=4) as predictor:
        inputs = [np.ones((length, 2)) * length for length in (1, 3, 4, 5, 8)]
        actual = await asyncio.gather(*map(predictor, inputs))
        assert [each.tolist() for each in actual] == [[n * n, n * n] for n in (1, 3, 4, 5, 8)]
        with pytest.raises(InvalidInput, match="lengths of 1 to 8"):
            await predictor(np.ones((9, 2)))


class Masked(mx.gluon.HybridBlock):
    """The mean of the tokens that are not padding, as of a sentence encoder."""

    def hybrid_forward(self, F, tokens, valid):
        return F.sum(tokens * valid, axis=1) / F.sum(valid, axis=1)


class Compared(mx.gluon.HybridBlock):
    """The difference of two sentences, which may have different lengths."""

    def hybrid_forward(self, F, question, answer):
        return F.sum(question, axis=1) - F.sum(answer, axis=1)


@pytest.mark.parametrize("lengths", [(4, 8), (1, 4, 8), (8,), (2,)])
@pytest.mark.parametrize("hybridized", [True, False])
async def test_inputs_that_share_an_axis_have_equal_lengths(lengths, hybridized):
    net = Masked()
    if not hybridized:
        net = mx.gluon.nn.Lambda(lambda tokens, valid: Masked()(tokens, valid))
    metrics = Metrics()
    predictor = Predictor(net, {"tokens": (None,), "valid": (None,)}, lengths=lengths, max_batch=2, metrics=metrics)
    message = "tokens has length 1, valid has length 2, expected equal lengths"
    with pytest.raises(InvalidInput, match=message):  # also before it is warm
        await predictor({"tokens": [3], "valid": [1, 1]})
    async with predictor:
        with pytest.raises(InvalidInput, match=message):
            await predictor({"tokens": [3], "valid": [1, 1]})
        assert await predictor({"tokens": [3, 5], "valid": [1, 1]}) == 4
    assert 'result="invalid"} 2' in metrics.text()


async def test_the_tokens_and_the_padding_of_bert_have_equal_lengths():
    net = mx.gluon.model_zoo.text.BERTClassifier(2, vocab_size=9, units=4, num_layers=1, num_heads=2, max_length=8)
    net.initialize()
    shapes = dict.fromkeys(["tokens", "token_types", "padding"], (None,))
    async with Predictor(net, shapes, dtype="int32", lengths=(4, 8), max_batch=1) as predictor:
        with pytest.raises(InvalidInput, match="tokens has length 2, token_types has length 2, padding has length 5"):
            await predictor({"tokens": [1, 2], "token_types": [0, 0], "padding": [1] * 5})
        assert (await predictor({"tokens": [1, 2], "token_types": [0, 0], "padding": [1, 1]})).shape == (2,)


@pytest.mark.parametrize("lengths", [(4, 8), (8,)])
async def test_inputs_of_independent_lengths_may_differ(lengths):
    shapes = {"question": (None,), "answer": (None,)}
    async with Predictor(Compared(), shapes, lengths=lengths, max_batch=2) as predictor:
        assert await predictor({"question": [1, 2, 3], "answer": [1] * 7}) == -1


async def test_the_axes_of_two_pairs_are_told_apart():
    def difference(F, a, a_valid, b, b_valid):
        return F.sum(a * a_valid, axis=1) - F.sum(b * b_valid, axis=1)

    net = mx.gluon.nn.HybridLambda(difference)
    shapes = dict.fromkeys(["a", "a_valid", "b", "b_valid"], (None,))
    async with Predictor(net, shapes, lengths=(2, 4), max_batch=1) as predictor:
        ones = {name: [1] * (1 if name.startswith("a") else 3) for name in shapes}
        assert await predictor(ones) == -2
        with pytest.raises(InvalidInput, match="b has length 3, b_valid has length 2, expected equal lengths"):
            await predictor({**ones, "b_valid": [1, 1]})


async def test_the_two_axes_of_a_square_matrix_have_equal_lengths():
    net = mx.gluon.nn.HybridLambda(lambda F, x: F.sum(F.batch_dot(x, x), axis=(1, 2)))
    async with Predictor(net, (None, None), lengths=(2, 4), max_batch=1) as predictor:
        assert await predictor(np.ones((2, 2))) == 8
        with pytest.raises(InvalidInput, match="axis 0 of data has length 2, axis 1 of data has length 4, expected"):
            await predictor(np.ones((2, 4)))


async def test_several_inputs_and_outputs():
    a, b = mx.sym.var("a"), mx.sym.var("b")
    both = mx.sym.Group([mx.sym.broadcast_add(a, b), a * 2])
    async with Predictor(both, {"a": (2,), "b": (1,)}, params={}, max_batch=4) as predictor:
        total, double = await predictor({"a": [1, 2], "b": [10]})
        assert (total.tolist(), double.tolist()) == ([11, 12], [2, 4])
        assert len(predictor.outputs) == 2


@pytest.mark.parametrize("form", ["symbol", "prefix", "folder", "exported", "onnx"])
async def test_models_are_found_in_every_form(form, tmp_path):
    data = mx.sym.var("data")
    net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(data, num_hidden=3, name="fc"), name="softmax")
    rng = np.random.default_rng(0)
    weights = {"fc_weight": rng.standard_normal((3, 5)), "fc_bias": rng.standard_normal(3)}
    params = {name: mx.nd.array(each) for name, each in weights.items()}
    await mx.nd.waitall_async()
    scores = ROWS @ weights["fc_weight"].T + weights["fc_bias"]
    expected = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    more = {}
    if form == "symbol":
        model, more = net, {"params": params}
    elif form == "exported":
        block, expected = network(), None
        expected = answers(block)
        block.hybridize()
        answers(block)
        await asyncio.to_thread(block.export, tmp_path / "model")
        model = tmp_path
    else:
        await asyncio.to_thread(mx.model.save_checkpoint, str(tmp_path / "net"), 3, net, params, {})
        model = tmp_path / "net" if form == "prefix" else str(tmp_path)
    if form == "onnx":
        pytest.importorskip("onnx")
        await asyncio.to_thread(
            mx.onnx.export_model, str(tmp_path / "net-symbol.json"), str(tmp_path / "net-0003.params"), [(1, 5)],
            onnx_file_path=str(tmp_path / "net.onnx"), dynamic=True, dynamic_input_shapes=[("batch", 5)],
        )  # fmt: skip
        model = tmp_path / "net.onnx"
    async with Predictor(model, None if form == "onnx" else (5,), max_batch=4, max_queue=64, **more) as predictor:
        np.testing.assert_allclose(await predictor(ROWS), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("nowhere/model",), FileNotFoundError, "nowhere"),
        ((3, (2,)), TypeError, "int, expected a Gluon block"),
        ((mx.sym.var("data") * 2, (2,)), ValueError, "params"),
        ((mx.gluon.nn.Dense(2),), ValueError, "the shape of a sample of data is unknown"),
    ],
)
def test_other_objects_than_models_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        Predictor(*arguments)


async def test_every_size_of_every_length_is_compiled_once(monkeypatch):
    compiled = []
    original = compiled_graphs.plan_of
    monkeypatch.setattr(compiled_graphs, "plan_of", lambda *args: compiled.append(1) or original(*args))
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Dense(2, flatten=False))
    net.initialize()
    lengths = tuple(range(1, 11))
    async with Predictor(net, (None, 2), lengths=lengths, max_batch=4) as predictor:
        assert len(compiled) == 3 * len(lengths)
        for length in lengths:
            assert (await predictor(np.ones((length, 2), np.float32))).shape == (length, 2)
    assert len(compiled) == 3 * len(lengths)


def test_a_batch_has_at_least_one_row():
    with pytest.raises(ValueError, match="max_batch is 0"):
        Predictor(mx.gluon.nn.Dense(2), (2,), max_batch=0)


async def test_predictions_during_training_equal_the_serial_ones():
    net = network()
    expected = answers(net)
    other, done = network(1), threading.Event()

    def train():
        trainer = mx.gluon.Trainer(other.collect_params(), "sgd", {"learning_rate": 0.01})
        x = mx.nd.array(ROWS)
        while not done.is_set():
            with mx.autograd.record():
                loss = (other(x) ** 2).sum()
            loss.backward()
            trainer.step(len(ROWS))
            loss.wait_to_read()

    thread = threading.Thread(target=train)
    thread.start()
    try:
        async with Predictor(net, shape=(5,), max_batch=8, max_queue=200) as predictor:
            actual = await asyncio.gather(*(predictor(ROWS[i % 64]) for i in range(100)))
    finally:
        done.set()
        await asyncio.to_thread(thread.join)
    np.testing.assert_allclose(actual, expected[np.arange(100) % 64], rtol=1e-5, atol=1e-6)


async def test_a_predictor_starts_again_after_it_was_drained():
    predictor = Predictor(network(), shape=(5,), max_batch=4)
    for start in (predictor.start, predictor.ready, lambda: predictor.__aenter__()):
        assert await start() is predictor
        assert (await predictor(ROWS[0])).shape == (3,) and predictor.is_ready
        await predictor.drain()
        with pytest.raises(Unavailable, match="draining"):
            await predictor(ROWS[0])
        with pytest.raises(Unavailable, match=r"call start\(\)"):
            await predictor.swap(network())
    predictor.start()  # need not be awaited
    assert (await predictor(ROWS[0])).shape == (3,)
    draining = asyncio.create_task(predictor.drain())
    await asyncio.sleep(0)
    predictor.start()
    await draining
    assert (await predictor(ROWS[0])).shape == (3,)
    await predictor.drain()


async def test_a_model_that_could_not_be_warmed_is_tried_again(monkeypatch):
    predictor = Predictor(network(), shape=(5,), max_batch=2)
    with monkeypatch.context() as broken:
        broken.setattr(predictor._runner.model, "warm", lambda sizes: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await predictor.start()
        with pytest.raises(Unavailable):
            await predictor(ROWS[0])
    assert (await (await predictor.start())(ROWS[0])).shape == (3,)
    await predictor.drain()


async def test_a_failed_warm_up_is_named_in_every_refusal(caplog):
    class Unfit(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            return F.reshape(x, (7, 11))

    predictor = Predictor(Unfit(), shape=(5,), name="unfit")
    predictor.start()
    await until(lambda: "unfit failed to warm up" in caplog.text)
    with pytest.raises(Unavailable, match="unfit failed to warm up: ShapeError") as info:
        await predictor([1, 2, 3, 4, 5])
    assert isinstance(info.value.__cause__, mx.errors.ShapeError)
    await predictor.drain()
