"""The example that runs regions in onnxruntime: same values and gradients, with flowmx as the fallback."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import flowmx as mx
from flowmx.gluon import nn

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


@pytest.fixture
def example(monkeypatch):
    for needed in ("onnx", "onnxruntime", "sklearn"):
        pytest.importorskip(needed)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import onnxruntime_backend

    onnxruntime_backend.Region.sessions.clear()
    return onnxruntime_backend


def network(dtype):
    mx.random.seed(3)
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 3, use_bias=False), nn.BatchNorm(), nn.Activation("relu"), nn.Flatten())
    net.add(nn.Dense(8, activation="tanh"), nn.Dense(3))
    net.initialize(mx.init.Xavier())
    net.cast(dtype)
    return net


def computed(net, dtype):
    """A prediction, gradients and statistics of two steps, and a prediction with the new parameters."""
    random = np.random.default_rng(0)
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    arrays = []
    for _ in range(2):
        x = mx.nd.array(random.standard_normal((2, 3, 8, 8)), dtype=dtype)
        arrays.append(net(x))
        x.attach_grad()
        with mx.autograd.record():
            y = net(x)
        y.backward()
        arrays += [y, x.grad]
        arrays += [param.grad().copy() for param in net.collect_params().values() if param.grad_req != "null"]
        trainer.step(2)
        arrays += [param.data().copy() for param in net.collect_params().values()]
    return [each.asnumpy() for each in (*arrays, net(x[:1]))]


@pytest.mark.parametrize(("dtype", "sessions"), [("float32", 2), ("float64", 0)])
def test_regions_predict_in_onnxruntime_and_train_in_flowmx(example, dtype, sessions):
    expected = computed(network(dtype), dtype)
    net = network(dtype)
    net.hybridize(backend="onnxruntime")
    for one, other in zip(computed(net, dtype), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    # One region, and two sizes of batches; onnxruntime has no convolution of float64.
    assert len([each for each in example.Region.sessions.values() if each is not None]) == sessions


def test_the_example_runs():
    for needed in ("onnx", "onnxruntime", "sklearn"):
        pytest.importorskip(needed)
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / "onnxruntime_backend.py"), "--epochs", "2"],
        capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "regions that onnxruntime runs: 1\n" in done.stdout
    assert float(done.stdout.split("probability: ")[1].split()[0]) < 1e-5
    assert float(done.stdout.split()[-1]) > 0.7
