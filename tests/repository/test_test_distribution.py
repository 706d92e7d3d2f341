"""The distribution of the tests among processes."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from _pytest.assertion.rewrite import PYTEST_TAG

from tests.durations import SECONDS, LongestFirst, is_new, name_of, one_first, seconds

TESTS = Path(__file__).parent.parent

LONG, SHORT = "test_long.py", "test_short.py"
WAITS, WAITS_TOO, WAITS_LAST = "test_waits.py", "test_waits_too.py", "test_waits_last.py"


class Process:
    """The scheduler's view of a process."""

    def __init__(self, number):
        self.gateway = SimpleNamespace(id=f"gw{number}")
        self.given = []
        self._done = 0
        self.shutting_down = False
        self.is_dead = False

    def send_runtest_some(self, numbers):
        if self.is_dead:
            raise OSError("cannot send (already closed?)")
        self.given.extend(numbers)

    @property
    def undone(self):
        return len(self.given) - self._done

    def done(self, count):
        """Give the numbers of the next tests that are done."""
        self._done += count
        return self.given[self._done - count : self._done]

    def shutdown(self):
        self.shutting_down = True


@pytest.fixture
def lanes(tmp_path, monkeypatch):
    for name in (LONG, SHORT):
        (tmp_path / name).write_text("")
    for name in (WAITS, WAITS_TOO, WAITS_LAST):
        (tmp_path / name).write_text("os.fork()")
    monkeypatch.setattr("tests.durations.ADDITIONAL", 2)
    monkeypatch.setitem(SECONDS, "long", 100)
    monkeypatch.setitem(SECONDS, "waits", 9)
    monkeypatch.setitem(SECONDS, "waits_too", 8)
    option = SimpleNamespace(tx=["3*popen"], loadscopereorder=True)
    config = SimpleNamespace(rootpath=tmp_path, option=option, getvalue=lambda name: getattr(option, name))
    return LongestFirst(config)


def begin(lanes, tests, count):
    """Share the tests out among so many processes."""
    lanes.numnodes = count
    processes = [Process(number) for number in range(count)]
    for each in processes:
        lanes.add_node(each)
        lanes.add_node_collection(each, tests)
    lanes.schedule()
    return processes


def test_the_longest_files_come_first_and_waiting_files_run_alongside(lanes):
    names = (SHORT, LONG, WAITS_LAST, WAITS_TOO, WAITS)
    tests = [f"{file}::test_{number}" for file in names for number in range(4)]
    first, second, third = processes = begin(lanes, tests, 3)

    def files(process):
        return [tests[number].partition("::")[0] for number in process.given[::4]]

    def done(process, count):
        for number in process.done(count):
            lanes.mark_test_complete(process, number)

    assert [files(each) for each in processes] == [[LONG], [WAITS], [WAITS_TOO]]
    done(second, 2)
    assert files(second) == [WAITS, WAITS_LAST], "the next file is given when two tests are left"
    done(second, 4)
    assert files(second) == [WAITS, WAITS_LAST, SHORT], "nothing waits any more"
    assert lanes.has_pending
    done(second, 6)
    for each in (first, third):
        done(each, 4)
    assert all(each.shutting_down for each in processes)
    assert not lanes.has_pending
    assert lanes.tests_finished


def test_the_work_of_a_dead_process_is_redistributed_without_the_test_that_killed_it(lanes):
    tests = [f"{file}::test" for file in (LONG, SHORT, WAITS, WAITS_TOO, WAITS_LAST)]
    (first,) = begin(lanes, tests, 1)
    lanes.mark_test_complete(first, *first.done(1))
    died_in = tests[first.given[1]]
    assert lanes.remove_node(first) == died_in

    second = Process(1)
    lanes.add_node(second)
    lanes.add_node_collection(second, tests)
    lanes.schedule()
    while second.undone:
        assert second.undone > 1 or second.shutting_down, "it waits for another test for ever"
        lanes.mark_test_complete(second, *second.done(1))
    assert sorted(first.given[:1] + second.given) == [number for number in range(5) if tests[number] != died_in]


def test_files_sent_to_a_dead_process_are_run_by_others(lanes):
    tests = [f"{file}::test_{number}" for file in (LONG, SHORT, WAITS) for number in range(3)]
    first, second = begin(lanes, tests, 2)
    first.is_dead = True
    lanes.mark_test_complete(first, *first.done(1))  # what it did last; there is room for another file
    assert lanes.remove_node(first) == tests[first.given[1]]
    while second.undone:
        lanes.mark_test_complete(second, *second.done(1))
    assert sorted(first.given[:2] + second.given) == list(range(9))


def compile_in(folder):
    (folder / "engine" / "__pycache__").mkdir(parents=True)
    (folder / "engine" / "__pycache__" / f"test_that.{PYTEST_TAG}.pyc").touch()


def test_a_folder_is_new_until_pytest_has_compiled_tests_in_it(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    assert is_new(tmp_path)
    compile_in(tmp_path)
    assert not is_new(tmp_path)


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such locks")
def test_one_process_collects_first_and_the_others_in_parallel(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    coming, together = threading.Barrier(3, timeout=60), threading.Barrier(2, timeout=60)
    order = []

    def other():
        coming.wait()
        with one_first(tmp_path):
            order.append("other")
            together.wait()

    with ThreadPoolExecutor(2) as pool:
        with one_first(tmp_path):
            compile_in(tmp_path)
            others = [pool.submit(other) for _ in range(2)]
            coming.wait()
            order.append("first")
        for each in others:
            each.result()
    assert order == ["first", "other", "other"]


def test_the_files_with_recorded_durations_exist():
    files = [path.relative_to(TESTS.parent).as_posix() for path in TESTS.rglob("test_*.py")]
    assert SECONDS.keys() <= {name_of(file) for file in files}
    assert seconds("tests/graph/test_mode_fuzzer.py", 1) == SECONDS["graph/mode_fuzzer"]
    assert seconds("tests/test_no_such_file.py", 200) > seconds("tests/test_no_such_file.py", 100)
