"""pytest's plugin: idle between tests, leaked failures at their tests, nothing where flowmx is not used."""

import pytest

pytest_plugins = ["pytester"]

LEAK = """
import flowmx as mx
from flowmx import engine

def fails():
    raise OSError("the disk is full")

def test_leaks():
    engine.push(fails, (), ())

def test_after():
    mx.nd.waitall()
"""


@pytest.fixture
def run(pytester):
    """Run a test file in this process, with the plugin and these settings."""

    def ran(text, *args, **ini):
        lines = "".join(f"{name} = {value}\n" for name, value in ini.items())
        pytester.makeini(f"[pytest]\n{lines}")
        pytester.makepyfile(text)
        return pytester.runpytest_inprocess(
            "-p", "flowmx_pytest", "-W", "default", "-p", "no:asyncio", "-p", "no:xdist", *args
        )

    return ran


def test_a_leaked_failure_is_reported_at_its_test(run):
    result = run(LEAK)
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(
        [
            "*ERROR at teardown of test_leaks*",
            "*OSError: the disk is full*",
            "*LeakedFailure: 1 of the test's operations failed, and it waited for none of them; the first with*",
        ]
    )


def test_leaks_may_be_warnings(run):
    result = run(LEAK, flowmx_leaks="warn")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*LeakedWarning: *::test_leaks: 1 of the test's operations failed*"])


def test_leaks_may_be_ignored_and_still_do_not_reach_the_next_test(run):
    run(LEAK, flowmx_leaks="ignore").assert_outcomes(passed=2)


def test_failures_left_by_a_failed_test_are_not_reported_separately(run):
    result = run(LEAK.replace("engine.push(fails, (), ())", "engine.push(fails, (), ()); assert False"))
    result.assert_outcomes(passed=1, failed=1)


def test_awaited_failures_are_not_leaks(run):
    waited = "    import pytest\n    with pytest.raises(OSError):\n        mx.nd.waitall()\n"
    run(LEAK.replace("engine.push(fails, (), ())\n", f"engine.push(fails, (), ())\n{waited}")).assert_outcomes(passed=2)


def test_the_engine_is_idle_when_the_next_test_begins(run):
    run("""
        import threading
        from flowmx import engine
        from flowmx.engine.runtime import engine as running

        go, done = threading.Event(), []

        def late():
            go.wait()
            done.append(True)

        def test_leaves_work():
            engine.push(late, (), ())
            threading.Timer(0.05, go.set).start()

        def test_finds_it_done():
            assert done
            assert not running.pending
    """).assert_outcomes(passed=2)


def test_work_that_never_ends_is_an_error_in_its_test(run):
    result = run(
        """
        import threading
        from flowmx import engine

        go = threading.Event()

        def late():
            go.wait()

        def test_leaves_work():
            engine.push(late, (), ())

        def test_lets_it_end():
            go.set()
        """,
        flowmx_idle_timeout="0.01",
    )
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(
        [
            "*ERROR at teardown of test_leaves_work*",
            "*LeakedOperations: 1 operations were not done 0.01 s after the test, the oldest *late*flowmx_idle*",
        ]
    )


@pytest.mark.parametrize(
    ("ini", "message"),
    [
        ({"flowmx_leaks": "eror"}, "flowmx_leaks is 'eror', expected one of error, warn, ignore"),
        ({"flowmx_idle_timeout": "soon"}, "flowmx_idle_timeout is 'soon', expected a number of seconds"),
    ],
)
def test_invalid_settings_are_refused(run, ini, message):
    result = run("def test_nothing(): pass", **ini)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*{message}"])


def test_tests_without_flowmx_do_not_import_it(pytester):
    pytester.makepyfile(
        "import sys\ndef test_it():\n    assert 'flowmx_pytest' in sys.modules and 'flowmx' not in sys.modules"
    )
    pytester.runpytest_subprocess("-p", "flowmx_pytest").assert_outcomes(passed=1)
