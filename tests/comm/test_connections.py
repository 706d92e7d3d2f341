"""Unauthenticated connections do not lock out members: idle, slow and half-open ones only displace each other."""

import asyncio
import contextlib
import gc
import re
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from flowmx import settings
from flowmx.comm import connections
from flowmx.comm.client import Peer
from flowmx.comm.connections import ConnectionRecord, ConnectionTable, Phase
from flowmx.comm.errors import Busy
from flowmx.comm.frames import Message
from flowmx.comm.limits import DASHBOARD, DEFAULT, SERVING, Limits, limits_for
from flowmx.comm.security import Security
from flowmx.comm.server import Service

SECRET = "sixteen bytes or more"


# -- the rule ------------------------------------------------------------------------------------------------


class Crowd:
    """A table of named connections; `closed` lists the closed ones."""

    def __init__(self, **limits):
        self.table = ConnectionTable(**{"max_connections": 10, "max_unauthenticated": 4, "head_timeout": 5.0, **limits})
        self.closed, self.all = [], {}

    def come(self, name, address="far", since=0.0):
        self.all[name] = place = ConnectionRecord(address, since, lambda: self.closed.append(name))
        return self.table.add(place)


def test_the_unauthenticated_connection_that_waited_longest_is_closed():
    crowd = Crowd()
    assert all(crowd.come(name) for name in "abcdef")
    assert crowd.closed == ["a", "b"]
    assert crowd.table.unauthenticated == 4


def test_unauthenticated_connections_displace_only_each_other():
    crowd = Crowd(max_connections=6)
    for name in "abcd":
        crowd.come(name)
        crowd.table.mark_authenticated(crowd.all[name])
    assert all(crowd.come(name) for name in "efghij")
    assert crowd.closed == ["e", "f", "g", "h"]
    assert len(crowd.table) == 6


def test_if_all_are_members_the_longest_idle_one_is_closed():
    crowd = Crowd(max_connections=4)
    for name, since in zip("abcd", [3.0, 1.0, 2.0, 0.0], strict=True):
        crowd.come(name, since=since)
        crowd.table.mark_authenticated(crowd.all[name])
    crowd.all["d"].phase = Phase.WORKING
    assert crowd.come("e")
    assert crowd.closed == ["b"]
    for name in "ace":
        crowd.table.mark_authenticated(crowd.all[name])
        crowd.all[name].phase = Phase.WORKING
    assert not crowd.come("f")


def test_an_address_with_many_connections_loses_one_of_them():
    crowd = Crowd()
    crowd.come("honest", "near")
    for number in range(100):
        crowd.come(number)
    assert "honest" not in crowd.closed


def test_waiting_connections_are_closed_before_receiving_ones_and_working_ones_never():
    crowd = Crowd()
    for name, phase in zip("abcd", [Phase.WORKING, Phase.RECEIVING, Phase.WAITING, Phase.WORKING], strict=True):
        crowd.come(name)
        crowd.all[name].phase = phase
    for name in "ef":
        assert crowd.come(name)
        crowd.all[name].phase = Phase.WORKING
    assert crowd.closed == ["c", "b"]
    assert not crowd.come("g")


def test_heads_have_a_timeout():
    crowd = Crowd(head_timeout=5.0, max_unauthenticated=10)
    for name in ("silent", "half", "member", "slow member", "sending"):
        crowd.come(name, name)
    for name in ("member", "slow member"):
        crowd.table.mark_authenticated(crowd.all[name])
    crowd.come("late", "late", since=8.0)
    crowd.all["half"].head_started, crowd.all["slow member"].head_started = 4.0, 3.0
    crowd.all["sending"].phase = Phase.RECEIVING
    late = [name for name, place in crowd.all.items() if place in crowd.table.overdue(9.5)]
    assert sorted(late) == ["half", "silent", "slow member"]


@given(st.lists(st.tuples(st.sampled_from(["come", "prove", "leave", "work", "wait"]), st.integers(0, 19))))
def test_the_counts_are_always_right(steps):
    crowd = Crowd(max_connections=6, max_unauthenticated=3)
    there = set()
    for step, name in steps:
        if step == "come" and name not in there and crowd.come(name, str(name % 3)):
            there.add(name)
        elif name in there:
            place = crowd.all[name]
            if step == "prove":
                crowd.table.mark_authenticated(place)
            elif step == "leave":
                crowd.table.remove(place)
                there.discard(name)
            else:
                place.phase = Phase.WORKING if step == "work" else Phase.WAITING
        there -= set(crowd.closed)
        crowd.closed.clear()
        assert len(crowd.table) == len(there) <= 6
        assert crowd.table.unauthenticated <= 3


def test_services_leave_descriptors_to_their_process(monkeypatch):
    monkeypatch.setattr("flowmx.comm.limits._open_files", lambda: 256)
    assert [each.open_connections for each in (DEFAULT, SERVING, DASHBOARD)] == [128, 128, 32]


# -- on sockets ----------------------------------------------------------------------------------------------


async def echo(caller, message):
    return Message({"node": caller.node}, message.tensors)


@contextlib.asynccontextmanager
async def served(**options):
    service = Service("tested", local=False, **options)
    service.operation("echo", echo)
    await service.start()
    try:
        yield service
    finally:
        await service.stop()


async def connect(service, data=b""):
    reader, writer = await asyncio.open_connection("127.0.0.1", int(service.address.rpartition(":")[2]))
    writer.write(data)
    return reader, writer


async def crowded():
    """A worker among hundreds of silent connections: before them, after them, and all the time."""
    limits = Limits(peers=40, unauthenticated=20)
    async with (
        served(security=Security(SECRET), limits=limits) as service,
        Peer(service.address, local=False, security=Security(SECRET), node="early") as early,
    ):
        await early.call("echo", {})
        silent = [await connect(service, b"POST /v1/echo HTTP/1.1\r\n" if n % 2 else b"") for n in range(300)]
        assert len(service.connections.table) <= 21
        async with Peer(service.address, local=False, security=Security(SECRET), node="late") as late:
            for peer in (early, late):
                assert (await peer.call("echo", {})).header["node"] in ("early", "late")
        ended = sum(reader.at_eof() or reader.exception() is not None for reader, _ in silent)
        assert ended >= 250
        for _, writer in silent:
            writer.close()


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_idle_connections_keep_no_worker_out(loop):
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(crowded())


async def full():
    """Requests in progress occupy all connections."""
    entered, go = asyncio.Event(), asyncio.Event()

    async def wait(caller, message):
        entered.set()
        await go.wait()
        return message

    async with served(limits=Limits(peers=1)) as service:
        service.operation("wait", wait)
        async with Peer(service.address, local=False) as one, Peer(service.address, local=False) as two:
            first = asyncio.create_task(one.call("wait", {}))
            await entered.wait()
            with pytest.raises(Busy, match="503"):
                await two.call("echo", {})
            go.set()
            await first


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_connection_too_many_is_refused_on_any_loop(loop):
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(full())


@pytest.mark.parametrize("sent", [b"", b"POST /v1/echo HTTP/1.1\r\nHost: 127.0.0.1\r\n"])
async def test_a_missing_head_closes_the_connection(sent, monkeypatch):
    monkeypatch.setattr(connections, "CHECK_INTERVAL", 0.01)
    async with served(limits=Limits(head=0.02)) as service:
        reader, writer = await connect(service, sent)
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()
        assert len(service.connections.table) == 0


# -- the log ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data", [b"\0\1\2" * 100_000, b"GET / HTTP/1.1\r\nX: " + b"a" * 300_000], ids=["garbage", "header"]
)
async def test_connections_without_http_are_closed(data):
    async with served() as service:
        gc.collect()
        gc.disable()  # an idle process rarely collects garbage
        tracemalloc.start()
        try:
            for _ in range(20):
                reader, writer = await connect(service, data)
                with contextlib.suppress(ConnectionError):
                    await reader.read()
                writer.close()
            async with asyncio.timeout(10):
                while len(service.connections.table):
                    await asyncio.sleep(0.01)
            del reader, writer
            assert tracemalloc.get_traced_memory()[0] < 2 << 20
        finally:
            tracemalloc.stop()
            gc.enable()


def test_the_page_documents_the_limits():
    page = (Path(__file__).parent.parent.parent / "docs" / "operations.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\|[^|]*\(`(\w+)`\) \|[^|]*\| (\S+) \| (\S+) \| (\S+) \|", page, re.MULTILINE)
    assert len(rows) >= 13
    for name, *values in rows:
        assert [float(value) for value in values] == [getattr(each, name) for each in (DEFAULT, SERVING, DASHBOARD)]


def test_settings_change_the_limits():
    assert limits_for("serve") == SERVING
    with settings.override(job_limits="peers=2, rate=0.5,total=1e9"):
        assert limits_for("job") == replace(DEFAULT, peers=2, rate=0.5, total=10**9)
        assert Service("app").limits.peers == Service("app").connections.table.max_unauthenticated == 2
        assert limits_for("job", Limits(requests=7)) == Limits(requests=7, peers=2, rate=0.5, total=10**9)
        assert limits_for("dashboard") == DASHBOARD


@pytest.mark.parametrize(
    "text", ["pers=2", "peers", "peers=two", "peers=0", "peers=1.5", "rate=nan", "peers=1=2", "bounds=3"]
)
def test_invalid_limits_are_refused_by_name(text):
    with settings.override(dashboard_limits=text), pytest.raises(settings.SettingError) as caught:
        limits_for("dashboard")
    for part in ("FLOWMX_DASHBOARD_LIMITS", repr(text), "keep_alive"):
        assert part in str(caught.value)


async def test_pages_of_other_sites_read_no_metrics():
    async with served() as service:
        for host, status in (("127.0.0.1", b"200"), ("localhost:1", b"200"), ("evil.example", b"401")):
            data = f"GET /metrics HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
            reader, writer = await connect(service, data.encode())
            assert (await reader.read()).startswith(b"HTTP/1.1 " + status)
            writer.close()
