"""The outputs of every operator's symbol: how many MXNet 1.9.1's JSON counts, their names, their shapes.

Recorded by tests/fixtures/record_symbols.py.
"""

import json

import flowmx as mx
from tests.fixtures.record_symbols import FILE, describe
from tests.op_cases import tables
from tests.op_cases.case import by_key
from tests.rows import rows

# Counted outputs that differ, and why.
COUNTED_OTHERWISE: dict[str, str] = {}


def recorded():
    for module, records in json.loads(FILE.read_text()).items():
        table = by_key(tables()[module])
        for name, expected in records.items():
            yield module, name, table.get(name), expected


@rows(("module", "name", "case", "expected"), recorded(), of=lambda row: row[0], name=lambda row: row[1])
def test_as_mxnet(module, name, case, expected):
    assert case is not None, f"{name} is not in the table any more: record the module again"
    counted, names, shapes = describe(mx, case)
    assert names == expected[1]
    assert [list(shape) for shape in shapes] == expected[2]
    if case.op not in COUNTED_OTHERWISE:
        assert counted == expected[0], "outputs that the JSON counts"
