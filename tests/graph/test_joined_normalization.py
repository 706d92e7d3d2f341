"""A BatchNorm after concatenations reads the parts: same results, and no concatenation is left."""

import numpy as np
import pytest

import flowmx as mx
from flowmx import settings
from flowmx.graph import compiler
from flowmx.graph.passes.join_normalization import join_normalization
from flowmx.ops.kernels.llvm.background_compilation import Program
from flowmx.ops.kernels.onednn import library
from tests.ops.test_onednn import assert_close

pytestmark = pytest.mark.skipif(library.library() is None, reason="the oneDNN library is not installed")


def norm(x, name, is_relu=True, **more):
    x = mx.sym.BatchNorm(x, name=name, **{"fix_gamma": False, **more})
    return mx.sym.relu(x) if is_relu else x


def conv(x, filters, name, kernel=3):
    pad = (kernel // 2,) * 2
    return mx.sym.Convolution(x, kernel=(kernel, kernel), pad=pad, num_filter=filters, no_bias=True, name=name)


def dense_block(growth=16, count=3, is_relu=True, **more):
    x = conv(mx.sym.Variable("data"), 32, "first")
    for at in range(count):
        new = conv(norm(x, f"norm{at}", is_relu, **more), growth, f"conv{at}")
        x = mx.sym.Concat(x, new, dim=1, name=f"join{at}")
    return x


def predict(net, shape=(2, 3, 9, 7), runs=3):
    rng = np.random.default_rng(0)
    bound = net.simple_bind(mx.cpu(), grad_req="null", data=shape)
    for name, array in sorted({**bound.arg_dict, **bound.aux_dict}.items()):
        array[:] = rng.uniform(0.5, 2, array.shape) if name.endswith("var") else rng.standard_normal(array.shape)
    return [[output.asnumpy() for output in bound.forward()] for _ in range(runs)], bound


def names(bound):
    return [node.op.name for node in bound.plan.forward]


def compare(monkeypatch, net, **more):
    results, bound = predict(net, **more)
    monkeypatch.setattr(compiler, "PASSES", [each for each in compiler.PASSES if each is not join_normalization])
    (expected, *_), plain = predict(net, **more)
    assert "Concat" in names(plain)
    for result in results:
        assert_close(expected, result)
    return names(bound)


@pytest.mark.parametrize("is_relu", [False, True])
@pytest.mark.parametrize("fix_gamma", [False, True])
@pytest.mark.parametrize("is_compiled", [False, True])
def test_a_dense_block_has_no_concatenation(monkeypatch, is_relu, fix_gamma, is_compiled):
    net = norm(dense_block(is_relu=is_relu, fix_gamma=fix_gamma), "last", is_relu, fix_gamma=fix_gamma)
    if not is_compiled:
        monkeypatch.setattr(Program, "get", lambda self: None)
    steps = compare(monkeypatch, net)
    assert steps.count("_joined_normalization") == 3
    assert "Concat" not in steps


def test_large_arrays_on_two_threads(monkeypatch, two_threads_a_kernel):
    steps = compare(monkeypatch, norm(dense_block(), "last"), shape=(4, 3, 50, 40))
    assert "Concat" not in steps


@pytest.mark.parametrize(
    "net",
    [
        mx.sym.Group([norm(dense_block(), "last"), dense_block()]),  # an output
        conv(dense_block(), 8, "reader") + conv(norm(dense_block(), "last"), 8, "other"),  # read by a convolution
        norm(dense_block(growth=12), "last"),  # no whole vectors
        norm(mx.sym.Concat(conv(mx.sym.Variable("data"), 16, "a"), mx.sym.Variable("data"), dim=1), "last"),
    ],
)
def test_others_keep_the_last_concatenation(monkeypatch, net):
    assert "Concat" in compare(monkeypatch, net)


def test_changed_parameters_are_read():
    net = norm(dense_block(), "last")
    _, bound = predict(net)
    bound.arg_dict["last_gamma"][:] = 0
    bound.arg_dict["last_beta"][:] = 2
    np.testing.assert_array_equal(bound.forward()[0].asnumpy(), 2)


def test_training_is_unchanged():
    bound = norm(dense_block(), "last").simple_bind(mx.cpu(), data=(2, 3, 9, 7))
    assert "Concat" in names(bound)


def test_a_dense_block_in_slices():
    net = norm(dense_block(), "last")
    (expected, *_), _ = predict(net, shape=(8, 3, 9, 7))
    with settings.override(exec_slice=2):
        (result, *_), _ = predict(net, shape=(8, 3, 9, 7))
    assert_close(expected, result)
