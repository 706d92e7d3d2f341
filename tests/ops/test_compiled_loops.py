"""The fused loops: every kernel against the fallback, over layouts, dtypes, special values and threads."""

import asyncio
import math
import os
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import flowmx as mx
from flowmx import devices, settings
from flowmx.ops.formulas import expressions
from flowmx.ops.formulas.expressions import placeholder
from flowmx.ops.kernels.llvm import (
    background_compilation,
    compiler,
    gather,
    math_functions,
    normalization,
    object_files,
    softmax,
    team,
)
from flowmx.ops.kernels.llvm.assembly import DOUBLE, FLOAT, Code
from flowmx.ops.kernels.llvm.background_compilation import Program
from flowmx.ops.kernels.llvm.elementwise import FUSED, Fused, Loop, in_memory_order
from flowmx.ops.kernels.llvm.row_loops import Kind, Rows
from flowmx.ops.math.unary import TABLE
from flowmx.ops.optimizers.updates import REGISTERED
from flowmx.ops.registry.dtypes import FLOAT32
from flowmx.ops.registry.kernels import kernel_for
from flowmx.ops.registry.operators import Run, lookup

pytestmark = pytest.mark.usefixtures("two_threads_a_kernel")

pytest.importorskip("llvmlite")

BIG = (300, 257)  # more elements than the minimum of any kernel
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1e-38, 3e38, -3e38, 88.0, -88.0,
           104.0, -104.0, 1e10, -1e10, 1e-10, 2.5, -2.5, 16777217.0]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory):
    with settings.override(kernel_cache=str(tmp_path_factory.mktemp("kernels"))):
        yield


def quiet():
    return np.errstate(all="ignore")


def run_of(train=True):
    return Run(devices.get(mx.cpu()), train)


def outputs_for(op, inputs, fill=7):
    spec = op.spec(tuple(each.shape for each in inputs), tuple(each.dtype for each in inputs))
    return [np.full(shape, fill, dtype) for shape, dtype in zip(spec.shapes, spec.dtypes, strict=True)]


def both(name, inputs, params, outputs=None):
    """Return the outputs and updated inputs of an operator's kernel, and of its fallback."""
    op = lookup(name).create(**params)
    results = []
    fast = kernel_for("cpu", op.name)
    assert fast is not None
    for forward in (lambda *args: fast.compute(op, *args), op.forward):
        copies = [each.copy() if position in op.updates else each for position, each in enumerate(inputs)]
        targets = outputs_for(op, inputs) if outputs is None else outputs()
        with quiet():
            forward(run_of(), copies, targets)
        results.append([*targets, *(copies[position] for position in op.updates)])
    return results


def check(name, inputs, params=None, rtol=3e-6, atol=1e-6, outputs=None):
    fast, plain = both(name, inputs, params or {}, outputs)
    for one, other in zip(fast, plain, strict=True):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=atol, equal_nan=True)


def normal(*shape, seed=0, dtype=np.float32, scale=2.0):
    return (np.random.default_rng([seed, *shape]).standard_normal(shape) * scale).astype(dtype)


def positive(*shape, seed=0, dtype=np.float32):
    return np.abs(normal(*shape, seed=seed, dtype=dtype)) + dtype(0.1)


# -- elementwise -------------------------------------------------------------------------------------------

X, Y, P = normal(*BIG), normal(*BIG, seed=1), positive(*BIG)
PAIRS = ["add", "sub", "mul", "div", "maximum", "minimum", "equal", "not_equal", "greater", "greater_equal", "lesser",
         "lesser_equal", "logical_and", "logical_or", "logical_xor"]  # fmt: skip
ARITHMETIC = ["add", "sub", "mul", "div"]
SCALAR = {"add": "_plus_scalar", "sub": "_minus_scalar"}

CASES = [
    *[(row.name, [P if row.name in ("rsqrt", "sqrt", "log", "log1p") else X], {}) for row in TABLE
      if row.name in FUSED and row.name != "_slope_of_relu"],  # its input is an output of relu, so never negative
    *[(f"broadcast_{name}", [X, Y], {}) for name in PAIRS],
    *[(f"elemwise_{name}" if name in ARITHMETIC else f"_{name}", [X, Y], {}) for name in PAIRS],
    *[(SCALAR.get(name, f"_{name}_scalar"), [X], {"scalar": 0.7}) for name in PAIRS],
    *[(name, [X], {"scalar": -1.3}) for name in ("_rminus_scalar", "_rdiv_scalar")],
    *[("_power_scalar", [P], {"scalar": power}) for power in (2.0, 3.0, 0.5, -1.0, 1.7)],
    ("smooth_l1", [X], {"scalar": 0.8}),
    ("clip", [X], {"a_min": -0.5, "a_max": 1.5}),
    ("hard_sigmoid", [X], {}),
    ("add_n", [X, Y, P], {"num_args": 3}),
    *[("Activation", [X], {"act_type": kind}) for kind in ("relu", "sigmoid", "tanh", "softrelu", "softsign")],
    *[("_backward_Activation", [Y, np.tanh(np.abs(X))], {"act_type": kind})
      for kind in ("relu", "sigmoid", "tanh", "softrelu", "softsign")],
    *[("LeakyReLU", [X], {"act_type": kind}) for kind in ("leaky", "elu", "selu", "gelu")],
    *[("_backward_LeakyReLU", [Y, X], {"act_type": kind}) for kind in ("leaky", "elu", "selu", "gelu")],
]  # fmt: skip


def ids(case):
    return "-".join([case[0], *map(str, case[2].values())])


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_elementwise(case, calls):
    name, inputs, params = case
    check(name, inputs, params)
    assert calls or params.get("scalar") == 1.7  # a power without a formula uses the fallback


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_elementwise_special_values(case):
    name, inputs, params = case
    tiled = [np.resize(np.roll(np.array(SPECIAL, np.float32), shift), BIG) for shift in range(len(inputs))]
    if name == "_backward_Activation":  # its input is an output of the activation, which has few special values
        tiled[1] = np.resize(np.array([0, 0.5, 1, np.nan], np.float32), BIG)
    # The kernel may be more precise: the fallback rounds sums of numbers near 0, and may overflow in between.
    check(name, tiled, params, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "case", [c for c in CASES if c[0].startswith(("broadcast_", "_mul_s", "square", "clip"))], ids=ids
)
def test_float64_arithmetic_is_fused_too(case, calls):
    name, inputs, params = case
    check(name, [each.astype(np.float64) for each in inputs], params, rtol=1e-14, atol=0)
    assert calls


@pytest.mark.parametrize("dtype", [np.float64, np.int16, np.int32])
def test_other_dtypes_use_the_plain_forward(dtype, calls):
    check("abs" if np.dtype(dtype).kind == "i" else "tanh", [X.astype(dtype)], rtol=0, atol=0)
    assert not calls


LAYOUTS = {
    "channels last": lambda x: np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2),
    "fortran": np.asfortranarray,
    "every other": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "backwards": lambda x: np.ascontiguousarray(x[::-1])[::-1],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout, calls):
    shape = (4, 6, 1, 4000)
    lay = LAYOUTS[layout]
    inputs = [lay(normal(*shape, seed=seed)) for seed in (0, 1)]
    check("broadcast_add", inputs, outputs=lambda: [lay(np.zeros(shape, np.float32))])
    assert bool(calls) == (layout in ("channels last", "fortran"))
    calls.clear()
    check("broadcast_add", [inputs[0], normal(*shape)], outputs=lambda: [np.zeros(shape, np.float32)])
    assert not calls  # one array has another memory order


def test_memory_order():
    c = np.zeros((2, 3, 4), np.float32)
    assert in_memory_order([c, c])
    assert in_memory_order([c.T, c.T])
    assert not in_memory_order([c, c.transpose(1, 0, 2).copy().transpose(1, 0, 2)])
    assert not in_memory_order([c[:, :2], c[:, :2]])
    assert not in_memory_order([np.broadcast_to(np.float32(1), (2, 3))] * 2)


def test_in_place():
    x = X.copy()
    op = lookup("_mul_scalar").create(scalar=3.0)
    kernel_for("cpu", "_mul_scalar").compute(op, run_of(), [x], [x])
    np.testing.assert_array_equal(x, X * np.float32(3))


@pytest.mark.parametrize("size", [1, 15, 16, 17, 31, 33, 8191, 8192, 100_003])
def test_sizes(size):
    loop = Loop([math_functions.exp(placeholder(0))], 1, FLOAT)
    x = normal(size)
    out = np.full(size + 8, 7, np.float32)
    assert loop.run(size, [], [x, out])
    np.testing.assert_allclose(out[:size], np.exp(x), rtol=1e-6)
    assert (out[size:] == 7).all()


def test_results_do_not_depend_on_threads():
    rows = normal(500, 300)
    jobs = [
        ("LeakyReLU", [X], {"act_type": "gelu"}),
        ("softmax", [rows], {}),
        ("_backward_LayerNorm", [rows, normal(500, 300, seed=1), normal(300), normal(500, 1), positive(500, 1)], {}),
        ("_backward_take", [rows, normal(500, scale=50), normal(40, 300)], {}),
    ]
    for name, inputs, params in jobs:
        results = []
        for threads in (1, 2, 5):
            with settings.override(cpu_kernel_nthreads=threads):
                results.append(both(name, inputs, params)[0])
        for other in results[1:]:
            for one, two in zip(results[0], other, strict=True):
                np.testing.assert_array_equal(one, two)


# -- functions ---------------------------------------------------------------------------------------------


def every_float(step=99991):
    return np.arange(0, 1 << 32, step, dtype=np.uint64).astype(np.uint32).view(np.float32)


def of_python(function):
    """Apply a function of Python's math to every element."""
    return lambda x: np.array([function(float(each)) for each in x])


FUNCTIONS = {
    "exp": (np.exp, 1.0),
    "expm1": (np.expm1, 2.0),
    "log": (np.log, 1.0),
    "log1p": (np.log1p, 2.5),
    "tanh": (np.tanh, 2.5),
    "softplus": (lambda x: np.logaddexp(x, 0), 2.5),
    "erf": (of_python(lambda x: math.erf(x)), 2.5),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("features", ["host", "none"])
def test_functions_are_exact(name, features, monkeypatch):
    assert compiler.available()  # this reads the machine's features from another file
    if features == "none":
        monkeypatch.setattr(compiler, "features", frozenset)
    reference, allowed = FUNCTIONS[name]
    x = every_float()
    out = np.empty_like(x)
    assert Loop([getattr(math_functions, name)(placeholder(0))], 1, FLOAT).run(x.size, [], [x, out])
    with quiet():
        exact = reference(x.astype(np.float64))
        rounded = exact.astype(np.float32)
        np.testing.assert_array_equal(np.isnan(out), np.isnan(rounded))
        np.testing.assert_array_equal(np.isinf(out), np.isinf(rounded))
        finite = np.isfinite(rounded)
        units = np.abs(out - exact)[finite] / np.spacing(np.abs(rounded[finite]))
    assert units.max() <= allowed


def test_normal_distribution():
    x = np.linspace(-20, 20, 40001).astype(np.float32)
    exact = np.array([0.5 * math.erfc(-float(each) / math.sqrt(2)) for each in x])
    out = np.empty_like(x)
    assert Loop([math_functions.normal(placeholder(0))], 1, FLOAT).run(x.size, [], [x, out])
    np.testing.assert_allclose(out, exact, rtol=0, atol=2.5e-7)
    small = (x < -1) & (x > -5)
    np.testing.assert_allclose(out[small], exact[small], rtol=4e-5)
    assert Loop([math_functions.normal_density(placeholder(0))], 1, FLOAT).run(x.size, [], [x, out])
    np.testing.assert_allclose(out, np.exp(-(x.astype(float) ** 2) / 2) / math.sqrt(2 * math.pi), rtol=2e-5, atol=1e-37)


def test_formulas():
    x = placeholder(0)
    assert x + 1 is x + 1.0
    assert expressions.number(2) * 3 is expressions.number(6)
    assert expressions.number(0.0) is not expressions.number(-0.0)
    with pytest.raises(TypeError, match="where"):
        bool(x < 1)
    p = expressions.Parameters(None)
    outputs = [x * (1 - p.rate) + p.rate / 0.0]
    uniforms = expressions.uniforms(outputs)
    assert [expressions.evaluate(each, {"rate": 0.25}.get) for each in uniforms] == [0.75, math.inf]


# -- optimizers --------------------------------------------------------------------------------------------


def states(name):
    """Return states as updates produce them: sums of squares are positive, also n - g² of rmspropalex."""
    many = len(lookup(name).arguments) - 2
    arrays = [positive(*BIG, seed=seed) for seed in range(many)]
    if name == "rmspropalex_update":
        arrays[0] += 100
    return arrays


UPDATES = [
    (name, extra) for name in REGISTERED for extra in ({}, {"wd": 0.01}, {"wd": 0.01, "rescale_grad": 0.5, "clip": 0.4})
]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("name", "extra"), UPDATES)
def test_updates(name, extra, dtype, calls):
    params = {"lr": 0.01, **extra}
    if "clip" in params:
        params["clip_grad" if name == "ftml_update" else "clip_gradient"] = params.pop("clip")
    if name == "ftml_update":
        params["t"] = 3
    if name.startswith("rmsprop"):
        params["clip_weights"] = 1.5
    inputs = [each.astype(dtype) for each in (X, Y, *states(name))]
    check(name, inputs, params, rtol=2e-5 if dtype == np.float32 else 1e-12, atol=2e-6 if dtype == np.float32 else 0)
    assert calls


def test_update_in_place():
    w, g, mean, var = (mx.nd.array(each) for each in (X, Y, np.zeros(BIG, np.float32), np.zeros(BIG, np.float32)))
    mx.nd.op.adam_update(w, g, mean, var, lr=0.1, out=w)
    np.testing.assert_allclose(mean.asnumpy(), 0.1 * Y, rtol=1e-6)
    np.testing.assert_allclose(var.asnumpy(), 0.001 * Y * Y, rtol=1e-6)
    step = 0.1 * (0.1 * Y) / (np.sqrt(0.001 * Y * Y) + 1e-8)
    np.testing.assert_allclose(w.asnumpy(), X - step, rtol=1e-5, atol=1e-6)


# -- rows --------------------------------------------------------------------------------------------------


@pytest.fixture
def from_one_element(monkeypatch):
    monkeypatch.setattr(softmax, "MIN_SIZE", 1)
    monkeypatch.setattr("flowmx.ops.kernels.llvm.normalization.MIN_SIZE", 1)
    monkeypatch.setattr(gather, "_MIN_SIZE", 1)
    monkeypatch.setattr(gather, "_MIN_ROWS_SIZE", 1)


SHAPES = [(3, 7), (50, 16), (33, 100), (1, 1000), (1000, 1), (4, 5, 6), (2, 3, 4, 37), (7, 10, 64), (2, 100, 3)]


@pytest.mark.usefixtures("from_one_element")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_softmax(shape, calls):
    x, head = normal(*shape), normal(*shape, seed=1)
    for axis in range(-1, len(shape) - 1):
        for name in ("softmax", "softmin", "log_softmax"):
            check(name, [x], {"axis": axis})
            check(name, [x], {"axis": axis, "temperature": 2.5})
        for name in ("_backward_softmax", "_backward_log_softmax"):
            check(name, [head, -np.abs(x)], {"axis": axis, "scaling": 0.5}, rtol=1e-5, atol=3e-5)
    assert len(calls) == 8 * len(shape)


@pytest.mark.usefixtures("from_one_element")
def test_softmax_of_other_operators(calls):
    check("SoftmaxOutput", [normal(5, 3, 4), np.zeros(5, np.float32)])
    check("SoftmaxOutput", [normal(5, 3, 4, 4), np.zeros((5, 4, 4), np.float32)], {"multi_output": True})
    check("SoftmaxOutput", [normal(5, 3, 4), np.zeros((5, 3), np.float32)], {"preserve_shape": True})
    check("SoftmaxActivation", [normal(5, 3, 4)])
    check("SoftmaxActivation", [normal(5, 3, 4)], {"mode": "channel"})
    labels = np.random.default_rng(0).integers(0, 50, 30).astype(np.float32)
    check("softmax_cross_entropy", [normal(30, 50), labels], rtol=1e-5)
    assert len(calls) == 6


@pytest.mark.usefixtures("from_one_element")
def test_softmax_of_special_rows():
    x = normal(40, 40)
    x[3, 5], x[4, 3], x[6, 1], x[7], x[8] = np.nan, np.inf, -np.inf, 1e30, 1e8
    x[5] = -np.inf
    for name in ("softmax", "log_softmax"):
        for axis in (0, 1):
            check(name, [x], {"axis": axis})
            check(name, [x], {"axis": axis, "temperature": 3.0})


@pytest.mark.usefixtures("from_one_element")
def test_softmax_with_lengths_uses_the_plain_forward(calls):
    check("softmax", [normal(6, 9), np.arange(6, dtype=np.int32)], {"use_length": True})
    assert not calls


@pytest.mark.usefixtures("from_one_element")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_layer_norm(shape):
    for axis in range(-1, len(shape) - 1):
        length = shape[axis]
        small = list(shape)
        small[axis] = 1
        x, head, gamma = normal(*shape), normal(*shape, seed=1), normal(length)
        check("LayerNorm", [x, gamma, normal(length, seed=1)], {"axis": axis}, rtol=1e-4, atol=1e-4)
        inputs = [head, x, gamma, normal(*small), positive(*small)]
        check("_backward_LayerNorm", inputs, {"axis": axis}, rtol=1e-4, atol=2e-4)
        check("RMSNorm", [x, gamma], {"axis": axis}, rtol=1e-4, atol=1e-4)
        check("_backward_RMSNorm", [head, x, gamma, positive(*small)], {"axis": axis}, rtol=1e-4, atol=2e-4)


@pytest.mark.usefixtures("from_one_element")
@pytest.mark.parametrize("mode", ["instance", "channel", "spatial"])
def test_l2_normalization(mode):
    check("L2Normalization", [normal(5, 6, 7, 3)], {"mode": mode})


@pytest.mark.usefixtures("from_one_element")
@hypothesis_settings(max_examples=60)
@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=4).flatmap(
        lambda shape: st.tuples(st.just(tuple(shape)), st.integers(0, len(shape) - 1))
    ),
    st.sampled_from(["softmax", "log_softmax", "_backward_softmax", "LayerNorm"]),
    st.integers(0, 9),
)
def test_rows_of_any_shape(chosen, name, seed):
    shape, axis = chosen
    inputs = [normal(*shape, seed=seed)]
    if name == "_backward_softmax":
        inputs.append(normal(*shape, seed=seed + 1))
    if name == "LayerNorm":
        inputs += [normal(shape[axis]), normal(shape[axis], seed=1)]
    check(
        name,
        inputs,
        {"axis": axis},
        rtol=1e-3 if name == "LayerNorm" else 1e-5,
        atol=1e-3 if name == "LayerNorm" else 1e-4,
    )


@pytest.mark.parametrize(
    "shape", [(200_000,), (3, 70_000), (300, 400), (40, 50, 60), (80_011,), (1, 99_999), (2, 3, 16384)], ids=str
)
@pytest.mark.parametrize("name", ["sum", "mean", "norm"])
def test_reductions(shape, name, calls):
    x = normal(*shape)
    last = len(shape) - 1
    for axis in (None, *(tuple(range(first, len(shape))) for first in range(len(shape)))):
        for keepdims in (False, True):
            check(name, [x], {"axis": axis, "keepdims": keepdims}, rtol=2e-5, atol=2e-5 * x.size**0.5)
    assert bool(calls) == (x.size >= 1 << 15)
    calls.clear()
    if last:
        check(name, [x], {"axis": 0})
        check(name, [x.astype(np.float64)])
        assert not calls
    if name == "norm":
        check(name, [x], {"ord": 1}, rtol=2e-5)


@pytest.mark.parametrize("shape", [(1, 16, 14, 14), (3, 5, 7, 9), (2, 3, 4), (4, 1, 1)])
def test_sums_over_the_elements_of_channels(shape, calls):
    check("_backward_bias", [normal(*shape)], {"axis": 1}, rtol=2e-5, atol=2e-5)
    assert calls


# -- gathering ---------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("from_one_element")
@pytest.mark.parametrize("kind", [np.float32, np.int64, np.int32, np.uint8])
@pytest.mark.parametrize(("rows", "width", "count"), [(10, 7, 40), (100, 128, 1000), (200, 1, 500), (3, 300, 20)])
def test_gather(rows, width, count, kind, calls):
    rng = np.random.default_rng(0)
    table, head = normal(rows, width), normal(count, width)
    index = rng.integers(0 if kind is np.uint8 else -3, rows + 3, count).astype(kind)
    check("Embedding", [index, table], {"input_dim": rows, "output_dim": width})
    for mode in ("clip", "wrap"):
        check("take", [table, index], {"mode": mode}, rtol=0, atol=0)
        check("_backward_take", [head, index, table], {"mode": mode}, rtol=1e-4, atol=1e-4)
    check("take", [table.astype(np.float64), index.reshape(2, -1)], rtol=0, atol=0)
    check("take", [table.astype(np.int32).reshape(rows, width, 1), index], rtol=0, atol=0)
    check("one_hot", [index], {"depth": rows, "on_value": 3, "off_value": -1}, rtol=0, atol=0)
    assert len(calls) == 8
    with pytest.raises(IndexError, match="take"):
        both("take", [table, (index.astype(np.int64) + rows).astype(kind)], {"mode": "raise"})


@pytest.mark.usefixtures("from_one_element")
def test_gather_along_other_axes_uses_the_plain_forward(calls):
    index = np.array([2, 0, 1], np.int64)
    check("take", [normal(4, 5, 6), index], {"axis": 1})
    check("_backward_take", [normal(4, 3, 6), index, normal(4, 5, 6)], {"axis": 1})
    check("take", [normal(4, 3).astype(np.float16), index])
    assert not calls


# -- compiling ---------------------------------------------------------------------------------------------


def adder(number):
    """Compile a new function that adds a number to 16 floats."""

    def write(features):
        code = Code(FLOAT, features)
        x, out = code.array(), code.array()
        with code.tasks():
            zero = code.index(0)
            code.store(code.binary("fadd", code.load(x, zero), code.constant(number)), out, zero)
        return code.finish()

    return write


def add(compiled, threads=1):
    x, out = np.arange(16, dtype=np.float32), np.zeros(16, np.float32)
    team.run(compiled, np.array([0, 1, id(x), id(out)], np.int64).tobytes(), threads)
    return out - x


@pytest.fixture
def alone():
    """Keep other threads from compiling: queued work of earlier tests would run with the patches of this one."""
    with compiler._lock:
        yield


def test_the_cache_avoids_compilation(alone, tmp_path, monkeypatch):
    features = compiler.features()  # before the test's cache, since they may be written to a file too
    with settings.override(kernel_cache=str(tmp_path)):
        text = adder(12345)(features)
        assert (add(compiler.compile(text)) == 12345).all()
        assert len(list(tmp_path.iterdir())) == 1
        monkeypatch.setattr(compiler, "_loaded", {})
        texts = []
        monkeypatch.setattr(compiler, "_emit", lambda *a, real=compiler._emit, **k: texts.append(1) or real(*a, **k))
        monkeypatch.setattr(compiler, "_load", lambda key, code: code)
        first = compiler.compile(text)
        assert not texts
        (file,) = tmp_path.iterdir()
        for damage in (b"", file.read_bytes()[:-1], b"x" * 100):
            file.write_bytes(damage)
            monkeypatch.setattr(compiler, "_loaded", {})
            assert compiler.compile(text) == first  # compiled again
        assert len(texts) == 3


def test_a_cache_that_cannot_be_written_is_harmless(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("no folder")
    with settings.override(kernel_cache=str(tmp_path / "file" / "folder")):
        assert (add(compiler.compile(adder(77.5)(compiler.features()))) == 77.5).all()


@pytest.mark.parametrize("features", ["host", "none"])
def test_baseline_code_gives_the_same_bits_as_optimized_code(features, tmp_path, monkeypatch):
    monkeypatch.setattr(background_compilation._ahead, "call_later", lambda work: None)
    assert compiler.available()  # this reads the machine's features from another file
    if features == "none":
        if not compiler.features():
            pytest.skip("this is the code for the host, too")
        monkeypatch.setattr(compiler, "features", frozenset)
    x, y = placeholder(0), placeholder(1)
    formulas = [getattr(math_functions, name)(x) for name in FUNCTIONS] + [
        math_functions.normal(x),
        x * y + x,
        x / y - x * y,
    ]
    values, others = every_float(), every_float()[::-1].copy()
    for number, formula in enumerate(formulas):
        with settings.override(kernel_cache=str(tmp_path / str(number))):
            loop, actual, files = Loop([formula], 2, FLOAT), [], []
            for _ in range(2):
                out = np.empty_like(values)
                assert loop.run(values.size, [], [values, others, out])
                out[np.isnan(out)] = np.nan  # their signs depend on the processor and on the optimization
                actual.append((loop.program.compiled, out.tobytes()))
                files.append([each.suffix for each in (tmp_path / str(number)).iterdir()])
                loop.program._improve()
            assert files == [[".plain"], [""]]
            assert actual[0][0] is not actual[1][0]
            assert actual[0][1] == actual[1][1]


def test_cached_baseline_code_is_used_until_optimized_code_exists(alone, tmp_path, monkeypatch):
    text, result = adder(4321)(compiler.features()), []
    monkeypatch.setattr(compiler, "_emit", lambda *a, real=compiler._emit, **k: result.append(1) or real(*a, **k))
    monkeypatch.setattr(compiler, "_load", lambda key, code: code)

    def recompiled(function):
        monkeypatch.setattr(compiler, "_loaded", {})
        return function(text)

    with settings.override(kernel_cache=str(tmp_path)):
        plain = recompiled(compiler.compile_baseline)
        assert recompiled(compiler.compile_baseline) == plain
        assert len(result) == 1
        better = recompiled(lambda text: compiler.improve(text, plain[1]))
        assert recompiled(compiler.compile_baseline) == (better, None)
        assert len(result) == 2


def test_prepared_calls_switch_to_optimized_code(tmp_path, monkeypatch):
    monkeypatch.setattr(background_compilation._ahead, "call_later", lambda work: None)
    run, events = team.run, []
    monkeypatch.setattr(team, "run", lambda function, *value: (events.append(function), run(function, *value)))
    x, out = normal(200, 30), np.empty((200, 30), np.float32)
    with settings.override(kernel_cache=str(tmp_path)):
        loop = Loop([math_functions.tanh(placeholder(0)) * 1.25], 1, FLOAT)
        bound = loop.bind(x.size, [])
        for _ in range(2):
            bound(x, out)
            np.testing.assert_allclose(out, np.tanh(x) * 1.25, rtol=1e-5)
            loop.program._improve()
        op = lookup("L2Normalization").create(mode="instance")
        rows = Rows(Kind(), lambda p, row, x: normalization.l2(p, row, x) * 1.25)
        for _ in range(2):
            assert rows.run(op, (200, 30, 1), [x], [out])
            np.testing.assert_allclose(out, 1.25 * x / np.linalg.norm(x, axis=1, keepdims=True), rtol=1e-5)
            rows._program((FLOAT32, FLOAT32), 1)._improve()
    assert len({each.address for each in events}) == 4


def test_optimized_code_is_compiled_later(tmp_path, monkeypatch):
    monkeypatch.setattr(background_compilation, "_OPTIMIZATION_DELAY", 0)
    with settings.override(kernel_cache=str(tmp_path)):
        first, second = Program(adder(51)), Program(adder(52))
        plain = [first.get(), second.get()]
    while list(tmp_path.glob("*.plain")):  # the test's timeout is the limit
        time.sleep(0.01)
    for each, before, number in zip((first, second), plain, (51, 52), strict=True):
        assert (add(before) == number).all()
        assert (add(each.get()) == number).all()
    assert len(list(tmp_path.iterdir())) == 2


def test_an_event_loop_never_compiles():
    program = Program(adder(31))

    async def main():
        assert program.get() is None
        while program.get() is None:
            await asyncio.sleep(0.01)
        return add(program.get())

    assert (asyncio.run(main()) == 31).all()


def test_the_first_calls_on_an_event_loop_are_right():
    function = Fused("tanh", lambda p, x: math_functions.tanh(x) + 0.0 * x)  # a formula that no test has compiled
    op = lookup("tanh").create()
    x, out = X, np.empty_like(X)

    async def main():
        start = time.perf_counter()
        function.compute(op, run_of(), [x], [out])
        assert time.perf_counter() - start < 1
        np.testing.assert_allclose(out, np.tanh(x), rtol=1e-6)
        loop = function.loop(op, out.dtype, 1)
        while loop.program.compiled is None:
            await asyncio.sleep(0.01)
        function.compute(op, run_of(), [x], [out])
        np.testing.assert_allclose(out, np.tanh(x), rtol=1e-6)

    asyncio.run(main())


def test_a_compilation_error_falls_back_to_the_plain_forward(caplog):
    program = Program(lambda features: "define nonsense")
    assert program.get() is None
    assert program.get() is None
    assert len(caplog.records) == 1


def test_wide_vectors_support_float64():
    loop = Loop([placeholder(0) * 2.0 + 1.0], 1, DOUBLE)
    x = normal(1001, dtype=np.float64)
    out = np.empty_like(x)
    assert loop.run(x.size, [], [x, out])
    np.testing.assert_array_equal(out, x * 2 + 1)
    assert not Loop([math_functions.exp(placeholder(0))], 1, DOUBLE).is_exact


# -- threads -----------------------------------------------------------------------------------------------


def test_helpers_share_the_tasks():
    loop = Loop([math_functions.tanh(placeholder(0))], 1, FLOAT)
    x, out = normal(200_000), np.empty(200_000, np.float32)
    with settings.override(cpu_kernel_nthreads=3):
        for _ in range(200):
            out.fill(0)
            assert loop.run(x.size, [], [x, out])
            np.testing.assert_allclose(out[::997], np.tanh(x[::997]), rtol=1e-6)


def test_calls_from_many_threads_at_once():
    loop = Loop([placeholder(0) + 1.0], 1, FLOAT)
    failures = []

    def work(seed):
        x = normal(100_000, seed=seed)
        out = np.empty_like(x)
        with settings.override(cpu_kernel_nthreads=2) if seed < 0 else quiet():
            for _ in range(100):
                out.fill(0)
                loop.run(x.size, [], [x, out])
                if not np.array_equal(out, x + np.float32(1)):
                    failures.append(seed)

    with settings.override(cpu_kernel_nthreads=2):
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures


def run_script(script, **environ):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **environ},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="for systems with fork")
def test_fork(tmp_path):
    out = run_script(
        """
        import os, warnings
        import numpy as np
        import flowmx as mx
        warnings.simplefilter("ignore", DeprecationWarning)
        x = np.linspace(-3, 3, 500_000).astype(np.float32)
        expected = np.tanh(x)
        image, weight = mx.nd.ones((4, 8, 32, 32)), mx.nd.ones((16, 8, 3, 3))
        def work():
            for _ in range(20):
                np.testing.assert_allclose(mx.nd.tanh(mx.nd.array(x)).asnumpy(), expected, rtol=1e-6)
            # This kernel runs on the threads of OpenMP.
            out = mx.nd.Convolution(image, weight, kernel=(3, 3), num_filter=16, no_bias=True).asnumpy()
            assert (out == 72).all()
        work()
        for _ in range(3):
            child = os.fork()
            if child == 0:
                work()
                os._exit(0)
            work()
            assert os.waitpid(child, 0)[1] == 0
        print("good")
        """,
        FLOWMX_KERNEL_CACHE=str(tmp_path), FLOWMX_CPU_KERNEL_NTHREADS="2",
    )  # fmt: skip
    assert out == "good\n"


def test_helpers_outlive_their_team(tmp_path):
    out = run_script(
        """
        import time
        import numpy as np
        from flowmx import settings
        from flowmx.ops.kernels.llvm import math_functions, team
        from flowmx.ops.kernels.llvm.assembly import FLOAT
        from flowmx.ops.kernels.llvm.elementwise import Loop
        from flowmx.ops.formulas.expressions import placeholder
        loop = Loop([math_functions.tanh(placeholder(0))], 1, FLOAT)
        x = np.ones(200_000, np.float32)
        out = np.empty_like(x)
        with settings.override(cpu_kernel_nthreads=2):
            for _ in range(20):
                loop.run(x.size, [], [x, out])
                team._team = team.Team()  # as at the interpreter's exit, when the old team has no references
                time.sleep(0)
        print("good")
        """,
        FLOWMX_KERNEL_CACHE=str(tmp_path), PYTHONMALLOC="debug",
    )  # fmt: skip
    assert out == "good\n"


def test_without_llvmlite(tmp_path):
    out = run_script(
        """
        import sys
        sys.modules["llvmlite"] = None
        import numpy as np
        import flowmx as mx
        x = np.linspace(-3, 3, 100_000).astype(np.float32)
        np.testing.assert_allclose(mx.nd.softmax(mx.nd.array(x)).asnumpy().sum(), 1, rtol=1e-5)
        np.testing.assert_allclose(mx.nd.tanh(mx.nd.array(x)).asnumpy(), np.tanh(x), rtol=1e-6)
        from flowmx.ops.kernels.llvm import compiler
        assert not compiler.available()
        print("good")
        """,
        FLOWMX_KERNEL_CACHE=str(tmp_path),
    )  # fmt: skip
    assert out == "good\n"


def test_a_fully_cached_program_does_not_import_llvmlite(tmp_path):
    script = """
        import sys
        import numpy as np
        import flowmx as mx
        from flowmx.gluon import nn
        mx.random.seed(1)
        net = nn.HybridSequential()
        for units in (40, 50, 60):
            net.add(nn.Dense(units), nn.Activation("tanh"), nn.GELU(), nn.LayerNorm())
        net.initialize(mx.init.Xavier())
        net.hybridize()
        x = mx.nd.array(np.random.default_rng(0).standard_normal((64, 30)))
        with mx.autograd.record():
            y = net(x)
        y.backward()
        print(hash(y.asnumpy().tobytes()), hash(net[0].weight.grad().asnumpy().tobytes()))
        print("llvmlite" in sys.modules)
        """
    outputs = [run_script(script, FLOWMX_KERNEL_CACHE=str(tmp_path), PYTHONHASHSEED="1").split("\n") for _ in range(2)]
    assert [each[1] for each in outputs] == ["True", "False"]
    assert outputs[0][0] == outputs[1][0]


@pytest.mark.skipif(not object_files.can_load(), reason="object files of another kind are LLVM's alone")
@pytest.mark.parametrize(
    ("more", "instruction"),
    [
        ("@global = global double 5.0", "store double 7.0, ptr @global"),
        ("declare void @there_is_no_such_function()", "call void @there_is_no_such_function()"),
    ],
)
def test_machine_code_with_unsupported_relocations_is_linked_by_llvm(more, instruction):
    text = f"{more}\ndefine void @kernel(ptr %data) {{\n  {instruction}\n  ret void\n}}\n"
    assert object_files.load(compiler._emit(text)) is None


@pytest.mark.skipif(not object_files.can_load(), reason="object files of another kind are LLVM's alone")
def test_functions_are_the_same_without_llvms_linker(alone, tmp_path, monkeypatch):
    values, actual = every_float(), []
    formula = math_functions.tanh(placeholder(0)) * 1.0625
    for load in (object_files.load, lambda code: None):
        monkeypatch.setattr(object_files, "load", load)
        monkeypatch.setattr(compiler, "_loaded", {})
        with settings.override(kernel_cache=str(tmp_path)):
            compiled = compiler.compile(Loop([formula], 1, FLOAT)._generate(compiler.features()))
        out, loop = np.empty_like(values), Loop([formula], 1, FLOAT)
        loop.program.compiled = compiled
        assert loop.run(values.size, [], [values, out])
        actual.append(out.tobytes())
    assert actual[0] == actual[1]


def test_importing_flowmx_does_not_import_llvmlite():
    script = "import sys, flowmx; flowmx.nd.ones((3,)).tanh().asnumpy(); print('llvmlite' in sys.modules)"
    assert run_script(script) == "False\n"
