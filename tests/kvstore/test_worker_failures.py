"""Distributed stores when nodes end: every wait ends in time, with an error that names the node and the reason."""

import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import flowmx as mx
from flowmx.comm.node_errors import NodeGone, SchedulerGone
from flowmx.comm.timing import Timing
from flowmx.errors import KVStoreError, OperationCancelled
from tests import jobs
from tests.jobs import job
from tests.waiting import wait_until

SOON = 10.0


@pytest.fixture(autouse=True)
def consume_errors():
    """Consume errors that fail here on purpose, so that no later test's wait raises them."""
    yield
    with contextlib.suppress(Exception):
        mx.nd.waitall()


@pytest.fixture
def hurried(monkeypatch):
    """Use short timeouts in jobs."""
    monkeypatch.setattr(jobs, "TIMING", Timing(heartbeat=0.05, timeout=3.0, reconnect=1.0))


def on_loop(instance, coroutine):
    """Run a coroutine on the loop of a job's scheduler and servers."""
    return asyncio.run_coroutine_threadsafe(coroutine, instance._loop).result(SOON)


class Gates:
    """Lets workers wait for each other in a test, outside the store."""

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
    """Push and pull, which needs the other worker's push."""
    out = mx.nd.empty(3)
    kv.pushpull("a", mx.nd.ones(3), out=out)
    return out


def lost(kv):
    """Simulate a killed worker process: it sends no more heartbeats and no leave message."""
    session = kv._session

    def die():
        session.node._heartbeat_task.cancel()
        session._servers.fail(KVStoreError("killed"))
        session.node._error = KVStoreError("killed")

    session._loop.call_soon_threadsafe(die)


# Lost nodes


def test_the_scheduler_is_lost_permanently(hurried, gates):
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

    with job(2, 1) as cluster:
        done = [cluster.begin(work, rank=rank) for rank in range(2)]
        gates.wait("started")
        on_loop(cluster, cluster._scheduler.stop())
        gates.open("stopped")
        for item in done:
            item.result(SOON)


def test_all_servers_are_lost(hurried, gates):
    def work(kv):
        kv.init("a", mx.nd.zeros(3))
        gates.open("started")
        wait_until(lambda: not kv._session.node.view.servers)
        out = waits_for_a_round(kv)
        with pytest.raises(KVStoreError, match="there was no server for home 0 for 1 s"):
            out.wait_to_read()

    with job(1, 1, "elastic") as cluster:
        done = cluster.begin(work)
        gates.wait("started")
        cluster._loop.call_soon_threadsafe(cluster._serving[0].cancel)
        done.result(SOON)


@pytest.mark.parametrize("name", ["dist_sync", "dist_async"])
def test_the_leading_worker_is_lost_before_init_and_set_optimizer(name, hurried, gates):
    def work(kv):
        if kv.rank == 0:
            gates.wait("waiting")
            lost(kv)
            return None
        kv.init("a", mx.nd.full(3, 5))
        kv.set_optimizer(mx.optimizer.create("test"))
        gates.open("waiting")
        return waits_for_a_round(kv).asnumpy().tolist()

    with job(2, 2, "elastic") as cluster:
        done = [cluster.begin(work, name, rank) for rank in range(2)]
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

    with job(2, 1, "elastic") as cluster:
        for item in [cluster.begin(work, rank=rank) for rank in range(2)]:
            item.result(SOON)


def test_under_stop_nothing_is_sent_after_a_failed_barrier(hurried):
    def work(kv):
        if kv.rank == 1:
            lost(kv)
            return
        kv._session.node._adopt_view = lambda answer: None  # no message
        kv.init("a", mx.nd.zeros(3))
        out = waits_for_a_round(kv)  # it would not wait for worker 1, which has not enrolled
        with pytest.raises(NodeGone, match=r"worker 1 on .* is gone: silent"):
            out.wait_to_read()

    with job(2, 1) as cluster:
        for item in [cluster.begin(work, rank=rank) for rank in range(2)]:
            item.result(SOON)


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

    with job(3, 1) as cluster:
        for item in [cluster.begin(work, rank=rank) for rank in range(3)]:
            item.result(SOON)


def test_a_worker_fails_between_pushes_and_the_others_continue(hurried, gates):
    def work(kv):
        kv.init("a", mx.nd.zeros(3))
        out = waits_for_a_round(kv)
        out.wait_to_read()
        if kv.rank == 1:
            raise ZeroDivisionError("bad data")
        out = waits_for_a_round(kv)
        assert out.asnumpy().tolist() == [1, 1, 1]
        assert [member.why for member in kv._session.node.view.lost] == ["ZeroDivisionError: bad data"]

    with job(2, 1, "elastic") as cluster:
        done = [cluster.begin(work, rank=rank) for rank in range(2)]
        done[0].result(SOON)
        with pytest.raises(ZeroDivisionError):
            done[1].result(SOON)


def test_a_worker_leaves_while_others_train(hurried):
    def work(kv):
        kv.init("a", mx.nd.zeros(3))
        for _ in range(1 if kv.rank == 0 else 4):
            out = waits_for_a_round(kv)
        return out.asnumpy().tolist()

    with job(2, 1) as cluster:
        assert cluster.each(work)[1] == [1, 1, 1]


# Waiting requests


def test_many_keys_in_any_order_do_not_wait_for_each_other(hurried):
    keys = [f"key {number}" for number in range(90)]

    def work(kv):
        kv.init(keys, [mx.nd.zeros(300) for _ in keys])
        outs = {key: mx.nd.empty(300) for key in keys}
        for key in keys if kv.rank else reversed(keys):
            kv.pushpull(key, mx.nd.ones(300), out=outs[key])
        return all((out.asnumpy() == 2).all() for out in outs.values())

    with mx.settings.override(kvstore_reduce_bucket_size=0), job(2, 1) as cluster:
        assert cluster.each(work) == [True, True]


# Cancelling and closing


def counts():
    """Return the counts of resources that may leak."""
    gc.collect()
    return {
        "threads": sum(thread.name == "flowmx-kvstore" for thread in threading.enumerate()),
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "memory": sum("memfd:" in line for line in Path("/proc/self/maps").read_text().splitlines()),
    }


def pending_on_servers(instance):
    """Return the requests that wait at servers."""

    async def count():
        return [len(slot.waiting()) for server in instance.kvservers for slot in server.core.state.slots.values()]

    return sum(on_loop(instance, count()))


def test_pending_operations_are_cancelled_and_waiting_ones_abandoned(hurried, gates):
    def work(kv):
        kv.init("a", mx.nd.zeros(3))
        if kv.rank == 1:
            gates.wait("cancelled")
            kv._barrier()
            return None
        first, second = kv._meet(), kv._meet()
        wait_until(lambda: kv._session.node.activity.startswith("barrier"))
        assert second.cancel()
        assert first.cancel()
        with pytest.raises(OperationCancelled):
            first.wait()
        gates.open("cancelled")
        kv._barrier()
        return kv._session._tasks

    with job(2, 1) as cluster:
        done = [cluster.begin(work, rank=rank) for rank in range(2)]
        left, _ = (item.result(SOON) for item in done)
        assert not left


def test_closing_ends_running_requests_and_leaves_nothing(hurried, gates):
    def work(kv):
        kv.init("a", mx.nd.zeros(100_000))
        gates.open(f"started {kv.rank}")
        if kv.rank == 1:
            gates.wait("closed")
            return
        out = mx.nd.empty(100_000)
        kv.pushpull("a", mx.nd.ones(100_000), out=out)
        wait_until(lambda: pending_on_servers(cluster))
        kv.close(timeout=0.1)
        with pytest.raises(KVStoreError, match="closed before this was answered"):
            out.wait_to_read()
        assert not pending_on_servers(cluster)
        assert not kv._session._sender._sending and not kv._session._tasks
        gates.open("closed")
        return

    with job(2, 1, "elastic") as cluster:
        for item in [cluster.begin(work, rank=rank) for rank in range(2)]:
            item.result(SOON)


def test_operations_after_closing_are_refused_at_once(hurried, gates):
    def slow():
        gates.wait("closed")

    with job(1, 1) as cluster:
        kv = cluster.store()
        kv.init("a", mx.nd.zeros(3))
        gradient, out = mx.nd.ones(3), mx.nd.empty(3)
        mx.engine.push(slow, writes=[gradient])
        kv.pushpull("a", gradient, out=out)
        kv.close(timeout=0.05)
        gates.open("closed")
        with pytest.raises(KVStoreError, match="closed"):
            out.wait_to_read()
        wait_until(lambda: not kv._session._loop_thread.thread.is_alive())


def test_opening_and_closing_stores_leaves_nothing_behind(hurried):
    def work(kv):
        kv.init("a", mx.nd.zeros(100_000))
        waits = mx.nd.empty(100_000)
        kv.pushpull("a", mx.nd.ones(100_000), out=waits)
        waits.wait_to_read()
        wrong = mx.nd.zeros(100_000)
        kv.row_sparse_pull("a", out=wrong, row_ids=mx.nd.array([1 << 20]))
        with pytest.raises(IndexError):
            wrong.wait_to_read()

    results = []
    for _ in range(4):
        with job(1, 1) as cluster:
            cluster.each(work)
        results.append(counts())
    assert results[-1]["threads"] == results[0]["threads"] == 0
    assert results[-1]["descriptors"] <= results[1]["descriptors"] + 2
    assert results[-1]["memory"] <= results[1]["memory"]


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


def other_program(instance, what):
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("FLOWMX_", "DMLC_"))}
    own = {
        "FLOWMX_SCHEDULER": instance.address,
        "FLOWMX_NUM_SERVERS": str(instance.servers),
        "FLOWMX_EXIT_TIMEOUT": "0.5",
    }
    quick = {"FLOWMX_KVSTORE_HEARTBEAT": "0.05", "FLOWMX_KVSTORE_TIMEOUT": "2", "FLOWMX_RANK": "1"}
    command = [sys.executable, "-c", PROGRAM, what]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environ | own | quick, stdout=pipe, stderr=pipe, text=True)


def interrupted(process):
    """Interrupt a program, repeatedly, since Python drops an interrupt in a finalizer; return its error output."""
    for _ in range(3):
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=SOON / 3)[1]
    raise AssertionError("three interrupts did not end the program")


def test_ctrl_c_ends_a_wait_and_is_reported_to_the_others(hurried, gates):
    def work(kv):
        kv.init("a", mx.nd.zeros(3))
        gates.wait("ended")
        return waits_for_a_round(kv).asnumpy().tolist()

    with job(2, 1, "elastic") as cluster:
        done = cluster.begin(work, rank=0)
        with other_program(cluster, "wait") as process:
            assert process.stdout.readline() == "waiting\n"
            try:
                output = interrupted(process)
            finally:
                gates.open("ended")
                process.kill()
            assert "KeyboardInterrupt" in output and process.returncode in (1, -signal.SIGINT), output
        assert done.result(SOON) in ([1, 1, 1], [2, 2, 2])  # its push had arrived before


def test_a_forked_child_has_no_store_and_the_parent_continues(hurried, gates):
    def work(kv):
        kv.init("a", mx.nd.zeros(3))
        gates.wait("forked")
        return waits_for_a_round(kv).asnumpy().tolist()

    with job(2, 1) as cluster:
        done = cluster.begin(work, rank=0)
        with other_program(cluster, "fork") as process:
            assert "belongs to the parent of this forked process" in process.stdout.readline()
            assert process.stdout.readline() == "forked\n"
            gates.open("forked")
            output, _ = process.communicate(timeout=SOON)
            assert (output, process.returncode) == ("went on\n", 0)
        assert done.result(SOON) == [2, 2, 2]
