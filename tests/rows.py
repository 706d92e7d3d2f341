"""Tests of tables: fast rows share one pytest test, which reports every failing row."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from flowmx.ops.registry.operators import lookup
from tests.op_cases.case import Case


def rows(
    names: str | Sequence[str],
    table: Iterable[Any],
    *,
    of: Callable[[Any], str] = str,
    name: Callable[[Any], str] = str,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test for each row of a table, as ``pytest.mark.parametrize`` does, but with one item for each group.

    Args:
        names: the test's argument that takes a row, or the arguments that take its parts.
        table: the rows.
        of: gives a row's group, which is the id of the group's item.
        name: gives a row's name, by which a failure tells it.

    All rows of a group run, whichever fail; one that skips fails too, since the others would go with it. Fixtures
    are set up once for a group: one that notes what happens, as ``calls`` does, would also hold what earlier rows
    did.

    Raises:
        ExceptionGroup: from the test, what the rows raised, each with a note that names the row.
    """
    groups: dict[str, list[Any]] = {}
    for row in table:
        groups.setdefault(of(row), []).append(row)
    assert groups, "the table has no rows"

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(rows_of_group: Sequence[Any], **fixtures: Any) -> None:
            failures: list[BaseException] = []
            for row in rows_of_group:
                arguments = {names: row} if isinstance(names, str) else dict(zip(names, row, strict=True))
                try:
                    test(**arguments, **fixtures)
                except (Exception, pytest.fail.Exception, pytest.skip.Exception) as error:
                    if "pytest-timeout" in str(error):
                        raise
                    error.add_note(f"row {name(row)}")
                    failures.append(error)
            if failures:
                summary = ", ".join(error.__notes__[-1] for error in failures)
                raise BaseExceptionGroup(f"{len(failures)} of {len(rows_of_group)} rows fail: {summary}", failures)

        signature = inspect.signature(test)
        taken = (names,) if isinstance(names, str) else names
        fixtures = [parameter for parameter in signature.parameters.values() if parameter.name not in taken]
        first = inspect.Parameter("rows_of_group", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        run.__signature__ = signature.replace(parameters=[first, *fixtures])  # type: ignore[attr-defined]
        grouped: Callable[..., None] = pytest.mark.parametrize(
            "rows_of_group", list(groups.values()), ids=list(groups)
        )(run)
        return grouped

    return decorate


def operator(case: Case) -> str:
    """Return the name of the operator of a case."""
    return case.op


def operator_of_key(key: str) -> str:
    """The operator of a case, by the case's key."""
    return re.split("[- ]", key)[0]


def label(case: Case) -> str:
    """The id of a case."""
    return case.id


def family(name: str) -> str:
    """The module that defines an operator, below ``flowmx.ops``."""
    return lookup(name).__module__.removeprefix("flowmx.ops.")
