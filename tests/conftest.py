"""Fixtures and settings of all tests."""

import contextlib
import gc
import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import settings

import flowmx as mx
from flowmx import download, profiler
from flowmx.engine.runtime import engine
from flowmx.ops.kernels.llvm import team
from tests import warm

# No deadline: an example's time depends on what else the machine does. In CI each run has the same examples.
settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")

# Tests inspect how plans are made, which must not depend on an earlier run (tests/graph/test_plan_cache.py).
os.environ["FLOWMX_EXEC_PLAN_CACHE"] = "0"

# Kernels have one thread, here and in processes that are started, on any machine. The tests run in as many processes as
# there are cores: in each, threads of a kernel would mostly spin until the system lets others of it run.
for name in ("FLOWMX_CPU_KERNEL_NTHREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(name, "1")

# A shell that starts the tests in the background has them ignore Ctrl-C, and what they start with them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What tests make lives long, so that the collector's runs, a tenth of all the time, find little. Processes that tests
# start have Python's own threshold.
gc.set_threshold(10_000, *gc.get_threshold()[1:])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    """Return the number of cores, plus the additional processes of tests/durations.py."""
    from tests.durations import ADDITIONAL

    return (os.cpu_count() or 1) + ADDITIONAL


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Distribute the tests among several processes by tests/durations.py."""
    from tests.durations import LongestFirst

    return LongestFirst(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session):
    """Collect the tests in one process first, where nothing is compiled yet."""
    if not hasattr(session.config, "workerinput") or sys.platform == "win32":
        return (yield)
    from tests.durations import one_first

    with one_first(Path(__file__).parent):
        return (yield)


@pytest.fixture
def calls(monkeypatch):
    """Record the number of threads of each call of compiled code."""
    reports = []

    real = team.run

    def run(function, words, threads, *arrays, **options):
        reports.append(threads)
        real(function, words, threads, *arrays, **options)

    monkeypatch.setattr(team, "run", run)
    return reports


@pytest.fixture(scope="module")
def two_threads_a_kernel():
    """Use two threads in kernels, for tests of kernels."""
    with mx.engine.using(cpu_kernel_nthreads=2):
        yield


@pytest.fixture(autouse=True, scope="session")
def warm_python():
    """Start Python processes in milliseconds, where the system supports it: see tests/warm.py."""
    with warm.starts() if sys.platform == "linux" else contextlib.nullcontext():
        yield


@pytest.fixture
def new_python(monkeypatch):
    """Start Python processes as new interpreters, for tests of imports or of the interpreter."""
    monkeypatch.setattr(warm.Popen, "server", None)


@pytest.fixture
def whole_endings(monkeypatch):
    """Start Python processes that end like new interpreters, for tests of the end of programs."""
    monkeypatch.setattr(warm.Popen, "ends_whole", True)


@pytest.fixture(autouse=True)
def new_python_in_soak(request):
    """Start real interpreters in the soak tests, as users do."""
    if request.node.get_closest_marker("soak"):
        request.getfixturevalue("new_python")


@pytest.fixture
def offline(monkeypatch):
    """Refuse all connections immediately, so that downloads fail."""
    monkeypatch.setenv("FLOWMX_GLUON_REPO", "http://127.0.0.1:9/")
    monkeypatch.setattr(download, "_FIRST_PAUSE", 0)


@pytest.fixture
def profiler_afresh(tmp_path, monkeypatch):
    """Provide an empty profiler whose files are in the test's folder."""

    def reset():
        profiler.set_state("stop")
        profiler.dumps(reset=True)
        profiler.set_config(filename="profile.json", profile_all=True)

    monkeypatch.chdir(tmp_path)
    mx.nd.waitall()
    reset()  # an earlier test may have used another file
    yield
    reset()


@pytest.fixture(autouse=True, scope="module")
def quick_collections():
    """Freeze existing objects: with 18,000 tests and their reports, each full garbage collection takes long."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def failures_of_its_own():
    """Wait for a test's operations, and forget unread failures, so that neither affects another test."""
    yield
    if engine.pending:
        engine.drain(5)
    if engine.failures:
        with engine.lock:
            engine.books.take_unraised()
