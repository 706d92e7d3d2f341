"""Type checkers report no false errors for typical programs, with an installed flowmx and its stubs."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from flowmx.tools import stubs
from tests import expression_types

ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAMS = sorted((ROOT / "tests/editor").glob("*.py"))


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Return a folder with an installed flowmx."""
    site = tmp_path_factory.mktemp("site")
    leave = shutil.ignore_patterns("__pycache__", "*.pyi")
    shutil.copytree(ROOT / "flowmx", site / "flowmx", ignore=leave)
    for name in ("comm", "devices", "ops"):
        shutil.copytree(ROOT / name, site / "flowmx" / name, ignore=leave)
    for path, text in stubs.stubs().items():
        (site / path.relative_to(ROOT)).write_text(text, encoding="utf-8")
    return site


@pytest.fixture
def folder(tmp_path):
    """The programs, in a folder of their author's."""
    for program in PROGRAMS:
        shutil.copy(program, tmp_path)
    return tmp_path


def options(installed):
    """The options of mypy: its own defaults, and one cache, since flowmx is what takes its time."""
    return ["--config-file=", "--follow-imports=silent", "--cache-dir", str(installed.parent / "cache")]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_a_program_runs(program, tmp_path):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, str(program)], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_mypy_finds_no_error(installed, folder):
    command = [sys.executable, "-m", "mypy", "--strict", *options(installed), "."]
    environment = os.environ | {"MYPYPATH": str(installed)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_mypy_knows_what_calls_return(installed, folder):
    (folder / "asked.py").write_text(
        """\
import flowmx as mx

reveal_type(mx.gluon.nn.Dense(2)(mx.nd.ones((1, 1))))
reveal_type(mx.gluon.loss.L2Loss()(mx.nd.ones((1, 1)), mx.nd.ones((1, 1))))
reveal_type(mx.gluon.nn.HybridSequential()(mx.sym.var("x")))
reveal_type(mx.sym.Convolution)
reveal_type(mx.nd.ones((1,)) == 1)
"""
    )
    command = [sys.executable, "-m", "mypy", "--strict", *options(installed), "asked.py"]
    environment = os.environ | {"MYPYPATH": str(installed)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    actual = [line.partition("is ")[2].strip('"') for line in done.stdout.splitlines() if "Revealed" in line]
    array, symbol = "flowmx.ndarray.array.NDArray", "flowmx.symbol.symbol.Symbol"
    assert actual[:3] == [array, array, symbol], done.stdout
    assert "num_filter: int" in actual[3] and actual[3].endswith(f"-> {symbol}")
    assert actual[4] == array


@pytest.mark.parametrize("program", ["conveniences", "services", "text_generation", "transformers"])
def test_mypy_finds_no_any(installed, folder, program):
    """No expression of the program is an ``Any``; arrays of NumPy have an unknown dtype."""
    command = [sys.executable, "-m", "mypy", "--disallow-any-expr", *options(installed), f"{program}.py"]
    environment = os.environ | {"MYPYPATH": str(installed)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert f"{program}.py" in done.stdout, done.stderr
    assert [line for line in done.stdout.splitlines() if 'Expression has type "Any"' in line] == []


def test_pyright_finds_no_error(installed, folder):
    pytest.importorskip("pyright")
    settings = {"typeCheckingMode": "strict", "extraPaths": [str(installed)], "pythonVersion": "3.11"}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", "."]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == len(PROGRAMS)
    assert not report["generalDiagnostics"], done.stdout


def test_pyright_finds_no_any(installed, folder):
    """Every expression of the programs has a known type, except for the numbers in arrays of NumPy."""
    pytest.importorskip("pyright")
    types = expression_types.all_types(folder, installed)
    assert {each.program for each in types} == {program.stem for program in PROGRAMS}
    assert expression_types.vague(types) == []


def test_vague_types_are_found(installed, tmp_path):
    pytest.importorskip("pyright")
    (tmp_path / "program.py").write_text(
        """\
import json
import numpy as np
import flowmx as mx

x = mx.nd.ones((2,))
loaded = json.loads("[1]")
first = loaded[0] + 1
print(first, x.sum(), x.shape == loaded, [y for y in loaded], x.asnumpy().max(), np.ones(2)[0])
"""
    )
    types = expression_types.all_types(tmp_path, installed)
    assert (("program", "x.sum()", "NDArray")) in types
    assert {each.expression for each in expression_types.vague(types)} == {
        "json.loads('[1]')", "loaded", "loaded[0]", "loaded[0] + 1", "first", "y",
    }  # fmt: skip
