"""Distributed stores when something ends: every wait ends too, in its time, with an error that names who and what."""

import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import flowmx as mx
from flowmx.comm.endings import NodeGone, SchedulerGone
from flowmx.comm.node import Timing
from flowmx.errors import KVStoreError, OperationCancelled
from tests import jobs
from tests.jobs import job

SOON = 10.0


@pytest.fixture(autouse=True)
def seen():
    """Consume errors that fail here on purpose, so that no later test's wait raises them."""
    yield
    with contextlib.suppress(Exception):
        mx.nd.waitall()


@pytest.fixture
def hurried(monkeypatch):
    """Jobs that lose patience soon."""
    monkeypatch.setattr(jobs, "TIMING", Timing(heartbeat=0.05, timeout=3.0, reconnect=1.0))


def on_loop(made, coroutine):
    """Run a coroutine on the loop of a job's scheduler and servers."""
    return asyncio.run_coroutine_threadsafe(coroutine, made._loop).result(SOON)


class Gates:
    """Lets workers wait for each other in a test, outside of the store."""

    def __init__(self):
        self._gates = {}

    def open(self, name):
        self._gates.setdefault(name, threading.Event()).set()

    def wait(self, name):
        assert self._gates.setdefault(name, threading.Event()).wait(SOON), f"{name} did not happen"


@pytest.fixture
def gates():
    return Gates()


def waits_for_a_round(kv):
    """A pull that needs the other worker's push."""
    out = mx.nd.empty(3)
    kv.pushpull("a", mx.nd.ones(3), out=out)
    return out


def lost(kv):
    """Let a worker's process be as if it was killed: no more signs of life, and no goodbye."""
    session = kv._session

    def die():
        session.node._beating.cancel()
        session._servers.fail(KVStoreError("killed"))
        session.node._error = KVStoreError("killed")

    session._loop.call_soon_threadsafe(die)


# Who is lost


def test_the_scheduler_is_lost_for_ever(hurried, gates):
    def work(kv):
        kv.init("a", mx.nd.zeros(3))
        if kv.rank == 1:
            gates.open("started")
            gates.wait("over")
            return
        out = waits_for_a_round(kv)
        gates.wait("stopped")
        with pytest.raises(SchedulerGone, match=r"the scheduler at .* could not be reached for 1 s"):
            out.wait_to_read()
        with pytest.raises(SchedulerGone):
            kv.push("a", mx.nd.ones(3))
        gates.open("over")

    with job(2, 1) as made:
        done = [made.begin(work, rank=rank) for rank in range(2)]
        gates.wait("started")
        on_loop(made, made._scheduler.stop())
        gates.open("stopped")
        for each in done:
            each.result(SOON)


def test_all_servers_are_lost(hurried, gates):
    def work(kv):
        kv.init("a", mx.nd.zeros(3))
        gates.open("started")
        until(lambda: not kv._session.node.view.servers)
        out = waits_for_a_round(kv)
        with pytest.raises(KVStoreError, match="no server has been there for home 0 for 1 s"):
            out.wait_to_read()

    with job(1, 1, "elastic") as made:
        done = made.begin(work)
        gates.wait("started")
        made._loop.call_soon_threadsafe(made._serving[0].cancel)
        done.result(SOON)


@pytest.mark.parametrize("name", ["dist_sync", "dist_async"])
def test_the_worker_that_leads_is_lost_before_it_gave_values_and_optimizer(name, hurried, gates):
    def work(kv):
        if kv.rank == 0:
            gates.wait("waiting")
            lost(kv)
            return None
        kv.init("a", mx.nd.full(3, 5))
        kv.set_optimizer(mx.optimizer.create("test"))
        gates.open("waiting")
        return waits_for_a_round(kv).asnumpy().tolist()

    with job(2, 2, "elastic") as made:
        done = [made.begin(work, name, rank) for rank in range(2)]
        assert done[1].result(SOON) == [6, 6, 6]


def test_a_worker_is_lost_while_another_waits_at_a_barrier(hurried, gates):
    def work(kv):
        kv.init("a", mx.nd.zeros(3))
        if kv.rank == 1:
            gates.wait("waiting")
            lost(kv)
            return
        waiting = kv._meet()
        gates.open("waiting")
        waiting.wait()
        assert kv.num_dead_nodes == 1

    with job(2, 1, "elastic") as made:
        for each in [made.begin(work, rank=rank) for rank in range(2)]:
            each.result(SOON)


def test_under_stop_nothing_is_sent_after_a_barrier_that_failed_before_the_news_came(hurried):
    def work(kv):
        if kv.rank == 1:
            lost(kv)
            return
        kv._session.node._take = lambda answer: None  # no news
        kv.init("a", mx.nd.zeros(3))
        out = waits_for_a_round(kv)  # which would not wait for worker 1: it has not said that it takes part
        with pytest.raises(NodeGone, match=r"worker 1 on .* is gone: silent"):
            out.wait_to_read()

    with job(2, 1) as made:
        for each in [made.begin(work, rank=rank) for rank in range(2)]:
            each.result(SOON)


def test_under_stop_a_lost_worker_ends_barriers_and_rounds_by_name(hurried, gates):
    def work(kv):
        kv.init("a", mx.nd.zeros(3))
        if kv.rank == 2:
            gates.wait("round")
            gates.wait("barrier")
            lost(kv)
            return
        if kv.rank == 0:
            out = waits_for_a_round(kv)
            gates.open("round")
            with pytest.raises(NodeGone, match=r"worker 2 on .* is gone: silent"):
                out.wait_to_read()
        else:
            waiting = kv._meet()
            gates.open("barrier")
            with pytest.raises(NodeGone, match=r"worker 2 on .* is gone: silent"):
                waiting.wait()

    with job(3, 1) as made:
        for each in [made.begin(work, rank=rank) for rank in range(3)]:
            each.result(SOON)


def test_a_worker_fails_between_pushes_and_the_others_go_on(hurried, gates):
    def work(kv):
        kv.init("a", mx.nd.zeros(3))
        out = waits_for_a_round(kv)
        out.wait_to_read()
        if kv.rank == 1:
            raise ZeroDivisionError("bad data")
        out = waits_for_a_round(kv)
        assert out.asnumpy().tolist() == [1, 1, 1]
        assert [member.why for member in kv._session.node.view.gone] == ["ZeroDivisionError: bad data"]

    with job(2, 1, "elastic") as made:
        done = [made.begin(work, rank=rank) for rank in range(2)]
        done[0].result(SOON)
        with pytest.raises(ZeroDivisionError):
            done[1].result(SOON)


def test_a_worker_leaves_while_others_train(hurried):
    def work(kv):
        kv.init("a", mx.nd.zeros(3))
        for _ in range(1 if kv.rank == 0 else 4):
            out = waits_for_a_round(kv)
        return out.asnumpy().tolist()

    with job(2, 1) as made:
        assert made.each(work)[1] == [1, 1, 1]


# Requests that wait


def test_many_keys_in_any_order_do_not_wait_for_each_other(hurried):
    keys = [f"key {number}" for number in range(90)]

    def work(kv):
        kv.init(keys, [mx.nd.zeros(300) for _ in keys])
        outs = {key: mx.nd.empty(300) for key in keys}
        for key in keys if kv.rank else reversed(keys):
            kv.pushpull(key, mx.nd.ones(300), out=outs[key])
        return all((out.asnumpy() == 2).all() for out in outs.values())

    with mx.settings.override(kvstore_reduce_bucket_size=0), job(2, 1) as made:
        assert made.each(work) == [True, True]


# Cancelling and closing


def counts():
    """Counts of the resources that may leak."""
    gc.collect()
    return {
        "threads": sum(thread.name == "flowmx-kvstore" for thread in threading.enumerate()),
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "memory": sum("memfd:" in line for line in Path("/proc/self/maps").read_text().splitlines()),
    }


def pending_on_servers(made):
    """Requests that wait at servers."""

    async def count():
        return [len(slot.waiting()) for server in made.kvservers for slot in server.core.state.slots.values()]

    return sum(on_loop(made, count()))


def until(holds):
    ends = time.monotonic() + SOON
    while not holds():
        assert time.monotonic() < ends, "it did not happen"
        threading.Event().wait(0.01)


def test_what_has_not_begun_is_cancelled_and_what_waits_for_others_is_given_up(hurried, gates):
    def work(kv):
        kv.init("a", mx.nd.zeros(3))
        if kv.rank == 1:
            gates.wait("cancelled")
            kv._barrier()
            return None
        first, second = kv._meet(), kv._meet()
        until(lambda: kv._session.node.activity.startswith("barrier"))
        assert second.cancel()
        assert first.cancel()
        with pytest.raises(OperationCancelled):
            first.wait()
        gates.open("cancelled")
        kv._barrier()
        return kv._session._tasks

    with job(2, 1) as made:
        done = [made.begin(work, rank=rank) for rank in range(2)]
        left, _ = (each.result(SOON) for each in done)
        assert not left


def test_closing_with_requests_under_way_ends_them_and_leaves_nothing(hurried, gates):
    def work(kv):
        kv.init("a", mx.nd.zeros(100_000))
        gates.open(f"started {kv.rank}")
        if kv.rank == 1:
            gates.wait("closed")
            return
        out = mx.nd.empty(100_000)
        kv.pushpull("a", mx.nd.ones(100_000), out=out)
        until(lambda: pending_on_servers(made))
        kv.close(timeout=0.1)
        with pytest.raises(KVStoreError, match="closed before this was answered"):
            out.wait_to_read()
        assert not pending_on_servers(made)
        assert not kv._session._sender._sending and not kv._session._tasks
        gates.open("closed")
        return

    with job(2, 1, "elastic") as made:
        for each in [made.begin(work, rank=rank) for rank in range(2)]:
            each.result(SOON)


def test_what_comes_after_closing_is_refused_and_waits_for_nothing(hurried, gates):
    def slow():
        gates.wait("closed")

    with job(1, 1) as made:
        kv = made.store()
        kv.init("a", mx.nd.zeros(3))
        gradient, out = mx.nd.ones(3), mx.nd.empty(3)
        mx.engine.push(slow, writes=[gradient])
        kv.pushpull("a", gradient, out=out)
        kv.close(timeout=0.05)
        gates.open("closed")
        with pytest.raises(KVStoreError, match="closed"):
            out.wait_to_read()
        until(lambda: not kv._session._home.thread.is_alive())


def test_stores_that_come_and_go_leave_nothing_behind(hurried):
    def work(kv):
        kv.init("a", mx.nd.zeros(100_000))
        waits = mx.nd.empty(100_000)
        kv.pushpull("a", mx.nd.ones(100_000), out=waits)
        waits.wait_to_read()
        wrong = mx.nd.zeros(100_000)
        kv.row_sparse_pull("a", out=wrong, row_ids=mx.nd.array([1 << 20]))
        with pytest.raises(IndexError):
            wrong.wait_to_read()

    found = []
    for _ in range(4):
        with job(1, 1) as made:
            made.each(work)
        found.append(counts())
    assert found[-1]["threads"] == found[0]["threads"] == 0
    assert found[-1]["descriptors"] <= found[1]["descriptors"] + 2
    assert found[-1]["memory"] <= found[1]["memory"]


# The process itself

PROGRAM = """
import faulthandler, os, signal, sys
faulthandler.dump_traceback_later(7)
import flowmx as mx
kv = mx.kv.create("dist_sync")
kv.init("a", mx.nd.zeros(3))
out = mx.nd.empty(3)
kv.pushpull("a", mx.nd.ones(3), out=out)
if sys.argv[1] == "fork":
    pid = os.fork()
    if not pid:
        try:
            kv.push("a", mx.nd.ones(3))
        except Exception as error:
            print(type(error).__name__, error, flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
    print("forked", flush=True)
else:
    print("waiting", flush=True)
out.wait_to_read()
print("went on")
"""


def other_program(made, what):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FLOWMX_", "DMLC_"))}
    own = {"FLOWMX_SCHEDULER": made.address, "FLOWMX_NUM_SERVERS": str(made.servers), "FLOWMX_EXIT_TIMEOUT": "0.5"}
    quick = {"FLOWMX_KVSTORE_HEARTBEAT": "0.05", "FLOWMX_KVSTORE_TIMEOUT": "2", "FLOWMX_RANK": "1"}
    command = [sys.executable, "-c", PROGRAM, what]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=kept | own | quick, stdout=pipe, stderr=pipe, text=True)


def interrupted(process):
    """Interrupt a program, repeatedly, since Python drops an interrupt in a finaliser; return its error output."""
    for _ in range(3):
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=SOON / 3)[1]
    raise AssertionError("three interrupts did not end the program")


def test_ctrl_c_ends_a_wait_and_the_others_hear_of_it(hurried, gates):
    def work(kv):
        kv.init("a", mx.nd.zeros(3))
        gates.wait("ended")
        return waits_for_a_round(kv).asnumpy().tolist()

    with job(2, 1, "elastic") as made:
        done = made.begin(work, rank=0)
        with other_program(made, "wait") as process:
            assert process.stdout.readline() == "waiting\n"
            try:
                said = interrupted(process)
            finally:
                gates.open("ended")
                process.kill()
            assert "KeyboardInterrupt" in said and process.returncode in (1, -signal.SIGINT), said
        assert done.result(SOON) in ([1, 1, 1], [2, 2, 2])  # its push had arrived before


def test_a_fork_in_the_middle_has_no_store_and_the_parent_goes_on(hurried, gates):
    def work(kv):
        kv.init("a", mx.nd.zeros(3))
        gates.wait("forked")
        return waits_for_a_round(kv).asnumpy().tolist()

    with job(2, 1) as made:
        done = made.begin(work, rank=0)
        with other_program(made, "fork") as process:
            assert "belongs to the process that forked this one" in process.stdout.readline()
            assert process.stdout.readline() == "forked\n"
            gates.open("forked")
            said, _ = process.communicate(timeout=SOON)
            assert (said, process.returncode) == ("went on\n", 0)
        assert done.result(SOON) == [2, 2, 2]
