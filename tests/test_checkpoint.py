"""Training that is killed goes on as if it had never stopped: real processes, killed at random batches."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flowmx.comm.launch.job import Launcher, Plan
from tests import resuming

ROOT = Path(__file__).parent.parent


def lines(path):
    """What a log says of each batch, as far as it was done last."""
    found = {}
    for line in Path(path).read_text().splitlines():
        words = line.split()
        found[tuple(words[:2]) if words[0] != "end" else "end"] = words
    return found


def killed(program, folder, log, kill):
    """Run a program in a process of its own, until it is killed."""
    command = [sys.executable, "-m", "tests.resuming", program, str(folder), str(log), *([kill] if kill else [])]
    return subprocess.run(command, cwd=ROOT, timeout=120, check=False).returncode


def random_place(program):
    draw = random.Random(f"{program} {random.SystemRandom().random()}")
    return f"{draw.randrange(resuming.EPOCHS)}.{draw.randrange(1, 8)}"


@pytest.mark.parametrize("program", ["module", pytest.param("devices", marks=pytest.mark.soak), "block"])
def test_training_that_is_killed_goes_on_to_the_bit(program, tmp_path):
    folder, log = tmp_path / "run", tmp_path / "log"
    places = sorted([random_place(program), f"writing.{random.randrange(100, 2000)}"])
    for place in places:
        assert killed(program, folder, log, place) in (-signal.SIGKILL, 0), places
    assert killed(program, folder, log, None) == 0, places
    resuming.run(program, None, str(tmp_path / "whole"))
    assert lines(log) == lines(tmp_path / "whole"), places


async def launched(program, folder, log, kill=None):
    """Run a program as a job of two workers, until it ends or is killed; returns the status and what was said."""
    command = [sys.executable, "-m", "tests.resuming", program, str(folder), str(log), *([kill] if kill else [])]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FLOWMX_", "DMLC_"))}
    environ = {**kept, "PYTHONPATH": str(ROOT), "FLOWMX_KVSTORE_HEARTBEAT": "0.2"}
    said = []
    launcher = Launcher(Plan(command, 2, 2, "stop", environ=environ), lambda name, line: said.append((name, line)))
    return await launcher.run(), said


@pytest.mark.parametrize("program", ["job_module", pytest.param("job_block", marks=pytest.mark.soak)])
async def test_a_job_of_two_nodes_that_is_killed_goes_on_to_the_bit(program, tmp_path):
    folder, log, whole = tmp_path / "run", tmp_path / "log", tmp_path / "whole"
    for kill in (f"{random.randrange(2)}:1.{random.randrange(1, 3)}", "all:2.1"):
        status, said = await launched(program, folder, log, kill)
        assert status != 0, said
    status, said = await launched(program, folder, log)
    assert status == 0, said
    status, said = await launched(program, "-", whole)
    assert status == 0, said
    for rank in range(2):
        assert lines(f"{log}-{rank}") == lines(f"{whole}-{rank}")
