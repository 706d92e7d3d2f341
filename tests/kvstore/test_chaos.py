"""Chaos: whatever happens to a job, no push is lost or applied twice, no wait hangs, and every lost node is named."""

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
from tests.chaos import Event, NetworkFaults, Plan, Proxy, Zygote, check, make_plan, run, worker
from tests.waiting import until

# The check of ledgers


def look(writer, number, at, counts, kind="pulled", key="w"):
    return {
        "kind": kind,
        "key": key,
        "writer": writer,
        "number": number,
        "start": at,
        "time": at + 0.5,
        "counts": [counts],
    }


def make_records():
    """Return records of two writers in synchronous rounds; after two rounds, writer 2 replaces writer 1."""
    records = [{"kind": "ready", "writer": w, "time": 0, "starts": {"w": [s]}} for w, s in ((0, 0), (1, 0), (2, 2))]
    for writer, number, at in ((0, 1, 1), (1, 1, 1), (0, 2, 2), (1, 2, 2), (0, 3, 3), (2, 1, 3)):
        records.append({"kind": "pushed", "key": "w", "writer": writer, "number": number, "time": at})
    records += [look(0, 1, 1, [1, 1, 0]), look(1, 1, 1, [1, 1, 0]), look(0, 2, 2, [2, 2, 0])]
    return [*records, look(0, 3, 3, [3, 2, 1]), look(2, 1, 3, [3, 2, 1]), look(0, 3, 4, [3, 2, 1], "final")]


@pytest.mark.parametrize("mode", ["sync", "async", "stale"])
def test_a_correct_ledger_has_no_problems(mode):
    assert check(make_records(), mode, 3) == []


def with_counts(index, counts):
    """Return the records with other counts in one observation."""
    records = copy.deepcopy(make_records())
    records[index]["counts"] = [counts]
    return records


@pytest.mark.parametrize(
    ("records", "mode", "problem"),
    [
        (with_counts(-1, [2, 2, 1]), "async", "push 3 of writer 0 was acknowledged, and then writer 0 .* saw 2"),
        (with_counts(-1, [3, 1, 1]), "async", "no order explains both"),
        (with_counts(-1, [3, 3, 1]), "async", "saw 3 pushes of writer 1, which had made 2"),
        (with_counts(-2, [3, 1, 1]), "async", "no order explains both"),
        (with_counts(-5, [1, 0, 0]), "async", "push 1 of writer 1 was acknowledged|saw 0"),
        ([*make_records()[:-1], look(0, 3, 4, [3, 2, 0], "final")], "async", "push 1 of writer 2 was acknowledged"),
        (with_counts(-6, [1, 0, 0]), "sync", "round 1 with 0 pushes of writer 1, expected 1"),
        (with_counts(-6, [2, 1, 0]), "sync", "saw round 2, expected 1"),
        (
            [*make_records(), {**look(0, 3, 5, [3, 2, 1]), "errors": ["push 1 of writer 0 was applied 2 times"]}],
            "async",
            "2 times",
        ),
        ([*make_records(), {"kind": "lag", "writer": 0, "time": 9, "lag": 4}], "stale", "lag was 4"),
    ],
    ids=[
        "lost",
        "lost by another writer",
        "premature",
        "another order",
        "gap",
        "lost at the end",
        "incomplete round",
        "premature round",
        "twice",
        "lag",
    ],
)
def test_a_wrong_ledger_is_detected(records, mode, problem):
    problems = check(records, mode, 3)
    assert problems
    assert re.search(problem, "\n".join(problems)), problems


def test_gradients_encode_how_often_each_push_was_applied():
    total = sum(worker.gradient(worker.KEYS["big"], 2, number) for number in (1, 2, 3))
    blocks = total.reshape(6, worker.WRITERS, worker.COLUMNS + 1)
    assert worker.read_block(blocks[5]) == ([0, 0, 3, 0, 0, 0, 0, 0, 0, 0], [])
    twice = total + worker.gradient(worker.KEYS["big"], 2, 2)
    assert "push 2 of writer 2 was applied 2 times" in worker.read_block(twice.reshape(blocks.shape)[0])[1]
    missing = total - worker.gradient(worker.KEYS["big"], 2, 2)
    assert "push 2 of writer 2 was applied 0 times" in worker.read_block(missing.reshape(blocks.shape)[0])[1]


def test_plans_are_reproducible_and_contain_all_kinds_of_faults():
    assert make_plan(7) == make_plan(7)
    plans = [make_plan(seed) for seed in range(100)]
    assert {plan.mode for plan in plans} == {"sync", "async", "stale"}
    assert {event.kind for plan in plans for event in plan.events} == {"kill", "pause", "cut", "swallow", "hold"}
    killed = {name for plan in plans for event in plan.events if event.kind == "kill" for name in event.targets}
    assert {"scheduler", "server 0", "server 1", "worker 0", "worker 1"} <= killed


# The proxy


NO_FAULTS = NetworkFaults()


class Echo:
    """A service behind a proxy, which answers with the number that it receives."""

    def __init__(self, faults=NO_FAULTS, security=None, stream=True):
        self.calls, self.stream = [], stream
        self.service = Service("echo", security=security)
        self.service.operation("echo", self.answer)
        self.faults, self.security = faults, security

    async def answer(self, caller, message):
        self.calls.append(message.header["number"])
        return Message({"number": message.header["number"]}, [])

    async def __aenter__(self):
        address = await self.service.start()
        self.proxy = Proxy(int(address.rpartition(":")[2]), self.faults)
        await self.proxy.start()
        self.peer = Peer(self.proxy.address, security=self.security, node="caller", local=False, stream=self.stream)
        return self

    async def __aexit__(self, *_):
        await self.peer.close()
        await self.proxy.close()
        await self.service.stop()

    async def call(self, number, **options):
        return (await self.peer.call("echo", {"number": number}, **options)).header["number"]


async def test_a_proxy_without_faults_changes_nothing():
    async with Echo(NetworkFaults(split=1.0)) as echo:
        assert [await echo.call(number) for number in range(3)] == [0, 1, 2]
        assert echo.calls == [0, 1, 2]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_cut_request_is_not_executed_and_one_whose_answer_is_cut_is(stream):
    async with Echo(stream=stream) as echo:
        await echo.call(0)
        assert echo.peer.is_streaming is stream
        echo.proxy.faults = NetworkFaults(cut_request=1.0)
        with pytest.raises(PeerGone):
            await echo.call(1)
        assert echo.calls == [0]
    async with Echo(stream=stream) as echo:
        await echo.call(0)
        echo.proxy.faults = NetworkFaults(cut_answer=1.0)
        with pytest.raises(PeerGone):
            await echo.call(1)
        assert echo.calls == [0, 1]


async def test_requests_overtake_each_other():
    async with Echo(NetworkFaults(delay=0.5, max_delay=0.2), stream=False) as echo:
        await asyncio.gather(*(echo.call(number) for number in range(20)))
        assert sorted(echo.calls) == list(range(20)) != echo.calls


async def test_a_repeated_request_is_executed_again_unless_requests_are_signed():
    async with Echo(NetworkFaults(repeat=1.0, repeat_delays=(0.0,))) as echo:
        await echo.call(1)
        await until(lambda: echo.calls == [1, 1])
    async with Echo(
        NetworkFaults(repeat=1.0, repeat_delays=(0.0,)), Security(secret=b"a secret of more than thirty-two characters")
    ) as echo:
        await echo.call(1)
        await until(lambda: echo.proxy.counts["refused repeats"])
        assert echo.calls == [1]


async def test_held_bytes_arrive_later_and_swallowed_ones_never():
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
        faults=NetworkFaults(0.2, 0.02, 0.02, 0.02, 0.2, 0.2),
        events=(Event(20, "kill", ("scheduler",)),),
    ),
    Plan(
        3,
        "stale",
        rounds=8,
        secret=True,
        faults=NetworkFaults(repeat=0.2),
        events=(Event(20, "swallow", ("server 1",)),),
    ),
    Plan(4, "sync", "stop", rounds=40, compute=0.05, events=(Event(20, "kill", ("worker 0",)),)),
]


async def run_and_check(plan, folder):
    async with Zygote() as zygote:
        outcome = await run(plan, zygote, folder)
    problems = outcome.problems()
    assert not problems, f"{plan}\n" + "\n".join(problems[:20]) + f"\nlogs in {folder}"
    return outcome


@pytest.mark.parametrize("plan", QUICK, ids=lambda plan: f"{plan.mode}-{plan.events[0].targets[0].replace(' ', '')}")
async def test_a_job_survives_and_its_sums_are_right(plan, tmp_path):
    outcome = await run_and_check(plan, tmp_path)
    assert len(outcome.happened) == len(plan.events)


def plan_kills(mode, servers, reported, *targets):
    return Plan(5, mode, servers=servers, reported=reported, compute=0.1, events=(Event(30, "kill", targets),))


@pytest.mark.parametrize(
    "plan",
    [
        plan_kills("sync", 3, True, "server 0", "server 1", "worker 0", "worker 1"),
        pytest.param(plan_kills("async", 3, False, "server 1", "server 2"), marks=pytest.mark.soak),
        pytest.param(plan_kills("sync", 2, True, "server 0", "server 1"), marks=pytest.mark.soak),
        pytest.param(plan_kills("stale", 2, False, "server 0", "server 1"), marks=pytest.mark.soak),
    ],
    ids=lambda plan: f"{plan.mode}-{plan.servers}",
)
async def test_the_loss_of_two_servers_is_reported_to_late_workers_too(plan, tmp_path):
    outcome = await run_and_check(plan, tmp_path)
    assert outcome.lost
    assert not outcome.finished


def test_row_sparse_gradients_have_only_the_rows_of_their_writer():
    """The jobs of this module therefore test row_sparse gradients, too."""
    for name in ("rows", "many rows"):
        key = worker.KEYS[name]
        value = worker.gradient(key, 2, 5).reshape(key.shape)
        assert np.flatnonzero(value.any(axis=1)).tolist() == [2 + worker.WRITERS * block for block in range(key.blocks)]


@pytest.mark.soak
@pytest.mark.parametrize("victim", ["server 0", "server 1", "worker 0", "worker 1", "scheduler"])
@pytest.mark.parametrize("after", [15, 70])
async def test_a_synchronous_job_with_row_sparse_gradients_loses_nothing(victim, after, tmp_path):
    faults = NetworkFaults(delay=0.1, repeat=0.2, cut_answer=0.02)
    plan = Plan(after, rounds=12, compute=0.05, faults=faults, events=(Event(after, "kill", (victim,)),))
    outcome = await run_and_check(plan, tmp_path)
    assert outcome.happened
    rows = [record for record in outcome.records if record.get("key") in ("rows", "many rows")]
    assert {record["kind"] for record in rows} == {"pushed", "pulled", "final"}


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100))
async def test_a_hundred_jobs(seed, tmp_path):
    await run_and_check(make_plan(seed), tmp_path)
