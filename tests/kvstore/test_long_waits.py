"""Long waits: workers and servers log which nodes wait for which keys or barriers, and which nodes are missing."""

import re
import threading
import time

import pytest

import flowmx as mx
from flowmx import gluon, nd, settings
from flowmx.kvstore.wait_log import Waits, format_keys
from tests.jobs import job


@pytest.fixture
def hurried():
    with settings.override(kvstore_patience=0.2):
        yield


def until_logged(caplog, *patterns):
    """Wait until the log has a line for each pattern."""
    ends = time.monotonic() + 30
    while not all(any(re.search(pattern, line) for line in caplog.messages) for pattern in patterns):
        assert time.monotonic() < ends, (patterns, caplog.messages)
        threading.Event().wait(0.02)


@pytest.mark.parametrize("servers", [1, 2])
def test_workers_that_push_different_keys_are_named(hurried, caplog, servers):
    def work(kv):
        kv.init(["a", "b"], [nd.zeros((2,)), nd.zeros((2,))])
        ours, other = ("a", "b") if kv.rank == 0 else ("b", "a")
        out = nd.zeros((2,))
        kv.push(ours, nd.ones((2,)))
        kv.pull(ours, out)
        until_logged(
            caplog,
            r"^worker 0 has waited \d+ s for round 1 of key 'a': worker 1.* ?has not pushed",
            r"^worker 1 has waited \d+ s for round 1 of key 'b': worker 0.* ?has not pushed",
            r"^server \d has waited \d+ s for round 1 of key 'a': worker 1.* ?has not pushed; worker 0.* waits",
            r"^server \d has waited \d+ s for round 1 of key 'b': worker 0.* ?has not pushed; worker 1.* waits",
        )
        kv.push(other, nd.ones((2,)))
        return out.asnumpy().tolist()

    with job(2, servers) as cluster:
        assert cluster.each(work) == [[2.0, 2.0]] * 2


def test_parameters_are_named(hurried, caplog):
    def work(kv):
        nets = [gluon.nn.Dense(1, in_units=1, use_bias=False, prefix=f"{name}_") for name in "ab"]
        for net in nets:
            net.initialize()
        params = {**nets[0].collect_params(), **nets[1].collect_params()}
        trainer = gluon.Trainer(params, "sgd", kvstore=kv)
        for which in (kv.rank, 1 - kv.rank):
            with mx.autograd.record():
                loss = nets[which](nd.ones((1, 1))).sum()
            loss.backward()
            trainer.step(1, ignore_stale_grad=True)
            until_logged(
                caplog, r"^worker 0.* key 0 \(a_weight\): worker 1", r"^worker 1.* key 1 \(b_weight\): worker 0"
            )

    with job(2, 1) as cluster:
        cluster.each(work)


def test_missing_workers_at_a_barrier_are_named(hurried, caplog):
    def work(kv):
        if kv.rank:
            until_logged(caplog, r"^worker 0.* at the barrier 'kvstore' for worker 1")
        kv._barrier()

    with job(2, 1) as cluster:
        cluster.each(work)


def test_a_wait_is_logged_again_when_it_has_doubled():
    now = 0.0
    waits, result = Waits(10.0, lambda: now), []
    for now in range(0, 101, 5):
        result += [(key, round(seconds)) for key, seconds in waits.due({"a": None, **({"b": -4.0} if now < 20 else {})})
                  .items()]  # fmt: skip
    assert result == [("a", 10), ("b", 14), ("a", 20), ("a", 40), ("a", 80)]
    assert format_keys(["'a'"]) == "key 'a'" and format_keys(map(str, range(6))) == "keys 0, 1, 2, 3 and 2 more"
