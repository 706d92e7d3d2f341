"""Winograd's algorithm computes convolutions as the direct one does, and is chosen by measurement."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

import flowmx as mx
from flowmx import disk_cache, settings
from flowmx.executor import executor as executors
from flowmx.graph import compiler
from flowmx.ops.compiled.fused_layers import FusedConvolution
from flowmx.ops.kernels.llvm import winograd as loops
from flowmx.ops.kernels.llvm.background_compilation import Program
from flowmx.ops.kernels.onednn import algorithm_choice, layouts, library, winograd

pytestmark = pytest.mark.skipif(library.library() is None, reason="the oneDNN library is not installed")


@pytest.fixture(autouse=True)
def packing(monkeypatch):
    """Bound symbols are compiled with packed weights."""
    options_of = compiler.options_of
    monkeypatch.setattr(executors, "options_of", lambda kind: replace(options_of(kind), pack=True))


def choose(monkeypatch, side):
    """Make every possible layer use tiles of a side."""
    monkeypatch.setattr(algorithm_choice, "_sides", {})
    monkeypatch.setattr(disk_cache, "read", lambda path: None)
    monkeypatch.setattr(disk_cache, "write", lambda path, content: None)
    monkeypatch.setattr(algorithm_choice, "_fastest", lambda *arguments: side)


def predict(net, **shapes):
    rng = np.random.default_rng(0)
    bound = net.simple_bind(mx.cpu(), grad_req="null", **shapes)
    for name, array in sorted({**bound.arg_dict, **bound.aux_dict}.items()):
        array[:] = rng.uniform(0.5, 2, array.shape) if name.endswith("var") else rng.standard_normal(array.shape)
    return [output.asnumpy() for output in bound.forward()], bound


def sides(bound):
    nodes = [*bound.plan.once, *bound.plan.forward]
    return [node.op.winograd for node in nodes if node.op.name in ("_fused_Convolution", "_pack_Convolution")]


def compare(monkeypatch, net, side, **shapes):
    """Compare the prediction of a net with one layer with that of the direct algorithm."""
    choose(monkeypatch, 0)
    expected, _ = predict(net, **shapes)
    choose(monkeypatch, side)
    results, bound = predict(net, **shapes)
    assert sides(bound).count(side) == 2  # the layer and its packed filters
    for one, other in zip(results, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5 * np.abs(other).max())
    again = [output.asnumpy() for output in bound.forward()]
    assert all(np.array_equal(one, other) for one, other in zip(results, again, strict=True))


def layer(x, filters=32, pad=(1, 1), **more):
    return mx.sym.Convolution(x, kernel=(3, 3), pad=pad, num_filter=filters, name="conv", **more)


@pytest.mark.parametrize("side", [2, 4])
def test_matrices(side):
    inner, filters, outer = loops.matrices(side)
    rng = np.random.default_rng(0)
    data, taps = rng.standard_normal(side + 2), rng.standard_normal(3)
    expected = [data[at : at + 3] @ taps for at in range(side)]
    np.testing.assert_allclose(outer @ ((filters @ taps) * (inner @ data)), expected, rtol=1e-12)


@pytest.mark.parametrize("side", [2, 4])
@pytest.mark.parametrize(
    ("pad", "size"),
    [(pad, size) for pad in [(0, 0), (1, 1), (2, 0)] for size in [(8, 8), (9, 13), (3, 5)]] + [((1, 1), (1, 30))],
)
def test_sizes(monkeypatch, side, pad, size):
    net = layer(mx.sym.Variable("data"), pad=pad)
    compare(monkeypatch, net, side, data=(3, 16, *size))


@pytest.mark.parametrize("side", [2, 4])
@pytest.mark.parametrize("activation", ["", "relu", "leaky", "clip", "swish"])
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("has_addend", [False, True])
def test_epilogues(monkeypatch, side, activation, norm, has_addend):
    data = mx.sym.Variable("data")
    x = layer(data, 16, no_bias=norm)
    x = mx.sym.BatchNorm(x, fix_gamma=False) if norm else x
    x = x + data if has_addend else x
    x = {
        "": lambda: x,
        "relu": lambda: mx.sym.relu(x),
        "leaky": lambda: mx.sym.LeakyReLU(x, act_type="leaky", slope=0.1),
        "clip": lambda: mx.sym.clip(x, a_min=0, a_max=6),
        "swish": lambda: x * mx.sym.sigmoid(x),
    }[activation]()
    compare(monkeypatch, net=x, side=side, data=(2, 16, 10, 7))


def test_rows_of_tiles_in_parts(monkeypatch):
    monkeypatch.setattr("flowmx.ops.kernels.onednn.winograd._PART_BYTES", 1 << 16)
    compare(monkeypatch, layer(mx.sym.Variable("data")), 4, data=(3, 32, 21, 22))


@pytest.mark.parametrize("side", [2, 4])
def test_fallback(monkeypatch, side):
    monkeypatch.setattr(Program, "get", lambda self: None)
    data = mx.sym.Variable("data")
    net = mx.sym.relu(layer(data, 16) + data)
    compare(monkeypatch, net, side, data=(2, 16, 9, 6))


def test_changed_filters_are_transformed_again(monkeypatch):
    choose(monkeypatch, 4)
    net = layer(mx.sym.Variable("data"), no_bias=True)
    (before,), bound = predict(net, data=(1, 16, 8, 8))
    bound.arg_dict["conv_weight"][:] *= 2
    np.testing.assert_array_equal(bound.forward()[0].asnumpy(), 2 * before)


@pytest.mark.parametrize(
    ("more", "channels"),
    [({"stride": (2, 2)}, 16), ({"dilate": (2, 2)}, 16), ({"num_group": 2}, 16), ({}, 8), ({"num_filter": 24}, 16)],
)
def test_other_convolutions_are_direct(monkeypatch, more, channels):
    choose(monkeypatch, 4)
    options = {"kernel": (3, 3), "pad": (1, 1), "num_filter": 16, **more}
    _, bound = predict(mx.sym.Convolution(mx.sym.Variable("data"), **options), data=(1, channels, 12, 12))
    assert set(sides(bound)) <= {0}


def chosen(shape=(1, 64, 28, 28)):
    op = FusedConvolution.create(kernel=(3, 3), pad=(1, 1), num_filter=64, packed=True, activation="relu")
    return algorithm_choice.winograd_side(op, shape, np.dtype(np.float32))


@pytest.fixture
def empty_cache(monkeypatch, tmp_path):
    monkeypatch.setattr(algorithm_choice, "_sides", {})
    monkeypatch.setattr(disk_cache, "folder", lambda: tmp_path)
    return tmp_path


def test_choice_is_measured_once_and_stored(monkeypatch, empty_cache):
    first = chosen()
    assert first in (0, 2, 4)
    assert len(list(empty_cache.glob("*.form"))) == 1
    monkeypatch.setattr(algorithm_choice, "_sides", {})
    monkeypatch.setattr(algorithm_choice, "_fastest", lambda *arguments: pytest.fail("measured again"))
    assert chosen() == first


def test_fastest_is_chosen(monkeypatch, empty_cache):
    monkeypatch.setattr(
        algorithm_choice, "_times", lambda runs, seconds: {side: {0: 1.0, 2: 0.5, 4: 0.7}[side] for side in runs}
    )
    assert chosen() == 4
    with settings.override(cpu_autotune_default=2):
        assert chosen() == 2
    monkeypatch.setattr(algorithm_choice, "_times", lambda runs, seconds: {0: 1.0, 2: 0.99, 4: 0.98})
    assert chosen((1, 64, 14, 14)) == 0


def test_settings(monkeypatch, empty_cache):
    monkeypatch.setattr(algorithm_choice, "_fastest", lambda windows, data, out, sides, seconds: max(sides, default=0))
    with settings.override(cpu_autotune_default=0):
        assert chosen() == 0
    with settings.override(cpu_autotune_default=1):
        assert chosen() == 4
    monkeypatch.setattr(algorithm_choice, "_FILTER_BYTES", {1: 1 << 10, 2: 1 << 30})
    with settings.override(cpu_autotune_default=1):
        assert chosen((1, 64, 30, 30)) == 0
    with settings.override(cpu_autotune_default=2):
        assert chosen((1, 64, 30, 30)) == 4


def test_event_loops_do_not_measure(monkeypatch, empty_cache):
    monkeypatch.setattr(algorithm_choice, "_fastest", lambda *arguments: pytest.fail("measured on an event loop"))

    async def choose_here():
        return chosen()

    assert asyncio.run(choose_here()) == 4
    assert not list(empty_cache.iterdir())


@pytest.mark.parametrize("side", [2, 4])
@pytest.mark.parametrize("is_scaled", [False, True])
@pytest.mark.parametrize("layout_of", [layouts.in_panels, layouts.plain], ids=["panels", "copied"])
def test_filters_are_transformed_alike_by_loop_and_numpy(monkeypatch, side, is_scaled, layout_of):
    """Panels with missing filters, and a layout of oneDNN's that the loop does not write."""
    monkeypatch.setattr(winograd, "in_panels", layout_of)
    rng = np.random.default_rng(0)
    weight, scale = rng.standard_normal((96, 32, 3, 3)).astype("f4"), rng.uniform(0.5, 2, 96).astype("f4")
    scales = [scale] if is_scaled else []
    results = []
    for get in (Program.get, lambda self: None):
        monkeypatch.setattr(Program, "get", get)
        work = winograd.TransformFilters(
            layouts.dense(weight.shape), side, layouts.dense(scale.shape) if is_scaled else None
        )
        packed = np.full(winograd.filters_layout(32, 96, side).nbytes // 4, np.nan, "f4")
        work(*map(layouts.pointer, [weight, *scales, packed]))
        results.append(packed)
    np.testing.assert_allclose(*results, rtol=1e-6, atol=0)
    factors = np.einsum("ia,fcab,jb->ijcf", *[loops.matrices(side).filters, weight, loops.matrices(side).filters])
    first_panel = results[0].reshape((side + 2) ** 2, 2, 32, 64)[:, 0]
    expected = (factors * scale if is_scaled else factors).reshape(-1, 32, 96)[..., :64]
    np.testing.assert_allclose(first_panel, expected, rtol=1e-6, atol=1e-7)
