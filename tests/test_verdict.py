"""Verdicts on how a node ended, and what a program knows of its own end."""

import asyncio
import signal
import subprocess
import sys

import pytest

from flowmx.comm.verdict import Evidence, ProgramFailed, Verdict, judge

SIGTERM = Verdict("asked to end by SIGTERM (exit status 143)", 143)


@pytest.mark.parametrize(
    ("evidence", "verdict"),
    [
        # from outside: the exit status of its process
        (Evidence(), Verdict()),
        (Evidence(status=0), Verdict()),
        (Evidence(status=0, left=True), Verdict()),
        (
            Evidence(status=0, left=False),
            Verdict("exit status 0, without leaving the job: what it pushed last may be missing", 1),
        ),
        (Evidence(status=3), Verdict("exit status 3", 3)),
        (Evidence(status=3, left=True), Verdict("exit status 3", 3)),
        (Evidence(status=143, left=True), SIGTERM),
        (Evidence(status=-signal.SIGTERM), Verdict("killed by SIGTERM", 143)),
        (Evidence(status=-signal.SIGKILL), Verdict("killed by SIGKILL", 137)),
        (Evidence(status=-99), Verdict("killed by signal 99", 227)),
        # from inside: what left its program
        (Evidence(error=SystemExit()), Verdict()),
        (Evidence(error=SystemExit(0)), Verdict()),
        (Evidence(error=SystemExit(False)), Verdict()),
        (Evidence(error=SystemExit(3)), Verdict("exit status 3", 3)),
        (Evidence(error=SystemExit(143)), SIGTERM),
        (Evidence(error=SystemExit("no data")), Verdict("exit status 1: no data", 1)),
        (Evidence(error=ValueError("bad data")), Verdict("ValueError: bad data", 1)),
        (Evidence(error=KeyboardInterrupt()), Verdict("killed by SIGINT", 130)),
        (Evidence(error=asyncio.CancelledError()), Verdict("its task was cancelled", 1)),
        (Evidence(error=ProgramFailed("ValueError: bad data")), Verdict("ValueError: bad data", 1)),
    ],
    ids=str,
)
def test_the_table_of_endings(evidence, verdict):
    assert judge(evidence) == verdict
    assert judge(evidence).failed == bool(verdict.why)


ENDS = """
import atexit, sys
from flowmx import program
program.watch()
atexit.register(lambda: print(repr(program.ended_by())))
"""


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("pass", "None"),
        ("sys.exit()", "SystemExit(None)"),
        ("sys.exit(3)", "SystemExit(3)"),
        ("sys.exit('no data')", "SystemExit('no data')"),
        ("def main(): sys.exit(4)\nmain()", "SystemExit(4)"),
        ("1 / 0", "ZeroDivisionError('division by zero')"),
        ("try: sys.exit(2)\nexcept SystemExit: pass", "None"),
        ("import threading; t = threading.Thread(target=sys.exit, args=(5,)); t.start(); t.join()", "None"),
        ("import asyncio\nasync def main(): sys.exit(6)\nasyncio.run(main())", "SystemExit(6)"),
    ],
)
def test_a_program_knows_at_its_exit_what_ended_it(code, said):
    ran = subprocess.run([sys.executable, "-c", ENDS + code], capture_output=True, text=True)
    assert ran.stdout.strip() == said, ran.stderr
