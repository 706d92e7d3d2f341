"""The range test of learning rates, compared with the same steps in NumPy."""

import math

import numpy as np
import pytest

import flowmx as mx
from flowmx.gluon import LRFinder, nn

GENERATOR = np.random.default_rng(2)
BATCHES = []
for _ in range(3):
    rows = GENERATOR.normal(size=(8, 4)).astype("f4")
    BATCHES.append((rows, rows @ np.array([[1.0], [-2.0], [0.5], [3.0]], "f4")))
LOADER = [tuple(map(mx.nd.array, batch)) for batch in BATCHES]


def squares(prediction, label):
    return ((prediction - label) ** 2).mean(axis=1)


def make(ctx=None, **options):
    mx.random.seed(1)
    net = nn.HybridSequential()
    net.add(nn.Dense(1, use_bias=False, in_units=4))
    net.initialize(mx.init.Normal(0.1), ctx=ctx)
    net.hybridize()
    options = {"learning_rate": 0.3, "momentum": 0.5, **options}
    return net, mx.gluon.Trainer(net.collect_params(), "sgd", options)


def in_numpy(weight, start, end, steps, beta=0.9, diverge=4.0):
    """Return the learning rates and smoothed losses of the same range test."""
    rates, losses, average, momentum = [], [], 0.0, np.zeros_like(weight)
    for step in range(steps):
        rows, labels = BATCHES[step % 3]
        rate = start * (end / start) ** (step / (steps - 1))
        difference = rows @ weight.T - labels
        average = beta * average + (1 - beta) * (difference**2).mean()
        rates.append(rate)
        losses.append(average / (1 - beta ** (step + 1)))
        if losses[-1] > diverge * min(losses):
            break
        momentum = 0.5 * momentum - rate * 2 * difference.T @ rows / len(rows)
        weight = weight + momentum
    return rates, losses


@pytest.mark.parametrize("ctx", [None, [mx.cpu(0), mx.cpu(1)]], ids=["one device", "two devices"])
@pytest.mark.parametrize("is_trained", [False, True])
def test_the_losses_are_numpys(ctx, is_trained):
    net, trainer = make(ctx)
    if is_trained:
        for context in ctx or [mx.cpu()]:
            with mx.autograd.record():
                loss = net(mx.nd.ones((2, 4), ctx=context))
            loss.backward()
        trainer.step(4)
    weight = net[0].weight.list_data()[0].asnumpy()
    finder = LRFinder(net, squares, trainer)
    finder.run(LOADER, 1e-3, 10, 40)
    rates, losses = in_numpy(weight.astype("f8"), 1e-3, 10, 40)
    np.testing.assert_allclose(finder.learning_rates, rates)
    np.testing.assert_allclose(finder.losses, losses, rtol=1e-3)
    assert 4 < len(rates) < 40, "the loss diverges"
    width = len(rates) // 5
    windows = [range(start, start + width) for start in range(len(rates) - width + 1)]
    steepest = min(windows, key=lambda steps: np.polyfit(steps, np.array(losses)[steps], 1)[0])
    assert finder.suggestion == pytest.approx(rates[steepest[width // 2]])
    assert 0.005 < finder.suggestion < 1


def test_the_network_and_the_trainer_are_unchanged():
    net = nn.HybridSequential()
    net.add(nn.Dense(1, in_units=4), nn.BatchNorm(in_channels=1))
    net.initialize()
    schedule = mx.lr_scheduler.CosineScheduler(10, 0.3)
    trainer = mx.gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.3, "lr_scheduler": schedule})
    before = {name: param.data().asnumpy() for name, param in net.collect_params().items()}
    LRFinder(net, squares, trainer).run(LOADER, num_steps=5)
    for name, param in net.collect_params().items():
        np.testing.assert_array_equal(param.data().asnumpy(), before[name])
    assert trainer.optimizer.num_update == 0
    assert trainer.learning_rate == pytest.approx(0.3)
    with mx.autograd.record():
        loss = squares(net(LOADER[0][0]), LOADER[0][1])
    loss.backward()
    trainer.step(8)


def test_weights_of_unknown_shape_are_initialized_and_restored():
    net = nn.HybridSequential()
    net.add(nn.Dense(3), nn.BatchNorm(), nn.Dense(1))
    net.initialize(mx.init.One())
    LRFinder(net, squares, mx.gluon.Trainer(net.collect_params(), "sgd")).run(LOADER, num_steps=3)
    assert (net[0].weight.data().asnumpy() == 1).all()
    assert (net[1].running_mean.data().asnumpy() == 0).all()


async def test_a_coroutine_awaits_the_search():
    """A blocking read in a coroutine would warn, and warnings are errors."""
    net, trainer = make()
    data = mx.gluon.data.ArrayDataset(*(np.concatenate(part) for part in zip(*BATCHES, strict=True)))
    finder = LRFinder(net, squares, trainer)
    await finder.run(mx.gluon.data.DataLoader(data, 8), 1e-3, 10, 40)
    expected = LRFinder(net, squares, trainer)
    await expected.run(LOADER, 1e-3, 10, 40)
    assert finder.losses == pytest.approx(expected.losses)
    assert "log10(learning rate)" in finder._repr_html_()


def test_a_loss_that_is_not_finite_ends_the_search():
    net, trainer = make()
    finder = LRFinder(net, lambda prediction, label: (prediction * math.inf).mean(axis=1), trainer)
    finder.run(LOADER)
    assert len(finder.losses) == 1
    with pytest.raises(RuntimeError, match=r"there are 1 losses, expected at least 4: call run\(\)"):
        _ = finder.suggestion


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((LOADER, 1, 0.1), "start_lr is 1 and end_lr 0.1, expected 0 < start_lr < end_lr"),
        ((LOADER, 0.1, 1, 1), "num_steps is 1, expected at least 2"),
        (([], 0.1, 1), "data has no batches"),
        (([mx.nd.ones((2, 4))], 0.1, 1), r"a batch is NDArray, expected \(data, label\)"),
    ],
)
def test_refuses_invalid_searches(arguments, message):
    net, trainer = make()
    with pytest.raises(ValueError, match=message):
        LRFinder(net, squares, trainer).run(*arguments)


def test_refuses_accumulated_gradients_and_wrong_types():
    net, trainer = make()
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", accumulate=2)
    with mx.autograd.record():
        loss = net(LOADER[0][0])
    loss.backward()
    trainer.step(8)
    with pytest.raises(RuntimeError, match=r"call trainer\.flush\(\) before"):
        LRFinder(net, squares, trainer).run(LOADER)
    with pytest.raises(TypeError, match="trainer is str, expected a gluon"):
        LRFinder(net, squares, "sgd")
