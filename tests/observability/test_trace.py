"""The profiler's trace: its format, the details of each operation; tables by layer; TensorBoard files."""

import asyncio
import json
import struct
import subprocess
import sys

import pytest

import flowmx as mx
from flowmx import profiler
from flowmx.gluon import nn
from flowmx.observability.flight import messages
from flowmx.profiler.chrome_trace import _lanes
from flowmx.profiler.tensorboard import crc32c
from tests.jobs import job
from tests.trace_format import problems

pytestmark = pytest.mark.usefixtures("profiler_afresh")


def traced(tmp_path):
    profiler.dump()
    document = json.loads((tmp_path / "profile.json").read_text())
    assert problems(document) == []
    return document["traceEvents"]


def slices(events, name=None):
    return [event for event in events if event["ph"] == "X" and name in (None, event["name"])]


def network(hybrid):
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(8, activation="relu"), nn.Dense(4))
    net.initialize()
    if hybrid:
        net.hybridize()
    net(mx.nd.ones((2, 3))).wait_to_read()
    return net


def trained(net):
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", kvstore=None)
    with mx.autograd.record():
        loss = net(mx.nd.ones((2, 3))).square().sum()
    loss.backward()
    trainer.step(2)
    mx.nd.waitall()


# -- what it says -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hybrid", [False, True])
def test_operations_of_a_network_carry_their_layers(tmp_path, hybrid):
    net = network(hybrid)
    profiler.set_state("run")
    trained(net)
    events = traced(tmp_path)
    actual = [event["args"].get("layer", "") for event in slices(events) if "FullyConnected" in event["name"]]
    assert {layer.split("/")[-1] for layer in actual} >= {"net_dense0", "net_dense1"}
    assert all(actual)
    rows = json.loads(profiler.dumps(format="json", by="layer"))["Time"]["layer"]
    assert any("net_dense1" in name for name in rows)


def test_a_bound_symbol_shows_its_operators_inside_of_its_operation(tmp_path):
    x = mx.sym.Variable("x")
    y = mx.sym.exp(mx.sym.FullyConnected(x, num_hidden=4, name="fc1") * 2 + 1, name="last")
    executor = y.simple_bind(mx.cpu(), x=(2, 3))
    profiler.set_state("run")
    executor.forward(is_train=True)
    executor.backward(mx.nd.ones((2, 4)))
    events = traced(tmp_path)
    (product,) = [each for each in slices(events, "FullyConnected") if each["cat"] == "operator"]
    assert product["args"]["layer"] == "fc1" and "test_trace.py" in product["args"]["line"]
    around = [
        each for each in slices(events)
        if each["cat"] == "operation" and each["tid"] == product["tid"]
        and each["ts"] <= product["ts"] and product["ts"] + product["dur"] <= each["ts"] + each["dur"] + 0.01
    ]  # fmt: skip
    assert len(around) == 1
    assert any("last" in each["args"].get("layer", "") for each in slices(events)), "a fused chain names its layers"


def test_an_operation_names_the_users_line_and_who_it_waited_for(tmp_path):
    profiler.set_state("run")
    a = mx.nd.ones((200, 200))
    with profiler.scope("mine"):
        b = mx.nd.dot(a, a)  # the line
    mx.nd.dot(b, b).wait_to_read()
    events = traced(tmp_path)
    first, second = slices(events, "dot")
    assert first["args"]["line"].endswith("b = mx.nd.dot(a, a)  # the line")
    assert first["args"]["scope"] == "mine:" and "scope" not in second["args"]
    arrows = {event["id"]: event for event in events if event["ph"] == "s"}
    ends = [event for event in events if event["ph"] == "f"]
    into = [end for end in ends if end["tid"] == second["tid"] and end["ts"] >= second["ts"] - 0.01]
    assert any(first["ts"] <= arrows[end["id"]]["ts"] <= first["ts"] + first["dur"] for end in into)


def test_tasks_have_separate_scopes():
    async def one(name):
        with profiler.scope(name):
            await asyncio.sleep(0)
            return profiler.recorder.scope_name.get().value

    async def both():
        return await asyncio.gather(one("a"), one("b"))

    assert asyncio.run(both()) == ["a:", "b:"]
    with profiler.scope("a:"), profiler.scope("b:"):
        assert profiler.recorder.scope_name.get().value == "a:b:"
        with profiler.scope("c", append_mode=False):
            assert profiler.recorder.scope_name.get().value == "c:"


def test_concurrent_operations_of_one_thread_have_separate_tracks(tmp_path):
    profiler.set_state("run")

    async def both():
        meeting = asyncio.Barrier(2)
        handles = [mx.engine.push(meeting.wait, name=name) for name in ("one", "two")]
        for handle in handles:
            await handle

    mx.run(both())
    events = traced(tmp_path)
    assert slices(events, "one")[0]["tid"] != slices(events, "two")[0]["tid"]


def test_memory_and_the_users_own_marks(tmp_path):
    profiler.set_state("run")
    domain = profiler.Domain("mine")
    count = domain.new_counter("seen", 3)
    with domain.new_task("epoch"), domain.new_frame("batch"), profiler.Event("event"):
        array = mx.nd.ones((1000, 1000))
        array.wait_to_read()
        count += 2
        count -= 1
    domain.new_marker("here").mark("thread")
    events = traced(tmp_path)
    values = [event["args"]["value"] for event in events if event["ph"] == "C" and event["name"] == "seen"]
    assert values == [3, 5, 4]
    memory = [event["args"]["value"] for event in events if event["ph"] == "C" and event["name"] == "memory of cpu"]
    assert max(memory) >= array.size * 4
    assert {each["name"] for each in slices(events)} >= {"epoch", "batch", "event"}
    assert [event["name"] for event in events if event["ph"] == "i"] == ["here"]
    assert json.loads(profiler.dumps(format="json"))["Time"]["mine"]["epoch"]["Count"] == 1


def test_requests_to_servers_have_bytes_and_a_peer(tmp_path):
    profiler.set_state("run")
    with messages.exchange("server 0", "push", bytes=400, keys=["3"]):
        pass
    (actual,) = slices(traced(tmp_path), "push")
    assert actual["args"] == {"peer": "server 0", "bytes": 400, "keys": ["3"]}


def test_a_job_shows_what_travels(tmp_path):
    def work(kv):
        kv.init("w", mx.nd.zeros((100,)))
        profiler.set_state("run")
        kv.push("w", mx.nd.ones((100,)))
        out = mx.nd.zeros((100,))
        kv.pull("w", out)
        out.wait_to_read()
        profiler.set_state("stop")

    with job(workers=1, servers=1) as local:
        local.each(work)
    events = traced(tmp_path)
    requests = [event for event in slices(events) if event["cat"] == "kvstore"]
    assert {event["name"] for event in requests} == {"push", "pull"}
    for event in requests:
        assert event["args"]["bytes"] == 400 and event["args"]["peer"] == "server 0" and event["args"]["keys"] == ["w"]
    assert all(event["dur"] > 0 for event in slices(events, "kvstore pull"))


def test_only_graphs_are_traced_if_requested(tmp_path):
    net = network(hybrid=True)
    profiler.set_config(profile_symbolic=True)
    profiler.set_state("run")
    net(mx.nd.ones((2, 3)) + 1).wait_to_read()
    names = {each["name"] for each in slices(traced(tmp_path))}
    assert any("FullyConnected" in name for name in names) and "_plus_scalar" not in names


def test_settings_start_it(tmp_path):
    script = "import flowmx as mx; a = mx.nd.ones((2, 2)); mx.nd.dot(a, a).wait_to_read()"
    variables = {"FLOWMX_PROFILER_AUTOSTART": "1", "FLOWMX_PROFILER_MODE": "1"}
    import os

    subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, check=True, timeout=60, env={**os.environ, **variables}
    )
    events = json.loads((tmp_path / "profile.json").read_text())
    assert problems(events) == [] and slices(events["traceEvents"], "dot")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: profiler.dumps(by="line"), ValueError, "by is 'line'"),
        (lambda: profiler.Event("e").stop(), RuntimeError, "event 'e' was stopped before it was started"),
        (lambda: profiler.Domain("d").new_marker("m").mark("here"), ValueError, "scope is 'here'"),
    ],
)
def test_refusals(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_lanes():
    assert _lanes([(0, 2), (1, 3), (2, 4), (5, 6)]) == [0, 1, 0, 0]


# -- TensorBoard --------------------------------------------------------------------------------------------


def records_of(content):
    """Return the records of a TFRecord file after checking their checksums."""
    at = 0
    while at < len(content):
        (length,), (check,) = struct.unpack_from("<Q", content, at), struct.unpack_from("<I", content, at + 8)
        assert check == masked(content[at : at + 8])
        record = content[at + 12 : at + 12 + length]
        assert struct.unpack_from("<I", content, at + 12 + length)[0] == masked(record)
        yield record
        at += 16 + length


def masked(content):
    crc = 0xFFFFFFFF  # computed in another way than by the writer
    for bit in (byte >> shift & 1 for byte in content for shift in range(8)):
        crc = crc >> 1 ^ (0x82F63B78 if (crc ^ bit) & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def fields(message):
    at = 0

    def varint():
        nonlocal at
        number = shift = 0
        while True:
            byte = message[at]
            at += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number

    values = {}
    while at < len(message):
        key = varint()
        size = {1: 8, 5: 4}.get(key & 7)
        if key & 7 == 0:
            values[key >> 3] = varint()
            continue
        size = size or varint()
        values[key >> 3] = message[at : at + size]
        at += size
    return values


def test_tensorboard_reads_scalars_back(tmp_path):
    assert crc32c(b"123456789") == 0xE3069283  # the example of the standard
    profiler.set_state("run")
    mx.nd.dot(mx.nd.ones((2, 2)), mx.nd.ones((2, 2))).wait_to_read()
    path = profiler.dump_tensorboard(tmp_path / "logs")
    assert ".tfevents." in path.name
    first, *rest = map(fields, records_of(path.read_bytes()))
    assert first[3] == b"brain.Event:2"
    scalars = {}
    for event in rest:
        value = fields(fields(event[5])[1])
        scalars[value[1].decode()] = (event[2], struct.unpack("<f", value[2])[0])
        assert struct.unpack("<d", event[1])[0] > 1.7e9
    assert scalars["operator/dot/count"] == (0, 1.0)
    assert scalars["operator/dot/total"][1] > 0


# -- the checker --------------------------------------------------------------------------------------------

NAMES = {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "cpu(0)"}}
RIGHT = {"ph": "X", "name": "dot", "ts": 1.0, "dur": 2.0, "pid": 1, "tid": 1}
ARROW = {"name": "a", "cat": "a", "id": "1", "pid": 1, "tid": 1, "ts": 2.0}


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        ([{**RIGHT, "ph": "Q"}], "no known phase"),
        ([{key: value for key, value in RIGHT.items() if key != "dur"}], "has no dur"),
        ([{**RIGHT, "ts": -1.0}], "ts -1.0"),
        ([{**RIGHT, "dur": float("nan")}], "dur nan"),
        ([{**RIGHT, "tid": 2**40}], "small int"),
        ([{**RIGHT, "name": ""}], "expected text"),
        ([RIGHT, {**RIGHT, "ts": 2.0}], "overlaps"),
        ([{**RIGHT, "tid": 2}], "without a name"),
        ([NAMES], "two names"),
        ([{"ph": "C", "name": "m", "ts": 1, "pid": 1, "args": {"value": "1"}}], "values are numbers"),
        ([{"ph": "i", "name": "m", "ts": 1, "pid": 1, "tid": 1, "s": "x"}], "scope 'x'"),
        ([RIGHT, {**ARROW, "ph": "s"}], "ends 0 times"),
        ([RIGHT, {**ARROW, "ph": "s"}, {**ARROW, "ph": "f", "bp": "e", "ts": 1.5}], "before it begins"),
        ([RIGHT, {**ARROW, "ph": "s"}, {**ARROW, "ph": "f", "bp": "e", "ts": 9.0}], "in no slice"),
    ],
)
def test_the_checker_finds_broken_traces(events, problem):
    assert problems({"traceEvents": [NAMES, RIGHT]}) == []
    assert any(problem in description for description in problems({"traceEvents": [NAMES, *events]}))
    assert problems([]) != []
