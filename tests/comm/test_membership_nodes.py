"""The scheduler and its nodes on a test clock; the last tests use real sockets."""

import asyncio
import logging
import os
import signal

import msgpack
import pytest

from flowmx import settings
from flowmx.comm.clock import Clock
from flowmx.comm.errors import PeerGone, Refused
from flowmx.comm.frames import Message
from flowmx.comm.members import Job
from flowmx.comm.node import Node
from flowmx.comm.node_errors import NodeGone, SchedulerGone
from flowmx.comm.outage import Outage
from flowmx.comm.scheduler import Scheduler
from flowmx.comm.security import Security
from flowmx.comm.server import Caller
from flowmx.comm.timing import Timing

TIMING = Timing(heartbeat=1.0, timeout=10.0, reconnect=30.0)


def test_time_in_which_this_process_was_paused_is_not_counted_as_silence():
    outage = Outage()
    assert not outage
    assert [outage.record_failure(now, 2.0) for now in (10.0, 11.0, 12.5, 60.0, 61.0)] == [0, 1, 2.5, 4.5, 5.5]
    outage.end()
    assert not outage
    assert outage.record_failure(100.0, 2.0) == 0


class ManualClock(Clock):
    """Time that passes when a test says so."""

    def __init__(self):
        self.time = 0.0
        self.sleepers = []

    def now(self):
        return self.time

    async def sleep(self, seconds):
        future = asyncio.get_running_loop().create_future()
        self.sleepers.append((self.time + max(seconds, 1e-3), future))
        await future

    async def advance(self, seconds):
        """Advance the time, and run everything that is due."""
        end = self.time + seconds
        await run_pending()
        while due := [at for at, future in self.sleepers if at <= end and not future.done()]:
            self.time = min(due)
            for at, future in self.sleepers:
                if at <= self.time and not future.done():
                    future.set_result(None)
            self.sleepers = [(at, future) for at, future in self.sleepers if not future.done()]
            await run_pending()
        self.time = end


async def run_pending():
    for _ in range(40):
        await asyncio.sleep(0)


class Network:
    """Connects nodes to a scheduler in this process; connections may be cut, and the scheduler replaced."""

    def __init__(self, clock, job, snapshot=None):
        self.clock, self.job, self.snapshot = clock, job, snapshot
        self.cut = set()
        self.calls = set()
        self.scheduler = None

    def start(self):
        self.scheduler = Scheduler(self.job, clock=self.clock, snapshot=self.snapshot)
        self.scheduler.watch()
        return self.scheduler

    async def stop(self):
        scheduler, self.scheduler = self.scheduler, None
        for call in list(self.calls):
            call.cancel()
        await run_pending()
        await scheduler.stop()

    def node(self, role, name, **options):
        return Node(
            role, "fake:1", id=name, host="here", timing=TIMING, clock=self.clock,
            connect=lambda: Line(self, name), **options,
        )  # fmt: skip


class Line:
    """A stand-in for `Peer` without sockets."""

    def __init__(self, network, name):
        self.network, self.name, self.closed = network, name, False

    async def call(self, operation, header, *, timeout=None):
        if self.network.scheduler is None or self.name in self.network.cut:
            await asyncio.sleep(0)
            raise PeerGone("no connection")
        sent = msgpack.unpackb(msgpack.packb(header))
        handler = self.network.scheduler.service.find(operation).handler
        call = asyncio.ensure_future(handler(Caller(operation, node=self.name), Message(sent, [])))
        self.network.calls.add(call)
        try:
            answer = await call
        except asyncio.CancelledError:
            if call.cancelled() and not asyncio.current_task().cancelling():
                raise PeerGone("the connection broke") from None
            call.cancel()
            raise
        finally:
            self.network.calls.discard(call)
        return Message(msgpack.unpackb(msgpack.packb(answer.header)), [])

    async def close(self):
        self.closed = True


@pytest.fixture
def clock():
    return ManualClock()


class Cluster:
    """Two workers and a server that have joined, each with its `async with` in a separate task."""

    def __init__(self, network):
        self.network = network
        self.nodes = {}
        self.ends = {}
        self.tasks = {}

    async def add(self, role, name, **options):
        node = self.network.node(role, name, **options)
        joined, self.ends[name] = asyncio.Event(), asyncio.get_running_loop().create_future()

        async def live():
            async with node:
                joined.set()
                await self.ends[name]

        self.tasks[name] = asyncio.create_task(live())
        self.nodes[name] = node
        await run_pending()
        return node

    async def end(self, name, error=None):
        future = self.ends[name]
        future.set_exception(error) if error else future.set_result(None)
        await asyncio.wait({self.tasks[name]})
        return self.tasks[name]

    async def close(self):
        for task in self.tasks.values():
            task.cancel()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)


@pytest.fixture
async def make(clock):
    clusters = []

    async def make(policy="elastic", snapshot=None, roles=(("worker", "a"), ("worker", "b"), ("server", "s"))):
        network = Network(clock, Job(2, 1, 10.0, policy), snapshot)
        network.start()
        cluster = Cluster(network)
        clusters.append(cluster)
        for role, name in roles:
            await cluster.add(role, name)
        return cluster

    yield make
    for cluster in clusters:
        cluster.network.cut.clear()
        closing = asyncio.create_task(cluster.close())
        while not closing.done():
            await clock.advance(1)
        if cluster.network.scheduler is not None:
            await cluster.network.stop()


async def test_nodes_join_and_see_each_other(make):
    cluster = await make()
    assert [node.name for node in cluster.nodes.values()] == ["worker 0", "worker 1", "server 0"]
    for node in cluster.nodes.values():
        assert [member.id for member in node.view.members] == ["a", "b", "s"]
        assert node.view.phase == "running"


async def test_nodes_wait_until_the_job_is_complete(make, clock, caplog):
    caplog.set_level(logging.INFO, "flowmx.comm")
    cluster = await make(roles=[("worker", "a")])
    await clock.advance(11)
    assert "worker 0 waits for the job to be complete: 1 workers and 0 servers have joined" in caplog.text
    assert not cluster.tasks["a"].done()


async def test_the_job_ends_when_the_workers_leave(make):
    cluster = await make()
    over = asyncio.create_task(cluster.network.scheduler.wait_until_over())
    for name in ("a", "b"):
        (await cluster.end(name)).result()
    await run_pending()
    assert (await cluster.nodes["s"].wait_for_change(0)).phase == "finished"
    assert not over.done()
    await cluster.end("s")
    assert (await over).phase == "finished"


async def test_a_silent_worker_is_named_on_every_node_within_the_timeout(make, clock, caplog):
    cluster = await make("stop")
    with cluster.nodes["b"].during("push key 7"):
        await clock.advance(2)
    cluster.network.cut.add("b")
    waits = asyncio.create_task(cluster.nodes["a"].unless_gone(asyncio.Event().wait()))
    await clock.advance(9)
    assert not waits.done()
    await clock.advance(4)
    with pytest.raises(NodeGone, match=r"worker 1 on here .* silent for 1.* last known activity: push key 7") as caught:
        await waits
    assert caught.value.members[0].id == "b"
    for name in ("a", "s"):
        with pytest.raises(NodeGone, match="worker 1"):
            cluster.nodes[name].check()
    assert "worker 0 was notified: worker 1" in caplog.text and "server 0 was notified: worker 1" in caplog.text


async def test_an_elastic_job_continues_and_operations_that_need_the_lost_node_fail(make, clock):
    cluster = await make()
    worker, heard = cluster.nodes["a"], []
    worker.on_gone(heard.append)
    server = worker.view.servers[0]
    waits = asyncio.create_task(worker.unless_gone(asyncio.Event().wait(), server))
    cluster.network.cut.add("s")
    await clock.advance(13)
    with pytest.raises(NodeGone, match="server 0"):
        await waits
    assert [member.name for member in heard] == ["server 0"]
    worker.check()
    other = await cluster.add("server", "t")
    assert other.rank == 0
    await clock.advance(1)
    assert worker.view.servers[0].id == "t"


async def test_an_awaited_operation_returns_its_result_or_its_error(make):
    cluster = await make()

    async def fails():
        raise KeyError("mine")

    assert await cluster.nodes["a"].unless_gone(asyncio.sleep(0, "done")) == "done"
    with pytest.raises(KeyError):
        await cluster.nodes["a"].unless_gone(fails())


async def test_a_failed_program_is_reported_at_once(make):
    cluster = await make("stop")
    ended = await cluster.end("b", ValueError("no such file"))
    assert isinstance(ended.exception(), ValueError)
    await run_pending()
    with pytest.raises(NodeGone, match=r"worker 1 .* ValueError: no such file"):
        cluster.nodes["a"].check()


async def test_a_lost_node_that_returns_is_notified(make, clock):
    cluster = await make()
    cluster.network.cut.add("b")
    await clock.advance(13)
    cluster.network.cut.clear()
    await clock.advance(2)
    with pytest.raises(NodeGone, match=r"worker 1 is out of the job: worker 1 on here .* silent"):
        cluster.nodes["b"].check()


async def test_workers_meet_at_a_barrier(make, clock):
    cluster = await make()
    first = asyncio.create_task(cluster.nodes["a"].barrier("init"))
    await clock.advance(5)
    assert not first.done()
    await cluster.nodes["b"].barrier("init")
    await first
    with pytest.raises(Refused, match="server 0"):
        await cluster.nodes["s"].barrier("init")


async def test_a_barrier_that_takes_too_long_names_the_missing_nodes(make, clock):
    cluster = await make()
    cluster.nodes["b"].doing("loading data")
    await clock.advance(2)
    waits = asyncio.create_task(cluster.nodes["a"].barrier("init", timeout=5.0))
    await clock.advance(6)
    with pytest.raises(TimeoutError, match=r"after 5 s the barrier 'init' still waits for worker 1 \(loading data\)"):
        await waits
    assert not cluster.network.scheduler.members.barriers.waiting


async def test_a_barrier_ends_with_the_job(make, clock):
    cluster = await make("stop")
    waits = asyncio.create_task(cluster.nodes["a"].barrier("init"))
    cluster.network.cut.add("b")
    await clock.advance(13)
    with pytest.raises(NodeGone, match="worker 1"):
        await waits


@pytest.mark.parametrize("has_file", [True, False], ids=["with its file", "without"])
async def test_nodes_continue_when_the_scheduler_restarts(make, clock, tmp_path, has_file):
    cluster = await make("stop", snapshot=tmp_path / "job" if has_file else None)
    waits = asyncio.create_task(cluster.nodes["a"].barrier("epoch"))
    await clock.advance(1)
    before = cluster.nodes["a"].view
    await cluster.network.stop()
    await clock.advance(5)
    cluster.network.start()
    await clock.advance(15)
    view = cluster.nodes["a"].view
    assert view.job == before.job and view.term > before.term
    assert [(member.id, member.rank) for member in view.workers] == [("a", 0), ("b", 1)]
    await cluster.nodes["b"].barrier("epoch")
    await waits
    for node in cluster.nodes.values():
        node.check()


async def test_nodes_give_up_when_the_scheduler_does_not_come_back(make, clock):
    cluster = await make()
    await cluster.network.stop()
    await clock.advance(29)
    cluster.nodes["a"].check()
    await clock.advance(4)
    with pytest.raises(SchedulerGone, match="fake:1 could not be reached for 30 s"):
        cluster.nodes["a"].check()


@pytest.mark.parametrize("ends", [False, True], ids=["the job continues", "the job ends"])
async def test_a_worker_too_many_hears_what_to_do(make, clock, caplog, ends):
    cluster = await make()
    await cluster.add("worker", "c")
    await clock.advance(2)
    assert not caplog.messages
    await clock.advance(2)
    (line,) = caplog.messages
    assert line.startswith("this worker waits up to 30 s to join the job of the scheduler at fake:1: all 2 places of")
    assert line.endswith(
        "start all its processes with a larger number (flowmx launch --workers, or FLOWMX_NUM_WORKERS)"
    )
    if ends:
        await cluster.network.stop()
        error, text = (
            SchedulerGone,
            "the job of the scheduler at fake:1 has ended, and it had no place for this worker: ",
        )
    else:
        error, text = Refused, "all 2 places of workers are taken: the job is complete without this process; "
    await clock.advance(40)
    with pytest.raises(error, match=text) as raised:
        await cluster.tasks["c"]
    assert raised.value.__cause__ is None and raised.value.__suppress_context__


async def test_a_worker_without_a_scheduler_hears_what_to_do(make, clock, caplog):
    cluster = await make(roles=())
    await cluster.network.stop()
    await cluster.add("worker", "a")
    await clock.advance(4)
    assert "this worker waits up to 30 s to join the job of the scheduler at fake:1: no connection" in caplog.text


async def test_a_file_other_than_a_snapshot_is_refused(tmp_path):
    (tmp_path / "job").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="is not a snapshot of a scheduler"):
        Scheduler(Job(1), snapshot=tmp_path / "job")


async def test_sigterm_is_reported_as_a_failure(make):
    cluster = await make()
    node = cluster.network.node("worker", "c", drain=True)
    await cluster.end("b")
    async with node:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()
    assert node.draining
    lost = cluster.network.scheduler.members.view.at("worker", 1)
    assert (lost.state, lost.why) == ("gone", "terminated by SIGTERM (exit status 143)")


def test_the_activity_is_the_newest_of_several():
    node = Node("worker", "fake:1")
    node.doing("computing")
    with node.during("push key 1"), node.during("push key 2"):
        assert node.activity == "push key 2 (and 1 more)"
    assert node.activity == "computing"
    with pytest.raises(RuntimeError, match="has not joined"):
        _ = node.view


def test_invalid_timing_is_refused():
    with pytest.raises(ValueError, match="more than twice FLOWMX_KVSTORE_HEARTBEAT"):
        Timing(heartbeat=1.0, timeout=2.0)


def test_a_node_of_the_settings():
    with settings.override(scheduler="127.0.0.1:9", rank=3, role="server", node_id="x"):
        node = Node.from_settings()
        assert (node.role, node.id) == ("server", "x")
    with settings.override(scheduler=""), pytest.raises(settings.SettingError, match="belongs to no job"):
        Node.from_settings()


async def test_over_real_sockets_with_a_secret():
    security = Security("a secret of this test")
    scheduler = Scheduler(Job(2, 0, 10.0, "stop"), security=security)
    address = await scheduler.start()
    over = asyncio.create_task(scheduler.wait_until_over())

    async def work():
        async with Node("worker", address, security=security, timing=TIMING) as node:
            await node.barrier("init")
            return node.rank

    assert sorted(await asyncio.gather(work(), work())) == [0, 1]
    assert (await over).phase == "finished"
    with pytest.raises(PermissionError):
        await Node("worker", address, timing=TIMING).__aenter__()
    await scheduler.stop()
