"""Chaos: nothing is lost or applied twice, nothing hangs, and whoever was lost is named, whatever happens to a job."""

import asyncio
import copy
import re

import numpy as np
import pytest

from flowmx.comm.client import Peer
from flowmx.comm.errors import PeerGone
from flowmx.comm.frames import Message
from flowmx.comm.security import Security
from flowmx.comm.server import Service
from tests.chaos import Event, Plan, Proxy, Weather, Zygote, check, planned, run, worker

# The check of ledgers, on what three pushes of two writers make and on what they must not make


def look(writer, number, at, counts, kind="pulled", key="w"):
    return {
        "kind": kind,
        "key": key,
        "writer": writer,
        "number": number,
        "since": at,
        "at": at + 0.5,
        "counts": [counts],
    }


def right():
    """Two writers in synchronous rounds; writer 1 ends after two, and writer 2 comes in its place."""
    records = [{"kind": "ready", "writer": w, "at": 0, "starts": {"w": [s]}} for w, s in ((0, 0), (1, 0), (2, 2))]
    for writer, number, at in ((0, 1, 1), (1, 1, 1), (0, 2, 2), (1, 2, 2), (0, 3, 3), (2, 1, 3)):
        records.append({"kind": "pushed", "key": "w", "writer": writer, "number": number, "at": at})
    records += [look(0, 1, 1, [1, 1, 0]), look(1, 1, 1, [1, 1, 0]), look(0, 2, 2, [2, 2, 0])]
    return [*records, look(0, 3, 3, [3, 2, 1]), look(2, 1, 3, [3, 2, 1]), look(0, 3, 4, [3, 2, 1], "final")]


@pytest.mark.parametrize("mode", ["sync", "async", "stale"])
def test_a_right_ledger_has_nothing_wrong(mode):
    assert check(right(), mode, 3) == []


def replaced(at, counts):
    records = copy.deepcopy(right())
    records[at]["counts"] = [counts]
    return records


@pytest.mark.parametrize(
    ("records", "mode", "said"),
    [
        (replaced(-1, [2, 2, 1]), "async", "push 3 of writer 0 was acknowledged, and then writer 0 .* saw 2"),
        (replaced(-1, [3, 1, 1]), "async", "no one order"),
        (replaced(-1, [3, 3, 1]), "async", "saw 3 pushes of writer 1, which had made 2"),
        (replaced(-2, [3, 1, 1]), "async", "no one order"),
        (replaced(-5, [1, 0, 0]), "async", "push 1 of writer 1 was acknowledged|saw 0"),
        ([*right()[:-1], look(0, 3, 4, [3, 2, 0], "final")], "async", "push 1 of writer 2 was acknowledged"),
        (replaced(-6, [1, 0, 0]), "sync", "round 1 with 0 pushes of writer 1, expected 1"),
        (replaced(-6, [2, 1, 0]), "sync", "saw round 2, expected 1"),
        ([*right(), {**look(0, 3, 5, [3, 2, 1]), "odd": ["push 1 of writer 0 is in it 2 times"]}], "async", "2 times"),
        ([*right(), {"kind": "lag", "writer": 0, "at": 9, "lag": 4}], "stale", "lag was 4"),
    ],
    ids=[
        "lost",
        "lost of others",
        "invented",
        "another order",
        "gap",
        "lost at the end",
        "half",
        "early",
        "twice",
        "lag",
    ],
)
def test_a_wrong_ledger_is_found(records, mode, said):
    found = check(records, mode, 3)
    assert found, "nothing was found"
    assert re.search(said, "\n".join(found)), found


def test_gradients_tell_what_was_applied_how_often():
    total = sum(worker.gradient(worker.KEYS["big"], 2, number) for number in (1, 2, 3))
    blocks = total.reshape(6, worker.WRITERS, worker.COLUMNS + 1)
    assert worker.read_block(blocks[5]) == ([0, 0, 3, 0, 0, 0, 0, 0, 0, 0], [])
    twice = total + worker.gradient(worker.KEYS["big"], 2, 2)
    assert "push 2 of writer 2 is in it 2 times" in worker.read_block(twice.reshape(blocks.shape)[0])[1]
    missing = total - worker.gradient(worker.KEYS["big"], 2, 2)
    assert "push 2 of writer 2 is in it 0 times" in worker.read_block(missing.reshape(blocks.shape)[0])[1]


def test_plans_are_the_same_for_a_seed_and_have_everything_in_them():
    assert planned(7) == planned(7)
    plans = [planned(seed) for seed in range(100)]
    assert {plan.mode for plan in plans} == {"sync", "async", "stale"}
    assert {event.kind for plan in plans for event in plan.events} == {"kill", "pause", "cut", "swallow", "hold"}
    killed = {name for plan in plans for event in plan.events if event.kind == "kill" for name in event.targets}
    assert {"scheduler", "server 0", "server 1", "worker 0", "worker 1"} <= killed


# The proxy


CALM = Weather()


class Echo:
    """A service behind a proxy."""

    def __init__(self, weather=CALM, security=None, stream=True):
        self.calls, self.stream = [], stream
        self.came = asyncio.Event()
        self.service = Service("echo", security=security)
        self.service.operation("echo", self.answer)
        self.weather, self.security = weather, security

    async def answer(self, caller, message):
        self.calls.append(message.header["number"])
        self.came.set()
        return Message({"number": message.header["number"]}, [])

    async def __aenter__(self):
        address = await self.service.start()
        self.proxy = Proxy(int(address.rpartition(":")[2]), self.weather)
        await self.proxy.start()
        self.peer = Peer(self.proxy.address, security=self.security, node="caller", local=False, stream=self.stream)
        return self

    async def __aexit__(self, *_):
        await self.peer.close()
        await self.proxy.close()
        await self.service.stop()

    async def call(self, number, **options):
        return (await self.peer.call("echo", {"number": number}, **options)).header["number"]


async def until(holds):
    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(0.01)


async def test_a_calm_proxy_is_not_noticed():
    async with Echo(Weather(split=1.0)) as echo:
        assert [await echo.call(number) for number in range(3)] == [0, 1, 2]
        assert echo.calls == [0, 1, 2]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_cut_request_is_not_done_and_a_deaf_caller_does_not_hear_what_was(stream):
    async with Echo(stream=stream) as echo:
        await echo.call(0)
        assert echo.peer.is_streaming is stream
        echo.proxy.weather = Weather(cut=1.0)
        with pytest.raises(PeerGone):
            await echo.call(1)
        assert echo.calls == [0]
    async with Echo(stream=stream) as echo:
        await echo.call(0)
        echo.proxy.weather = Weather(deaf=1.0)
        with pytest.raises(PeerGone):
            await echo.call(1)
        assert echo.calls == [0, 1]


async def test_requests_overtake_each_other():
    async with Echo(Weather(delayed=0.5, most=0.2), stream=False) as echo:
        await asyncio.gather(*(echo.call(number) for number in range(20)))
        assert sorted(echo.calls) == list(range(20)) != echo.calls


async def test_a_request_comes_again_and_with_a_secret_is_refused_then():
    async with Echo(Weather(repeated=1.0, later=(0.0,))) as echo:
        await echo.call(1)
        await until(lambda: echo.calls == [1, 1])
    async with Echo(
        Weather(repeated=1.0, later=(0.0,)), Security(secret=b"a secret of more than thirty-two characters")
    ) as echo:
        await echo.call(1)
        await until(lambda: echo.proxy.counts["refused again"])
        assert echo.calls == [1]


async def test_what_is_held_passes_later_and_what_is_swallowed_never():
    async with Echo() as echo:
        await echo.call(0)
        echo.proxy.hold()
        held = asyncio.create_task(echo.call(1))
        await asyncio.wait({held}, timeout=0.1)
        assert echo.calls == [0]
        echo.proxy.release()
        assert await held == 1
        echo.proxy.swallow()
        with pytest.raises(TimeoutError):
            await echo.call(2, timeout=0.1)
        assert echo.calls == [0, 1]
        assert await echo.call(3) == 3  # on a new connection


# Whole jobs

QUICK = [
    Plan(
        1, "sync", rounds=8, compute=0.03, events=(Event(25, "kill", ("server 0",)), Event(60, "kill", ("worker 1",)))
    ),
    Plan(
        2,
        "async",
        rounds=8,
        weather=Weather(0.2, 0.02, 0.02, 0.02, 0.2, 0.2),
        events=(Event(20, "kill", ("scheduler",)),),
    ),
    Plan(
        3, "stale", rounds=8, secret=True, weather=Weather(repeated=0.2), events=(Event(20, "swallow", ("server 1",)),)
    ),
    Plan(4, "sync", "stop", rounds=40, compute=0.05, events=(Event(20, "kill", ("worker 0",)),)),
]


async def verdict(plan, folder):
    async with Zygote() as zygote:
        outcome = await run(plan, zygote, folder)
    problems = outcome.problems()
    assert not problems, f"{plan}\n" + "\n".join(problems[:20]) + f"\nlogs in {folder}"
    return outcome


@pytest.mark.parametrize("plan", QUICK, ids=lambda plan: f"{plan.mode}-{plan.events[0].targets[0].replace(' ', '')}")
async def test_a_job_survives_and_its_sums_are_right(plan, tmp_path):
    outcome = await verdict(plan, tmp_path)
    assert len(outcome.happened) == len(plan.events)


def losing(mode, servers, reported, *targets):
    return Plan(5, mode, servers=servers, reported=reported, compute=0.1, events=(Event(30, "kill", targets),))


@pytest.mark.parametrize(
    "plan",
    [
        losing("sync", 3, True, "server 0", "server 1", "worker 0", "worker 1"),
        pytest.param(losing("async", 3, False, "server 1", "server 2"), marks=pytest.mark.soak),
        pytest.param(losing("sync", 2, True, "server 0", "server 1"), marks=pytest.mark.soak),
        pytest.param(losing("stale", 2, False, "server 0", "server 1"), marks=pytest.mark.soak),
    ],
    ids=lambda plan: f"{plan.mode}-{plan.servers}",
)
async def test_what_two_servers_lose_together_is_said_to_be_lost_to_workers_that_come_later_too(plan, tmp_path):
    outcome = await verdict(plan, tmp_path)
    assert outcome.lost
    assert not outcome.finished


def test_gradients_of_rows_store_the_rows_of_their_writer():
    """So the jobs here are ones over row_sparse gradients, too."""
    for name in ("rows", "many rows"):
        key = worker.KEYS[name]
        value = worker.gradient(key, 2, 5).reshape(key.shape)
        assert np.flatnonzero(value.any(axis=1)).tolist() == [2 + worker.WRITERS * block for block in range(key.blocks)]


@pytest.mark.soak
@pytest.mark.parametrize("victim", ["server 0", "server 1", "worker 0", "worker 1", "scheduler"])
@pytest.mark.parametrize("after", [15, 70])
async def test_a_synchronous_job_over_rows_loses_nothing(victim, after, tmp_path):
    weather = Weather(delayed=0.1, repeated=0.2, deaf=0.02)
    plan = Plan(after, rounds=12, compute=0.05, weather=weather, events=(Event(after, "kill", (victim,)),))
    outcome = await verdict(plan, tmp_path)
    assert outcome.happened
    rows = [record for record in outcome.records if record.get("key") in ("rows", "many rows")]
    assert {record["kind"] for record in rows} == {"pushed", "pulled", "final"}


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100))
async def test_a_hundred_jobs(seed, tmp_path):
    await verdict(planned(seed), tmp_path)
