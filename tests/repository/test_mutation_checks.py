"""The tool that puts faults into the source (tests/mutants)."""

import ast
import os
import random
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests import durations
from tests.mutants.__main__ import FAILED
from tests.mutants.faults import drawn, faults_of
from tests.mutants.related import Tests

MODULE = '''
"""A module with 3 words."""

LIMIT: "int" = -10


def clip(value: int, low: int = 0) -> int:
    """Never more than 7."""
    if value < low:
        raise ValueError(f"{value - low} below 1")
    log.info("ends with %d", 5)
    value += LIMIT
    return value - "ö".count("ö") * 2


def cost(value):
    return value + 1


class Pair:
    def __repr__(self):
        return f"{1}" * 2
'''


def faults_in(source, seed=0):
    return faults_of("flowmx/clip.py", source, random.Random(seed))


def test_faults_are_put_into_code_only():
    faults = {(fault.line, fault.before): fault for fault in faults_in(MODULE)}
    assert list(faults) == [
        (4, "-10"),
        (4, "10"),
        (7, "0"),
        (9, "value < low"),
        (10, 'raise ValueError(f"{value - low} below 1")'),
        (12, "value += LIMIT"),
        (13, 'value - "ö".count("ö") * 2'),
        (13, '"ö".count("ö") * 2'),
        (13, "2"),
    ]
    assert faults[13, "2"].applied(MODULE.encode()).decode() == MODULE.replace('("ö") * 2', '("ö") * 3')
    assert {fault.function for fault in faults.values()} == {"", "clip"}


def test_assertions_have_no_faults():
    assert not faults_in("found = zip([a], b, strict=True)\nassert a > 1, -3\n")


def test_every_fault_leaves_a_module_that_can_be_read_and_differs():
    for seed in range(5):
        for fault in faults_in(MODULE, seed):
            changed = fault.applied(MODULE.encode())
            assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(MODULE))


def test_a_seed_draws_the_same_faults_again_and_none_twice(tmp_path):
    (tmp_path / "ops").mkdir()
    (tmp_path / "ops" / "clip.py").write_text(MODULE)
    first, second = (drawn(tmp_path, 6, 5, ("ops",)) for _ in range(2))
    assert first == second
    assert len(set(first)) == 6


def test_the_closest_tests_import_the_module_or_share_its_rare_words(tmp_path):
    (tmp_path / "tests").mkdir()
    for name, text in {
        "test_other": "value = low = 3",
        "test_words": "def test_far(): assert clip(3) == LIMIT, value",
        "test_imports": "from flowmx.clip import clip",
    }.items():
        (tmp_path / "tests" / f"{name}.py").write_text(text)
    closest = Tests(tmp_path).closest(MODULE, "flowmx/clip.py", "clip")
    assert [path.stem for path in closest] == ["test_imports", "test_words", "test_other"]


def test_the_closest_tests_of_an_operator_are_those_of_gradients_and_values_and_those_of_its_name(tmp_path):
    (tmp_path / "tests").mkdir()
    names = ["test_other", "test_gradients", "test_recorded_operators", "test_clipping", "test_far"]
    for name in names:
        (tmp_path / "tests" / f"{name}.py").write_text("value = low = 3")
    for path, wanted in {
        "ops/math/clip.py": names[1:3],
        "ops/kernels/clip.py": [],
        "flowmx/clippings.py": names[3:4],
    }.items():
        closest = [test.stem for test in Tests(tmp_path).closest(MODULE, path, "clip")]
        assert sorted(closest[: len(wanted)]) == wanted


def test_the_closest_tests_of_operator_attributes_are_the_attribute_tests(tmp_path):
    (tmp_path / "tests").mkdir()
    for name in ("test_other", "test_traits", "test_operator_docs", "test_gradients", "test_io"):
        (tmp_path / "tests" / f"{name}.py").write_text("value = 3")
    source = "class Clip:\n    axis = 3\n    def forward(self):\n        return 3\n"
    tests = Tests(tmp_path)
    assert {test.stem for test in tests.closest(source, "ops/clip.py", "Clip")[:2]} == {
        "test_traits",
        "test_operator_docs",
    }
    assert tests.closest(source, "ops/clip.py", "Clip.forward")[0].stem == "test_gradients"
    assert tests.closest(source, "flowmx/io/clip.py", "Clip")[0].stem == "test_io"


def test_log_lines_are_not_mistaken_for_tests():
    text = "ERROR    flowmx.comm:scheduler.py:226 worker 1\nFAILED tests/test_a.py::test_b - assert 1 == 2\n"
    assert FAILED.findall(text) == ["tests/test_a.py::test_b"]
    assert FAILED.findall("ERROR tests/test_a.py\n") == ["tests/test_a.py"]


def test_more_faults_than_places_are_refused(tmp_path):
    (tmp_path / "ops").mkdir()
    (tmp_path / "ops" / "clip.py").write_text("LIMIT = 1\n")
    with pytest.raises(ValueError, match="has 1 of the 2 faults"):
        drawn(tmp_path, 2, 5, ("ops",))


@pytest.mark.usefixtures("new_python")
def test_a_run_reports_which_tests_find_each_fault_and_which_survive(tmp_path):
    files = {
        "flowmx/__init__.py": "",
        "flowmx/clip.py": "def clip(value, low):\n    if value < low:\n        return low\n    return value\n",
        "tests/test_clip.py": """
            from flowmx.clip import clip

            def test_values_are_not_below_the_limit():
                assert [clip(value, 2) for value in range(4)] == [2, 2, 2, 3]
            """,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(textwrap.dedent(text))
    shutil.copytree(Path(durations.__file__).parent / "mutants", tmp_path / "tests" / "mutants")
    shutil.copy(durations.__file__, tmp_path / "tests")
    command = [sys.executable, "-m", "tests.mutants", "2", "0", "--folders", "flowmx"]
    lines = subprocess.check_output(command, cwd=tmp_path, text=True, env={**os.environ, "PYTHONPATH": ""}).splitlines()
    fault_lines = {re.sub(r" \(\d+ s\)$|^ +\d+ ", "", line) for line in lines[:2]}
    assert fault_lines == {
        "flowmx/clip.py:2 `value < low` -> `(value <= low)`: survived",
        "flowmx/clip.py:2 `value < low` -> `(value >= low)`: tests/test_clip.py::test_values_are_not_below_the_limit",
    }
    assert lines[2].startswith("1 of 2 found; survivors: [")
    assert (tmp_path / "flowmx" / "clip.py").read_text() == files["flowmx/clip.py"]
