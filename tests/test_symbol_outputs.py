"""The outputs of every operator's symbol: how many MXNet 1.9.1's JSON counts, their names, their shapes.

Recorded by tests/fixtures/record_symbols.py.
"""

import importlib
import json

import pytest

import flowmx as mx
from tests.fixtures.record_symbols import FILE, describe
from tests.op_cases.case import by_key

# Counted outputs that differ, and why.
COUNTED_OTHERWISE: dict[str, str] = {}


def recorded():
    for module, rows in json.loads(FILE.read_text()).items():
        table = by_key(importlib.import_module(f"tests.op_cases.{module}").CASES)
        for name, row in rows.items():
            yield pytest.param(name, table.get(name), row, id=f"{module}-{name}")


@pytest.mark.parametrize(("name", "case", "expected"), list(recorded()))
def test_as_mxnet(name, case, expected):
    assert case is not None, f"{name} is not in the table any more: record the module again"
    counted, names, shapes = describe(mx, case)
    assert names == expected[1]
    assert [list(shape) for shape in shapes] == expected[2]
    if case.op not in COUNTED_OTHERWISE:
        assert counted == expected[0], "outputs that the JSON counts"
