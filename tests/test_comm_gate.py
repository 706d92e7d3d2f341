"""Strangers do not keep members out: idle, slow and half-open connections cost their own kind their places."""

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
from flowmx.comm import gate as gates
from flowmx.comm.client import Peer
from flowmx.comm.errors import Busy
from flowmx.comm.frames import Message
from flowmx.comm.gate import Phase, Place, Places
from flowmx.comm.limits import DASHBOARD, DEFAULT, SERVING, Limits, in_force
from flowmx.comm.security import Security
from flowmx.comm.server import Service

SECRET = "sixteen bytes or more"


# -- the rule ------------------------------------------------------------------------------------------------


class Crowd:
    """Connections by name, and the names of those that were closed."""

    def __init__(self, **limits):
        self.places = Places(**{"most": 10, "strangers": 4, "head": 5.0, **limits})
        self.closed, self.all = [], {}

    def come(self, name, address="far", since=0.0):
        self.all[name] = place = Place(address, since, lambda: self.closed.append(name))
        return self.places.take(place)


def test_the_stranger_that_waited_for_longest_goes():
    crowd = Crowd()
    assert all(crowd.come(name) for name in "abcdef")
    assert crowd.closed == ["a", "b"]
    assert crowd.places.strangers == 4


def test_members_keep_their_places_and_strangers_theirs():
    crowd = Crowd(most=6)
    for name in "abcd":
        crowd.come(name)
        crowd.places.prove(crowd.all[name])
    assert all(crowd.come(name) for name in "efghij")
    assert crowd.closed == ["e", "f", "g", "h"]
    assert len(crowd.places) == 6


def test_where_all_are_members_the_one_that_was_idle_for_longest_goes():
    crowd = Crowd(most=4)
    for name, since in zip("abcd", [3.0, 1.0, 2.0, 0.0], strict=True):
        crowd.come(name, since=since)
        crowd.places.prove(crowd.all[name])
    crowd.all["d"].phase = Phase.WORKING
    assert crowd.come("e")
    assert crowd.closed == ["b"]
    for name in "ace":
        crowd.places.prove(crowd.all[name])
        crowd.all[name].phase = Phase.WORKING
    assert not crowd.come("f")


def test_an_address_with_many_connections_loses_its_own():
    crowd = Crowd()
    crowd.come("honest", "near")
    for number in range(100):
        crowd.come(number)
    assert "honest" not in crowd.closed


def test_who_is_worked_for_stays_and_who_sends_goes_after_who_waits():
    crowd = Crowd()
    for name, phase in zip("abcd", [Phase.WORKING, Phase.RECEIVING, Phase.WAITING, Phase.WORKING], strict=True):
        crowd.come(name)
        crowd.all[name].phase = phase
    for name in "ef":
        assert crowd.come(name)
        crowd.all[name].phase = Phase.WORKING
    assert crowd.closed == ["c", "b"]
    assert not crowd.come("g")


def test_a_head_has_its_time():
    crowd = Crowd(head=5.0, strangers=10)
    for name in ("silent", "half", "member", "slow member", "sending"):
        crowd.come(name, name)
    for name in ("member", "slow member"):
        crowd.places.prove(crowd.all[name])
    crowd.come("late", "late", since=8.0)
    crowd.all["half"].begun, crowd.all["slow member"].begun = 4.0, 3.0
    crowd.all["sending"].phase = Phase.RECEIVING
    late = [name for name, place in crowd.all.items() if place in crowd.places.overdue(9.5)]
    assert sorted(late) == ["half", "silent", "slow member"]


@given(st.lists(st.tuples(st.sampled_from(["come", "prove", "leave", "work", "wait"]), st.integers(0, 19))))
def test_the_counts_hold_whatever_happens(steps):
    crowd = Crowd(most=6, strangers=3)
    there = set()
    for step, name in steps:
        if step == "come" and name not in there and crowd.come(name, str(name % 3)):
            there.add(name)
        elif name in there:
            place = crowd.all[name]
            if step == "prove":
                crowd.places.prove(place)
            elif step == "leave":
                crowd.places.leave(place)
                there.discard(name)
            else:
                place.phase = Phase.WORKING if step == "work" else Phase.WAITING
        there -= set(crowd.closed)
        crowd.closed.clear()
        assert len(crowd.places) == len(there) <= 6
        assert crowd.places.strangers <= 3


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


async def connect(service, said=b""):
    reader, writer = await asyncio.open_connection("127.0.0.1", int(service.address.rpartition(":")[2]))
    writer.write(said)
    return reader, writer


async def crowded():
    """A worker among hundreds of silent connections: before them, after them, and all the time."""
    limits = Limits(peers=40, strangers=20)
    async with (
        served(security=Security(SECRET), limits=limits) as service,
        Peer(service.address, local=False, security=Security(SECRET), node="early") as early,
    ):
        await early.call("echo", {})
        silent = [await connect(service, b"POST /v1/echo HTTP/1.1\r\n" if n % 2 else b"") for n in range(300)]
        assert len(service.gate.places) <= 21
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
    """All places are taken by callers who are worked for."""
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


@pytest.mark.parametrize("said", [b"", b"POST /v1/echo HTTP/1.1\r\nHost: 127.0.0.1\r\n"])
async def test_a_head_that_does_not_come_closes_the_connection(said, monkeypatch):
    monkeypatch.setattr(gates, "LOOK", 0.01)
    async with served(limits=Limits(head=0.02)) as service:
        reader, writer = await connect(service, said)
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()
        assert len(service.gate.places) == 0


# -- the table for people ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said", [b"\0\1\2" * 100_000, b"GET / HTTP/1.1\r\nX: " + b"a" * 300_000], ids=["garbage", "header"]
)
async def test_what_is_no_http_is_not_kept(said):
    async with served() as service:
        gc.collect()
        gc.disable()  # a quiet process looks for circles rarely
        tracemalloc.start()
        try:
            for _ in range(20):
                reader, writer = await connect(service, said)
                with contextlib.suppress(ConnectionError):
                    await reader.read()
                writer.close()
            async with asyncio.timeout(10):
                while len(service.gate.places):
                    await asyncio.sleep(0.01)
            del reader, writer
            assert tracemalloc.get_traced_memory()[0] < 2 << 20
        finally:
            tracemalloc.stop()
            gc.enable()


def test_the_page_says_what_the_limits_are():
    page = (Path(__file__).parent.parent / "docs" / "operations.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\|[^|]*\(`(\w+)`\) \|[^|]*\| (\S+) \| (\S+) \| (\S+) \|", page, re.MULTILINE)
    assert len(rows) >= 13
    for name, *values in rows:
        assert [float(value) for value in values] == [getattr(each, name) for each in (DEFAULT, SERVING, DASHBOARD)]


def test_settings_put_other_limits_in_their_place():
    assert in_force("serve") == SERVING
    with settings.override(job_limits="peers=2, rate=0.5,total=1e9"):
        assert in_force("job") == replace(DEFAULT, peers=2, rate=0.5, total=10**9)
        assert Service("app").limits.peers == Service("app").gate.places.most_strangers == 2
        assert in_force("job", Limits(requests=7)) == Limits(requests=7, peers=2, rate=0.5, total=10**9)
        assert in_force("dashboard") == DASHBOARD


@pytest.mark.parametrize(
    "text", ["pers=2", "peers", "peers=two", "peers=0", "peers=1.5", "rate=nan", "peers=1=2", "bounds=3"]
)
def test_limits_that_are_none_are_refused_with_their_names(text):
    with settings.override(dashboard_limits=text), pytest.raises(settings.SettingError) as caught:
        in_force("dashboard")
    for part in ("FLOWMX_DASHBOARD_LIMITS", repr(text), "keep_alive"):
        assert part in str(caught.value)


async def test_pages_of_other_sites_read_no_metrics():
    async with served() as service:
        for host, status in (("127.0.0.1", b"200"), ("localhost:1", b"200"), ("evil.example", b"401")):
            said = f"GET /metrics HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
            reader, writer = await connect(service, said.encode())
            assert (await reader.read()).startswith(b"HTTP/1.1 " + status)
            writer.close()
