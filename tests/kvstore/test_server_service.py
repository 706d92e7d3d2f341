"""Servers with real services on loopback: the answers to workers, and the state after a server dies."""

import asyncio

import numpy as np
import pytest

import flowmx as mx
from flowmx.comm.client import Peer
from flowmx.comm.errors import Refused
from flowmx.comm.server import Service
from flowmx.comm.view import Member, View
from flowmx.kvstore import compression, row_sparse_wire
from flowmx.kvstore.server import snapshot
from flowmx.kvstore.server.service import KVServer
from flowmx.kvstore.server.snapshot import SnapshotError
from flowmx.kvstore.server.store import Store, Value

KEY = "w"


class Job:
    """Servers and workers in one process, with views like those of a scheduler."""

    def __init__(self, servers, workers, threads=2):
        self.threads, self.count = threads, servers
        self.epoch = 0
        self.servers = [None] * servers
        self.services = [None] * servers
        self.workers = [Worker(self, rank) for rank in range(workers)]
        self.starts = 0
        self.joined = set(range(workers))

    async def __aenter__(self):
        for rank in range(self.count):
            await self.start(rank)
        self.tell()
        return self

    async def __aexit__(self, *_):
        for worker in self.workers:
            await worker.close()
        for rank in range(self.count):
            await self.kill(rank)

    async def start(self, rank, snapshot=None):
        self.starts += 1
        service = Service(f"server {rank}")
        name = f"server{self.starts}"
        server = KVServer(
            name, 1, self.count, service, lambda address: Peer(address, node=name), Store(threads=self.threads)
        )
        if snapshot is not None:
            server.restore(snapshot)
        await service.start()
        self.servers[rank], self.services[rank] = server, service

    async def kill(self, rank):
        if self.servers[rank] is not None:
            server, service = self.servers[rank], self.services[rank]
            self.servers[rank] = self.services[rank] = None
            await service.stop()
            await server.close()

    def tell(self):
        self.epoch += 1
        members = [
            Member(server.identity.partition(":")[0], "server", rank, service.address, incarnation=1)
            for rank, (server, service) in enumerate(zip(self.servers, self.services, strict=True))
            if server is not None
        ]
        members += [Member(f"worker{rank}", "worker", rank, incarnation=1, epoch=1) for rank in self.joined]
        self.view = View("job", 1, self.epoch, "running", tuple(members))
        for server in self.servers:
            if server is not None:
                server.update_view(self.view)


class Worker:
    def __init__(self, job, rank):
        self.job, self.rank = job, rank
        self.turn, self.sequence = 0, 0
        self.peers = {}

    async def close(self):
        for peer in self.peers.values():
            await peer.close()

    async def call(self, home, operation, header, tensors=()):
        service = next(service for service in self.job.services[home:] + self.job.services[:home] if service)
        if service.address not in self.peers:
            self.peers[service.address] = Peer(service.address, node=f"worker{self.rank}")
        header = {"incarnation": 1, **header}
        return await asyncio.wait_for(self.peers[service.address].call(operation, header, tensors), 30)

    async def init(self, value=None, key=KEY, home=0):
        self.turn += 1
        header = {"turn": self.turn, "rank": self.rank, "joined": 1, "parts": [[key, 0, home]]}
        answer = await self.call(home, "init", header, [] if value is None else [value])
        self.sequence = answer.header["numbers"][0]

    async def rest(self, key=KEY, home=0):
        self.turn += 1
        await self.call(home, "rest", {"turn": self.turn, "parts": [[key, 0, home]]})

    async def push(self, gradient, sequence=None, packing=None, key=KEY, home=0):
        if sequence is None:
            self.sequence += 1
        number = self.sequence if sequence is None else sequence
        part = [key, 0, home, number, number - 1, *([packing] if packing else [])]
        return (await self.call(home, "push", {"parts": [part]}, [gradient])).header["numbers"][0]

    async def pull(self, key=KEY, home=0, wanted=None):
        part = [key, 0, home, self.sequence if wanted is None else wanted]
        return (await self.call(home, "pull", {"parts": [part]})).tensors[0].array()

    async def step(self, gradient):
        await self.push(gradient)
        return await self.pull()


def arrays(count, shape, seed=0):
    random = np.random.default_rng(seed)
    return [random.normal(size=shape).astype(np.float32) for _ in range(count)]


async def init_all(job, value, **options):
    await asyncio.gather(*(w.init(value if w.rank == 0 else None, **options) for w in job.workers))


async def use(job, optimizer):
    for home in range(job.count):
        await job.workers[0].call(home, "set_optimizer", {"optimizer": optimizer.get_config()})


@pytest.mark.parametrize("shape", [(), (0, 3), (7, 5), (300, 1001)])
async def test_a_round_is_the_sum_in_the_order_of_ranks(shape):
    async with Job(servers=2, workers=3) as job:
        await init_all(job, np.zeros(shape, np.float32))
        for turn in range(3):
            gradients = arrays(3, shape, seed=turn)
            order = [2, 0, 1] if turn % 2 else [1, 2, 0]
            steps = [asyncio.create_task(job.workers[rank].step(gradients[rank].copy())) for rank in order]
            expected = gradients[0] + gradients[1] + gradients[2]
            for result in await asyncio.gather(*steps):
                np.testing.assert_array_equal(result, expected)


async def test_a_request_may_have_many_parts():
    async with Job(servers=1, workers=1) as job:
        (worker,) = job.workers
        parts, values = [[key, 0, 0] for key in range(50)], arrays(50, (3,))
        await worker.call(0, "init", {"turn": 1, "rank": 0, "joined": 1, "parts": parts}, values)
        answer = await worker.call(0, "pushpull", {"parts": [[*part, 1] for part in parts]}, arrays(50, (3,), 1))
        assert answer.header["numbers"] == [1] * 50
        for tensor, expected in zip(answer.tensors, arrays(50, (3,), 1), strict=True):
            np.testing.assert_array_equal(tensor.array(), expected)


@pytest.mark.parametrize("size", [10, 200_000])
async def test_an_optimizer_runs_on_the_server(size):
    optimizer = mx.optimizer.Adam(learning_rate=0.1, wd=0.01)
    weight, gradients = arrays(2, (size,))[0], arrays(4, (size,), seed=1)
    expected, update = mx.nd.array(weight), mx.optimizer.get_updater(mx.optimizer.Adam(learning_rate=0.1, wd=0.01))
    async with Job(servers=2, workers=1) as job:
        await use(job, optimizer)
        await init_all(job, weight)
        for gradient in gradients:
            result = await job.workers[0].step(gradient.copy())
            update(KEY, mx.nd.array(gradient), expected)
            await expected
            np.testing.assert_array_equal(result, expected.asnumpy())


async def test_asynchronous_pushes_are_separate_updates():
    async with Job(servers=2, workers=2) as job:
        for home in range(2):
            await job.workers[0].call(home, "open", {"mode": "async"})
        await use(job, mx.optimizer.Test(rescale_grad=1.0))
        await init_all(job, np.zeros(4, np.float32))
        for worker, pushes in zip(job.workers, (5, 3), strict=True):
            for _ in range(pushes):
                await worker.push(np.full(4, 10**worker.rank, np.float32))
        np.testing.assert_array_equal(await job.workers[0].pull(), np.full(4, 35, np.float32))


async def test_asynchronous_pushes_need_an_optimizer():
    async with Job(servers=1, workers=1) as job:
        await job.workers[0].call(0, "open", {"mode": "async"})
        await init_all(job, np.zeros(4, np.float32))
        with pytest.raises(Refused, match="call set_optimizer first"):
            await job.workers[0].push(np.ones(4, np.float32))


async def test_bounded_staleness_holds_the_fast_worker_back():
    async with Job(servers=1, workers=2) as job:
        fast, slow = job.workers
        await fast.call(0, "open", {"mode": "stale", "max_staleness": 2})
        await use(job, mx.optimizer.Test())
        await init_all(job, np.zeros(1, np.float32))
        one = np.ones(1, np.float32)
        await fast.push(one)
        await fast.push(one)
        third = asyncio.create_task(fast.push(one))
        await slow.pull(wanted=0)
        assert not third.done()
        await slow.push(one)
        await third
        stats = (await slow.call(0, "stats", {})).header
        assert stats["largest_lag"] == 2 and stats["mode"] == "stale"


async def test_all_workers_must_open_the_same_store():
    async with Job(servers=1, workers=2) as job:
        first, second = job.workers
        await first.call(0, "open", {"mode": "sync"})
        await second.call(0, "open", {"mode": "sync"})
        with pytest.raises(Refused, match="all workers must create the same store"):
            await second.call(0, "open", {"mode": "async"})
        with pytest.raises(Refused, match="unknown mode 'eventual'"):
            await second.call(0, "open", {"mode": "eventual"})


async def test_a_repeated_push_is_applied_once():
    async with Job(servers=2, workers=1) as job:
        await use(job, mx.optimizer.Test())
        await init_all(job, np.zeros(2, np.float32))
        (worker,) = job.workers
        gradient = np.ones(2, np.float32)
        again = [worker.push(gradient, sequence=1) for _ in range(5)]
        assert await asyncio.gather(*again) == [1] * 5
        assert await worker.push(gradient, sequence=1) == 1
        np.testing.assert_array_equal(await worker.pull(wanted=1), gradient)


async def test_a_resting_worker_blocks_no_other():
    async with Job(servers=2, workers=2) as job:
        short, long = job.workers
        await init_all(job, np.zeros(2, np.float32))
        ones = np.ones(2, np.float32)
        await asyncio.gather(short.push(ones), long.push(ones))
        waiting = asyncio.create_task(long.push(ones))
        await short.rest()
        await waiting
        with pytest.raises(Refused, match="is not counted for key 'w'") as caught:
            await short.push(ones)
        assert caught.value.kind == "not_counted"
        await short.init()
        assert short.sequence == 2  # it continues with round 3


async def test_a_worker_that_has_left_blocks_no_other():
    async with Job(servers=2, workers=2) as job:
        stays, leaves = job.workers
        await init_all(job, np.zeros(2, np.float32))
        waiting = asyncio.create_task(stays.push(np.ones(2, np.float32)))
        await leaves.pull(wanted=0)
        assert (await stays.call(0, "stats", {})).header["parts"][0]["waits_for"] == ["worker1:1"]
        job.joined.discard(1)
        job.tell()
        await waiting
        with pytest.raises(Refused, match="not in view"):
            await leaves.init()


@pytest.mark.parametrize("params", [{"type": "2bit", "threshold": 0.5}, {"type": "fp16"}, {"type": "bf16"}])
async def test_compressed_gradients(params):
    codec = compression.create(params)
    async with Job(servers=1, workers=2) as job:
        await init_all(job, np.zeros((5, 7), np.float32))
        gradients = arrays(2, (5, 7))
        packed = [codec.compress(gradient, np.zeros_like(gradient)) for gradient in gradients]
        pushes = zip(job.workers, packed, strict=True)
        await asyncio.gather(*(worker.push(sent, packing=codec.config()) for worker, sent in pushes))
        expected = sum(codec.decompress(sent, 35) for sent in packed).reshape(5, 7)
        np.testing.assert_array_equal(await job.workers[0].pull(), expected)


async def test_a_row_sparse_gradient_equals_the_dense_one():
    async with Job(servers=1, workers=2) as job:
        await init_all(job, arrays(1, (6, 3))[0])
        gradients = arrays(2, (6, 3))
        for gradient in gradients:
            gradient[[0, 3, 5]] = 0
        stored = np.array([1, 2, 4])
        await asyncio.gather(
            job.workers[0].push(row_sparse_wire.encode(stored, gradients[0][stored]), packing=row_sparse_wire.PACKING),
            job.workers[1].push(gradients[1]),
        )
        np.testing.assert_array_equal(await job.workers[0].pull(), gradients[0] + gradients[1])


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (row_sparse_wire.encode(np.array([6]), np.zeros((1, 3), "f")), "ascend, within 0 to 5"),
        (row_sparse_wire.encode(np.array([-1]), np.zeros((1, 3), "f")), "ascend, within 0 to 5"),
        (row_sparse_wire.encode(np.array([2, 2]), np.zeros((2, 3), "f")), "ascend, within 0 to 5"),
        (row_sparse_wire.encode(np.array([2]), np.zeros((1, 2), "f")), "8 \\+ 12 bytes for each row"),
        (np.zeros(5, "f"), "not as float32"),
        (np.zeros((5, 4), np.uint8), "as 1-dimensional uint8"),
    ],
)
async def test_wrong_rows_are_refused(sent, why):
    async with Job(servers=1, workers=1) as job:
        await init_all(job, arrays(1, (6, 3))[0])
        with pytest.raises(Refused, match=why):
            await job.workers[0].push(sent, packing=row_sparse_wire.PACKING)


async def test_rows_of_an_embedding():
    async with Job(servers=1, workers=1) as job:
        value = arrays(1, (20, 3))[0]
        await init_all(job, value)
        (worker,) = job.workers
        header, ids = {"parts": [[KEY, 0, 0]]}, np.array([3, 19, 3], np.int64)
        rows = (await worker.call(0, "row_sparse_pull", header, [ids])).tensors[0].array()
        np.testing.assert_array_equal(rows, value[[3, 19, 3]])
        with pytest.raises(Refused, match="row ids from 20 to 20 are out of range: the array has 20 rows"):
            await worker.call(0, "row_sparse_pull", header, [np.array([20])])
        with pytest.raises(Refused, match="expected a list of ints"):
            await worker.call(0, "row_sparse_pull", header, [np.array([0.5])])


async def test_optimizer_states_can_be_saved_and_loaded():
    async def run(job, gradients):
        for gradient in gradients:
            await job.workers[0].push(gradient.copy())

    weight, *gradients = arrays(5, (6,))
    header = {"parts": [[KEY, 0, 0]]}
    async with Job(servers=2, workers=1) as job:
        await use(job, mx.optimizer.Adam())
        await init_all(job, weight)
        await run(job, gradients[:2])
        middle = await job.workers[0].pull()
        states = (await job.workers[0].call(0, "save_states", header)).tensors[0].array()
        await run(job, gradients[2:])
        expected = await job.workers[0].pull()
    async with Job(servers=2, workers=1) as job:
        await use(job, mx.optimizer.Adam())
        await init_all(job, middle)
        with pytest.raises(Refused, match="this is not a file"):
            await job.workers[0].call(0, "load_states", {**header, "turn": 2}, [np.zeros(9, np.uint8)])
        await job.workers[0].call(0, "load_states", {**header, "turn": 2}, [states])
        await run(job, gradients[2:3])
        await job.kill(0)  # the backup has the states too
        job.tell()
        await run(job, gradients[3:])
        np.testing.assert_array_equal(await job.workers[0].pull(), expected)


async def test_a_dying_server_loses_nothing_and_its_successor_has_all_values():
    weight, *gradients = arrays(8, (3000,))
    expected = mx.nd.array(weight)
    update = mx.optimizer.get_updater(mx.optimizer.SGD(learning_rate=0.1, momentum=0.9))
    async with Job(servers=3, workers=1) as job:
        (worker,) = job.workers
        await use(job, mx.optimizer.SGD(learning_rate=0.1, momentum=0.9))
        await init_all(job, weight)
        for number, gradient in enumerate(gradients):
            if number == 2:
                await job.kill(0)
                job.tell()
            if number == 4:  # the server returns empty; then the server that replaced it dies
                await job.start(0)
                job.tell()
                await worker.push(gradients[3].copy(), sequence=4)
                await job.kill(1)
                job.tell()
            result = await worker.step(gradient.copy())
            update(KEY, mx.nd.array(gradient), expected)
        await expected
        np.testing.assert_array_equal(result, expected.asnumpy())


async def test_the_wrong_server_names_the_right_one():
    async with Job(servers=2, workers=1) as job:
        await init_all(job, np.zeros(1, np.float32))
        with pytest.raises(Refused, match="server1:1 answers for home 0") as caught:
            await job.workers[0].call(1, "pull", {"parts": [[KEY, 0, 0]]})
        assert caught.value.kind == "moved"


async def test_a_snapshot_is_resumed_from(tmp_path):
    weight, *gradients = arrays(5, (2000,))
    optimizer = mx.optimizer.Adam(learning_rate=0.1)
    async with Job(servers=1, workers=1) as job:
        await use(job, optimizer)
        await init_all(job, weight)
        for gradient in gradients[:2]:
            await job.workers[0].push(gradient.copy())
        await job.servers[0].save(tmp_path / "s")
        for gradient in gradients[2:]:
            await job.workers[0].push(gradient.copy())
        expected = await job.workers[0].pull()
        await job.kill(0)
        await job.start(0, snapshot=tmp_path / "s")
        job.tell()
        (worker,) = job.workers
        with pytest.raises(Refused, match="has 2 pushes of worker worker0:1, and 4 were acknowledged") as caught:
            await worker.push(gradients[0].copy())
        assert caught.value.kind == "lost"
        worker.sequence = 2
        for gradient in gradients[2:]:
            await worker.push(gradient.copy())
        np.testing.assert_array_equal(await worker.pull(), expected)


async def test_a_snapshot_waits_for_a_running_update(tmp_path):
    async with Job(servers=1, workers=1) as job:
        await use(job, mx.optimizer.Test())
        await init_all(job, np.zeros(1_000_000, np.float32))
        pushing = asyncio.create_task(job.workers[0].push(np.ones(1_000_000, np.float32)))
        server = job.servers[0]
        while not any(slot.updating for slot in server.core.state.slots.values()):
            await asyncio.sleep(0)
        await server.save(tmp_path / "s")
        await pushing
        await job.kill(0)
        await job.start(0, snapshot=tmp_path / "s")
        job.tell()
        assert (await job.workers[0].pull(wanted=0))[0] == 1


def test_a_damaged_snapshot_is_refused(tmp_path):
    (tmp_path / "s").write_bytes(b"something else")
    with pytest.raises(SnapshotError, match="is not a snapshot of a server, or is damaged"):
        snapshot.load(tmp_path / "s")


async def test_requests_of_a_cancelled_caller_are_dropped():
    async with Job(servers=1, workers=2) as job:
        await init_all(job, np.zeros(1, np.float32))
        waiting = asyncio.create_task(job.workers[0].pull(wanted=5))
        slot = next(iter(job.servers[0].core.state.slots.values()))
        while not slot.pulls:
            await asyncio.sleep(0)
        waiting.cancel()
        while slot.pulls:
            await asyncio.sleep(0)


async def updated(store, value):
    result = store.update(KEY, value, np.ones(value.array.shape, np.float32))
    return result if isinstance(result, Value) else await result


async def test_a_value_being_sent_does_not_change():
    store = Store(threads=1)
    store.use(mx.optimizer.Test().get_config())
    value = await updated(store, Value(np.zeros(3, np.float32)))
    sent = value.lease()
    later = await updated(store, value)
    assert sent.array().tolist() == [1, 1, 1] and later.array.tolist() == [2, 2, 2]
    memory = later.array.__array_interface__["data"]
    del sent
    last = await updated(store, later)
    assert last.array.__array_interface__["data"] == memory  # not being read: updated in place
    store.close()


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("workers", [1, 2, 4])
async def test_threads_do_not_change_sums(threads, workers):
    store = Store(threads=threads)
    parts = [arrays(workers, shape) for shape in [(500_001,), (2, 3), (0,), (), (70_000, 2)]]
    expected = [sum(result[1:], start=result[0]) for result in parts]
    own = [[item.copy() for item in result] for result in parts]
    for total, value in zip(await store.merge(own), expected, strict=True):
        np.testing.assert_array_equal(total, value)
    for result, value in zip(parts, expected, strict=True):
        before = [item.copy() for item in result]
        for entry in result:
            entry.flags.writeable = False  # it is in the memory of a worker
        for total in (*await store.merge([result]), store.merge_now(result)):
            assert total.flags.writeable
            np.testing.assert_array_equal(total, value)
        np.testing.assert_array_equal(result, before)
    store.close()


async def test_a_failed_update_is_reported_to_all_workers(caplog):
    class Broken(mx.optimizer.Optimizer):
        def step(self, weight, grad, state, lr, wd, t):
            raise ArithmeticError("no formula")

    mx.optimizer.register(Broken)
    try:
        async with Job(servers=2, workers=1) as job:
            await use(job, Broken())
            await init_all(job, np.zeros(1, np.float32))
            for operation in (job.workers[0].push(np.ones(1, np.float32)), job.workers[0].pull(wanted=0)):
                with pytest.raises(
                    Refused, match="key 'w' could not be updated: ArithmeticError: no formula"
                ) as caught:
                    await operation
                assert caught.value.kind == "update_failed"
    finally:
        del mx.optimizer.Optimizer.opt_registry["broken"]


@pytest.mark.parametrize(
    ("operation", "header", "tensors", "message"),
    [
        (
            "push",
            {"parts": [[KEY, 0, 0, 1]]},
            [np.zeros((2, 2), np.float32)],
            r"float32 \[2, 2\], and the value is",
        ),
        (
            "push",
            {"parts": [[KEY, 0, 0, 1]]},
            [np.zeros(3)],
            r"float64 \[3\], and the value is float32 \[3\]",
        ),
        ("push", {"parts": [[KEY, 0, 0, 1]]}, [], "1 parts has 0 tensors, expected 1"),
        ("push", {"parts": [[KEY, 0, 0, 1, 0, {"type": "1bit"}]]}, [np.zeros(3)], "the type is '1bit'"),
        ("push", {"parts": [[KEY, 0, 0, 1, 0, {"type": "2bit"}]]}, [np.zeros(3)], "3 elements is sent under 2bit as 1"),
        ("push", {"parts": [["x", 0, 0, 1]]}, [np.zeros(3)], r"'x' \(part 0\) has no value here: call init"),
        ("pull", {"parts": [["x", 0, 0]]}, [], "call init with it first"),
        ("pull", {"parts": [[KEY, 0, 7]]}, [], "home 7 does not exist"),
        ("pull", {"parts": [[KEY, 0]]}, [], "a part is"),
        ("pull", {"parts": [[1.5, 0, 0]]}, [], "a part is a key"),
        ("pull", {"parts": [[KEY, 0, 0, -1]]}, [], "number"),
        ("pull", {"parts": [[KEY, 0, 0]], "more": 1}, [], "'more', which is unknown"),
        ("init", {"parts": [[KEY, 0, 0]], "turn": 1, "rank": 0}, [], "'joined' is None"),
        ("rest", {"parts": [["x", 0, 0]], "turn": 1}, [], "call init with it first"),
        ("set_optimizer", {"optimizer": {"optimizer": "nothing"}}, [], "invalid description of an optimizer"),
        ("messages", {"messages": []}, [], "worker0:1 is not in view 1 as a server"),
    ],
)
async def test_refuses(operation, header, tensors, message):
    async with Job(servers=1, workers=1) as job:
        await init_all(job, np.zeros(3, np.float32))
        with pytest.raises((Refused, ValueError), match=message):
            await job.workers[0].call(0, operation, header, tensors)
        np.testing.assert_array_equal(await job.workers[0].step(np.ones(3, np.float32)), np.ones(3))  # it continues


async def test_refuses_an_optimizer_with_unknown_attributes():
    config = mx.optimizer.SGD().get_config()
    async with Job(servers=1, workers=1) as job:
        wrong = {**config, "attributes": {**config["attributes"], "step": 1}}
        with pytest.raises(Refused, match=r"unknown attributes\.step"):
            await job.workers[0].call(0, "set_optimizer", {"optimizer": wrong})


@pytest.mark.parametrize(
    ("name", "value"), [("begin_num_update", None), ("begin_num_update", 1.5), ("lr", "0.1"), ("wd", None)]
)
async def test_refuses_an_optimizer_whose_attribute_is_no_number(name, value):
    config = mx.optimizer.SGD().get_config()
    async with Job(servers=1, workers=1) as job:
        wrong = {**config, "attributes": {**config["attributes"], name: value}}
        with pytest.raises(Refused, match=rf"{name} is {value!r}, expected a number"):
            await job.workers[0].call(0, "set_optimizer", {"optimizer": wrong})


@pytest.mark.parametrize("replicas", [0, 1])
async def test_backups_are_kept_if_enabled(replicas):
    with mx.settings.override(kvstore_replicas=replicas):
        async with Job(servers=2, workers=1) as job:
            (worker,) = job.workers
            await worker.init(np.zeros(3, np.float32))
            await worker.push(np.ones(3, np.float32))
            assert len(job.servers[1].core.state.slots) == replicas


def test_a_closed_store_has_no_threads():
    store = Store(threads=2)
    assert store.pool.submit(int).result(60) == 0
    threads = set(store.pool._threads)
    store.close()
    for thread in threads:
        thread.join(60)
    assert threads and not any(thread.is_alive() for thread in threads)
