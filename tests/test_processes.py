"""Tests that run in several processes (tests/processes.py)."""

import subprocess
import sys
from pathlib import Path

import pytest

ONE = """
import os, signal, time, warnings
import pytest

@pytest.fixture(scope="session", autouse=True)
def shared(tmp_path_factory):
    yield
    with open("ends", "a") as file:
        file.write(f"{os.getpid()}\\n")

@pytest.fixture(scope="module", autouse=True)
def own():
    yield
    with open("modules", "a") as file:
        file.write(f"{__name__}\\n")

def test_passes(tmp_path):
    print("heard of nowhere")

def test_fails():
    print("heard of")
    assert 1 == 2

def test_crashes():
    os.kill(os.getpid(), signal.SIGKILL)

def test_goes_on():
    with open("pids", "a") as file:
        file.write(f"{os.getpid()}\\n")

def test_skips():
    pytest.skip("for a reason")

@pytest.mark.timeout(0.2)
def test_takes_too_long():
    time.sleep(20)

@pytest.mark.filterwarnings("default")
def test_warns():
    warnings.warn("careful")
"""
OTHER = "def test_other():\n    pass\n"
ENDS = """
import atexit, os
def test_ends_badly():
    atexit.register(lambda: os._exit(7))
"""
STUBBORN = """
import signal, time
def test_stays():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(90)
"""


def run(folder, *options, **files):
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\n")
    plugins = ["--disable-plugin-autoload", "-p", "pytest_timeout", "-p", "tests.processes"]
    command = [sys.executable, "-m", "pytest", "--cores", "2", "-ra", *plugins, *options]
    environ = {"PYTHONPATH": str(Path(__file__).parents[1]), "PATH": "", "HOME": str(folder), "COLUMNS": "200"}
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=60)


@pytest.mark.skipif(sys.platform == "win32", reason="it has no forks")
def test_what_tests_of_several_processes_do_is_told_as_of_one(tmp_path):
    result = run(tmp_path, test_one=ONE, test_two=ONE, test_three=OTHER)
    out = result.stdout
    assert result.returncode == pytest.ExitCode.TESTS_FAILED, result.stderr
    assert "6 failed, 7 passed, 2 skipped, 2 warnings" in out
    assert out.count("the process ended with -9 in this test") == 4, "at the failure and in the summary"
    assert out.count("UserWarning: careful") == 2
    assert out.count("Captured stdout call") == 2
    assert "nowhere" not in out
    assert "Timeout (>0.2s)" in out
    assert out.count("for a reason") == 2
    ends = (tmp_path / "ends").read_text().split()
    assert len(ends) == len({*ends}), "fixtures of the session end once in each process that ends"
    assert sorted((tmp_path / "modules").read_text().split()) == ["test_one", "test_two"]
    assert len({*(tmp_path / "pids").read_text().split()}) == 2


@pytest.mark.skipif(sys.platform == "win32", reason="it has no forks")
def test_a_process_that_ends_badly_behind_its_tests_is_a_failure_and_the_first_may_end_the_run(tmp_path):
    result = run(tmp_path, test_ends=ENDS, test_other=OTHER)
    assert result.returncode == pytest.ExitCode.TESTS_FAILED
    assert "the process of test_ends.py ended with 7, after its tests" in result.stdout
    result = run(tmp_path, "-x", test_ends=STUBBORN, test_other="def test_other():\n    assert 0\n")
    assert result.returncode == pytest.ExitCode.TESTS_FAILED
    assert "stopping after 1 failures" in result.stdout
