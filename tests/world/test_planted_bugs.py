"""Bugs that are put back one at a time: each breaks a law in a scenario that breaks none without it."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.world.planted_bugs import BUGS
from tests.world.scenario import Fault, Scenario, draw

ROOT = Path(__file__).parent.parent.parent
pytestmark = [pytest.mark.soak, pytest.mark.skipif(sys.platform != "linux", reason="worlds are replayed on Linux")]

HANGS, REFUSED = "waits did not end", "was refused"
SMALL = Scenario(0, steps=12, keys=1, compute=0.05)
TWO_SERVERS = (Fault(2.395, "kill", "server 1", seconds=1.0), Fault(21.021, "kill", "server 0", seconds=1.0))
SCENARIOS = {
    "d9583072c": (replace(SMALL, seed=1, steps=3, delay=1e-3, faults=(Fault(0.008, "kill", "worker 0"),)), HANGS),
    "the backup": (replace(SMALL, mode="async", delay=1e-3, faults=(Fault(0.342, "kill", "server 1"),)), REFUSED),
    "a round waits": (replace(SMALL, steps=8, compute=2.0, faults=(Fault(4.548, "kill", "worker 0"),)), HANGS),
    "an old copy": (replace(SMALL, mode="async", steps=25, compute=4.0, faults=TWO_SERVERS), REFUSED),
    "rounds of barriers": (draw(12), HANGS),
}
"""By a part of the bug's description, a scenario and a part of the violation."""


def run(scenario, *arguments):
    """Return the exit status and the output of a run."""
    environ = {**os.environ, "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-m", "tests.world", "--keep", *arguments, repr(scenario)]
    result = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    return result.returncode, result.stdout + result.stderr


def test_each_bug_has_a_scenario():
    assert all(sum(text in bug for bug in BUGS) == 1 for text in SCENARIOS) and len(SCENARIOS) == len(BUGS)


@pytest.mark.parametrize("bug", SCENARIOS)
def test_a_bug_that_is_put_back_is_found(new_python, bug):
    scenario, law = SCENARIOS[bug]
    status, output = run(scenario, "--bug", bug)
    assert status == 1 and law in output
    status, output = run(scenario)
    assert status == 0, output
