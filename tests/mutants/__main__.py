"""``python -m tests.mutants COUNT SEED``: put faults into a copy of the source, and see which tests find them.

Each fault (tests/mutants/faults.py) is drawn with the seed and stands in the copy alone, while the test files closest
to it (tests/mutants/related.py) run, their closest tests first, until one fails. Failed tests run once more without a
fault at the end, so that a test that fails anyhow is not counted. ``--only 3,7`` repeats some of the faults,
``--files`` and ``--limit`` widen the search for those that survived, ``--list`` prints them alone. A survivor is a
fault that changes nothing, code that nothing needs, or a test that is missing.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

import aiohttp  # noqa: F401
import hypothesis  # noqa: F401
import numpy as np  # noqa: F401
import pytest
import pytest_asyncio  # noqa: F401
import requests  # noqa: F401
import xdist  # noqa: F401

# What flowmx and the tests import is imported once, before the processes of the faults are forked.
# isort: split

from tests.mutants.faults import FOLDERS, Fault, drawn
from tests.mutants.order import VARIABLE
from tests.mutants.related import Tests

ROOT = Path(__file__).parents[2]
LEFT_OUT = ".venv*", ".git", "build", "dist", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis"
FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", re.MULTILINE)  # and no line of a log
PYTEST = (
    *("-q", "--tb=line", "--timeout", "120", "-p", "no:cacheprovider", "-p", "tests.mutants.order"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # its plugins are imported before it starts
)

SURVIVED, OUT_OF_TIME = "survived", "survived, out of time"


class Trial:
    """A copy of the checkout in which tests run with a fault or without."""

    def __init__(self, copy: Path, files: int, limit: float) -> None:
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*LEFT_OUT))
        self.copy, self.files, self.limit = copy, files, limit
        self.tests = Tests(copy)
        self._runs = 0

    def found_by(self, fault: Fault, without: list[str]) -> str:
        """The first test that fails with a fault, other than those named, or SURVIVED."""
        path = self.copy / fault.path
        source = path.read_bytes()
        closest = self.tests.closest(source.decode(), fault.path, fault.function)[: self.files]
        weights = self.tests.weights(source.decode(), fault.path, fault.function)
        self._write(path, fault.applied(source))
        try:
            options = ["-x", *(f"--deselect={test}" for test in without)]
            failed = self.failing([*options, *(str(test.relative_to(self.copy)) for test in closest)], weights)
        except TimeoutError:
            return OUT_OF_TIME
        finally:
            self._write(path, source)
        return failed[0] if failed else SURVIVED

    def failing_anyhow(self, tests: Iterable[str]) -> list[str]:
        """Those of some tests that fail without a fault too."""
        tests = [test for test in {*tests} if "::" in test]
        return self.failing(tests, limit=10 * self.limit) if tests else []

    def failing(
        self, arguments: list[str], weights: dict[str, float] | None = None, limit: float | None = None
    ) -> list[str]:
        """The tests that fail, or what ended the run before them.

        Raises:
            TimeoutError: they take longer than the limit.
        """
        with tempfile.TemporaryFile("w+") as output:
            if not (child := os.fork()):
                self._test(arguments, weights or {}, output.fileno())
            code = _exit_code(child, time.monotonic() + (limit or self.limit))
            output.seek(0)
            text = output.read()
        if code == pytest.ExitCode.OK or code == pytest.ExitCode.NO_TESTS_COLLECTED:
            return []
        return FAILED.findall(text) or [f"the end of the process, with {code}: {text.strip()[-200:]}"]

    def _test(self, arguments: list[str], weights: dict[str, float], output: int) -> NoReturn:
        """Run pytest in the copy, and exit with its status."""
        code = 1
        try:
            os.setsid()
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.chdir(self.copy)
            os.environ |= {VARIABLE: json.dumps(weights), "PYTHONPATH": str(self.copy), "CI": "1"}
            sys.path[0] = str(self.copy)
            for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
                del sys.modules[name]
            code = int(pytest.main([*PYTEST, *arguments]))
            sys.stdout.flush()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def _write(self, path: Path, source: bytes) -> None:
        """Write a file with a unique modification time, so that no stale compiled file matches it."""
        path.write_bytes(source)
        self._runs += 1
        os.utime(path, (self._runs, self._runs))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.split("\n\n")[0])
    parser.add_argument("count", type=int, help="number of faults")
    parser.add_argument("seed", type=int)
    parser.add_argument("--only", type=lambda text: [int(number) for number in text.split(",")], help="their numbers")
    parser.add_argument("--files", type=int, default=6, help="number of test files for each fault (default: 6)")
    parser.add_argument("--limit", type=float, default=300, help="seconds for each fault (default: 300)")
    parser.add_argument("--folders", nargs="+", default=FOLDERS, help="folders of the source")
    parser.add_argument("--list", action="store_true", help="print the faults alone")
    options = parser.parse_args()

    faults = dict(enumerate(drawn(ROOT, options.count, options.seed, tuple(options.folders)), 1))
    chosen = {number: faults[number] for number in options.only or faults}
    if options.list:
        print(*(f"{number:3} {fault}" for number, fault in chosen.items()), sep="\n")
        return
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial(Path(folder) / "copy", options.files, options.limit)
        if failing := trial.failing(["--collect-only", f"tests/{min(path.name for path in trial.tests.texts)}"]):
            raise SystemExit(f"the tests do not start without a fault either: {failing[0]}")
        outcomes = searched(trial, chosen, [])
        without: list[str] = []
        while failing := [test for test in trial.failing_anyhow(outcomes.values()) if test in outcomes.values()]:
            print("these fail without a fault too:", *failing)
            without += failing
            again = {number: chosen[number] for number, test in outcomes.items() if test in failing}
            outcomes |= searched(trial, again, without)
    survivors = [number for number, test in outcomes.items() if test.startswith(SURVIVED)]
    print(f"{len(outcomes) - len(survivors)} of {len(outcomes)} found; survivors: {survivors}")


def _exit_code(child: int, end: float) -> int:
    """The exit code of a process that leads its session, all of which is gone afterwards.

    Raises:
        TimeoutError: it has not ended by then.
    """
    while not os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        if time.monotonic() > end:
            break
        time.sleep(0.05)
    late = time.monotonic() > end
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # and what the tests started
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if late and code == -signal.SIGKILL:
        raise TimeoutError
    return code


def searched(trial: Trial, faults: dict[int, Fault], without: list[str]) -> dict[int, str]:
    """The finder of each fault, printed one by one."""
    outcomes = {}
    for number, fault in faults.items():
        began = time.monotonic()
        outcomes[number] = trial.found_by(fault, without)
        print(f"{number:3} {fault}: {outcomes[number]} ({time.monotonic() - began:.0f} s)", flush=True)
    return outcomes


if __name__ == "__main__":
    main()
