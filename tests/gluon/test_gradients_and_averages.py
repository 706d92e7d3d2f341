"""Clipping and accumulation of a trainer's gradients, and averages of weights, compared with NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import flowmx as mx
from flowmx import gluon
from flowmx.gluon import ExponentialMovingAverage, nn

BOTH = [mx.cpu(0), mx.cpu(1)]
RANDOM = np.random.default_rng(7)
BATCHES = [(RANDOM.normal(size=(4, 3)).astype("f4"), RANDOM.normal(size=(4, 2)).astype("f4")) for _ in range(6)]


def network(ctx=None, dtype="float32", hybridize=True):
    mx.random.seed(1)
    net = nn.Dense(2, in_units=3, prefix="net_")
    net.cast(dtype)
    net.initialize(mx.init.Normal(0.5), ctx=ctx)
    if hybridize:
        net.hybridize()
    return net


def backward(net, batch):
    ctx = net.weight.list_ctx()
    parts = zip(*(gluon.utils.split_and_load(part, ctx) for part in batch), strict=True)
    with mx.autograd.record():
        losses = [((net(x) - y) ** 2).sum() for x, y in parts]
    mx.autograd.backward(losses)


def values(net):
    return [param.list_data()[0].asnumpy() for param in net.collect_params().values()]


class Reference:
    """The same regression and its SGD in NumPy."""

    def __init__(self, net):
        self.weight, self.bias = (value.astype("f8") for value in values(net))

    def gradients(self, batch):
        difference = 2 * (batch[0] @ self.weight.T + self.bias - batch[1])
        return difference.T @ batch[0], difference.sum(0)

    def step(self, gradients, rate, max_norm=np.inf):
        norm = np.sqrt(sum((gradient**2).sum() for gradient in gradients))
        for value, gradient in zip((self.weight, self.bias), gradients, strict=True):
            value -= rate * gradient * min(1.0, max_norm / (norm + 1e-6))
        return norm


def check(net, reference):
    for value, expected in zip(values(net), (reference.weight, reference.bias), strict=True):
        np.testing.assert_allclose(value, expected, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("hybridize", [False, True])
@pytest.mark.parametrize("ctx", [None, BOTH], ids=["one device", "two devices"])
def test_the_norm_of_the_mean_gradients_is_limited(ctx, hybridize):
    net = network(ctx, hybridize=hybridize)
    reference = Reference(net)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, max_grad_norm=2.5)
    assert trainer.grad_norm is None
    norms = []
    for batch in BATCHES:
        backward(net, batch)
        trainer.step(4)
        norm = reference.step([gradient / 4 for gradient in reference.gradients(batch)], 0.1, 2.5)
        assert trainer.grad_norm.asscalar() == pytest.approx(norm, rel=1e-5)
        norms.append(norm)
    assert min(norms) < 2.5 < max(norms), "the batches should test both cases"
    check(net, reference)


@pytest.mark.parametrize("ctx", [None, BOTH], ids=["one device", "two devices"])
@pytest.mark.parametrize("max_norm", [None, 0.5])
def test_accumulated_batches_are_one_update(ctx, max_norm):
    net = network(ctx)
    reference = Reference(net)
    options = {"learning_rate": 0.1, "momentum": 0.0}
    trainer = gluon.Trainer(net.collect_params(), "sgd", options, accumulate=3, max_grad_norm=max_norm)
    for start in (0, 3):
        sums = [0, 0]
        for batch in BATCHES[start : start + 3]:
            check(net, reference)  # nothing is updated in between
            backward(net, batch)
            trainer.step(4)
            sums = [total + gradient for total, gradient in zip(sums, reference.gradients(batch), strict=True)]
        reference.step([total / 12 for total in sums], 0.1, max_norm or np.inf)
    assert trainer.optimizer.num_update == 2
    check(net, reference)


def test_flush_updates_with_an_incomplete_accumulation():
    net = network()
    reference = Reference(net)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, accumulate=4)
    trainer.flush()  # nothing to do
    backward(net, BATCHES[0])
    trainer.step(4)
    trainer.flush()
    reference.step([gradient / 4 for gradient in reference.gradients(BATCHES[0])], 0.1)
    check(net, reference)
    trainer.flush()
    check(net, reference)


async def test_a_coroutine_accumulates_clips_and_never_blocks():
    """A blocking read in a coroutine would warn, and warnings are errors."""
    net = network()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, accumulate=2, max_grad_norm=1.0)
    average = ExponentialMovingAverage(net)
    for batch in BATCHES[:3]:
        backward(net, [mx.nd.array(part) for part in batch])
        await trainer.step_async(4)
        average.update()
    await trainer.flush_async()
    assert trainer.optimizer.num_update == 2
    with average.average_parameters():
        await net(mx.nd.ones((1, 3)))
    assert float((await trainer.grad_norm).asscalar()) > 0


def test_loading_states_discards_accumulated_gradients(tmp_path):
    net = network()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, accumulate=2)
    trainer.save_states(tmp_path / "sgd.states")
    backward(net, BATCHES[0])
    trainer.step(4)
    trainer.load_states(tmp_path / "sgd.states")
    reference = Reference(net)
    for batch in BATCHES[1:3]:
        backward(net, batch)
        trainer.step(4)
    sums = [a + b for a, b in zip(*(reference.gradients(batch) for batch in BATCHES[1:3]), strict=True)]
    reference.step([total / 8 for total in sums], 0.1)
    check(net, reference)


def test_an_estimator_accumulates_and_clips():
    net = network()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, accumulate=3, max_grad_norm=0.1)
    estimator = gluon.contrib.estimator.Estimator(net, gluon.loss.L2Loss(), trainer=trainer, context=mx.cpu())
    estimator.logger.setLevel("ERROR")
    estimator.fit([tuple(map(mx.nd.array, batch)) for batch in BATCHES], epochs=1)
    assert trainer.optimizer.num_update == 2


@pytest.mark.parametrize("ramp", [False, True])
def test_the_average_is_numpys(ramp):
    net = network(BOTH)
    average = ExponentialMovingAverage(net, decay=0.3, ramp=ramp)
    expected = values(net)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    for number, batch in enumerate(BATCHES, 1):
        backward(net, batch)
        trainer.step(4)
        average.update()
        decay = min(0.3, (1 + number) / (10 + number)) if ramp else 0.3
        expected = [decay * old + (1 - decay) * new for old, new in zip(expected, values(net), strict=True)]
    latest = values(net)
    for value, reference in zip(average.averages.values(), expected, strict=True):
        np.testing.assert_allclose(value.asnumpy(), reference, rtol=1e-5)
    with average.average_parameters():
        for param, reference in zip(net.collect_params().values(), expected, strict=True):
            for copy in param.list_data():
                np.testing.assert_allclose(copy.asnumpy(), reference, rtol=1e-5)
    np.testing.assert_equal(values(net), latest)
    average.copy_to()
    np.testing.assert_allclose(values(net)[0], expected[0], rtol=1e-5)


def test_weights_are_restored_after_an_error():
    net = network()
    average = ExponentialMovingAverage(net)
    net.weight.set_data(mx.nd.ones((2, 3)))
    with pytest.raises(ArithmeticError), average.average_parameters():
        raise ArithmeticError
    assert (net.weight.data().asnumpy() == 1).all()


def test_averages_of_16_bit_weights_are_float32():
    net = network(dtype="float16")
    average = ExponentialMovingAverage(net, decay=0.999, ramp=False)
    before = average.averages["weight"].asnumpy()
    net.weight.set_data(net.weight.data() * 0)
    average.update()
    assert average.averages["weight"].dtype == np.float32
    np.testing.assert_allclose(average.averages["weight"].asnumpy(), before * 0.999, rtol=1e-6)
    average.copy_to()
    assert net.weight.data().dtype == np.float16


def test_running_means_and_deferred_parameters():
    net = nn.HybridSequential()
    net.add(nn.Dense(4), nn.BatchNorm(), nn.Dense(2))
    net.initialize()
    average = ExponentialMovingAverage(net)
    with mx.autograd.record():
        net(mx.nd.ones((2, 3)))
    average.update()
    assert not any("running" in name for name in average.averages)
    assert len(average.averages) == 6


def test_a_file_restores_the_averages(tmp_path):
    net = network()
    average = ExponentialMovingAverage(net)
    average.update()
    average.save(tmp_path / "average.params")
    other = ExponentialMovingAverage(network())
    other.load(tmp_path / "average.params")
    assert other.updates == 1
    np.testing.assert_equal(other.averages["bias"].asnumpy(), average.averages["bias"].asnumpy())
    net.save_parameters(str(tmp_path / "net.params"))
    with pytest.raises(ValueError, match=r"net\.params' has no averages"):
        other.load(tmp_path / "net.params")
    with pytest.raises(ValueError, match=r"averages of another network: \['bias'\]"):
        ExponentialMovingAverage(nn.Dense(2, in_units=3, use_bias=False)).load(tmp_path / "average.params")


def run_batches(folder, count):
    """Train from a checkpoint until ``count`` batches are complete; return weights and averages."""
    net = network()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, accumulate=3, max_grad_norm=1.0)
    average = ExponentialMovingAverage(net, 0.5)
    run = mx.checkpoint.Run(folder, net, trainer, average=average, every=1)
    run.resume()
    for batch in BATCHES[run.batch : count]:
        backward(net, batch)
        trainer.step(4)
        average.update()
        run.batch_end()
    return [*values(net), *(array.asnumpy() for array in average.averages.values()), average.updates]


def test_a_run_resumes_in_the_middle_of_an_accumulation(tmp_path):
    expected = run_batches(tmp_path / "whole", 6)
    run_batches(tmp_path / "parts", 2)
    resumed = run_batches(tmp_path / "parts", 6)
    for value, reference in zip(resumed, expected, strict=True):
        np.testing.assert_array_equal(value, reference)


def test_a_run_with_averages_refuses_a_checkpoint_without(tmp_path):
    net = network()
    mx.checkpoint.Run(tmp_path, net).epoch_end()
    with pytest.raises(mx.checkpoint.CheckpointError, match="has no averages of weights: use another folder"):
        mx.checkpoint.Run(tmp_path, net, average=ExponentialMovingAverage(net)).resume()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_grad_norm": 0}, "max_grad_norm is 0, expected a positive number"),
        ({"max_grad_norm": "1"}, "max_grad_norm is '1', expected a positive number"),
        ({"max_grad_norm": 1, "update_on_kvstore": True}, "update_on_kvstore is True: drop it"),
        ({"accumulate": 0}, "accumulate is 0, expected the number of batches"),
        ({"accumulate": 2.0}, r"accumulate is 2\.0"),
    ],
)
def test_a_trainer_refuses_invalid_options(options, message):
    with pytest.raises(ValueError, match=message):
        gluon.Trainer(network().collect_params(), "sgd", **options)


def test_sparse_gradients_and_separate_updates_are_refused():
    embedding = nn.Embedding(4, 2, sparse_grad=True)
    embedding.initialize()
    with pytest.raises(ValueError, match=r"needs dense gradients.*pass the optimizer's clip_gradient"):
        gluon.Trainer(embedding.collect_params(), "sgd", max_grad_norm=1.0)
    trainer = gluon.Trainer(network().collect_params(), "sgd", accumulate=2)
    with pytest.raises(RuntimeError, match="allreduce_grads: the trainer accumulates the gradients of 2 batches"):
        trainer.allreduce_grads()
    with pytest.raises(RuntimeError, match="update: the trainer accumulates"):
        trainer.update(1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ExponentialMovingAverage(network(), decay=1.0), r"decay is 1\.0, expected at least 0 and below 1"),
        (lambda: ExponentialMovingAverage({"a": mx.nd.ones(1)}), "holds NDArray, expected a network"),  # type: ignore[dict-item]
        (lambda: ExponentialMovingAverage(nn.Flatten()), "none of the 0 parameters has a gradient"),
    ],
)
def test_an_average_refuses_invalid_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("of_block", [True, False])
def test_a_second_run_of_one_process_resumes(of_block, tmp_path):
    def train(places):
        net = mx.gluon.nn.HybridSequential()
        net.add(mx.gluon.nn.Dense(4, in_units=3), mx.gluon.nn.Dense(2))
        net.initialize()
        trainer = mx.gluon.Trainer(list(net.collect_params().values()), "adam")
        average = mx.gluon.ExponentialMovingAverage(net)
        run = mx.checkpoint.Run(tmp_path, net=net if of_block else net.collect_params(), trainer=trainer)
        places.append(run.resume())
        before = net(mx.nd.ones((2, 3))).asnumpy()
        for _ in range(2):
            with mx.autograd.record():
                loss = (net(mx.nd.ones((2, 3))) ** 2).sum()
            loss.backward()
            trainer.step(2)
            average.update()
            run.batch_end()
        run.epoch_end()
        return before, net(mx.nd.ones((2, 3))).asnumpy(), average.averages

    places = []
    _, after, state = train(places)
    before, _, other = train(places)
    np.testing.assert_array_equal(before, after)
    assert [place.epoch for place in places] == [0, 1]
    assert state.keys() == other.keys()


def test_a_trainer_with_another_order_is_refused(tmp_path):
    def run(reverse):
        net = mx.gluon.nn.Dense(4, in_units=4)
        net.initialize()
        params = list(net.collect_params().values())
        trainer = mx.gluon.Trainer(params[::-1] if reverse else params, "adam")
        run = mx.checkpoint.Run(tmp_path, net=net, trainer=trainer)
        run.resume()
        with mx.autograd.record():
            loss = net(mx.nd.ones((2, 4))).sum()
        loss.backward()
        trainer.step(2)
        run.epoch_end()

    run(reverse=False)
    run(reverse=False)
    with pytest.raises(mx.checkpoint.CheckpointError, match=r"the order \['bias', 'weight'\].*create it with a list"):
        run(reverse=True)
