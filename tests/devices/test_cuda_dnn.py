"""Convolutions by cuDNN, on its stand-in: the graphs that are built, and their results against the fallbacks."""

import logging
import threading

import numpy as np
import pytest

from flowmx import settings
from flowmx.ops.kernels.cuda import dnn
from flowmx.ops.registry.kernels import kernel_for
from flowmx.ops.registry.operators import Run, lookup
from tests import cudnn_stand_in as cudnn
from tests.cupy_stand_in import compiled
from tests.cupy_stand_in.arrays import xp
from tests.devices.test_cuda_kernels import by_kernel, close, rows
from tests.graph_runs import device, run_case

needs_compiler = pytest.mark.skipif(compiled.COMPILER is None, reason="there is no g++ to compile kernels with")
NAMES = ("Convolution", "Deconvolution")


@pytest.fixture(autouse=True)
def _stand_ins(monkeypatch):
    monkeypatch.setattr(dnn, "library", lambda: cudnn)
    monkeypatch.setattr(dnn, "_plans", {})
    monkeypatch.setattr(dnn, "_local", threading.local())
    monkeypatch.setattr(xp, "cuda", cudnn.cuda, raising=False)
    monkeypatch.setattr(xp, "RawModule", compiled.RawModule, raising=False)
    cudnn.built.clear()


@pytest.mark.parametrize("case", rows(NAMES, 1))
def test_rows_of_the_tables(case):
    expected, actual = run_case(case, np), run_case(case, xp, None, by_kernel, "gpu")
    empty = not all(array.size for array in actual.inputs)
    assert len(cudnn.built) == (0 if empty else 3)  # the forward, and both gradients
    for ours, theirs in zip(actual, expected, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            close(one, other)


CASES = [
    ((2, 4, 9, 8), {"kernel": (3, 3), "num_filter": 6, "pad": (1, 1)}),
    ((2, 4, 9, 8), {"kernel": (3, 2), "num_filter": 6, "stride": (2, 1), "dilate": (1, 2), "num_group": 2}),
    ((3, 3, 20), {"kernel": (5,), "num_filter": 4, "stride": (2,), "pad": (2,)}),
    ((1, 2, 5, 6, 4), {"kernel": (3, 1, 2), "num_filter": 4, "pad": (1, 0, 1)}),
    ((2, 4, 1, 1), {"kernel": (1, 1), "num_filter": 8}),
]


def channels_last(array):
    axes = (0, *range(2, array.ndim), 1)
    return np.ascontiguousarray(array.transpose(axes)).transpose(np.argsort(axes))


def on_device(host, order):
    """Return the array on the device, with its axes in a given order of memory."""
    if order == "C":
        return xp.asarray(np.ascontiguousarray(host))
    axes = (0, *range(2, host.ndim), 1)
    return xp.asarray(np.ascontiguousarray(host.transpose(axes))).transpose(*np.argsort(axes))


@pytest.mark.parametrize("order", ["C", "channels last", "mixed"])
@pytest.mark.parametrize(("shape", "parameters"), CASES)
def test_any_memory_layout_of_images(shape, parameters, order):
    rng = np.random.default_rng(0)
    op = lookup("Convolution").create(**parameters, no_bias=True)
    completed, (out_shape,) = op.infer_shape([shape, None])
    data, weight = (rng.standard_normal(each).astype("float32") for each in completed)
    head = rng.standard_normal(out_shape).astype("float32")
    calls = [
        ("Convolution", [data, weight], out_shape),
        ("_backward_Convolution_data", [head, weight, data], shape),
        ("_backward_Convolution_weight", [head, data], weight.shape),
    ]
    orders = {"C": ("C", "C"), "channels last": ("L", "L"), "mixed": ("C", "L")}[order]
    for name, inputs, target_shape in calls:
        bound = lookup(name).create(**parameters, no_bias=True)
        expected = np.zeros(target_shape, "float32")
        bound.forward(Run(device(np), True), inputs, [expected])
        arrays = [on_device(each, "C" if each is weight else orders[0]) for each in inputs]
        out = on_device(np.zeros(target_shape, "float32"), "C" if target_shape == weight.shape else orders[1])
        kernel_for("gpu", name).compute(bound, Run(device(xp, "gpu"), True), arrays, [out])
        close(out.get(), expected)
    assert len(cudnn.built) == 3
    strides = {tuple(graph.tensors[0].stride) for graph in cudnn.built}
    assert len(strides) <= 3


def run_convolution(times=1, dtype="float32", **parameters):
    op = lookup("Convolution").create(kernel=(3, 3), num_filter=4, no_bias=True, **parameters)
    arrays = [xp.ones((2, 4, 5, 5), dtype), xp.ones((4, 4, 3, 3), dtype)]
    out = xp.empty((2, 4, 3, 3), dtype)
    for _ in range(times):
        kernel_for("gpu", "Convolution").compute(op, Run(device(xp, "gpu"), True), arrays, [out])
    return out


def test_a_plan_is_made_once():
    run_convolution(times=3)
    (graph,) = cudnn.built
    assert graph.ran == [None] * 3
    assert graph.limit == 1024 << 20
    assert graph.handle.stream == 7


@pytest.mark.parametrize(
    ("dtype", "computed"), [("float32", "float32"), ("float16", "float32"), ("float64", "float64")]
)
def test_sums_are_wide(dtype, computed):
    assert (run_convolution(dtype=dtype).get() == 36).all()
    (graph,) = cudnn.built
    assert graph.types == {
        "io_data_type": dtype, "intermediate_data_type": computed, "compute_data_type": computed,
    }  # fmt: skip


def test_tf32_as_the_setting_says():
    run_convolution()
    with settings.override(cuda_allow_tensor_core=False):
        run_convolution()
    assert [graph.refused for graph in cudnn.built] == [
        ["DOWN_CONVERT_INPUTS"], ["DOWN_CONVERT_INPUTS", "TENSOR_CORE"],
    ]  # fmt: skip


def test_tuning_times_all_plans_and_keeps_one():
    run_convolution(cudnn_tune="fastest")
    with settings.override(cudnn_autotune_default=1):
        run_convolution(times=2)
    one, other = cudnn.built
    assert one.limit > 1 << 60
    assert other.limit == 1024 << 20
    assert one.ran[-1] == 0
    assert set(one.ran) == {0, 2}  # number 1 fails
    assert other.ran[-2:] == [0, 0]


@needs_compiler
@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("then", ["", "relu", "leaky", "tanh", "clip"])
def test_operations_fused_into_a_convolution(then, added):
    rng = np.random.default_rng(0)
    op = lookup("_fused_Convolution").create(
        kernel=(3, 3), num_filter=4, no_bias=False, scaled=added, has_addend=added, activation=then, slope=0.1, top=0.5
    )
    shapes = [(2, 3, 6, 6), (4, 3, 3, 3), (4,)] + ([(4,), (2, 4, 4, 4)] if added else [])
    inputs = [rng.standard_normal(each).astype("float32") for each in shapes]
    expected = np.zeros((2, 4, 4, 4), "float32")
    op.forward(Run(device(np), False), [each.copy() for each in inputs], [expected])
    arrays = list(map(xp.asarray, inputs))
    out = arrays[-1] if added else xp.empty(expected.shape, "float32")  # over the addend, as plans do
    kernel_for("gpu", "_fused_Convolution").compute(op, Run(device(xp, "gpu"), False), arrays, [out])
    close(out.get(), expected)
    assert len(cudnn.built) == 1


def test_convolutions_without_a_cudnn_plan_use_the_plain_forward(monkeypatch):
    def refuse(graph):
        raise cudnn.cudnnGraphNotSupportedError("no engine")

    monkeypatch.setattr(cudnn.Graph, "check_support", refuse)
    assert (run_convolution(times=2).get() == 36).all()
    assert not cudnn.built


def test_a_missing_frontend_is_logged_once(monkeypatch, caplog):
    monkeypatch.undo()
    monkeypatch.setattr(dnn.importlib, "import_module", lambda name: (_ for _ in ()).throw(ImportError("no cudnn")))
    dnn.library.cache_clear()
    with caplog.at_level(logging.WARNING, "flowmx.kernels"):
        assert (run_convolution(times=2).get() == 36).all()
    dnn.library.cache_clear()
    (record,) = caplog.records
    assert "pip install nvidia-cudnn-frontend" in record.getMessage()


def test_a_missing_library_is_logged_once(monkeypatch, caplog):
    def fail():
        raise RuntimeError("Unable to find symbol cudnnCreate")

    monkeypatch.setattr(cudnn, "create_handle", fail)
    with caplog.at_level(logging.WARNING, "flowmx.kernels"):
        assert (run_convolution(times=2).get() == 36).all()
    assert len(caplog.records) == 1
