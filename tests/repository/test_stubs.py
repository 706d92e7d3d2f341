"""The stubs: all operator functions and methods with types and docstrings, also in distributions."""

import ast
import importlib
import inspect
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import assert_type

import pytest

import flowmx as mx
from flowmx.ndarray import methods, optimizer_updates
from flowmx.ops.registry.calling import METHODS
from flowmx.ops.registry.operators import registered_operators
from flowmx.symbol import Symbol
from flowmx.tools import stubs

ROOT = Path(__file__).resolve().parent.parent.parent
NAMES = [
    "flowmx/ndarray/contrib.pyi", "flowmx/ndarray/functions.pyi", "flowmx/ndarray/image.pyi",
    "flowmx/ndarray/linalg.pyi", "flowmx/ndarray/methods.pyi", "flowmx/ndarray/sparse/__init__.pyi",
    "flowmx/numpy/__init__.pyi", "flowmx/numpy/fft.pyi", "flowmx/numpy/linalg.pyi", "flowmx/numpy/methods.pyi",
    "flowmx/symbol/contrib.pyi", "flowmx/symbol/functions.pyi", "flowmx/symbol/image.pyi",
    "flowmx/symbol/linalg.pyi", "flowmx/symbol/sparse.pyi",
]  # fmt: skip


def declared(text: str) -> dict[str, str | None]:
    """The docstring of each function of a stub, that of a method under ``Methods.name``."""
    signatures = {}
    for node in ast.parse(text).body:
        inner = node.body if isinstance(node, ast.ClassDef) else []
        for each, prefix in [(node, ""), *((one, "Methods.") for one in inner)]:
            if isinstance(each, ast.FunctionDef):
                signatures[prefix + each.name] = ast.get_docstring(each)
    return signatures


@pytest.fixture(scope="module")
def stub_texts() -> dict[str, str]:
    return {path.relative_to(ROOT).as_posix(): text for path, text in stubs.stubs().items()}


def test_stubs_are_python(stub_texts):
    assert sorted(stub_texts) == NAMES
    for name, text in stub_texts.items():
        compile(text, name, "exec")


@pytest.mark.parametrize("package", ["ndarray", "symbol"])
def test_every_public_function_has_its_docstring(stub_texts, package):
    module = getattr(mx, package).functions
    actual = declared(stub_texts[f"flowmx/{package}/functions.pyi"])
    for name in stubs.public_names():
        assert actual[name] == inspect.getdoc(getattr(module, name)), name
    assert not set(filter(str.isidentifier, dir(module))) - set(actual)


def test_every_method_has_its_docstring(stub_texts):
    actual = declared(stub_texts["flowmx/ndarray/methods.pyi"])
    written = {name for name in vars(methods.Methods) if not name.startswith("_")}
    assert written >= set(METHODS)
    for name in written:
        assert actual[f"Methods.{name}"] == inspect.getdoc(getattr(methods.Methods, name)), name


@pytest.mark.parametrize("package", ["ndarray", "symbol"])
@pytest.mark.parametrize("part", ["contrib", "image", "linalg", "sparse"])
def test_every_derived_function_is_declared(stub_texts, package, part):
    path = f"flowmx/{package}/{part}/__init__.pyi"
    body = ast.parse(stub_texts.get(path) or stub_texts[f"flowmx/{package}/{part}.pyi"]).body
    imported = {alias.asname or alias.name for node in body if isinstance(node, ast.ImportFrom) for alias in node.names}
    imported |= {*optimizer_updates.__all__} if "*" in imported else set()
    defined = {node.name for node in body if isinstance(node, ast.FunctionDef)}
    module = importlib.import_module(f"flowmx.{package}.{part}")
    hidden = {name for name, cls in registered_operators().items() if cls.traits.hidden}
    names = {name for name in module.__all__ if f"_{part}_{name}" not in hidden}
    assert len(names) > 5
    assert names <= imported | defined


@pytest.mark.parametrize("module", ["", ".linalg", ".fft"])
def test_every_function_of_numpy_has_its_signature(stub_texts, module):
    path = f"flowmx/numpy/{module[1:] or '__init__'}.pyi"
    package = importlib.import_module(f"flowmx.numpy{module}")
    bodies = {node.name: node for node in ast.parse(stub_texts[path]).body if isinstance(node, ast.FunctionDef)}
    named = ast.walk(ast.parse(stub_texts[path]))
    bound = {alias.asname for node in named if isinstance(node, ast.ImportFrom) for alias in node.names}
    assigned = set(re.findall(r"^(\w+)(?:: | = )", stub_texts[path], re.MULTILINE))
    assert not set(dir(package)) - bodies.keys() - bound - assigned
    for name, node in bodies.items():
        arguments = [each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
        signature = inspect.signature(getattr(package, name))
        positional = [
            each for each in signature.parameters.values() if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
        ]
        assert arguments == [each.name for each in positional if each.name != "subok"], name


def test_calls_are_typed() -> None:
    # `make types` checks these lines too: it refuses a wrong assert_type and an unused ignore.
    data, weight = mx.nd.ones((1, 1, 3, 3)), mx.nd.ones((2, 1, 3, 3))
    out = mx.nd.Convolution(data, weight, kernel=(3, 3), num_filter=2, no_bias=True)
    assert_type(out, mx.nd.NDArray)
    assert_type(out.sum(axis=1), mx.nd.NDArray)
    assert_type(mx.sym.Convolution(mx.sym.Variable("data"), kernel=(3, 3), num_filter=2), Symbol)
    assert out.sum(axis=1).shape == (1, 1, 1)
    with pytest.raises(mx.MXNetError):
        mx.nd.Convolution(data, weight, kernel="three", num_filter=2)  # type: ignore[arg-type]


def build(source: Path, what: str, **environment: str) -> tuple[Path, str]:
    """Build a distribution with the environment's setuptools. Return its file and stderr."""
    code = f"from setuptools import build_meta; print(build_meta.build_{what}('dist'))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=source, env=os.environ | environment, check=True, capture_output=True, text=True)
    return source / "dist" / done.stdout.split()[-1], done.stderr


def test_distributions_contain_the_stubs(tmp_path):
    source = tmp_path / "source"  # as it is in the repository: without stubs
    for name in ("flowmx", "comm", "devices", "ops", "packaging/pytest"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("*.pyi", "__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    sdist, _ = build(source, "sdist")
    with tarfile.open(sdist) as opened:
        assert sorted(name.partition("/")[2] for name in opened.getnames() if name.endswith(".pyi")) == NAMES
    # A build where flowmx cannot be imported takes those at hand, as those of a source distribution, and says so.
    (tmp_path / "numpy.py").write_text("raise ImportError('no NumPy here')")
    wheel, printed = build(source, "wheel", PYTHONPATH=str(tmp_path))
    with zipfile.ZipFile(wheel) as opened:
        assert sorted(name for name in opened.namelist() if name.endswith(".pyi")) == NAMES
    assert "stubs were not written" in printed
