"""RMSNorm, SiLU and the gated linear units: formulas, dtypes, gradients, ONNX, errors."""

import numpy as np
import pytest

import flowmx as mx
from flowmx.gluon import nn
from flowmx.test_utils import check_numeric_gradient

# Of PyTorch 2.13, for the input below: rms_norm with the weight 0.5, 1, 1.5, 2 and eps 1e-6; silu; glu; gelu with tanh.
X = [[-2.0, -0.5, 0.0, 3.0], [0.25, 1.0, -1.5, 8.0]]
RMS_NORM = [[-0.5494422, -0.2747211, 0.0, 3.296653], [0.03047138, 0.243771, -0.5484848, 3.900337]]
SILU = [[-0.2384058, -0.1887703, 0.0, 2.857723], [0.1405441, 0.7310586, -0.2736383, 7.997317]]
GELU_TANH = [[-0.04540229, -0.154286, 0.0, 2.996363], [0.1496754, 0.841192, -0.1004284, 8.0]]
GLU = [[-1.0, -0.4762871], [0.04560638, 0.9996647]]


def test_values_are_those_of_torch():
    x = mx.nd.array(X)
    norm = nn.RMSNorm(in_channels=4)
    norm.initialize()
    norm.gamma.set_data(mx.nd.array([0.5, 1, 1.5, 2]))
    np.testing.assert_allclose(norm(x).asnumpy(), RMS_NORM, rtol=1e-6)
    np.testing.assert_allclose(nn.SiLU()(x).asnumpy(), SILU, rtol=1e-6)
    np.testing.assert_allclose(nn.GLU()(x).asnumpy(), GLU, rtol=1e-6)
    np.testing.assert_allclose(nn.GELU("tanh")(x).asnumpy(), GELU_TANH, rtol=2e-6)


def test_gates():
    a, b = np.array(X)[:, :2], np.array(X)[:, 2:]
    np.testing.assert_allclose(nn.SwiGLU()(mx.nd.array(X)).asnumpy(), a * b / (1 + np.exp(-b)), rtol=1e-5)
    gelu = nn.GELU()(mx.nd.array(b)).asnumpy()
    np.testing.assert_allclose(nn.GEGLU()(mx.nd.array(X)).asnumpy(), a * gelu, rtol=1e-5)


@pytest.mark.parametrize(("dtype", "rtol"), [("float64", 1e-12), ("float16", 2e-3), ("bfloat16", 1e-2)])
@pytest.mark.parametrize("shape", [(3, 4), (80, 200)])
def test_dtypes_and_gradients(dtype, rtol, shape):
    x = np.random.default_rng(0).normal(size=shape)
    net = nn.HybridSequential()
    net.add(nn.RMSNorm(in_channels=shape[1]), nn.SiLU())
    net.initialize()
    net.cast(dtype)
    results = []
    for compiled in (False, True):
        net.hybridize(compiled)
        data = mx.nd.array(x, dtype=dtype)
        data.attach_grad()
        with mx.autograd.record():
            out = net(data)
        out.backward()
        assert out.dtype == data.dtype
        results.append([out, data.grad, net[0].gamma.grad()])
    root = np.sqrt(np.square(x).mean(axis=1, keepdims=True) + 1e-6)
    hat = x / root
    gate = 1 / (1 + np.exp(-hat))
    head = gate * (1 + hat * (1 - gate))
    expected = [hat * gate, (head - hat * (head * hat).mean(axis=1, keepdims=True)) / root, (head * hat).sum(axis=0)]
    for ours in results:
        for one, other in zip(ours, expected, strict=True):
            np.testing.assert_allclose(one.astype("float64").asnumpy(), other, rtol=rtol, atol=rtol * 4)


def test_numeric_gradient_along_another_axis():
    data = mx.sym.Variable("data")
    gamma = mx.sym.Variable("gamma")
    rng = np.random.default_rng(0)
    values = [rng.normal(size=(3, 4, 2)), rng.uniform(0.5, 1.5, 4)]
    check_numeric_gradient(mx.sym.RMSNorm(data, gamma, axis=1), values, rtol=0.05, atol=0.01)


def test_onnx_files_compute_the_same(tmp_path):
    net = nn.HybridSequential()
    net.add(
        nn.Dense(8, flatten=False, in_units=4), nn.RMSNorm(), nn.SiLU(), nn.SwiGLU(), nn.GEGLU(), nn.RMSNorm(axis=1)
    )
    net.initialize(mx.init.Xavier())
    x = mx.nd.array(np.random.default_rng(0).normal(size=(2, 3, 4)))
    expected = net(x).asnumpy()
    path = str(tmp_path / "net.onnx")
    net.hybridize()
    net(x)
    net.export(str(tmp_path / "net"))
    mx.onnx.export_model(str(tmp_path / "net-symbol.json"), str(tmp_path / "net-0000.params"), [(2, 3, 4)],
                         [np.float32], path)  # fmt: skip
    imported = mx.contrib.onnx.import_to_gluon(path, mx.cpu())
    np.testing.assert_allclose(imported(x).asnumpy(), expected, rtol=1e-5, atol=1e-6)


def test_functions_of_numpys_interface():
    x = mx.np.array(X)
    np.testing.assert_allclose(mx.npx.silu(x).asnumpy(), SILU, rtol=1e-6)
    assert mx.npx.rms_norm(x, mx.np.ones(4)).shape == (2, 4)


def test_errors():
    with pytest.raises(ValueError, match="GELU: approximation is 'none', expected 'erf' or 'tanh'"):
        nn.GELU("none")
    with pytest.raises(ValueError, match="RMSNorm: epsilon is -1, expected 0 or more"):
        nn.RMSNorm(epsilon=-1)
    with pytest.raises(mx.errors.ShapeError, match="GLU"):
        nn.GLU()(mx.nd.ones((2, 5)))
    with pytest.raises(mx.errors.ShapeError, match=r"RMSNorm.*gamma.*\(3,\).*\(5,\)"):
        mx.nd.RMSNorm(mx.nd.ones((2, 5)), mx.nd.ones(3))
