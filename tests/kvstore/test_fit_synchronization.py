"""Training loops of a job's workers: each starts at the job's current epoch and synchronizes at the ends of epochs."""

import logging
import threading

import numpy as np
import pytest

import flowmx as mx
from flowmx import autograd, gluon
from flowmx.checkpoint.meeting import skip
from flowmx.gluon.contrib.estimator import Estimator
from tests.jobs import job

EPOCHS, BATCHES = 4, 5


@pytest.fixture(autouse=True)
def _one_seed():
    """Workers are threads of one process here, and must agree on the seed before they join."""
    mx.random.seed(1)


class Crash(Exception):
    """The end of a worker's program in the middle."""


class Loop:
    """A network, its trainer and data.

    Args:
        kv: its store.
    """

    def __init__(self, kv):
        self.kv = kv
        self.net = gluon.nn.Dense(1, in_units=3)
        self.net.initialize()
        self.trainer = gluon.Trainer(self.net.collect_params(), "sgd", {"learning_rate": 0.01}, kvstore=kv)
        numbers = mx.nd.array(np.arange(6.0 * BATCHES).reshape(2 * BATCHES, 3) / 30)
        self.data = gluon.data.DataLoader(gluon.data.ArrayDataset(numbers, numbers[:, 0]), 2)

    def step(self, inputs, labels):
        with autograd.record():
            loss = gluon.loss.L2Loss()(self.net(inputs)[:, 0], labels)
        loss.backward()
        self.trainer.step(2)


def trained(kv, folder, calls, at=None, every=None):
    """Train with a Run; `seen` gets the epoch and number of each batch, and `at` is called before it."""
    loop = Loop(kv)
    run = mx.checkpoint.Run(folder, loop.net, loop.trainer, loop.data, every=every)
    run.resume()
    for epoch in range(run.epoch, EPOCHS):
        for inputs, labels in loop.data:
            if at is not None:
                at(epoch, run.batch)
            loop.step(inputs, labels)
            calls.append((epoch, run.batch))
            run.batch_end()
        run.epoch_end()
    return loop.net.weight.data().asnumpy()


def crash_at(*place):
    def look(*now):
        if now == place:
            raise Crash

    return look


def wait_at(place, reached, event):
    def look(*now):
        if now == place:
            reached.set()
            event.wait(30)

    return look


@pytest.mark.parametrize("crash", [(0, 1), (1, 0), (1, 3), (2, 4)], ids=str)
@pytest.mark.parametrize("every", [None, 2])
def test_a_worker_that_rejoins_resumes_where_the_others_are(crash, every, tmp_path):
    reached, came, calls, again = threading.Event(), threading.Event(), [], []
    held = (2, 3) if crash < (2, 3) else (3, 1)  # the other worker is here when it comes back

    def worker(kv):
        return trained(kv, tmp_path / "run", calls, wait_at(held, reached, came), every)

    def back(kv):
        return trained(kv, tmp_path / "run", again, lambda *now: came.set(), every)

    with job(2, 1, "elastic") as cluster:
        first = cluster.begin(worker, rank=0)
        with pytest.raises(Crash):
            cluster.begin(lambda kv: trained(kv, tmp_path / "run", [], crash_at(*crash), every), rank=1).result(60)
        assert reached.wait(30)
        second = cluster.begin(back, rank=1)
        weights = first.result(60), second.result(60)
    np.testing.assert_array_equal(*weights)
    assert calls == [(epoch, batch) for epoch in range(EPOCHS) for batch in range(BATCHES)]
    assert again == calls[-len(again) :]  # nothing twice, and nothing left out
    assert held <= again[0]


def test_two_networks_of_a_loop_meet_once(tmp_path):
    def work(kv):
        loops = [Loop(kv), Loop("local")]
        runs = [mx.checkpoint.Run(tmp_path / str(i), each.net, each.trainer) for i, each in enumerate(loops)]
        for run in runs:
            run.resume()
        for _ in range(runs[0].epoch, 3):
            for batch in loops[0].data:
                loops[0].step(*batch)
            for run in runs:
                run.epoch_end()
        return [run.epoch for run in runs]

    with job(2, 1) as cluster:
        assert cluster.each(work) == [[3, 3]] * 2


def test_an_estimator_begins_at_the_jobs_epoch():
    reached, came, epochs = threading.Event(), threading.Event(), []

    class Look(mx.gluon.contrib.estimator.EpochBegin):
        def __init__(self, rank):
            self.rank, self.epoch = rank, 0

        def epoch_begin(self, estimator, *args, **kwargs):
            self.epoch += 1
            if self.rank == 0 and self.epoch == 3:
                reached.set()
                came.wait(30)
            if self.rank == 1 and not reached.is_set():
                raise Crash
            if self.rank == 1:
                came.set()

    def work(kv):
        loop = Loop(kv)
        estimator = Estimator(loop.net, gluon.loss.L2Loss(), mx.metric.MAE(), trainer=loop.trainer)
        estimator.logger.setLevel(logging.ERROR)
        look = Look(kv.rank)
        estimator.fit(loop.data, epochs=EPOCHS, event_handlers=[look])
        epochs.append((kv.rank, look.epoch))

    with job(2, 1, "elastic") as cluster:
        first = cluster.begin(work, rank=0)
        with pytest.raises(Crash):
            cluster.begin(work, rank=1).result(60)
        assert reached.wait(30)
        cluster.begin(work, rank=1).result(60)
        first.result(60)
    assert sorted(epochs) == [(0, EPOCHS), (1, 2)]


@pytest.mark.parametrize("asks", [False, True])
def test_a_loop_that_ignores_the_jobs_position_causes_a_warning(asks, caplog):
    started, came = threading.Event(), threading.Event()

    def plain(kv):
        loop = Loop(kv)
        for number, batch in enumerate(loop.data):
            if number == 2:
                started.set()
                came.wait(30)
            loop.step(*batch)

    def late(kv):
        loop = Loop(kv)
        batches = list(loop.data)
        loop.trainer._share_trained()
        for batch in batches[kv.step if asks else 4 :]:
            came.set()
            loop.step(*batch)
        came.set()

    def crash(kv):
        loop = Loop(kv)
        loop.step(*next(iter(loop.data)))
        started.wait(30)
        raise Crash

    with job(2, 1, "elastic") as cluster:
        first = cluster.begin(plain, rank=0)
        with pytest.raises(Crash):
            cluster.begin(crash, rank=1).result(60)
        cluster.begin(late, rank=1).result(60)
        first.result(60)
    assert ("its program has not read the position of the job" in caplog.text) is not asks


def test_completed_batches_are_skipped(caplog):
    data = gluon.data.DataLoader(list(range(10)), 2)
    skip(data, 3)
    assert [batch.asnumpy().tolist() for batch in data] == [[6, 7], [8, 9]]
    assert len(list(data)) == 5
    iterator = mx.io.NDArrayIter(np.arange(10), batch_size=2)
    skip(iterator, 3)
    assert len(list(iterator)) == 2
    skip(None, 0)
    assert not caplog.text
    skip(None, 2)
    assert "this worker trains on 2 batches that the others have completed" in caplog.text
