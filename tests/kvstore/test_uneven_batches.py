"""Workers with fewer batches than others: the job names them and says what to do."""

import asyncio
import logging
import re

import pytest

import flowmx as mx
from flowmx import gluon, settings
from tests.jobs import job
from tests.kvstore.test_distributed_training import BATCH, backward, batches, fit, network, part
from tests.kvstore.test_long_waits import until_logged

ADVICE = r"give all workers the same number of batches: discard .*last_batch='discard'.*mx\.io\.ResizeIter"


@pytest.fixture(autouse=True)
def warnings_only(caplog):
    caplog.set_level(logging.WARNING, "flowmx.kvstore")


def early(caplog):
    """Return the log messages about workers that ended early, without the advice, which all of them have."""
    messages = [message for message in caplog.messages if "ended early" in message]
    for message in messages:
        assert re.search(ADVICE, message), message
    return {message.partition("; give all")[0] for message in messages}


def push(kv, count, out):
    for _ in range(count):
        kv.pushpull("w", mx.nd.ones(2), out=out)
    out.wait_to_read()


def begin(kv):
    kv.init("w", mx.nd.zeros(2))
    kv.set_optimizer(mx.optimizer.SGD(learning_rate=1.0))
    return mx.nd.empty(2)


SHORT = "worker 1 ended early: it had {} fewer than other workers, whose last updates lack its gradients"


@pytest.mark.parametrize("servers", [1, 2])
def test_fit_names_the_worker_with_fewer_batches(caplog, servers):
    with job(2, servers) as cluster:
        cluster.each(lambda kv: fit(kv, batches(kv.rank, 2, count=[5, 3][kv.rank]), 2))
    assert early(caplog) == {SHORT.format("2 batches")}


def test_a_trainer_names_the_worker_with_fewer_batches_at_its_barrier(caplog):
    def work(kv):
        net = network("mlp")
        trainer = gluon.Trainer(net.collect_params(), "adam", kvstore=kv)
        for step in range(3 - kv.rank):
            backward(net, *part(step, kv.rank, 2))
            trainer.step(BATCH)
        asyncio.run(trainer.barrier())

    with job(2, 1) as cluster:
        cluster.each(work)
    assert early(caplog) == {SHORT.format("1 batch")}


def test_a_worker_that_updates_its_own_weights_lacks_the_updates(caplog):
    def work(kv):
        kv.init("w", mx.nd.zeros(2))
        push(kv, 3 - kv.rank, mx.nd.empty(2))
        kv._barrier()

    with job(2, 1) as cluster:
        cluster.each(work)
    assert early(caplog) == {SHORT.format("1 batch"), SHORT.format("1 batch") + " and are missing here"}


def test_a_worker_that_has_left_is_named(caplog):
    def work(kv):
        push(kv, 3 + 4 * (not kv.rank), begin(kv))

    with job(2, 2) as cluster:
        cluster.each(work)
    assert early(caplog) == {SHORT.format("4 batches")}


@pytest.mark.parametrize("leaves", [True, False])
def test_the_worker_is_named_while_the_others_still_train(caplog, leaves):
    def work(kv):
        out = begin(kv)
        push(kv, 2, out)
        if kv.rank == 1 and leaves:
            return
        if kv.rank == 0:
            push(kv, 3, out)
            until_logged(caplog, r"^worker 1 ended early: .*, and worker 0 trains without its gradients; " + ADVICE)
        if not leaves:
            kv._barrier()

    with settings.override(kvstore_patience=0.2), job(2, 1) as cluster:
        cluster.each(work)
    state = "has left the job" if leaves else "waits for the others"
    now = f"worker 1 ended early: it {state}, and worker 0 trains without its gradients"
    assert now in early(caplog) <= {now, SHORT.format("3 batches")}


@pytest.mark.parametrize("name", ["dist_sync", "dist_async"])
def test_nothing_is_said_if_all_have_the_same_number_or_the_store_is_asynchronous(caplog, name):
    def work(kv):
        out = begin(kv)
        for _ in range(3):
            push(kv, 3 + (kv.rank if name == "dist_async" else 0), out)
            kv._barrier()

    with settings.override(kvstore_patience=0.05), job(2, 2) as cluster:
        cluster.each(work, name)
    assert early(caplog) == set()
