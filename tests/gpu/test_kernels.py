"""The kernels on a real GPU: tests/devices/test_cuda_kernels.py and test_cuda_rows.py, and every operator's rows.

Without a GPU they are skipped. ``pytest tests/gpu/test_kernels.py -m "soak or not soak"`` runs all rows.
"""

import numpy as np
import pytest

import flowmx as mx
from flowmx import settings
from flowmx.ops.kernels.cuda import dnn
from flowmx.ops.kernels.cuda.source_kernels import Program
from flowmx.ops.registry.kernels import kernel_for
from flowmx.ops.registry.operators import Run, lookup
from tests.devices import test_cuda_kernels as bodies
from tests.devices.test_cuda_dnn import CASES as CONVOLUTIONS
from tests.devices.test_cuda_dnn import on_device
from tests.devices.test_cuda_kernels import *  # noqa: F403 - the same bodies, on the GPU
from tests.devices.test_cuda_kernels import CASES, by_kernel, close
from tests.devices.test_cuda_rows import *  # noqa: F403
from tests.graph import test_fused_attention as attentions
from tests.graph_runs import device, run_case


def missing():
    """The reason why there is no GPU to test on; empty where there is one."""
    try:
        return "" if mx.num_gpus() else "there is no GPU here"
    except Exception as error:
        return str(error)


if missing():
    pytest.skip(missing(), allow_module_level=True)
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(autouse=True)
def cp(monkeypatch):
    """CuPy, in the stand-in's place; float32 is computed with as float32."""
    cupy = pytest.importorskip("cupy")
    monkeypatch.setattr(bodies, "xp", cupy)
    monkeypatch.setattr("tests.devices.test_cuda_dnn.xp", cupy)
    monkeypatch.setattr(attentions, "xp", cupy)
    bodies.note_launches(monkeypatch)
    with settings.override(cuda_allow_tensor_core=False), np.errstate(all="ignore"):
        yield cupy


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_every_operator_as_on_the_host(case, cp):
    expected, actual = run_case(case, np), run_case(case, cp, None, by_kernel, "gpu")
    for ours, theirs in zip(actual, expected, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            close(one, other, rtol=1e-4)


needs_cudnn = pytest.mark.skipif(dnn.library() is None, reason="cuDNN's frontend is not installed")


def convolution(cp, shape, parameters, order, dtype="float32"):
    """Yield the results of a convolution and its gradients, on the host and on the GPU."""
    rng = np.random.default_rng(0)
    op = lookup("Convolution").create(**parameters, no_bias=True)
    completed, (out_shape,) = op.infer_shape([shape, None])
    data, weight = (rng.standard_normal(each).astype(dtype) for each in completed)
    head = rng.standard_normal(out_shape).astype(dtype)
    for name, inputs, result in (
        ("Convolution", [data, weight], out_shape),
        ("_backward_Convolution_data", [head, weight, data], shape),
        ("_backward_Convolution_weight", [head, data], weight.shape),
    ):
        bound = lookup(name).create(**parameters, no_bias=True)
        expected = np.zeros(result, dtype)
        bound.forward(Run(device(np), True), inputs, [expected])
        operands = [on_device(each, "C" if each is weight else order) for each in inputs]
        out = on_device(np.zeros(result, dtype), "C" if result == weight.shape else order)
        kernel_for("gpu", name).compute(bound, Run(device(cp, "gpu"), True), operands, [out])
        yield out.get().astype("float32"), expected.astype("float32")


@needs_cudnn
@pytest.mark.parametrize("order", ["C", "channels last"])
@pytest.mark.parametrize(("shape", "parameters"), CONVOLUTIONS)
def test_convolutions_however_images_lie(cp, shape, parameters, order):
    for ours, theirs in convolution(cp, shape, parameters, order):
        close(ours, theirs, rtol=1e-4)


@needs_cudnn
@pytest.mark.parametrize("tune", ["off", "fastest"])
@pytest.mark.parametrize(("dtype", "rtol"), [("float32", 5e-3), ("float16", 5e-3), ("bfloat16", 3e-2)])
def test_convolutions_on_tensor_cores(cp, dtype, rtol, tune):
    parameters = {"kernel": (3, 3), "num_filter": 64, "pad": (1, 1), "cudnn_tune": tune}
    with settings.override(cuda_allow_tensor_core=True):
        for ours, theirs in convolution(
            cp, (8, 32, 28, 28), parameters, "channels last", mx.nd.array([0], dtype=dtype).dtype
        ):
            close(ours, theirs, rtol=rtol)


ATTENTIONS = [
    *attentions.REPLACED.values(),
    (attentions.REPLACED["heads"][0], dict.fromkeys("qkv", (2, 512, 128))),
    (attentions.REPLACED["interleaved"][0], {"q": (300, 2, 768)}),
]


@needs_cudnn
@pytest.mark.parametrize(("dtype", "rtol"), [("float16", 4e-3), ("bfloat16", 3e-2)])
@pytest.mark.parametrize("number", range(len(ATTENTIONS)))
def test_attention(cp, monkeypatch, number, dtype, rtol):
    symbol, shapes = ATTENTIONS[number]
    monkeypatch.setattr(dnn, "_plans", {})
    with settings.override(cuda_allow_tensor_core=True):
        attentions.checked(symbol, shapes, dtype, rtol)
    assert len(dnn._plans) == 2  # the forward and the gradient, neither of them plainly
    assert None not in dnn._plans.values()


def test_launches_are_noted(cp):
    x = cp.ones(8, "float32")
    kernel_for("gpu", "sigmoid").compute(lookup("sigmoid").create(), Run(device(cp, "gpu"), False), [x], [x])
    assert bodies.launched
    assert isinstance(Program.launch, type(test_launches_are_noted))
