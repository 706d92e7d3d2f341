"""The distribution of the tests among processes."""

from pathlib import Path

import pytest

from tests.lanes import SECONDS, Lanes, seconds

LONG, SHORT, SHORTER, WAITS, WAITS_TOO = "test_long.py", "test_b.py", "test_c.py", "test_waits.py", "test_waits_too.py"


@pytest.fixture
def lanes(tmp_path, monkeypatch):
    for name in (LONG, SHORT, SHORTER):
        (tmp_path / name).write_text("")
    for name in (WAITS, WAITS_TOO, "test_waits_last.py", "test_waits_still.py"):
        (tmp_path / name).write_text("os.fork()")
    monkeypatch.setitem(SECONDS, "long", 100)
    monkeypatch.setitem(SECONDS, "waits", 9)

    def made(*files, cores=2):
        return Lanes(tmp_path, {file: 5 - number for number, file in enumerate(files)}, cores)

    return made


def started(lanes):
    return [*iter(lanes.next, "")]


def test_as_many_compute_as_there_are_cores_the_longest_first_and_two_wait_beside_them(lanes):
    found = lanes(SHORT, LONG, WAITS_TOO, SHORTER, WAITS)
    assert started(found) == [WAITS, LONG, SHORT, WAITS_TOO]
    found.done(WAITS)
    assert started(found) == [], "two compute already"
    found.done(LONG)
    assert started(found) == [SHORTER]


def test_where_nothing_is_left_to_compute_more_wait(lanes):
    found = lanes(WAITS, WAITS_TOO, "test_waits_last.py", "test_waits_still.py", cores=1)
    assert started(found) == [WAITS, WAITS_TOO, "test_waits_last.py"]
    found.done(WAITS_TOO)
    assert started(found) == ["test_waits_still.py"]


def test_the_files_whose_length_is_known_exist():
    folder = Path(__file__).parent
    assert [name for name in SECONDS if not (folder / f"test_{name}.py").is_file()] == []
    assert seconds("tests/test_modes.py", 1) == SECONDS["modes"]
    assert seconds("tests/test_no_such_file.py", 200) > seconds("tests/test_no_such_file.py", 100)
