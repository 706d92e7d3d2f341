"""The GPU's kernels over rows (softmax, LayerNorm, gradients), compiled for the host, match the fallbacks.

``tests/gpu/test_kernels.py`` runs the same on a GPU.
"""

import numpy as np
import pytest

from flowmx.ops.kernels.llvm.softmax import FORMULAS
from flowmx.ops.registry.dtypes import as_dtype
from flowmx.ops.registry.kernels import kernel_for
from flowmx.ops.registry.operators import Run, lookup
from tests.cupy_stand_in import compiled
from tests.devices import test_cuda_kernels as kernels
from tests.devices.test_cuda_kernels import _stand_in, close, compare, launched, rows  # noqa: F401 - a fixture
from tests.graph_runs import device

pytestmark = pytest.mark.skipif(compiled.COMPILER is None, reason="there is no g++ to compile kernels with")

OF_ROWS = {*FORMULAS, "SoftmaxOutput", "SoftmaxActivation", "L2Normalization", "LayerNorm", "RMSNorm"}


@pytest.mark.parametrize("case", rows(OF_ROWS, 12))
def test_rows_of_the_tables(case):
    compare(case)


def on_gpu(op, inputs, outputs, train=True):
    """Run an operator's kernel."""
    kernel_for("gpu", op.name).compute(op, Run(device(kernels.xp, "gpu"), train), inputs, outputs)


def outputs_of(op, space, inputs):
    """Return new arrays for an operator's outputs."""
    spec = op.spec(tuple(each.shape for each in inputs), tuple(each.dtype for each in inputs))
    return [space.empty(shape, dtype) for shape, dtype in zip(spec.shapes, spec.dtypes, strict=True)]


def check(name, params, inputs, rtol=1e-5, launches=1, exact="float64"):
    """Compare a kernel with the fallback at twice the precision."""
    op, xp = lookup(name).create(**params), kernels.xp
    host = [each if each.dtype.kind == "i" else each.astype(exact) for each in inputs]
    expected = outputs_of(op, np, host)
    with np.errstate(all="ignore"):
        op.forward(Run(device(np), True), host, expected)
    arrays = list(map(xp.asarray, inputs))
    outputs = outputs_of(op, xp, arrays)
    launched.clear()
    on_gpu(op, arrays, outputs)
    assert len(launched) == launches
    for ours, theirs in zip(outputs, expected, strict=True):
        close(ours.get().astype(theirs.dtype), theirs, rtol)


TYPES = {"float32": 1e-5, "float16": 1e-3, "bfloat16": 8e-3, "float64": 1e-12}
LENGTHS = [
    pytest.param((37, 7), "float32", id="some rows to a warp, more than a block has"),
    pytest.param((3, 33), "bfloat16", id="one element more than a warp"),
    pytest.param((3, 200), "float64", id="some for each of a warp"),
    pytest.param((2, 9002), "float32", id="longer than registers hold"),
    *[
        pytest.param(shape, dtype, marks=pytest.mark.soak)
        for shape in [(1, 1), (70, 16), (9, 64), (5, 1000), (3, 2048), (3, 4097), (2, 20000)]
        for dtype in TYPES
    ],
    pytest.param((2, 3, 2, 1030), "float16", id="a block for each row", marks=pytest.mark.soak),
]


@pytest.mark.parametrize(("shape", "dtype"), LENGTHS)
def test_rows_of_any_length(shape, dtype):
    rng, rtol = np.random.default_rng(0), TYPES[dtype]
    wide = np.dtype("float64" if dtype == "float64" else "float32")
    head, x = (rng.standard_normal(shape).astype(as_dtype(dtype)) for _ in range(2))
    share = rng.uniform(0.1, 1, shape).astype(as_dtype(dtype))
    gamma, beta = (rng.uniform(0.5, 1.5, shape[-1]).astype(wide) for _ in range(2))
    mean, std = (rng.uniform(0.5, 1.5, (*shape[:-1], 1)).astype(wide) for _ in range(2))
    check("softmax", {"temperature": 0.5}, [x], rtol)
    check("_backward_softmax", {"scaling": 2.0}, [head, share], rtol)
    check("log_softmax", {}, [x], rtol)
    check("_backward_log_softmax", {}, [head, -share], rtol)
    check("LayerNorm", {"eps": 1e-3}, [x, gamma, beta], rtol)
    check("_backward_LayerNorm", {}, [head, x, gamma, mean, std], rtol, launches=3)
    check("RMSNorm", {"eps": 1e-3}, [x, gamma], rtol)
    check("_backward_RMSNorm", {}, [head, x, gamma, std], rtol, launches=3)


@pytest.mark.parametrize("shape", [(70, 5), (5, 1100)])
def test_more_rows_than_blocks(shape, monkeypatch):
    monkeypatch.setattr("flowmx.ops.kernels.cuda.row_kernels._MAX_BLOCKS", 2)
    check("log_softmax", {}, [np.random.default_rng(0).standard_normal(shape).astype("float32")])


def test_rows_of_one_element():
    x = np.array([[3], [4], [5]], "float32")
    check("LayerNorm", {}, [x, np.ones(1, "float32"), np.ones(1, "float32")])


def test_far_from_0_the_variance_is_right():
    x = (np.random.default_rng(0).standard_normal((4, 100)) + 1000).astype("float32")
    check("LayerNorm", {}, [x, np.ones(100, "float32"), np.zeros(100, "float32")], rtol=1e-4)


@pytest.mark.parametrize("length", [40, pytest.param(9000, marks=pytest.mark.soak)])
def test_a_nan_affects_only_its_row(length):
    x = np.random.default_rng(0).standard_normal((8, length)).astype("float32")
    x[1, 3], x[2, 5], x[3, 5] = np.nan, np.inf, -np.inf
    x[4], x[5], x[6], x[7] = -np.inf, np.nan, 1e38, -1000
    check("softmax", {}, [x], exact="float32")
    check("log_softmax", {}, [x], exact="float32")
    check("LayerNorm", {}, [x[:6], np.ones(length, "float32"), np.zeros(length, "float32")], exact="float32")


def test_results_may_be_written_over_the_data():
    x = np.random.default_rng(0).standard_normal((3, 9000)).astype("float32")
    for part in (x[:, :10].copy(), x):
        op, array = lookup("softmax").create(), kernels.xp.asarray(part.copy())
        on_gpu(op, [array], [array])
        expected = np.exp(part) / np.exp(part).sum(axis=-1, keepdims=True)
        np.testing.assert_allclose(array.get(), expected, rtol=1e-5)


@pytest.mark.parametrize("length", [5, pytest.param(1000, marks=pytest.mark.soak)])
def test_memory_behind_the_rows_is_unchanged(length):
    xp = kernels.xp
    op, x, memory = lookup("softmax").create(), xp.ones((3, length), "float32"), xp.full((5, length), 7, "float32")
    on_gpu(op, [x], [memory[:3]])
    assert (memory.get()[3:] == 7).all()


VIEWS = {
    "off the grid of 16 bytes": lambda a: a.reshape(-1)[1:29].reshape(7, 4),
    "other orders of axes": lambda a: a[:4, :7].T,
    "steps": lambda a: a[:7, ::2],
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_rows_in_any_memory_layout(view):
    xp, host = kernels.xp, np.random.default_rng(0).standard_normal((8, 8)).astype("float32")
    op, x, out = lookup("softmax").create(), view(xp.asarray(host)), view(xp.zeros((8, 8), "float32"))
    shifted = np.exp(view(host))
    for to in (out, xp.empty(out.shape, "float32")):
        on_gpu(op, [x], [to])
        np.testing.assert_allclose(to.get(), shifted / shifted.sum(axis=-1, keepdims=True), rtol=1e-5)
    assert launched


def test_results_are_the_same_in_every_run():
    rng, xp = np.random.default_rng(0), kernels.xp
    op = lookup("_backward_LayerNorm").create()
    host = [rng.standard_normal(shape).astype("float32") for shape in ((300, 70), (300, 70), 70, (300, 1))]
    inputs = list(map(xp.asarray, [*host, rng.uniform(1, 2, (300, 1)).astype("float32")]))
    results = []
    for _ in range(2):
        outputs = outputs_of(op, xp, inputs)
        on_gpu(op, inputs, outputs)
        results.append([each.get().tobytes() for each in outputs])
    assert results[0] == results[1]


@pytest.mark.parametrize(
    ("name", "params", "inputs"),
    [
        ("softmax", {"axis": 0}, [np.ones((3, 4), "float32")]),
        ("softmax", {"use_length": True}, [np.ones((2, 4), "float32"), np.array([1, 3], "int32")]),
        ("softmax", {"dtype": "float64"}, [np.ones((2, 4), "float32")]),
        ("log_softmax", {"dtype": "float32"}, [np.ones((2, 4), "int32")]),
        ("LayerNorm", {"axis": 1}, [np.ones((2, 3, 2), "float32"), *np.ones((2, 3), "float32")]),
        ("SoftmaxOutput", {"multi_output": True}, [np.ones((2, 3, 2), "float32"), np.ones((2, 2), "float32")]),
    ],
    ids=["another axis", "lengths", "a wider result", "integers", "another axis of LayerNorm", "positions"],
)
def test_unsupported_inputs_use_the_plain_forward(name, params, inputs):
    check(name, params, inputs, launches=0, exact="float32")


def test_empty_arrays_launch_no_kernel():
    xp, op = kernels.xp, lookup("softmax").create()
    on_gpu(op, [xp.empty((0, 3), "float32")], [xp.empty((0, 3), "float32")])
    assert not launched


LABELS = np.array([0, 4, -1, 5, 2.7, np.nan, 3, -0.5], "float32")
"""Class numbers for 5 classes; some are out of range."""
GRADIENTS = [
    ({"use_ignore": True, "ignore_label": 3, "normalization": "valid", "smooth_alpha": 0.1}, LABELS),
    ({"out_grad": True, "normalization": "batch", "grad_scale": 3.0}, np.nan_to_num(LABELS).astype("int32")),
    ({"preserve_shape": True, "use_ignore": True}, LABELS.reshape(4, 2)),
    ({"out_grad": True, "grad_scale": 3.0}, np.random.default_rng(1).uniform(0, 1, (8, 5)).astype("float32")),
]


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float16", marks=pytest.mark.soak)])
@pytest.mark.parametrize(("params", "label"), GRADIENTS, ids=["smooth", "whole numbers", "shape", "probabilities"])
def test_gradients_of_softmax_output(params, label, dtype):
    rng = np.random.default_rng(0)
    shape = (*label.shape, 5) if "preserve_shape" in params else (8, 5)
    y, head = (rng.uniform(0, 1, shape).astype(dtype) for _ in range(2))
    check("_backward_SoftmaxOutput", params, [y, label, *([head] if "out_grad" in params else [])], TYPES[dtype])
