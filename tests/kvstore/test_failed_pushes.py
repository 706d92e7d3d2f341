"""Failed pushes: all workers that wait for the round get an error with the worker, the key and the reason."""

from contextlib import suppress

import numpy as np
import pytest

import flowmx as mx
from flowmx import nd, settings
from flowmx.comm.errors import Refused
from flowmx.errors import KVStoreError
from flowmx.kvstore.server import protocol as p
from flowmx.kvstore.server import service, wire
from flowmx.kvstore.server.missing_push import MissingPush
from flowmx.kvstore.server.store import Value
from tests.jobs import job


def pulled(kv, key="w", size=2):
    out = nd.zeros((size,))
    kv.pull(key, out)
    return out.asnumpy().tolist()


def failed(kv, key="w", size=2):
    with pytest.raises(KVStoreError) as caught:
        pulled(kv, key, size)
    return str(caught.value)


@pytest.fixture(autouse=True)
def consume_errors():
    """Consume the errors of pushes that no test has waited for."""
    yield
    with suppress(mx.MXNetError, ValueError):
        nd.waitall()


@pytest.fixture
def refusing(monkeypatch):
    """Make servers refuse pushes of some keys and numbers."""
    expected = set()
    real = service.decode_gradient

    def decode_gradient(item, shape, dtype):
        if (item.part.key, item.number) in expected:
            raise Refused("a gradient of float32 [3] was pushed to a value of float32 [2]", "invalid")
        return real(item, shape, dtype)

    monkeypatch.setattr(service, "decode_gradient", decode_gradient)
    return expected


def in_turn(kv, bad, good):
    """Run a round that fails on worker 1, then one that succeeds; return the errors and the value."""
    kv.init("w", nd.zeros((2,)))
    bad(kv) if kv.rank else good(kv)
    error = failed(kv)
    kv._barrier()
    good(kv)
    return error, pulled(kv)


def ones(kv):
    kv.push("w", nd.ones((2,)))


def of_another_dtype(kv):
    kv.push("w", nd.ones((2,), dtype="float64"))


def of_a_failed_operation(kv):
    class Failing(mx.operator.CustomOp):
        def forward(self, is_train, req, in_data, out_data, aux):
            raise ValueError("no gradient today")

    @mx.operator.register("failing_gradient")
    class Prop(mx.operator.CustomOpProp):
        def create_operator(self, ctx, shapes, dtypes):
            return Failing()

    kv.push("w", nd.Custom(nd.ones((2,)), op_type="failing_gradient"))


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize(
    ("bad", "reason"), [(of_another_dtype, "float64 cannot be pushed"), (of_a_failed_operation, "no gradient today")]
)
def test_a_push_that_fails_on_its_worker_fails_the_round_of_all(bad, reason, servers):
    def work(kv):
        kv.init("w", nd.zeros((2,)))
        bad(kv) if kv.rank else ones(kv)
        with pytest.raises((KVStoreError, ValueError)) as caught:
            pulled(kv)
        kv._barrier()
        ones(kv)
        return str(caught.value), pulled(kv)

    with job(2, servers) as cluster:
        (other, value), (own, same) = cluster.each(work)
    assert reason in own
    assert reason in other and "worker 1" in other and "'w'" in other
    assert value == same == [2.0, 2.0]


@pytest.mark.parametrize("bound", [1, 1000])
def test_a_push_that_a_server_refuses_fails_the_round_of_all(refusing, bound):
    refusing.add(("w", 1))
    with settings.override(kvstore_bigarray_bound=bound), job(2, 2) as cluster:
        results = cluster.each(lambda kv: in_turn(kv, ones, ones))
    for error, value in results:
        assert "a gradient of float32 [3] was pushed to a value of float32 [2]" in error and "'w'" in error
        assert value == [2.0, 2.0]


def test_items_sent_with_a_refused_push_arrive(refusing):
    refusing.add(("b", 1))
    keys = ["a", "b", "c"]

    def work(kv):
        kv.init(keys, [nd.zeros((1 << 16,)) for _ in keys])
        for key in keys:
            kv.push(key, nd.ones((1 << 16,)))
        error = failed(kv, "b", 1 << 16)
        return error, [pulled(kv, key, 1 << 16)[0] for key in ("a", "c")]

    with job(1, 1) as cluster:
        error, values = cluster.each(work)[0]
    assert "push of 'b' was refused" in error and values == [1.0, 1.0]


def test_a_waiting_pull_gets_the_refusal(refusing):
    refusing.add(("w", 1))

    def work(kv):
        kv.init("w", nd.zeros((2,)))
        out = nd.zeros((2,))
        kv.pushpull("w", nd.ones((2,)), out)
        with pytest.raises(KVStoreError, match="'w'"):
            out.wait_to_read()

    with job(2, 1) as cluster:
        cluster.each(work)


@pytest.mark.parametrize("keys", [["w"], ["w", "v"]])
def test_without_an_optimizer_dist_async_refuses_until_one_is_set(keys):
    def work(kv):
        kv.init(keys, [nd.zeros((2,)) for _ in keys])
        kv.push(keys, [nd.ones((2,)) for _ in keys])
        error = failed(kv)
        kv.set_optimizer(mx.optimizer.Test())
        kv.push(keys, [nd.ones((2,)) for _ in keys])
        return error, pulled(kv)

    with job(1, 1) as cluster:
        error, value = cluster.each(work, "dist_async")[0]
    assert "call set_optimizer first" in error and value == [1.0, 1.0]


@mx.optimizer.register
class Failing(mx.optimizer.Optimizer):
    """An optimizer that raises at its first step."""

    def step(self, weight, grad, state, lr, wd, t):
        raise ZeroDivisionError("no step today")


def test_an_optimizer_that_raises_on_the_server_is_an_error_for_every_worker():
    def work(kv):
        kv.set_optimizer(Failing())
        kv.init("w", nd.zeros((2,)))
        ones(kv)
        return failed(kv)

    with job(2, 1) as cluster:
        assert all(
            "'w' could not be updated: ZeroDivisionError: no step today" in error for error in cluster.each(work)
        )


def unknown():
    """An optimizer that the servers do not know."""
    optimizer = mx.optimizer.SGD()
    config = {**optimizer.get_config(), "optimizer": "unknown"}
    optimizer.get_config = lambda: config
    return optimizer


def test_after_a_failed_set_optimizer_every_call_raises_its_error():
    def work(kv):
        kv.init("w", nd.zeros((2,)))
        kv.set_optimizer(unknown())
        ones(kv)
        errors = [failed(kv), failed(kv)]
        ones(kv)
        return [*errors, failed(kv)]

    with job(2, 1) as cluster:
        results = cluster.each(work)
    for error in (error for errors in results for error in errors):
        assert "set_optimizer was refused by the servers" in error and "unknown" in error
        assert "died" not in error


def test_init_after_a_failed_set_optimizer_ends_the_job_with_its_error():
    def work(kv):
        kv.set_optimizer(unknown())
        kv.init("w", nd.zeros((2,)))
        pulled(kv)

    with job(2, 1) as cluster:
        begun = [cluster.begin(work, rank=rank) for rank in range(2)]
        errors = [str(item.exception(60)) for item in begun]
    assert all("set_optimizer was refused by the servers" in error for error in errors)


def test_another_set_optimizer_clears_the_error():
    def work(kv):
        kv.init("w", nd.zeros((2,)))
        kv.set_optimizer(unknown())
        failed(kv)
        kv.set_optimizer(mx.optimizer.Test())
        ones(kv)
        return pulled(kv)

    with job(2, 1) as cluster:
        assert cluster.each(work) == [[2.0, 2.0]] * 2


def test_refused_initial_values_end_the_job(monkeypatch):
    real = service.KVServer._init

    async def init(self, caller, message):
        if message.tensors:
            raise Refused("the value is too large", "too_large")
        return await real(self, caller, message)

    monkeypatch.setattr(service.KVServer, "_init", init)

    def work(kv):
        kv.init("w", nd.zeros((2,)))
        pulled(kv)

    with job(2, 1) as cluster:
        begun = [cluster.begin(work, rank=rank) for rank in range(2)]
        errors = [str(item.exception(60)) for item in begun]
    assert all("the value is too large" in error for error in errors)


# -- messages ----------------------------------------------------------------------------------------------


def test_a_missing_push_is_sent_to_the_backup():
    part = p.Part("w", 0, 0)
    step = p.PartStep("update", 3, merged=MissingPush("worker 1 had none"), marks=(("worker1:1", 2),))
    header, tensors = wire.pack(p.StepSent(1, part, 1, step))
    assert wire.unpack(header, tensors).step == step and not tensors
    value = Value(np.ones(2, np.float32), failure="worker 1 had none")
    record = p.Record(part, 1, 3, 2, {}, {}, {}, value)
    header, tensors = wire.pack(p.Copy(1, record))
    assert wire.unpack(header, tensors).record.value.failure == "worker 1 had none"
