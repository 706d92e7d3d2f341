"""Three typical MXNet scripts behave the same with flowmx."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.turns import python_of
from tests import peers
from tests.migration.records import prepare

FOLDER = Path(__file__).parent.parent / "migration"
MXNET = python_of("mxnet")

SCRIPTS = {
    "module_records": (
        ["--folder", "."],
        r"(learning rate .*\n)?accuracy (0\.9\d*|1\.0)\npredicted \(32, 2\) same True\n",
    ),
    "gluon_chapter": (
        [],
        r"regression \[2\.0, -3\.40*\d*\] \[4\.[12]\d*\]\naccuracy (0\.9\d*|1\.0)\ncentred True\n",
    ),
    "face_loop": (["."], r"steps 42 lr 0\.001\nverified True\n"),
}


def imported(script):
    """Return the script with only the import changed."""
    return re.sub(r"^(import|from) mxnet\b( as mx)?", r"\1 flowmx\2", source(script), flags=re.MULTILINE)


def source(script):
    return (FOLDER / f"{script}.py").read_text()


def output_of(command, text, script, folder):
    (folder / "script.py").write_text(text)
    arguments, expected = SCRIPTS[script]
    environment = peers.environment(PYTHONPATH=str(FOLDER.parent.parent))
    done = subprocess.run(
        [*command, "script.py", *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done, expected


@pytest.mark.parametrize("script", SCRIPTS)
def test_runs_with_another_import(script, tmp_path):
    prepare(tmp_path)
    done, expected = output_of([sys.executable], imported(script), script, tmp_path)
    assert re.fullmatch(expected, done.stdout), done.stdout


@pytest.mark.parametrize("script", SCRIPTS)
def test_runs_as_it_is(script, tmp_path):
    prepare(tmp_path)
    done, expected = output_of([sys.executable, "-m", "flowmx", "run"], source(script), script, tmp_path)
    assert re.fullmatch(expected, done.stdout), done.stdout


@pytest.mark.skipif(MXNET is None, reason="no MXNet 1.9.1 environment under PEERS")
@pytest.mark.soak
@pytest.mark.parametrize("script", SCRIPTS)
def test_mxnet_itself_gives_the_same(script, tmp_path):
    prepare(tmp_path)
    done, expected = output_of([str(MXNET)], source(script), script, tmp_path)
    assert re.fullmatch(expected, done.stdout), done.stdout


def test_the_page_s_recipes_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page = (FOLDER.parent.parent / "docs" / "migration.md").read_text()
    names = {}
    for block in re.findall(r"^```python\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL):
        exec(compile(block, "docs/migration.md", "exec"), names)
    printed = capsys.readouterr().out
    for expected in ("(4, 3)", "['arg:fc_bias', 'arg:fc_weight']", "1.0 b'any bytes'", "accuracy", "[2. 2. 2.]"):
        assert expected in printed
