"""flowmx's plugin for pytest: the engine is idle between tests, and a leaked failure is reported at its test.

This package does not import flowmx, so tests that do not use flowmx lose no time. Its settings in pytest:

* ``flowmx_idle_timeout``: seconds to wait after each test until its operations are done (default 10; 0: do not wait);
* ``flowmx_leaks``: ``error`` (default), ``warn`` or ``ignore``, for operations that failed without a wait.

``-p no:flowmx_pytest`` turns it off.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Generator
from typing import Any

import pytest

__all__ = ["LeakedFailure", "LeakedOperations", "LeakedWarning"]

_LEAKS = ("error", "warn", "ignore")
_FAILED = pytest.StashKey[bool]()


class LeakedFailure(AssertionError):
    """An operation of the test failed, and the test did not wait for it; the cause is the operation's own error."""


class LeakedOperations(AssertionError):
    """Operations of the test had not completed when it ended, nor within the timeout."""


class LeakedWarning(UserWarning):
    """The warning for a :class:`LeakedFailure`, where ``flowmx_leaks`` is ``warn``."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the settings."""
    parser.addini("flowmx_idle_timeout", "seconds to wait after a test until flowmx's engine is idle", default="10")
    parser.addini("flowmx_leaks", "how to report failures without a wait: error, warn or ignore", default="error")


def pytest_configure(config: pytest.Config) -> None:
    """Validate the settings.

    Raises:
        pytest.UsageError: a setting has an invalid value.
    """
    leaks = config.getini("flowmx_leaks")
    if leaks not in _LEAKS:
        raise pytest.UsageError(f"flowmx_leaks is {leaks!r}, expected one of {', '.join(_LEAKS)}")
    _timeout(config)


def _timeout(config: pytest.Config) -> float:
    setting = config.getini("flowmx_idle_timeout")
    try:
        seconds = float(setting)
    except ValueError:
        seconds = -1.0
    if not seconds >= 0:
        raise pytest.UsageError(f"flowmx_idle_timeout is {setting!r}, expected a number of seconds")
    return seconds


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Record whether the test failed: its leaks then follow from that failure."""
    report = yield
    item.stash[_FAILED] = item.stash.get(_FAILED, False) or report.failed
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """After the fixtures' teardown, wait for the engine and report leaked failures.

    Raises:
        LeakedFailure: an operation failed, and the test did not wait for it.
        LeakedOperations: operations did not complete in time.
    """
    result = yield
    engine = getattr(sys.modules.get("flowmx.engine.runtime"), "engine", None)
    if engine is not None:
        _wait_and_report(engine, item)
    return result


def _wait_and_report(engine: Any, item: pytest.Item) -> None:
    timeout = _timeout(item.config)
    is_idle = not timeout or not engine.pending or engine.drain(timeout)
    with engine.lock:
        leaked = [failure for failure in engine.failures if not failure.raised and not _is_cancelled(failure.exception)]
        first = min(leaked, key=lambda failure: failure.serial, default=None)
        engine.books.take_unraised()
    if item.stash.get(_FAILED, False):
        return
    leaks = item.config.getini("flowmx_leaks")
    if first is not None and leaks != "ignore":
        text = (
            f"{len(leaked)} of the test's operations failed, and it waited for none of them; "
            f"the first with {type(first.exception).__name__}: {first.exception}"
        )
        if leaks == "error":
            raise LeakedFailure(text) from first.exception.with_traceback(first.traceback)
        warnings.warn(LeakedWarning(f"{item.nodeid}: {text}"), stacklevel=2)
    if not is_idle:
        count = len(engine.pending)
        raise LeakedOperations(
            f"{count} operations were not done {timeout:g} s after the test, the oldest {engine.books.oldest()!r}: "
            "await or cancel them, or set flowmx_idle_timeout in pytest's settings (0: do not wait)"
        )


def _is_cancelled(error: BaseException) -> bool:
    return type(error).__name__ == "OperationCancelled"
