"""The distribution of the tests among processes."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.lanes import SECONDS, Lanes, seconds

LONG, SHORT, WAITS, WAITS_TOO = "test_long.py", "test_short.py", "test_waits.py", "test_waits_too.py"


class Process:
    """The scheduler's view of a process."""

    def __init__(self):
        self.gateway = SimpleNamespace(id="gw")
        self.given = []
        self._done = 0
        self.shutting_down = False

    def send_runtest_some(self, numbers):
        self.given.extend(numbers)

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
    for name in (WAITS, WAITS_TOO):
        (tmp_path / name).write_text("os.fork()")
    monkeypatch.setitem(SECONDS, "long", 100)
    monkeypatch.setitem(SECONDS, "waits", 9)
    option = SimpleNamespace(tx=["2*popen"], loadscopereorder=True)
    config = SimpleNamespace(rootpath=tmp_path, option=option, getvalue=lambda name: getattr(option, name))
    return Lanes(config)


def test_the_longest_come_first_and_one_that_waits_runs_beside_one_that_does_not(lanes):
    tests = [f"{file}::test_{number}" for file in (SHORT, LONG, WAITS_TOO, WAITS) for number in range(4)]
    first, second = Process(), Process()
    for each in (first, second):
        lanes.add_node(each)
        lanes.add_node_collection(each, tests)
    lanes.schedule()

    def files(process):
        return [tests[number].partition("::")[0] for number in process.given[::4]]

    def done(process, count):
        for number in process.done(count):
            lanes.mark_test_complete(process, number)

    assert (files(first), files(second)) == ([WAITS], [LONG])
    done(first, 2)
    assert files(first) == [WAITS, SHORT], "the next file is given when two tests are left"
    done(first, 4)
    assert files(first) == [WAITS, SHORT, WAITS_TOO]
    assert files(second) == [LONG]
    assert lanes.has_pending
    done(first, 6)
    done(second, 4)
    assert first.shutting_down
    assert second.shutting_down
    assert not lanes.has_pending
    assert lanes.tests_finished


def test_the_files_whose_length_is_known_exist():
    folder = Path(__file__).parent
    assert [name for name in SECONDS if not (folder / f"test_{name}.py").is_file()] == []
    assert seconds("tests/test_modes.py", 1) == SECONDS["modes"]
    assert seconds("tests/test_no_such_file.py", 200) > seconds("tests/test_no_such_file.py", 100)
