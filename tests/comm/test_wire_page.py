"""docs/wire.md matches the code: it lists every operation, field, refusal and message between servers."""

import ast
import re
from pathlib import Path
from typing import get_args, get_type_hints

import numpy as np
import pytest

from flowmx.comm import stream
from flowmx.comm.headers import COMMON
from flowmx.comm.limits import DEFAULT
from flowmx.comm.members import Code
from flowmx.comm.view import PHASES, Member, View
from flowmx.kvstore import compression, row_sparse_wire
from flowmx.kvstore.server import coalescing, wire
from flowmx.kvstore.server import protocol as p
from flowmx.kvstore.server.service import OPERATIONS
from flowmx.kvstore.server.state_machine import MAX_AHEAD
from flowmx.kvstore.server.store import Value

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "wire.md").read_text(encoding="utf-8")
TRANSPORT = {"tensors", "shared", *COMMON}
SCHEDULER = ("join", "heartbeat", "leave", "fail", "barrier", "view")
READERS = {"_node": {"node"}, "_subject": {"who", "node", "incarnation"}, "rounds_from_wire": {"rounds"}}


def section(title):
    """The text below a title, to the next of its level or above."""
    level = title.split(" ")[0]
    rest = PAGE[PAGE.index(f"{title}\n") + len(title) :]
    return re.split(rf"\n#{{1,{len(level)}}} ", rest, maxsplit=1)[0]


def tables(text):
    """The rows of a section's tables, as lists of cells, without their heads."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    heads = {i for i, row in enumerate(rows) if set(row[0]) == {"-"}}
    return [row for i, row in enumerate(rows) if i not in heads and i + 1 not in heads]


def named(cell):
    """The names that a cell explains: those in backquotes that begin it or a clause of it."""
    return set(re.findall(r"(?:^|; |, |and )`(\w+)`", cell))


def names(cell):
    return set(re.findall(r"`(\w+)`", cell))


def fields_read(path, cls):
    """Return the fields of the header that each method reads."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    body = next(node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == cls)
    methods = {node.name: node for node in body if isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef)}
    return {name.removeprefix("_"): _read_by(node) - TRANSPORT for name, node in methods.items()}


def _read_by(function):
    fields = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            fields |= READERS.get(name, set())
            if name in ("take", "items_of"):
                fields |= {"parts"} if name == "items_of" else set()
                fields |= {
                    key.value for a in node.args for d in ast.walk(a) if isinstance(d, ast.Dict) for key in d.keys
                }
            elif name.startswith("fields.") or name == "header.get":
                fields.add(next(a.value for a in node.args if isinstance(a, ast.Constant)))
    return fields


@pytest.mark.parametrize(
    ("title", "path", "cls", "operations"),
    [
        ("### The scheduler's operations", "comm/scheduler.py", "Scheduler", SCHEDULER),
        ("### The servers' operations", "flowmx/kvstore/server/service.py", "KVServer", OPERATIONS),
    ],
)
def test_every_operation_and_its_fields(title, path, cls, operations):
    rows = {next(iter(names(row[0]))): row for row in tables(section(title)) if len(row) > 2}
    rows = {name: row for name, row in rows.items() if name in operations or len(row) == 4}
    assert rows.keys() == set(operations)
    read = fields_read(path, cls)
    for operation, row in rows.items():
        assert read[operation] <= names(row[1]), f"{operation}: the page misses fields"
        assert named(row[1]) - {"number"} <= read[operation], f"{operation}: the page has fields that are not read"


def test_every_kind_of_refusal():
    shown = {next(iter(names(row[0]))) for row in tables(section("### The scheduler's operations")) if len(row) == 3}
    assert shown >= set(get_args(Code))
    shown = {next(iter(names(row[0]))) for row in tables(section("### The servers' operations")) if len(row) == 3}
    others = {"not_member", "no_window", "unknown_group", "round_failed"}
    assert shown == {*get_args(get_type_hints(p.Refused)["kind"]), *others}


def messages():
    """Return one message of each kind between servers."""
    part, value = p.Part("w", 0, 0), Value(np.zeros(2, np.float32))
    record = p.Record(part, 1, 1, 0, {}, {}, {}, value)
    yield p.StepSent(1, part, 1, p.PartStep("rest", 2))
    yield p.StepsSent(1, [part], [1], [p.PartStep("update", 2, merged=np.zeros(2, np.float32), marks=(("w", 1),))])
    yield p.Copy(1, record)
    yield p.Have(1, part, 1)
    yield p.Haves(1, [part], [1])
    yield p.Behind(1, part)
    yield p.Ask(1, 0)
    yield p.Tell(1, 0, {}, (0, None))
    yield p.Fetch(1, part)


def test_every_message_between_servers():
    rows = {next(iter(names(row[0]))): names(row[1]) for row in tables(section("### Between servers"))}
    packed = [wire.pack(message)[0] for message in messages()]
    assert rows == {message["kind"]: message.keys() - {"kind", "epoch"} for message in packed}
    assert len(packed) == len(get_args(p.Message))


def test_views_and_members():
    text = section("### The scheduler's operations")
    view = View("job", 1, 1, "running", (Member("a", "worker", 0),)).to_wire()
    assert names(text) >= {*view, *view["members"][0], *PHASES}


def test_numbers():
    text = PAGE.replace(",", "")
    for number in (
        int(DEFAULT.requests_per_second),
        DEFAULT.requests_by_peer,
        DEFAULT.peers,
        DEFAULT.tensors,
        MAX_AHEAD,
        coalescing.MAX_GROUPS,
        coalescing.MAX_PARTS,
    ):
        assert re.search(rf"\b{number}\b", text), number
    assert f"at most {wire.MAX_KEY} characters" in text
    assert {next(iter(names(row[0]))) for row in tables(section("### Gradient compression"))} == {
        *compression._MAKERS,
        row_sparse_wire.PACKING["type"],
    }


def test_streams():
    text = section("## Streams")
    assert f"Sec-WebSocket-Protocol: {stream.PROTOCOL}" in text
    assert f"`{stream.NONCE}`" in text
    assert f"an *authentication code* of {stream.MAC_SIZE} bytes" in " ".join(text.split())
    assert stream.MAX_MESSAGE == 1 << 20 and "at most 1 MiB" in text
    kinds = [re.match(r"to the (service|client): .* \| (\d); the call's number, 4 bytes", row) for row in rows_of(text)]
    assert [(each[1], int(each[2])) for each in kinds] == [
        ("service", stream.CALL), ("service", stream.CANCEL), ("client", stream.ANSWER), ("client", stream.PART)
    ]  # fmt: skip
    assert stream.PREFIX.size == 5


def rows_of(text):
    return [line.strip("| ") for line in text.splitlines() if line.startswith("| to the")]


def test_joined_requests():
    (text,) = (each for each in section("### The servers' operations").split("\n\n") if each.startswith("*Many small"))
    assert names(text) >= {"joined", *coalescing._FIELDS} - TRANSPORT


def test_the_checks_detect_missing_entries():
    page = "| `push` | `parts`; `more` (0): what; `odd` | | nothing |"
    (row,) = tables(page)
    assert named(row[1]) == {"parts", "more", "odd"}
    source = (
        "async def f(): fields.integer(header, 'a'); take(h, {'b': int}, {'c': str}); items_of(m, {'d': int}); _node(h)"
    )
    assert _read_by(ast.parse(source).body[0]) == {"a", "b", "c", "d", "parts", "node"}
