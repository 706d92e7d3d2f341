"""Exit reasons of nodes, and how a program reads its own."""

import asyncio
import signal
import subprocess
import sys

import pytest

from flowmx.comm.exit_reason import ExitReason, ProgramFailed, classify_exit

SIGTERM = ExitReason("terminated by SIGTERM (exit status 143)", 143)


@pytest.mark.parametrize(
    ("evidence", "reason"),
    [
        # from outside: by the exit status of the process
        ({}, ExitReason()),
        ({"status": 0}, ExitReason()),
        ({"status": 0, "left": True}, ExitReason()),
        (
            {"status": 0, "left": False},
            ExitReason("exit status 0 without leaving the job: its last pushes may be missing", 1),
        ),
        ({"status": 3}, ExitReason("exit status 3", 3)),
        ({"status": 3, "left": True}, ExitReason("exit status 3", 3)),
        ({"status": 143, "left": True}, SIGTERM),
        ({"status": -signal.SIGTERM}, ExitReason("killed by SIGTERM", 143)),
        ({"status": -signal.SIGKILL}, ExitReason("killed by SIGKILL", 137)),
        ({"status": -99}, ExitReason("killed by signal 99", 227)),
        # from inside: by the exception that ended the program
        ({"error": SystemExit()}, ExitReason()),
        ({"error": SystemExit(0)}, ExitReason()),
        ({"error": SystemExit(False)}, ExitReason()),
        ({"error": SystemExit(3)}, ExitReason("exit status 3", 3)),
        ({"error": SystemExit(143)}, SIGTERM),
        ({"error": SystemExit("no data")}, ExitReason("exit status 1: no data", 1)),
        ({"error": ValueError("bad data")}, ExitReason("ValueError: bad data", 1)),
        ({"error": KeyboardInterrupt()}, ExitReason("killed by SIGINT", 130)),
        ({"error": asyncio.CancelledError()}, ExitReason("its task was cancelled", 1)),
        ({"error": ProgramFailed("ValueError: bad data")}, ExitReason("ValueError: bad data", 1)),
    ],
    ids=str,
)
def test_the_table_of_exit_reasons(evidence, reason):
    assert classify_exit(**evidence) == reason
    assert classify_exit(**evidence).failed == bool(reason.why)


ENDS = """
import atexit, sys
from flowmx import program
program.record_exit_status()
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
def test_a_program_can_read_its_exit_reason(code, said):
    ran = subprocess.run([sys.executable, "-c", ENDS + code], capture_output=True, text=True)
    assert ran.stdout.strip() == said, ran.stderr
