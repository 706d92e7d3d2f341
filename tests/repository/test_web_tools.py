"""Third-party tools: Netron reads saved models, axe-core checks the site and the dashboard.

``make web`` installs both and runs these tests; without them they are skipped.
"""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

import flowmx as mx
from docs.versions import put
from flowmx.observability.dashboard import application
from flowmx.observability.dashboard.web_app import _job_page
from flowmx.ops.registry.operators import registered_operators

ROOT = Path(__file__).parent.parent.parent
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
    report = node("netron.mjs", NETRON, folder / "model-symbol.json")
    assert report["format"].startswith("MXNet v1.")
    assert [kind for kind, _ in report["nodes"]] == [
        "Convolution", "Activation", "BatchNorm", "Pooling", "Flatten", "FullyConnected",
    ]  # fmt: skip
    assert sorted(report["parameters"].values()) == sorted(list(each.shape) for each in net.collect_params().values())
    assert report["inputs"] == ["data"]


@needs_netron
def test_netron_opens_parameters_alone(saved):
    net, folder = saved
    (folder / "alone").mkdir()
    shutil.copy(folder / "model-0000.params", folder / "alone" / "weights.params")
    report = node("netron.mjs", NETRON, folder / "alone" / "weights.params")
    assert sorted(report["parameters"].values()) == sorted(list(each.shape) for each in net.collect_params().values())


@needs_netron
def test_netron_opens_onnx(saved):
    _, folder = saved
    report = node("netron.mjs", NETRON, folder / "model.onnx")
    assert report["format"].startswith("ONNX") and report["inputs"] == ["data"]
    kinds = [kind for kind, _ in report["nodes"]]
    assert {"Conv", "Relu", "BatchNormalization", "MaxPool", "Gemm"} <= set(kinds)
    assert report["parameters"]["net_conv0_weight"] == [4, 2, 3, 3]


@needs_axe
@pytest.mark.parametrize(
    "page",
    [
        "dashboard", "job", "index.html", "operators.html", "search.html", "reference/nn.html", "api/gluon.html",
        "reference/operators/Convolution.html", "reference/classes/flowmx.gluon.nn.Conv2D.html",
    ],
)  # fmt: skip
def test_axe_finds_nothing_serious(page, tmp_path):
    path = DASHBOARD if page == "dashboard" else SITE / page
    if page == "job":
        path = tmp_path / "index.html"
        path.write_bytes(_job_page(DASHBOARD.read_bytes()))
    if not path.is_file():
        pytest.skip("the site is not built: make docs")
    (report,) = node("axe.mjs", WEB, path).values()
    assert report["passes"] > 10
    assert [each for each in report["violations"] if each["impact"] in ("serious", "critical")] == []


needs_site = pytest.mark.skipif(not (SITE / "searchindex.js").is_file(), reason="the site is not built: make docs")


@needs_axe
@needs_site
def test_a_search_lists_exact_names_first():
    wanted = {
        "Convolution": "reference/operators/Convolution", "convolution": "reference/operators/Convolution",
        "FullyConnected": "reference/operators/FullyConnected", "softmax": "reference/operators/softmax",
        "random_uniform": "reference/operators/_random_uniform", "linear": "reference/operators/FullyConnected",
        "gemm2": "reference/operators/_linalg_gemm2", "Conv2D": "reference/classes/flowmx.gluon.nn.Conv2D",
        "Trainer": "reference/classes/flowmx.gluon.Trainer", "NDArray": "reference/classes/flowmx.ndarray.NDArray",
        "Adam": "reference/classes/flowmx.optimizer.Adam",
    }  # fmt: skip
    report = node("search.mjs", WEB, SITE, *wanted)
    assert {query: pages[0][0] for query, pages in report.items()} == wanted


TASKS = {
    "custom layer": "cookbook", "transfer learning": "finetune", "fine tune": "finetune", "early stopping": "finetune",
    "docker": "deploy", "kubernetes": "deploy", "learning rate schedule": "cookbook",
    "data augmentation": "tutorials/data", "mixed precision": "bfloat16", "multi gpu": "gpu",
    "resume training": "checkpoints", "export onnx": "onnx", "profile": "profiler", "save model": "cookbook",
    "gradient clipping": "tutorials/training_tools", "serve http": "serving", "batch size": "serving",
    "out of memory": "memory", "nan loss": "tutorials/profiling", "custom operator": "migration",
    "distributed training": "launching", "quantize": "quantization", "image classification": "tutorials/gluon",
    "convert pytorch": "pytorch", "learning rate finder": "tutorials/training_tools", "random seed": "outputs",
    "different outputs": "outputs", "confusion matrix": "tutorials/training_tools", "hang": "doctor",
    "freeze layers": "cookbook", "bert": "tutorials/transformers", "fastapi": "fastapi", "slurm": "launching",
    "keras": "keras", "custom device": "extending",
    "load mxnet model": "tutorials/mxnet_files", "progress bar": "tutorials/training_tools", "tensorboard": "cookbook",
}  # fmt: skip
"""Tasks in the field's words, with the page about each."""


@needs_axe
@needs_site
def test_a_search_for_a_task_has_its_page_among_the_first_three():
    report = node("search.mjs", WEB, SITE, *TASKS)
    missed = {task: pages[:3] for task, pages in report.items() if TASKS[task] not in [page for page, *_ in pages[:3]]}
    assert not missed


@needs_axe
@needs_site
def test_every_operator_and_class_has_a_page():
    operators = {cls.name for cls in registered_operators().values() if not cls.traits.hidden}
    assert {page.stem.rstrip("-") for page in (SITE / "reference" / "operators").glob("*.html")} == operators
    classes = {page.stem for page in (SITE / "reference" / "classes").glob("*.html")}
    assert {"flowmx.gluon.nn.Dense", "flowmx.module.Module", "flowmx.symbol.Symbol", "flowmx.io.NDArrayIter"} <= classes
    page = (SITE / "reference" / "operators" / "Convolution.html").read_text(encoding="utf-8")
    for part in ("Inputs and outputs", "Parameters", "num_filter", "What raises", "Example", "Gradient", "Conv</span>"):
        assert part in page, part


@needs_axe
def test_a_site_links_to_its_other_versions(tmp_path):
    """The version menu links to the same page of another version, and an old version mentions the newer one."""
    for version in ("0.9.0", "1.10.0", "1.9.0", "1.10.0rc1"):
        (tmp_path / "built").mkdir(exist_ok=True)
        (tmp_path / "built" / "index.html").write_text(
            f'<html data-content_root="./"><form class="versions" data-version="{version}" data-page="index" hidden>'
            "<label>Version <select></select></label></form><article></article></html>"
        )
        versions = put(tmp_path / "built", tmp_path / "sites")
    assert versions == ["1.10.0", "1.10.0rc1", "1.9.0", "0.9.0"]
    assert 'url=1.10.0/"' in (tmp_path / "sites" / "index.html").read_text()
    script = ROOT / "docs" / "_static" / "versions.js"
    new, old = (node("versions.mjs", WEB, tmp_path / "sites", script, each) for each in ("1.10.0", "1.9.0"))
    assert new == {"hidden": False, "offered": versions, "chosen": "1.10.0", "note": None}
    assert old["chosen"] == "1.9.0" and "The newest version is 1.10.0." in old["note"]


@needs_axe
def test_the_page_of_a_job_shows_its_processes(tmp_path):
    report = node("members.mjs", WEB, DASHBOARD.parent)
    assert report["cells"] == [
        ["worker 0", "live", "12.0", "3", "96", "1.00 MiB", "2.00 ms", "none"],
        ["server 0", "silent", "–", "–", "–", "–", "–", "2"],
    ]
    assert report["note"] == "1 of 2 processes answer"
    assert report["chosen"] == ["worker 0", "server 0"] and report["pressed"] == ["false", "true"]
