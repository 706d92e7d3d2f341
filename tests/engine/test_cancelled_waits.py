"""Cancelled waits at every await point of iterators, predictors and stores: no item is lost, repeated or stuck.

A wait is cancelled after 0, 1, 2, ... turns of its event loop, so that every await point is covered.
"""

import asyncio
import collections
import gc
import itertools
import threading

import numpy as np
import pytest
import uvloop

import flowmx as mx
from flowmx.gluon.data import DataLoader
from tests.fixtures import record_images as recorded
from tests.jobs import job
from tests.waiting import wait_until

pytestmark = pytest.mark.filterwarnings("ignore::flowmx.engine.BlockingInCoroutineWarning")
TURNS = 7
"""Turns of the loop after which a wait is cancelled, at most; a wait has fewer await points."""
BATCHES = 12


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run(request):
    return request.param


# -- iterators ---------------------------------------------------------------------------------------------


class Numbers(mx.gluon.data.Dataset):
    def __len__(self):
        return 2 * BATCHES

    def __getitem__(self, index):
        return np.float32(index)


class Counting(mx.io.DataIter):
    """A user's iterator, whose next() may not be called by two threads at once."""

    def __init__(self):  # without super().__init__(), as many have it
        self.batch_size, self.count, self._busy = 2, 0, threading.Lock()
        self.provide_data, self.provide_label = [mx.io.DataDesc("data", (2,))], []

    def reset(self):
        self.count = 0

    def next(self):
        assert self._busy.acquire(blocking=False), "two calls of next() at one time"
        try:
            if self.count == BATCHES:
                raise StopIteration
            first = 2 * self.count
            self.count += 1
            return mx.io.DataBatch([mx.nd.array([first, first + 1])], [], 0)
        finally:
            self._busy.release()

    def state(self):
        return {"count": self.count}

    def set_state(self, state):
        self.count = state["count"]


class ByParts(Counting):
    """The older form: iter_next() and getdata()."""

    def next(self):
        return mx.io.DataIter.next(self)

    def iter_next(self):
        self.count += 1
        return self.count <= BATCHES

    def getdata(self):
        return [mx.nd.array([2 * self.count - 2, 2 * self.count - 1])]

    def getlabel(self):
        return []


class Generating(mx.io.DataIter):
    """An iterator with a custom `__iter__`."""

    def __iter__(self):
        return iter(list(Counting()))


def images():
    return mx.io.ImageRecordIter(
        path_imgrec=str(recorded.FOLDER / "small.rec"), data_shape=(3, 8, 8), batch_size=1, prefetch_buffer=1,
        preprocess_threads=1,
    )  # fmt: skip


class _Predictions:
    """Predictions of a module, batch by batch."""

    def __aiter__(self):
        data = mx.io.NDArrayIter(np.arange(2 * BATCHES, dtype="f").reshape(-1, 1), batch_size=2)
        module = mx.mod.Module(mx.sym.var("data") * 1, label_names=None)
        module.bind(data.provide_data, for_training=False)
        module.init_params()
        return aiter(module.iter_predict(data))


def loader(**options):
    return DataLoader(Numbers(), 2, **options)


SOURCES = {
    "DataLoader": loader,
    "DataLoader, threads": lambda: loader(num_workers=2, thread_pool=True),
    "DataIter": Counting,
    "DataIter by parts": ByParts,
    "DataIter with __iter__": Generating,
    "NDArrayIter": lambda: mx.io.NDArrayIter(np.arange(2 * BATCHES, dtype="f"), batch_size=2),
    "PrefetchingIter": lambda: mx.io.PrefetchingIter(Counting()),
    "ResizeIter": lambda: mx.io.ResizeIter(Counting(), BATCHES),
    "ResizeIter of a PrefetchingIter": lambda: mx.io.ResizeIter(mx.io.PrefetchingIter(Counting()), BATCHES),
    "ImageRecordIter": images,
    "iter_predict": _Predictions,
}


def content(batch):
    if isinstance(batch, tuple):
        batch = batch[0][0]
    if isinstance(batch, mx.io.DataBatch):
        batch = batch.data[0] if batch.index is None else batch.index
    values = batch.asnumpy() if hasattr(batch, "asnumpy") else batch
    return [int(value) for value in np.ravel(values)]


def expected(name):
    return list(range(recorded.IMAGES if name == "ImageRecordIter" else 2 * BATCHES))


async def cancelled_after(turns, awaitable):
    """Wait for at most this number of turns of the loop; return whether there is a result, and the result."""
    task = asyncio.ensure_future(awaitable)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    try:
        return True, await task
    except asyncio.CancelledError:
        return False, None


async def step(iterator):
    return await anext(iterator, None)


async def in_pieces(iterator):
    """All items of an iterator, most waits for which are cancelled."""
    items, turns = [], 0
    while True:
        turns += 1
        there, item = await cancelled_after(turns % TURNS, step(iterator))
        if not there and turns % (2 * TURNS) == 0:
            there, item = True, await step(iterator)
        if there:
            if item is None:
                return items
            items += content(item)


@pytest.mark.parametrize("name", SOURCES)
def test_a_cancelled_wait_consumes_no_batch(name, run):
    async def main():
        return await in_pieces(aiter(SOURCES[name]()))

    assert run(main()) == expected(name)


@pytest.mark.parametrize("name", SOURCES)
def test_tasks_that_share_an_iterator_get_each_batch_once(name, run):
    async def main():
        iterator = aiter(SOURCES[name]())
        parts = await asyncio.gather(*(in_pieces(iterator) for _ in range(3)))
        return sorted(itertools.chain(*parts))

    assert run(main()) == expected(name)


def test_threads_and_loops_that_share_a_loader_get_each_batch_once():
    epoch, batches = iter(loader(num_workers=2, thread_pool=True)), collections.deque()
    threads = [
        threading.Thread(target=lambda: batches.extend(asyncio.run(in_pieces(epoch)))),
        threading.Thread(target=lambda: [batches.extend(content(batch)) for batch in epoch]),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(batches) == expected("")


async def left(iterator):
    """Abandon an iterator after some batches by cancelling the next wait; after three batches if no wait blocks."""
    items = content(await anext(iterator))
    for _ in range(2):
        there, item = await cancelled_after(1, step(iterator))
        if not there:
            break
        items += content(item)
    return items


STATEFUL = [name for name in SOURCES if name not in {"DataIter with __iter__", "iter_predict"}]


@pytest.mark.parametrize("name", [name for name in STATEFUL if name not in {"NDArrayIter"}])
def test_after_a_cancelled_wait_the_state_counts_delivered_items(name, run):
    async def main():
        source, other = SOURCES[name](), SOURCES[name]()
        items = await left(aiter(source))
        other.set_state(source.state())
        return (
            items + await in_pieces(aiter(other)),
            items,
            await in_pieces(aiter(source)) if not_a_loader(source) else [],
        )

    def not_a_loader(source):
        return not isinstance(source, DataLoader)

    resumed, delivered, rest = run(main())
    assert resumed == expected(name)
    assert not rest or delivered + rest == expected(name)


@pytest.mark.parametrize("name", [name for name in STATEFUL if "Iter" in name and name != "NDArrayIter"])
def test_plain_code_gets_the_batch_of_a_cancelled_wait_until_a_reset(name, run):
    async def main():
        source = SOURCES[name]()
        items = await left(aiter(source))
        items += content(source.next())
        for batch in source:
            items += content(batch)
        source.reset()
        await left(aiter(source))
        source.reset()
        return items, list(itertools.chain(*map(content, source)))

    assert run(main()) == (expected(name), expected(name))


def test_iter_next_gets_the_batch_of_a_cancelled_wait():
    async def main():
        source = ByParts()
        items = await left(source)
        while source.iter_next():
            items += content(source.getdata()[0])
        return items

    assert asyncio.run(main()) == expected("")


def test_an_error_of_a_cancelled_wait_is_raised_by_the_next_one_and_once():
    class Breaks(Counting):
        def next(self):
            if self.count == 1:
                self.count = 2
                raise ValueError("a bad record")
            return super().next()

    async def main():
        source = Breaks()
        assert content(await anext(source)) == [0, 1]
        while True:
            try:
                await cancelled_after(1, anext(source))
            except ValueError:
                break
        return await in_pieces(source)

    assert asyncio.run(main()) == list(range(4, 2 * BATCHES))


def test_user_attributes_of_the_same_name_are_kept(run):
    class Stated(Counting):
        state = 3

        def __init__(self):
            super().__init__()
            self.hard_reset = "soft"
            self.reset = lambda: "replaced"

    source = Stated()
    run(left(source))
    assert (source.state, source.hard_reset, source.reset()) == (3, "soft", "replaced")


def test_a_pending_fetch_continues_in_another_loop(run):
    source = Counting()
    assert run(left(source)) + run(in_pieces(source)) == expected("")


def test_an_abandoned_loop_frees_its_iterator(run):
    async def main():
        source = Counting()
        await left(source)
        iterators.append(id(source))

    iterators = []

    def is_freed():
        gc.collect()
        return not [item for item in gc.get_objects() if type(item) is Counting]

    run(main())
    wait_until(is_freed)  # the thread that computed the last batch may still be leaving its frame


# -- predictors --------------------------------------------------------------------------------------------


def network():
    net = mx.gluon.nn.Dense(3)
    net.initialize(mx.init.One())
    return net


def test_cancelled_predictions_leave_nothing_behind(run):
    async def main():
        predictor = mx.serve.Predictor(network(), shape=(5,), max_batch=2, max_queue=64)
        answers = 0
        for turns in range(40):
            there, answer = await cancelled_after(turns % 8, predictor([1, 2, 3, 4, 5]))
            answers += there
            assert not there or answer.tolist() == [15, 15, 15]
            assert (await predictor([0, 0, 0, 0, turns])).tolist() == [turns] * 3
        await predictor.drain()
        assert not predictor._runner.pending and not predictor._runner.queue.rows

    run(main())


def test_starting_and_draining_may_be_cancelled_anywhere(run):
    async def main():
        predictor = mx.serve.Predictor(network(), shape=(5,), max_batch=2)
        for turns in range(16):
            await cancelled_after(turns % 8, predictor.ready() if turns % 2 else predictor.start())
            await predictor.ready()
            assert (await predictor([1, 2, 3, 4, 5])).tolist() == [15, 15, 15]
            await cancelled_after(turns % 8 + 1, predictor.drain())  # without a turn of the loop, it has not begun
            with pytest.raises(mx.serve.Unavailable):
                await predictor([1, 2, 3, 4, 5])
        await predictor.drain()

    run(main())


# -- stores ------------------------------------------------------------------------------------------------


def test_cancelled_pulls_change_nothing(run):
    async def main():
        kv = mx.kv.create("local")
        kv.init("a", mx.nd.zeros((3,)))
        for turns in range(16):
            out = mx.nd.zeros((3,))
            kv.push("a", mx.nd.full((3,), turns))
            kv.pull("a", out=out)

            async def wait(out=out):
                await out

            await cancelled_after(turns % TURNS, wait())
            await out
            assert out.asnumpy().tolist() == [turns] * 3
            await cancelled_after(turns % TURNS, kv.barrier())

    run(main())


def test_the_next_call_continues_a_barrier_whose_wait_was_cancelled(run):
    rounds = 5

    def work(kv):
        kv.init("a", mx.nd.zeros((2,)))
        out = mx.nd.zeros((2,))

        async def main():
            for turns in range(rounds):
                if kv.rank == 0:
                    await cancelled_after(turns, kv.barrier())
                await kv.barrier()
                kv.push("a", mx.nd.ones((2,)))
                kv.pull("a", out=out)
                await cancelled_after(turns, step(iter_of(out)))
                await out
                assert out.asnumpy().tolist() == [2, 2]

        run(main())
        return True

    with job(2, 1) as cluster:
        assert cluster.each(work, "dist_sync") == [True, True]


async def iter_of(array):
    await array
    yield array
