"""With an editable installation (``pip install -e .``), type checkers and Python find flowmx in a user's project."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("new_python")

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """\
import flowmx as mx
from flowmx.devices import Context

net = mx.gluon.nn.Dense(2)
reveal_type(net(mx.nd.ones((1, 1))))
reveal_type(mx.nd.linalg.det(mx.nd.ones((1, 1))))
reveal_type(Context("cpu", 0))
"""
TYPES = ["NDArray", "NDArray", "Context"]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of the repository's sources."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("flowmx", "comm", "devices", "ops", "packaging/pytest"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("*.pyi", "__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    return folder


@pytest.fixture(scope="module")
def python(checkout, tmp_path_factory):
    """The interpreter of an environment with an editable installation of the checkout."""
    code = "from setuptools import build_meta; print(build_meta.build_editable('dist'))"
    done = subprocess.run([sys.executable, "-c", code], cwd=checkout, check=True, capture_output=True, text=True)
    environment = tmp_path_factory.mktemp("environment")
    venv.create(environment, symlinks=os.name != "nt")
    paths = sysconfig.get_paths(vars={"base": str(environment), "platbase": str(environment)})
    with zipfile.ZipFile(checkout / "dist" / done.stdout.split()[-1]) as wheel:
        assert wheel.testzip() is None
        (record,) = [name for name in wheel.namelist() if name.endswith("RECORD")]
        listed = {line.partition(",")[0] for line in wheel.read(record).decode().splitlines()}
        assert set(wheel.namelist()) == listed
        wheel.extractall(paths["purelib"])
    needed = dict.fromkeys(sysconfig.get_path(kind) for kind in ("purelib", "platlib"))  # NumPy and others
    (Path(paths["purelib"]) / "needed.pth").write_text("\n".join(needed))
    (program,) = [
        path for path in (Path(paths["scripts"]) / name for name in ("python", "python.exe")) if path.exists()
    ]
    return program


@pytest.fixture
def project(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path


def run(*command, folder):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MYPY"))}
    return subprocess.run([*map(str, command)], cwd=folder, env=environment, capture_output=True, text=True)


def test_python_imports_the_sources_themselves(python, checkout, tmp_path):
    code = """
import importlib
import flowmx, flowmx.devices.context, flowmx.comm, flowmx.gluon.nn

importlib.invalidate_caches()
import flowmx.symbol.sparse
print(*(each.__file__ for each in (flowmx, flowmx.devices.context, flowmx.comm, flowmx.gluon.nn, flowmx.symbol.sparse)))
"""
    done = run(python, "-c", code, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    files = ["flowmx/__init__.py", "devices/context.py", "comm/__init__.py", "flowmx/gluon/nn/__init__.py"]
    assert done.stdout.split() == [str(checkout / file) for file in [*files, "flowmx/symbol/sparse.py"]]


def test_mypy_finds_the_types(python, project):
    options = ["--config-file=", "--cache-dir", project / "cache", "--python-executable", python, "--strict"]
    done = run(sys.executable, "-m", "mypy", *options, "program.py", folder=project)
    revealed = [line.partition("is ")[2].strip('"').rpartition(".")[2] for line in done.stdout.splitlines()[:-1]]
    assert done.returncode == 0, done.stdout
    assert revealed == TYPES


def test_pyright_finds_the_types(python, project):
    pytest.importorskip("pyright")
    (project / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "strict"}))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", python, "-p", "."]
    report = json.loads(run(*command, folder=project).stdout)
    assert [each["message"].rpartition(" is ")[2].strip('"') for each in report["generalDiagnostics"]] == TYPES
