"""Rows of tables that share a test: all of them run, and each failure is reported."""

import pytest

from tests.rows import rows

TABLE = [("small", 1), ("small", 2), ("great", 30), ("great", 4), ("great", 50)]


def test_a_group_is_an_item_and_each_row_is_run():
    calls = []

    @rows(("size", "number"), TABLE, of=lambda row: row[0])
    def check(number, size, fixture):
        calls.append((size, number, fixture))

    (mark,) = check.pytestmark
    assert mark.kwargs["ids"] == ["small", "great"]
    for group in mark.args[1]:
        check(group, fixture="made once")
    assert calls == [(*row, "made once") for row in TABLE]


def refuse(number):
    if number != 30:
        raise ValueError("few" if number < 10 else "many")


def test_all_failing_rows_are_reported_by_name():
    @rows("row", TABLE, of=lambda row: row[0], name=lambda row: f"of {row[1]}")
    def check(row):
        with pytest.raises(ValueError, match="few"):
            refuse(row[1])

    small, great = check.pytestmark[0].args[1]
    check(small)
    with pytest.raises(BaseExceptionGroup, match="2 of 3 rows fail: row of 30, row of 50") as caught:
        check(great)
    missing, other = caught.value.exceptions
    assert "DID NOT RAISE" in str(missing)
    assert "many" in str(other)


def test_a_row_that_skips_fails_without_affecting_others():
    ran = []

    @rows("row", TABLE, of=lambda row: "all", name=lambda row: f"of {row[1]}")
    def check(row):
        ran.append(row)
        if row[1] == 2:
            pytest.skip("no reason")

    with pytest.raises(BaseExceptionGroup, match="1 of 5 rows fail: row of 2"):
        check(TABLE)
    assert ran == TABLE


def test_a_test_that_times_out_ends():
    ran = []

    @rows("row", TABLE, of=lambda row: "all")
    def check(row):
        ran.append(row)
        pytest.fail("Timeout (>120.0s) from pytest-timeout.")

    with pytest.raises(pytest.fail.Exception, match="Timeout"):
        check(TABLE)
    assert ran == TABLE[:1]


def test_a_table_without_rows_is_refused():
    with pytest.raises(AssertionError, match="the table has no rows"):
        rows("row", [], of=str)
