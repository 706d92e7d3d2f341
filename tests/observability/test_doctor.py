"""Planted faults: the doctor names each of them, with the responsible line of code or process."""

import asyncio
import contextlib
import gc
import json
import os
import threading
import time
from weakref import WeakSet

import aiohttp
import numpy as np
import pytest
from aiohttp import web

import flowmx as mx
from flowmx import settings
from flowmx.comm.security import Security
from flowmx.devices.sim import simulated
from flowmx.engine.runtime import engine
from flowmx.graph import capacity
from flowmx.observability import flight
from flowmx.observability.doctor import add_to, command, fetch, rules, wait_chains
from flowmx.observability.doctor.report import render
from flowmx.observability.doctor.rules import diagnose
from flowmx.observability.flight import curves, folder, observation

SECONDS = 0.3


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(curves, "curves", {})  # curves of earlier tests in this process may be NaN
    monkeypatch.setattr(capacity, "_caches", WeakSet())  # and they may have dropped graphs
    monkeypatch.setattr(rules, "SLOW", 0.05)
    monkeypatch.setattr(rules, "BLOCKED", 0.1)


@pytest.fixture
def ask():
    """Return a function that diagnoses this process and returns the first finding."""

    def diagnose_process(seconds=SECONDS, values=True):
        snapshot = json.loads(json.dumps(observation.observe(seconds, values), default=str))
        findings = diagnose([snapshot])
        text = render([snapshot], findings)
        assert findings, text
        assert findings[0].kind in text and "CAUSE" in text
        return findings[0]

    return diagnose_process


@contextlib.contextmanager
def in_background(work):
    """Run work repeatedly in a thread that has the name of a main thread."""
    stopping = threading.Event()

    def run():
        while not stopping.is_set():
            work()

    thread = threading.Thread(target=run, name="program")
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join(20)
        mx.nd.waitall()


# -- the faults ---------------------------------------------------------------------------------------------


def test_an_operation_that_never_ends(ask):
    gate = threading.Event()
    x = mx.nd.ones((300, 300))

    def endless():
        gate.wait()  # here

    mx.engine.push(endless, writes=[x])
    y = mx.nd.dot(x, x)
    reader = threading.Thread(target=y.wait_to_read)
    reader.start()
    try:
        finding = ask()
        snapshot = observation.observe(0.0)
        text = render([snapshot], diagnose([snapshot]))
    finally:
        gate.set()
        reader.join()
    assert finding.kind == "an operation that does not end" and "'endless'" in finding.text
    assert finding.line.endswith("in endless: gate.wait()  # here")
    picture = [line.strip() for line in text.splitlines()]
    at = next(i for i, line in enumerate(picture) if "waits, for" in line)
    assert "'dot'" in text and "through an array (300, 300) float32" in text
    assert any("operation 'endless'" in line and "running on cpu(0) for" in line for line in picture[at:])


def test_a_deadlocked_custom_operator(ask):
    lock = threading.Lock()

    class Dead(mx.operator.CustomOp):
        def forward(self, is_train, req, in_data, out_data, aux):
            with lock:  # never ours
                self.assign(out_data[0], req[0], in_data[0])

    @mx.operator.register("dead_of_doctor")
    class DeadProp(mx.operator.CustomOpProp):
        def create_operator(self, ctx, shapes, dtypes):
            return Dead()

    lock.acquire()
    y = mx.nd.Custom(mx.nd.ones((2, 2)), op_type="dead_of_doctor")
    reader = threading.Thread(target=y.wait_to_read)
    reader.start()
    try:
        finding = ask()
    finally:
        lock.release()
        reader.join()
    assert finding.kind == "deadlocked Custom operator"
    assert finding.line.endswith("in forward: with lock:  # never ours") and "waits for an event" in finding.advice


def test_a_failure_is_reported_until_it_is_observed(ask):
    def failing():
        raise ValueError("broken")

    x = mx.nd.ones((2,))
    mx.engine.push(failing, writes=[x])
    while not observation.observe(0.0)["failures"]:
        pass
    assert ask().kind == "an operation failed"
    with pytest.raises(ValueError, match="broken"):
        x.wait_to_read()
    assert not observation.observe(0.0)["failures"]


def test_a_failure_is_reported_with_its_operation_line_and_count(ask):
    def failing():
        raise ValueError("broken")

    for _ in range(5):
        mx.engine.push(failing, name="mine")
    mx.engine.push(lambda: {}["no"], name="other")
    try:
        while len(observation.observe(0.0)["failures"]) < 2 or observation.observe(0.0)["failures"][0]["times"] < 5:
            pass
        findings = [each for each in diagnose([observation.observe(0.0)]) if each.kind == "an operation failed"]
        assert [each.text for each in findings] == [
            "ValueError: broken (raised by operation 'mine' on cpu(0), 5 times)",
            "KeyError: 'no' (raised by operation 'other' on cpu(0))",
        ]
        assert (
            findings[0].line.endswith('mx.engine.push(failing, name="mine")') and "test_doctor.py:" in findings[0].line
        )
    finally:
        with pytest.raises(ValueError, match="broken"):
            mx.nd.waitall()


class Slow:
    def __init__(self, seconds):
        self.seconds = seconds

    def __len__(self):
        return 10_000

    def __getitem__(self, index):
        threading.Event().wait(self.seconds)  # a slow disk
        return np.zeros(3, "float32")


@pytest.mark.parametrize("workers", [0, 1])
def test_a_starved_loader(ask, workers):
    loader = mx.gluon.data.DataLoader(Slow(0.01), batch_size=4, num_workers=workers, thread_pool=True)
    batches = iter(loader)
    with in_background(lambda: next(batches).sum().wait_to_read()):
        finding = ask()
    batches.close()
    assert finding.kind == "starved loader" and "of the time" in finding.text


def test_a_leak_by_line(ask):
    arrays = []

    def work():
        loss = mx.nd.ones((64, 64)) * 2
        (loss + 1).wait_to_read()
        arrays.append(loss)  # grows
        threading.Event().wait(0.005)

    with in_background(work):
        finding = ask(values=False)
    assert finding.kind == "leak" and "loss = mx.nd.ones((64, 64)) * 2" in finding.line


def test_constant_memory_is_not_a_leak():
    with in_background(lambda: (mx.nd.ones((64, 64)) * 2).wait_to_read()):
        assert observation.observe(SECONDS)["seen"]["growth"] == []


def test_a_silent_device_crossing(ask):
    engine.books.journal and engine.books.journal.clear()
    with simulated("a10"):
        host, x = mx.nd.ones((8, 8)), mx.nd.ones((8, 8), ctx=mx.sim(0))
        for _ in range(40):
            x[:] = host  # crosses
            x = x + 1
        x.wait_to_read()
        finding = ask(0.0)
    assert finding.kind == "device crossing" and finding.line.endswith("# crosses")


def test_a_nan(ask):
    x = mx.nd.array([-1.0] * 100)
    with in_background(lambda: x.log().wait_to_read()):  # the line
        finding = ask()
    assert finding.kind == "NaN" and "operator log" in finding.text
    assert "the line" in finding.line


def test_a_blocked_event_loop(ask):
    started = threading.Event()

    async def service():
        handle = mx.engine.push(lambda: None, device=mx.cpu())
        await handle
        started.set()
        time.sleep(1.0)  # blocks the loop

    thread = threading.Thread(target=lambda: mx.run(service()), name="service")
    thread.start()
    started.wait()
    finding = ask()
    thread.join()
    assert finding.kind == "blocked event loop" and "thread service" in finding.text
    assert "time.sleep(1.0)" in finding.line


async def predicted():
    net = mx.gluon.nn.Dense(3)
    net.initialize()
    await mx.serve.Predictor(net, shape=(5,))([1, 2, 3, 4, 5])


async def loaded():
    await anext(aiter(mx.gluon.data.DataLoader(mx.gluon.data.ArrayDataset([1.0, 2.0]), 1)))


@pytest.mark.parametrize("await_something", [predicted, loaded])
def test_a_blocked_event_loop_that_awaits_no_operation_itself(ask, await_something):
    started, end = threading.Event(), threading.Event()

    async def service():
        await await_something()
        started.set()
        end.wait()  # blocks the loop

    thread = threading.Thread(target=lambda: asyncio.run(service()), name="service")
    thread.start()
    started.wait()
    try:
        finding = ask()
    finally:
        end.set()
        thread.join()
    assert finding.kind == "blocked event loop" and "thread service" in finding.text
    assert "blocks the loop" in finding.line


def test_an_event_loop_that_was_blocked_during_observation(ask):
    started, ended = threading.Event(), threading.Event()

    async def service():
        await mx.engine.push(lambda: None, device=mx.cpu())
        started.set()
        time.sleep(0.2)  # blocks it for a while
        while not ended.is_set():
            await asyncio.sleep(0.001)

    thread = threading.Thread(target=lambda: mx.run(service()), name="service")
    thread.start()
    started.wait()
    finding = ask(0.5)
    ended.set()
    thread.join()
    assert finding.kind == "blocked event loop" and finding.line.endswith("# blocks it for a while")


def test_an_overloaded_server(ask):
    flight.describe("serving", lambda: {"warnings": ["128 of 128 places of the queue are taken"]})
    try:
        finding = ask(0.0)
    finally:
        flight.forget("serving")
    assert (finding.kind, finding.text) == ("serving warns", "128 of 128 places of the queue are taken")


def test_a_predictor_that_refuses_requests(ask):
    data = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4, name="dense")
    params = {"dense_weight": mx.nd.ones((4, 5)), "dense_bias": mx.nd.zeros((4,))}
    predictor = mx.serve.Predictor(data, (5,), params=params, max_batch=1, max_queue=1, name="digits")

    async def flood(predictor):
        async with predictor:
            requests = (predictor(np.zeros(5, "float32")) for _ in range(40))
            await asyncio.gather(*requests, return_exceptions=True)

    mx.run(flood(predictor))
    finding = ask(0.0)
    assert finding.kind == "overloaded server" and "digits is overloaded" in finding.text
    report = flight.report_registry.reports()["serving digits"]
    assert report["requests"]["refused"] + report["requests"]["answered"] == 40 and report["limit"] == 1
    del predictor
    gc.collect()
    assert "serving digits" not in flight.report_registry.reports()


def test_a_curve_that_is_not_finite(ask, monkeypatch):
    monkeypatch.setattr(curves, "curves", {})
    curves.log("loss", 1.0)
    curves.log("loss", float("nan"))
    finding = ask(0.0)
    assert finding.kind == "NaN" and "the curve 'loss' is nan" in finding.text


# -- several processes --------------------------------------------------------------------------------------


def node(name, waits=(), peers=(), operations=(), exchanges=(), version="1", **more):
    report = {"node": name, "waits": list(waits), "peers": list(peers), "facts": {"the version of the wire": version}}
    return {
        "process": {"pid": 1, "program": name, "host": "h", "versions": {"flowmx": "1"}},
        "engine": {"pending": 0, "pending_bytes": 0, "failed": 0, "actors": {}},
        "operations": list(operations), "waits": [], "threads": [{"name": "MainThread", "stack": ["train.py:3 in f"]}],
        "reports": {"kvstore": report}, "exchanges": list(exchanges), **more,
    }  # fmt: skip


PULL = {
    "id": 1, "name": "kvstore pull", "state": "running", "actor": "kvstore worker 1", "layer": None, "line": "a.py:1",
    "seconds": 9.0, "waits_for": [],
}  # fmt: skip
ASKED = {"peer": "server 0", "operation": "pull", "facts": {"keys": ["3"]}, "seconds": 9.0}
ROUND = {"for": "worker 2", "what": "the round of key 3", "seconds": None}


def test_a_chain_over_three_nodes_ends_at_the_one_to_blame():
    stuck = {**PULL, "id": 5, "name": "endless", "actor": "cpu(0)", "stack": ["b.py:7 in endless: f.read()"]}
    snapshots = [
        node("worker 1", operations=[PULL], exchanges=[ASKED]), node("server 0", waits=[ROUND]),
        node("worker 2", operations=[stuck]),
    ]  # fmt: skip
    findings = diagnose(snapshots)
    assert (findings[0].node, findings[0].line) == ("worker 2", "b.py:7 in endless: f.read()")
    text = render(snapshots, findings)
    assert "worker 1: pull of key 3: waits for server 0 for 9.0 s" in text
    assert "server 0: the round of key 3: waits for worker 2" in text


def test_a_node_that_others_wait_for_and_that_does_nothing():
    snapshots = [
        node("worker 1", operations=[PULL], exchanges=[ASKED]), node("server 0", waits=[ROUND]), node("worker 2"),
    ]  # fmt: skip
    finding = diagnose(snapshots)[0]
    assert (finding.kind, finding.node, finding.line) == ("a late node", "worker 2", "train.py:3 in f")


def test_a_lost_peer():
    why = "server 0 on h (node 12) is gone: silent for 10 s"
    survivor = node("worker 1", peers=[{"name": "server 0", "state": "gone", "why": why}], operations=[PULL])
    assert diagnose([survivor])[0][1:4] == ("lost peer", "server 0", why)


def test_a_peer_that_was_not_asked_is_suspected():
    finding = diagnose([node("worker 1", operations=[PULL], exchanges=[ASKED])])[0]
    assert (finding.kind, finding.node) == ("lost peer", "server 0") and "diagnose server 0 too" in finding.advice


def test_a_peer_that_answers_in_time_is_not_suspected():
    asked = {**ASKED, "seconds": 0.02}
    assert not diagnose([node("worker 1", operations=[{**PULL, "seconds": 0.02}], exchanges=[asked])])
    assert not diagnose([node("server 0", waits=[{**ROUND, "seconds": 0.02}])])
    assert diagnose([node("server 0", waits=[{**ROUND, "seconds": 2.0}])])[0].kind == "lost peer"


def test_nodes_waiting_in_a_cycle_terminate():
    other = node("server 0", waits=[{**ROUND, "for": "worker 1"}])
    waits = node("worker 1", waits=[{"for": "server 0", "what": "barrier 'b'", "seconds": 1.0}])
    assert wait_chains.wait_chains([waits, other])


def test_a_version_mismatch():
    finding = diagnose([node("worker 0"), node("worker 1", version="2"), node("worker 2")])[0]
    assert finding[1:4] == (
        "version mismatch",
        "worker 1",
        "the version of the wire is 2, expected 1, as on the other nodes",
    )
    refused = node(
        "worker 1", failures=[{"error": "KVStoreError", "text": "the nodes of the job differ: x", "notes": []}]
    )
    assert diagnose([refused])[0].kind == "version mismatch"


def test_a_healthy_process_has_no_findings():
    snapshot = node("worker 0")
    assert diagnose([snapshot]) == []
    assert "no fault found" in render([snapshot], [])


# -- fetching ------------------------------------------------------------------------------------------------


def queued():
    mx.nd.dot(mx.nd.ones((300, 300)), mx.nd.ones((300, 300))).wait_to_read()
    mx.engine.push(lambda: None, device=mx.cpu()).wait()


def test_a_process_answers_through_its_socket(capsys):
    queued()
    gate = threading.Event()
    mx.engine.push(gate.wait, name="stuck", device=mx.cpu())
    try:
        status = command.main([str(os.getpid()), "--seconds", "0.1"])
    finally:
        gate.set()
        mx.nd.waitall()
    assert status == 3 and "operation 'stuck'" in capsys.readouterr().out
    assert folder.path().stat().st_mode & 0o777 == 0o700


def test_a_report_is_read_like_a_process(tmp_path, capsys):
    queued()
    path = mx.flight_recorder.write(tmp_path / "report.json", why="tried out")
    assert command.main([str(path), "--json"]) in (0, 3)
    snapshot = json.loads(capsys.readouterr().out)["snapshots"][0]
    assert snapshot["why"] == "tried out"
    assert any(each["name"] == "dot" and "test_doctor.py" in each["line"] for each in snapshot["last"])


def test_an_unreachable_process_is_reported_with_the_reason():
    (snapshot,) = asyncio.run(fetch.fetch_all(["999999999"], 0.1))
    assert diagnose([snapshot])[0][1:4] == (
        "a missing process",
        "process 999999999",
        "there is no such process",
    )
    with pytest.raises(ValueError, match="'nobody' is not a process id"):
        asyncio.run(fetch.fetch("nobody", 0.1))


def refuse(headers):
    if headers.get("Authorization") != "Bearer me":
        raise PermissionError("who are you?")


async def serving(may=None):
    application = web.Application()
    add_to(application, may)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"


async def test_a_service_answers_over_http():
    runner, address = await serving()
    try:
        snapshot = await fetch.fetch(address, 0.1)
        assert snapshot["process"]["pid"] == os.getpid()
        async with aiohttp.ClientSession() as session, session.get(f"{address}/flowmx/doctor?seconds=x") as response:
            assert response.status == 400 and "seconds is 'x'" in await response.text()
    finally:
        await runner.cleanup()
    assert "cannot be reached" in (await fetch.fetch(address, 0.1))["unreached"]


async def test_a_service_with_a_secret_answers_requests_that_have_it(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("s" * 40)
    secret.chmod(0o600)
    runner, address = await serving(Security.from_file(secret).check_metrics)
    try:
        assert "it responded 403" in (await fetch.fetch(address, 0.1))["unreached"]
        with settings.override(secret_file=str(secret)):
            assert (await fetch.fetch(address, 0.1))["process"]["pid"] == os.getpid()
    finally:
        await runner.cleanup()


async def test_a_service_refuses_unauthenticated_requests():
    runner, address = await serving(refuse)
    try:
        assert "it responded 403" in (await fetch.fetch(address, 0.1))["unreached"]
    finally:
        await runner.cleanup()
