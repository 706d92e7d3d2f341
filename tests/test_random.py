"""Seeds repeat, on every engine kind and device, and the numbers are distributed as they should be."""

import math

import numpy as np
import pytest

import flowmx as mx

KINDS = ["NaiveEngine", "ThreadedEngine", "ThreadedEnginePerDevice"]


def draws(ctx=None):
    ctx = ctx or mx.cpu()
    found = []
    for step in range(5):
        found += [
            mx.random.uniform(shape=(3, 4), ctx=ctx),
            mx.nd.random.normal(step, 2.0, shape=(5,), ctx=ctx),
            mx.random.randint(0, 100, shape=(6,), ctx=ctx),
            mx.nd.random.poisson(mx.nd.array([4, 5], ctx), shape=(3,)),
            mx.random.shuffle(mx.nd.array(range(10), ctx=ctx)),
        ]
        with mx.autograd.train_mode():
            found.append(mx.nd.Dropout(mx.nd.ones((8,), ctx=ctx)))
    return np.concatenate([each.asnumpy().ravel() for each in found])


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_repeats_on_every_engine_kind(kind):
    mx.random.seed(11)
    expected = draws()
    with mx.engine.using(engine_type=kind):
        mx.random.seed(11)
        np.testing.assert_array_equal(draws(), expected)
        mx.random.seed(12)
        assert not np.array_equal(draws(), expected)


def test_a_seed_is_ordered_between_what_is_pushed_before_and_after():
    mx.random.seed(1)
    first = mx.random.uniform(shape=(1000,))
    mx.random.seed(1)
    second = mx.random.uniform(shape=(1000,))
    third = mx.random.uniform(shape=(1000,))
    np.testing.assert_array_equal(first.asnumpy(), second.asnumpy())
    assert not np.array_equal(second.asnumpy(), third.asnumpy())


def test_devices_have_streams_of_their_own_unless_seeded_one_by_one():
    mx.random.seed(5)
    one, other = draws(mx.cpu(0)), draws(mx.cpu(1))
    assert not np.array_equal(one, other)
    mx.random.seed(5, ctx=mx.cpu(0))
    mx.random.seed(5, ctx=mx.cpu(1))
    np.testing.assert_array_equal(draws(mx.cpu(0)), draws(mx.cpu(1)))


def test_seeding_one_device_leaves_the_others_alone():
    mx.random.seed(5)
    expected = draws(mx.cpu(1))
    mx.random.seed(5)
    mx.random.seed(9, ctx=mx.cpu(0))
    np.testing.assert_array_equal(draws(mx.cpu(1)), expected)


def test_a_seed_holds_for_devices_made_later():
    def fresh(number):
        found = mx.random.uniform(shape=(4,), ctx=mx.cpu(number)).asnumpy()
        mx.random.seed(21)
        return found, mx.random.uniform(shape=(4,), ctx=mx.cpu(number)).asnumpy()

    mx.random.seed(21)
    made_after, seeded_again = fresh(77)
    np.testing.assert_array_equal(made_after, seeded_again)


@pytest.mark.parametrize("seed", ["7", 1.5, None])
def test_refuses_a_seed_that_is_no_whole_number(seed):
    with pytest.raises(TypeError, match="seed_state is"):
        mx.random.seed(seed)


def test_refuses_an_unknown_context():
    with pytest.raises(TypeError, match="ctx is 'some'"):
        mx.random.seed(1, ctx="some")


N = 40000
# name, arguments, mean, variance
MOMENTS = [
    ("uniform", (-1.0, 3.0), 1.0, 16 / 12),
    ("normal", (2.0, 3.0), 2.0, 9.0),
    ("gamma", (3.0, 0.5), 1.5, 0.75),
    ("exponential", (2.0,), 2.0, 4.0),
    ("poisson", (4.0,), 4.0, 4.0),
    ("negative_binomial", (5, 0.4), 7.5, 7.5 / 0.4),
    ("generalized_negative_binomial", (2.0, 0.5), 2.0, 2.0 + 0.5 * 4.0),
    ("generalized_negative_binomial", (2.0, 0.0), 2.0, 2.0),
    ("bernoulli", (0.3,), 0.3, 0.21),
]


@pytest.mark.parametrize(("name", "arguments", "mean", "variance"), MOMENTS)
@pytest.mark.parametrize("arrays", [False, True], ids=["numbers", "arrays"])
def test_moments(name, arguments, mean, variance, arrays):
    mx.random.seed(3)
    if arrays:
        arguments = [mx.nd.array([value, value]) for value in arguments]
    made = getattr(mx.nd.random, name)(*arguments, shape=(N,)).asnumpy()
    assert made.shape == ((2, N) if arrays else (N,))
    assert made.dtype == np.float32
    for row in made.reshape(-1, N):
        assert abs(row.mean() - mean) < 5 * math.sqrt(variance / N)
        assert abs(row.var() / variance - 1) < 0.1


def test_integers_shapes_and_dtypes():
    mx.random.seed(3)
    made = mx.random.randint(-2, 3, shape=(500,))
    assert made.dtype == np.int32 and set(made.asnumpy()) == {-2, -1, 0, 1, 2}
    assert mx.random.randint(0, 2**40, shape=(2,), dtype="int64").dtype == np.int64
    assert mx.random.uniform().shape == (1,)
    assert mx.random.randn(2, 3, loc=1.0).shape == (2, 3)
    assert mx.random.uniform(shape=(3,), dtype="float16").dtype == np.float16
    out = mx.nd.array([0.0, 0.0])
    assert mx.random.normal(out=out) is out and out.asnumpy().any()
    assert mx.nd.random_uniform_like(out, low=5, high=6).asnumpy().min() >= 5


def test_multinomial_and_its_gradient():
    mx.random.seed(3)
    odds = mx.nd.array([[0.1, 0.6, 0.3], [0.5, 0.0, 0.5]])
    odds.attach_grad()
    with mx.autograd.record():
        made, log_prob = mx.nd.random.multinomial(odds, shape=(4000,), get_prob=True)
    log_prob.backward()
    samples = made.asnumpy()
    shares = np.stack([(samples == index).mean(axis=1) for index in range(3)], axis=1)
    np.testing.assert_allclose(shares, odds.asnumpy(), atol=0.03)
    chosen = np.take_along_axis(odds.asnumpy(), samples, axis=1)
    np.testing.assert_allclose(log_prob.asnumpy(), np.log(chosen), rtol=1e-5)
    counts = shares * 4000
    expected = np.divide(counts, odds.asnumpy(), out=np.zeros_like(counts), where=counts > 0)
    assert odds.grad is not None
    grads = odds.grad.asnumpy()
    np.testing.assert_allclose(grads[counts > 0], expected[counts > 0], rtol=1e-4)
    assert mx.nd.random.multinomial(mx.nd.array([0.0, 1.0])).shape == ()


def test_shuffle_keeps_rows_together():
    mx.random.seed(3)
    made = mx.random.shuffle(mx.nd.array(np.arange(40).reshape(10, 4))).asnumpy()
    assert sorted(made[:, 0]) == list(range(0, 40, 4))
    np.testing.assert_array_equal(made - made[:, :1], np.tile(np.arange(4), (10, 1)))
    assert list(made[:, 0]) != list(range(0, 40, 4))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mx.random.normal(0, -1), "scale is -1.0, expected at least 0"),
        (lambda: mx.random.randint(3, 3), "high is 3, expected more than low 3"),
        (lambda: mx.random.uniform(mx.nd.array([1.0]), 2), "arrays for all"),
        (lambda: mx.random.bernoulli(2), "prob is 2"),
    ],
)
def test_refuses_what_is_no_distribution(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()
