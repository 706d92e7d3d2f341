"""In prediction, convolutions compute only the positions that later layers read."""

import numpy as np
import pytest

import flowmx as mx
from flowmx.graph import compiler
from flowmx.graph.passes.positions import move_strides, pool_first


def predict(net, **shapes):
    """Return the outputs of a bound symbol with random parameters and statistics, and the executor."""
    rng = np.random.default_rng(0)
    bound = net.simple_bind(mx.cpu(), grad_req="null", **shapes)
    for name, array in sorted({**bound.arg_dict, **bound.aux_dict}.items()):
        array[:] = rng.uniform(0.5, 2, array.shape) if name.endswith("var") else rng.standard_normal(array.shape)
    return [output.asnumpy() for output in bound.forward()], bound


def compare(net, **shapes):
    """Predict with and without the two passes, compare the outputs, and return the executor with them."""
    results, bound = predict(net, **shapes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "PASSES", [each for each in compiler.PASSES if each not in (move_strides, pool_first)])
        expected, _ = predict(net, **shapes)
    for one, other in zip(results, expected, strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5 * np.abs(other).max())
    return bound


def layers(bound):
    """Return kernel and stride of each convolution of a plan, in order."""
    nodes = [node for node in bound.plan.forward if node.op.name in ("Convolution", "_fused_Convolution")]
    return [(node.op.kernel, node.op.geometry.stride) for node in nodes]


def convolution(x, kernel, stride=1, filters=8, **more):
    rank = more.pop("rank", 2)
    pad = (kernel // 2,) * rank
    return mx.sym.Convolution(
        x, kernel=(kernel,) * rank, stride=(stride,) * rank, pad=pad, num_filter=filters, no_bias=True, **more
    )


def block(x, filters=8):
    inner = mx.sym.relu(mx.sym.BatchNorm(convolution(x, 3), fix_gamma=False))
    inner = mx.sym.BatchNorm(convolution(inner, 1, filters=filters), fix_gamma=False)
    return mx.sym.relu(inner + x)


@pytest.mark.parametrize("size", [(8, 8), (9, 7), (5, 6), (1, 1)])
def test_residual_stages(size):
    x = block(block(mx.sym.Variable("data")))
    net = convolution(x, 1, 2, filters=4) + convolution(convolution(x, 1, 2), 3, filters=4)
    bound = compare(net, data=(2, 8, *size))
    assert layers(bound)[:4] == [((3, 3), (1, 1)), ((1, 1), (1, 1)), ((3, 3), (2, 2)), ((1, 1), (1, 1))]
    assert all(stride == (1, 1) for _, stride in layers(bound)[4:])


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("stride", [2, 3])
def test_ranks_and_strides(rank, stride):
    x = convolution(mx.sym.Variable("data"), 3, 2, rank=rank)
    bound = compare(convolution(x, 1, stride, rank=rank), data=(1, 4, *(19,) * rank))
    assert layers(bound) == [((3,) * rank, (2 * stride,) * rank), ((1,) * rank, (1,) * rank)]


def test_strides_move_through_several_layers():
    x = convolution(mx.sym.Variable("data"), 3)
    for _ in range(3):
        x = mx.sym.relu(convolution(x, 1, 2))
    bound = compare(x, data=(1, 4, 33, 33))
    assert [stride for _, stride in layers(bound)] == [(8, 8), (1, 1), (1, 1), (1, 1)]


@pytest.mark.parametrize(
    "readers",
    [
        lambda x: convolution(x, 1, 2) + convolution(x, 3, 2),
        lambda x: mx.sym.Group([convolution(x, 1, 2), convolution(x, 1, 3)]),
        lambda x: mx.sym.Group([convolution(x, 1, 2), x]),
        lambda x: mx.sym.Group([convolution(x, 1, 2), mx.sym.sum(x)]),
        lambda x: mx.sym.Convolution(x, kernel=(1, 1), stride=(2, 2), pad=(1, 1), num_filter=4),
    ],
)
def test_strides_stay_if_other_positions_are_read(readers):
    bound = compare(readers(convolution(mx.sym.Variable("data"), 3)), data=(1, 4, 12, 12))
    assert ((3, 3), (1, 1)) in layers(bound)


def test_strides_stay_in_training():
    net = convolution(convolution(mx.sym.Variable("data"), 3), 1, 2)
    bound = net.simple_bind(mx.cpu(), data=(1, 4, 8, 8))
    bound.forward(is_train=True)
    assert [stride for _, stride in layers(bound)] == [(1, 1), (2, 2)]


def order(bound):
    return [node.op.name.rsplit("_", 1)[-1] for node in bound.plan.forward]


@pytest.mark.parametrize("no_bias", [False, True])
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("pool", [{"kernel": (2, 2), "stride": (2, 2)}, {"global_pool": True, "kernel": (1, 1)}])
def test_mean_before_convolution(no_bias, norm, pool):
    x = mx.sym.Convolution(mx.sym.Variable("data"), kernel=(1, 1), num_filter=6, no_bias=no_bias)
    x = mx.sym.BatchNorm(x, fix_gamma=False) if norm else x
    bound = compare(mx.sym.Pooling(x, pool_type="avg", **pool), data=(2, 8, 8, 6))
    assert order(bound)[-2:] == ["Pooling", "Convolution"]


@pytest.mark.parametrize(
    ("kernel", "then", "pool"),
    [
        (1, mx.sym.relu, {}),
        (3, mx.sym.identity, {}),
        (1, mx.sym.identity, {"pool_type": "max"}),
        (1, mx.sym.identity, {"pad": (1, 1)}),
        (1, mx.sym.identity, {"pooling_convention": "full", "kernel": (4, 4), "stride": (3, 3)}),
    ],
)
def test_mean_stays_if_it_does_not_commute(kernel, then, pool):
    x = mx.sym.Convolution(mx.sym.Variable("data"), kernel=(kernel, kernel), num_filter=6)
    options = {"pool_type": "avg", "kernel": (2, 2), "stride": (2, 2), **pool}
    bound = compare(mx.sym.Pooling(then(x), **options), data=(2, 8, 9, 9))
    assert order(bound)[-2:] == ["Convolution", "Pooling"]


def test_explanation():
    net = convolution(convolution(mx.sym.Variable("data"), 3, name="wide"), 1, 2)
    bound = net.simple_bind(mx.cpu(), grad_req="null", data=(1, 4, 8, 8))
    bound.forward()
    assert "wide computes (4, 4) of (8, 8) positions" in bound.plan.explain()
