"""Programs of others on what is made here: Netron's readers on saved models, axe-core on the site and the dashboard.

``make web`` brings both and runs these; without them they are skipped.
"""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

import flowmx as mx
from flowmx.observability.dashboard import application

ROOT = Path(__file__).parent.parent
WEB = ROOT / "build" / "web"
NETRON = WEB / "netron" / "netron"
DASHBOARD = Path(application.__code__.co_filename).parent / "page" / "index.html"
SITE = ROOT / "build" / "site"

needs_netron = pytest.mark.skipif(
    not NETRON.is_dir() or shutil.which("node") is None, reason="needs node and Netron: make web"
)
needs_axe = pytest.mark.skipif(
    not (WEB / "node_modules" / "axe-core").is_dir() or shutil.which("node") is None,
    reason="needs node, axe-core and jsdom: make web",
)


def node(script, *arguments):
    command = ["node", str(ROOT / "tests" / "web" / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.fixture
def saved(tmp_path):
    """A network with its files: symbol, parameters, ONNX."""
    net = mx.gluon.nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(mx.gluon.nn.Conv2D(4, 3, activation="relu"), mx.gluon.nn.BatchNorm(), mx.gluon.nn.MaxPool2D())
        net.add(mx.gluon.nn.Flatten(), mx.gluon.nn.Dense(3))
    net.initialize()
    net.hybridize()
    net(mx.nd.zeros((1, 2, 8, 8)))
    net.export(str(tmp_path / "model"))
    files = [str(tmp_path / name) for name in ("model-symbol.json", "model-0000.params")]
    mx.onnx.export_model(*files, [(1, 2, 8, 8)], onnx_file_path=str(tmp_path / "model.onnx"))
    return net, tmp_path


@needs_netron
def test_netron_opens_a_symbol_with_its_parameters(saved):
    net, folder = saved
    found = node("netron.mjs", NETRON, folder / "model-symbol.json")
    assert found["format"].startswith("MXNet v1.")
    assert [kind for kind, _ in found["nodes"]] == [
        "Convolution", "Activation", "BatchNorm", "Pooling", "Flatten", "FullyConnected",
    ]  # fmt: skip
    assert sorted(found["parameters"].values()) == sorted(list(each.shape) for each in net.collect_params().values())
    assert found["inputs"] == ["data"]


@needs_netron
def test_netron_opens_parameters_alone(saved):
    net, folder = saved
    (folder / "alone").mkdir()
    shutil.copy(folder / "model-0000.params", folder / "alone" / "weights.params")
    found = node("netron.mjs", NETRON, folder / "alone" / "weights.params")
    assert sorted(found["parameters"].values()) == sorted(list(each.shape) for each in net.collect_params().values())


@needs_netron
def test_netron_opens_onnx(saved):
    _, folder = saved
    found = node("netron.mjs", NETRON, folder / "model.onnx")
    assert found["format"].startswith("ONNX") and found["inputs"] == ["data"]
    kinds = [kind for kind, _ in found["nodes"]]
    assert {"Conv", "Relu", "BatchNormalization", "MaxPool", "Gemm"} <= set(kinds)
    assert found["parameters"]["net_conv0_weight"] == [4, 2, 3, 3]


@needs_axe
@pytest.mark.parametrize("page", ["dashboard", "index.html", "operators.html"])
def test_axe_finds_nothing_serious(page):
    path = DASHBOARD if page == "dashboard" else SITE / page
    if not path.is_file():
        pytest.skip("the site is not built: make docs")
    (found,) = node("axe.mjs", WEB, path).values()
    assert found["passes"] > 10
    assert [each for each in found["violations"] if each["impact"] in ("serious", "critical")] == []
