"""The tests in several processes, which are forked once the tests are collected; tests/lanes.py says which runs what.

A fork costs milliseconds where collecting costs each new process seconds, and compiling the tests as much again.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest
from _pytest.config import create_terminal_writer

from tests.lanes import Lanes

PATIENCE = 2.0
"""Seconds that a process has to end when the run is broken off."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the option."""
    text = "cores to keep busy, `auto` for all: see tests/lanes.py (default: 0, all tests in this process)"
    parser.addoption("--cores", default="0", help=text)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the tests in forks, where several are asked for and can be."""
    cores = session.config.getoption("cores")
    option = session.config.option
    if cores == "0" or option.collectonly or option.usepdb or session.testsfailed or not hasattr(os, "fork"):
        return None
    Runner(session, _cores() if cores == "auto" else int(cores)).run()
    return True


def _cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Process:
    """A fork of this process that runs the tests of the files that it is sent."""

    def __init__(self, session: pytest.Session, others: list[Process]) -> None:
        self.file = ""
        self.left: list[int] = []
        """The numbers of the file's tests that have not run yet."""
        self.connection, there = Pipe()
        self.pid = os.fork()
        if not self.pid:
            for each in (self, *others):
                each.connection.close()
            _work(session, there)
        there.close()

    def send(self, file: str, tests: list[int]) -> None:
        """Have it run the tests of a file."""
        self.file, self.left = file, list(tests)
        self.connection.send(tests)

    def end(self, *, now: bool = False) -> int:
        """Have it end once its tests are done, or now; return its exit code."""
        if now:
            os.kill(self.pid, signal.SIGTERM)
            killer = threading.Timer(PATIENCE, os.kill, (self.pid, signal.SIGKILL))
            killer.start()
        self.connection.close()
        status = os.waitpid(self.pid, 0)[1]
        if now:
            killer.cancel()
        return os.waitstatus_to_exitcode(status)


class Runner:
    """The process that has collected the tests, and reports what the others run."""

    def __init__(self, session: pytest.Session, cores: int) -> None:
        self.session = session
        self.files: dict[str, list[int]] = {}
        for number, item in enumerate(session.items):
            self.files.setdefault(item.nodeid.partition("::")[0], []).append(number)
        self.lanes = Lanes(session.config.rootpath, {file: len(tests) for file, tests in self.files.items()}, cores)
        self.processes: list[Process] = []

    def run(self) -> None:
        """Run all tests.

        Raises:
            pytest.Session.Failed: enough have failed.
        """
        gc.collect()
        gc.freeze()  # the collector would copy, in each fork, all pages of what is collected
        capture = cast(Any, self.session.config.pluginmanager.getplugin("capturemanager"))
        capture.suspend_global_capture(in_=True)
        try:
            while file := self.lanes.next():
                self._start(file)
            while self.processes:
                for connection in wait([each.connection for each in self.processes]):
                    self._receive(next(each for each in self.processes if each.connection is connection))
        finally:
            for each in self.processes:
                each.end(now=True)
            capture.resume_global_capture()

    def _start(self, file: str, tests: list[int] | None = None) -> None:
        process = Process(self.session, self.processes)
        self.processes.append(process)
        process.send(file, self.files[file] if tests is None else tests)

    def _receive(self, process: Process) -> None:
        """Report a test that has run, and hand the process another file after its last."""
        received = None
        with contextlib.suppress(EOFError, ConnectionResetError):
            received = process.connection.recv()
        if received is None:
            self._lost(process)
            return
        reports, warned = received
        process.left.pop(0)
        config = self.session.config
        for each in warned:
            config.hook.pytest_warning_recorded.call_historic(kwargs=each)
        for data in reports:
            self._report(config.hook.pytest_report_from_serializable(config=config, data=data))
        if process.left:
            return
        self.lanes.done(process.file)
        if file := self.lanes.next():
            process.send(file, self.files[file])
            return
        self.processes.remove(process)
        if code := process.end():
            self.session.testsfailed += 1
            config.get_terminal_writer().line(f"\nthe process of {process.file} ended with {code}, after its tests")

    def _report(self, report: pytest.TestReport) -> None:
        self.session.config.hook.pytest_runtest_logreport(report=report)
        if self.session.shouldfail:
            raise self.session.Failed(self.session.shouldfail)

    def _lost(self, process: Process) -> None:
        """Report the test in which a process ended, and run those behind it in another."""
        self.processes.remove(process)
        item = self.session.items[process.left.pop(0)]
        text = f"the process ended with {process.end()} in this test"
        self._report(pytest.TestReport(item.nodeid, item.location, {}, "failed", text, "call"))
        if process.left:
            self._start(process.file, process.left)
            return
        self.lanes.done(process.file)
        if file := self.lanes.next():
            self._start(file)


# -- in the forks ------------------------------------------------------------------------------------------


class Sender:
    """A plugin that keeps the reports of a test, to be sent."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self.reports: list[dict[str, Any]] = []
        self.warned: list[dict[str, Any]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep a report."""
        self.reports.append(self._config.hook.pytest_report_to_serializable(config=self._config, report=report))

    def pytest_warning_recorded(self, warning_message: Any, when: str, nodeid: str, location: Any) -> None:
        """Keep a warning; where it was given is in the location."""
        warning_message.source = None
        self.warned.append({"warning_message": warning_message, "when": when, "nodeid": nodeid, "location": location})

    def sent(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Take what is kept."""
        kept, self.reports, self.warned = (self.reports, self.warned), [], []
        return kept


def _work(session: pytest.Session, connection: Connection) -> NoReturn:
    """Run the tests of the files that come, and end this process."""
    code = 1
    try:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
            _run(session, connection)
            session._setupstate.teardown_exact(None)
            code = 0
        atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _run(session: pytest.Session, connection: Connection) -> None:
    config = session.config
    capture = cast(Any, config.pluginmanager.getplugin("capturemanager"))
    capture.stop_global_capturing()  # its files are those of the process that has forked this one
    capture.start_global_capturing()
    config.pluginmanager.unregister(name="terminalreporter")
    shown = SimpleNamespace(_tw=create_terminal_writer(config, sys.__stderr__))  # of tests that take too long
    config.pluginmanager.register(shown, "terminalreporter")
    sender = Sender(config)
    config.pluginmanager.register(sender)
    for tests in _received(connection):
        items = [session.items[number] for number in tests]
        # Any test of another file: what belongs to the file is torn down behind its last test, not what all share.
        other = next((each for each in session.items if each.path != items[0].path), None)
        for item, following in zip(items, [*items[1:], other], strict=True):
            config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            connection.send(sender.sent())


def _received(connection: Connection) -> Iterator[list[int]]:
    with contextlib.suppress(EOFError):
        while True:
            yield connection.recv()
