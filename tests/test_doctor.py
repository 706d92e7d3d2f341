"""Planted faults, each of which the doctor names, with the line of code or the process that is to blame."""

import asyncio
import contextlib
import gc
import json
import os
import threading
import time

import aiohttp
import numpy as np
import pytest
from aiohttp import web

import flowmx as mx
from flowmx import settings
from flowmx.comm.security import Security
from flowmx.devices.sim import simulated
from flowmx.engine.runtime import engine
from flowmx.observability import flight
from flowmx.observability.doctor import add_to, asking, chains, command, rules
from flowmx.observability.doctor.picture import draw
from flowmx.observability.doctor.rules import diagnose
from flowmx.observability.flight import curves, folder, observing

SECONDS = 0.3


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(curves, "curves", {})  # those of earlier tests of this process may be at NaN
    monkeypatch.setattr(rules, "SLOW", 0.05)
    monkeypatch.setattr(rules, "BLOCKED", 0.1)


@pytest.fixture
def ask():
    """Ask this process, and give the culprit."""

    def found(seconds=SECONDS, values=True):
        snapshot = json.loads(json.dumps(observing.observe(seconds, values), default=str))
        findings = diagnose([snapshot])
        text = draw([snapshot], findings)
        assert findings, text
        assert findings[0].kind in text and "CULPRIT" in text
        return findings[0]

    return found


@contextlib.contextmanager
def beside(work):
    """Run work again and again in a thread named as a program's main one."""
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
        found = ask()
        snapshot = observing.observe(0.0)
        text = draw([snapshot], diagnose([snapshot]))
    finally:
        gate.set()
        reader.join()
    assert found.kind == "an operation that does not end" and "'endless'" in found.text
    assert found.line.endswith("in endless: gate.wait()  # here")
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
        found = ask()
    finally:
        lock.release()
        reader.join()
    assert found.kind == "deadlocked Custom operator"
    assert found.line.endswith("in forward: with lock:  # never ours") and "waits for something" in found.advice


def test_a_failure_is_told_until_somebody_has_seen_it(ask):
    def failing():
        raise ValueError("broken")

    x = mx.nd.ones((2,))
    mx.engine.push(failing, writes=[x])
    while not observing.observe(0.0)["failures"]:
        pass
    assert ask().kind == "an operation failed"
    with pytest.raises(ValueError, match="broken"):
        x.wait_to_read()
    assert not observing.observe(0.0)["failures"]


def test_a_failure_is_told_with_its_operation_its_line_and_how_often(ask):
    def failing():
        raise ValueError("broken")

    for _ in range(5):
        mx.engine.push(failing, name="mine")
    mx.engine.push(lambda: {}["no"], name="other")
    try:
        while len(observing.observe(0.0)["failures"]) < 2 or observing.observe(0.0)["failures"][0]["times"] < 5:
            pass
        found = [each for each in diagnose([observing.observe(0.0)]) if each.kind == "an operation failed"]
        assert [each.text for each in found] == [
            "ValueError: broken (raised by operation 'mine' on cpu(0), 5 times)",
            "KeyError: 'no' (raised by operation 'other' on cpu(0))",
        ]
        assert found[0].line.endswith('mx.engine.push(failing, name="mine")') and "test_doctor.py:" in found[0].line
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
    with beside(lambda: next(batches).sum().wait_to_read()):
        found = ask()
    batches.close()
    assert found.kind == "starved loader" and "of the time" in found.text


def test_a_leak_by_line(ask):
    kept = []

    def work():
        loss = mx.nd.ones((64, 64)) * 2
        (loss + 1).wait_to_read()
        kept.append(loss)  # grows
        threading.Event().wait(0.005)

    with beside(work):
        found = ask(values=False)
    assert found.kind == "leak" and "loss = mx.nd.ones((64, 64)) * 2" in found.line


def test_what_does_not_grow_is_no_leak():
    with beside(lambda: (mx.nd.ones((64, 64)) * 2).wait_to_read()):
        assert observing.observe(SECONDS)["seen"]["growth"] == []


def test_a_silent_device_crossing(ask):
    engine.books.journal and engine.books.journal.clear()
    with simulated("a10"):
        host, x = mx.nd.ones((8, 8)), mx.nd.ones((8, 8), ctx=mx.sim(0))
        for _ in range(40):
            x[:] = host  # crosses
            x = x + 1
        x.wait_to_read()
        found = ask(0.0)
    assert found.kind == "device crossing" and found.line.endswith("# crosses")


def test_a_nan(ask):
    x = mx.nd.array([-1.0] * 100)
    with beside(lambda: x.log().wait_to_read()):  # the line
        found = ask()
    assert found.kind == "NaN" and "operator log" in found.text
    assert "the line" in found.line


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
    found = ask()
    thread.join()
    assert found.kind == "blocked event loop" and "thread service" in found.text
    assert "time.sleep(1.0)" in found.line


def test_an_event_loop_that_was_blocked_while_somebody_looked(ask):
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
    found = ask(0.5)
    ended.set()
    thread.join()
    assert found.kind == "blocked event loop" and found.line.endswith("# blocks it for a while")


def test_an_overloaded_server(ask):
    flight.describe("serving", lambda: {"warnings": ["128 of 128 places of the queue are taken"]})
    try:
        found = ask(0.0)
    finally:
        flight.forget("serving")
    assert (found.kind, found.text) == ("serving warns", "128 of 128 places of the queue are taken")


def test_a_predictor_that_refuses_requests(ask):
    data = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4, name="dense")
    params = {"dense_weight": mx.nd.ones((4, 5)), "dense_bias": mx.nd.zeros((4,))}
    predictor = mx.serve.Predictor(data, (5,), params=params, max_batch=1, queue=1, name="digits")

    async def flood(predictor):
        async with predictor:
            requests = (predictor(np.zeros(5, "float32")) for _ in range(40))
            await asyncio.gather(*requests, return_exceptions=True)

    mx.run(flood(predictor))
    found = ask(0.0)
    assert found.kind == "overloaded server" and "digits is overloaded" in found.text
    said = flight.facts.said()["serving digits"]
    assert said["requests"]["refused"] + said["requests"]["answered"] == 40 and said["limit"] == 1
    del predictor
    gc.collect()
    assert "serving digits" not in flight.facts.said()


def test_a_curve_that_is_not_finite(ask, monkeypatch):
    monkeypatch.setattr(curves, "curves", {})
    curves.log("loss", 1.0)
    curves.log("loss", float("nan"))
    found = ask(0.0)
    assert found.kind == "NaN" and "the curve 'loss' is nan" in found.text


# -- several processes --------------------------------------------------------------------------------------


def node(name, waits=(), peers=(), operations=(), exchanges=(), version="1", **more):
    said = {"node": name, "waits": list(waits), "peers": list(peers), "facts": {"the version of the wire": version}}
    return {
        "process": {"pid": 1, "program": name, "host": "h", "versions": {"flowmx": "1"}},
        "engine": {"pending": 0, "pending_bytes": 0, "failed": 0, "actors": {}},
        "operations": list(operations), "waits": [], "threads": [{"name": "MainThread", "stack": ["train.py:3 in f"]}],
        "said": {"kvstore": said}, "exchanges": list(exchanges), **more,
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
    found = diagnose(snapshots)
    assert (found[0].node, found[0].line) == ("worker 2", "b.py:7 in endless: f.read()")
    text = draw(snapshots, found)
    assert "worker 1: pull of key 3: waits for server 0 for 9.0 s" in text
    assert "server 0: the round of key 3: waits for worker 2" in text


def test_a_node_that_others_wait_for_and_that_does_nothing():
    snapshots = [
        node("worker 1", operations=[PULL], exchanges=[ASKED]), node("server 0", waits=[ROUND]), node("worker 2"),
    ]  # fmt: skip
    found = diagnose(snapshots)[0]
    assert (found.kind, found.node, found.line) == ("a late node", "worker 2", "train.py:3 in f")


def test_a_lost_peer():
    why = "server 0 on h (node 12) is gone: silent for 10 s"
    gone = node("worker 1", peers=[{"name": "server 0", "state": "gone", "why": why}], operations=[PULL])
    assert diagnose([gone])[0][1:4] == ("lost peer", "server 0", why)


def test_a_peer_that_was_not_asked_is_suspected():
    found = diagnose([node("worker 1", operations=[PULL], exchanges=[ASKED])])[0]
    assert (found.kind, found.node) == ("lost peer", "server 0") and "ask server 0 too" in found.advice


def test_a_peer_that_answers_in_time_is_not_suspected():
    asked = {**ASKED, "seconds": 0.02}
    assert not diagnose([node("worker 1", operations=[{**PULL, "seconds": 0.02}], exchanges=[asked])])
    assert not diagnose([node("server 0", waits=[{**ROUND, "seconds": 0.02}])])
    assert diagnose([node("server 0", waits=[{**ROUND, "seconds": 2.0}])])[0].kind == "lost peer"


def test_nodes_in_a_circle_end():
    other = node("server 0", waits=[{**ROUND, "for": "worker 1"}])
    waits = node("worker 1", waits=[{"for": "server 0", "what": "barrier 'b'", "seconds": 1.0}])
    assert chains.stories([waits, other])


def test_a_version_mismatch():
    found = diagnose([node("worker 0"), node("worker 1", version="2"), node("worker 2")])[0]
    assert found[1:4] == ("version mismatch", "worker 1", "the version of the wire is 2, and 1 on the others")
    refused = node(
        "worker 1", failures=[{"error": "KVStoreError", "text": "the nodes of the job differ: x", "notes": []}]
    )
    assert diagnose([refused])[0].kind == "version mismatch"


def test_nothing_is_wrong_with_a_healthy_one():
    snapshot = node("worker 0")
    assert diagnose([snapshot]) == []
    assert "nothing is wrong" in draw([snapshot], [])


# -- asking -------------------------------------------------------------------------------------------------


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
    path = mx.flight.write(tmp_path / "report.json", why="tried out")
    assert command.main([str(path), "--json"]) in (0, 3)
    found = json.loads(capsys.readouterr().out)["snapshots"][0]
    assert found["why"] == "tried out"
    assert any(each["name"] == "dot" and "test_doctor.py" in each["line"] for each in found["last"])


def test_who_does_not_answer_says_why():
    (found,) = asyncio.run(asking.ask_all(["999999999"], 0.1))
    assert diagnose([found])[0][1:4] == (
        "a process that does not answer",
        "process 999999999",
        "there is no such process",
    )
    with pytest.raises(ValueError, match="'nobody' is no process number"):
        asyncio.run(asking.ask("nobody", 0.1))


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
        found = await asking.ask(address, 0.1)
        assert found["process"]["pid"] == os.getpid()
        async with aiohttp.ClientSession() as session, session.get(f"{address}/flowmx/doctor?seconds=x") as response:
            assert response.status == 400 and "seconds is 'x'" in await response.text()
    finally:
        await runner.cleanup()
    assert "can not be reached" in (await asking.ask(address, 0.1))["unreached"]


async def test_a_service_with_a_secret_answers_who_knows_it(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("s" * 40)
    secret.chmod(0o600)
    runner, address = await serving(Security.from_file(secret).check_metrics)
    try:
        assert "it answered 403" in (await asking.ask(address, 0.1))["unreached"]
        with settings.override(secret_file=str(secret)):
            assert (await asking.ask(address, 0.1))["process"]["pid"] == os.getpid()
    finally:
        await runner.cleanup()


async def test_a_service_refuses_strangers():
    runner, address = await serving(refuse)
    try:
        assert "it answered 403" in (await asking.ask(address, 0.1))["unreached"]
    finally:
        await runner.cleanup()
