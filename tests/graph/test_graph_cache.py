"""Compiled graphs are kept while there is memory for them, whatever their number."""

import gc
import weakref

import numpy as np
import pytest

import flowmx as mx
from flowmx import settings
from flowmx.bounded_tables import make_room
from flowmx.cached_op import compiled as compiled_graphs
from flowmx.graph import capacity
from flowmx.observability.doctor.rules import diagnose
from flowmx.observability.flight.snapshot import take


@pytest.fixture
def compiled(monkeypatch):
    """Record the graphs that are compiled, one entry each."""
    graphs = []
    original = compiled_graphs.plan_of
    monkeypatch.setattr(compiled_graphs, "plan_of", lambda *args: graphs.append(1) or original(*args))
    return graphs


@pytest.fixture
def alone(monkeypatch):
    """Hide the caches of other tests."""
    monkeypatch.setattr(capacity, "_caches", weakref.WeakSet())


class Net(mx.gluon.HybridBlock):
    def hybrid_forward(self, F, x):
        return F.sigmoid(F.broadcast_add(x, F.sum(x, axis=0, keepdims=True)))


def hybridized():
    net = Net(prefix="net_")
    net.hybridize()
    return net


def predict(net, lengths):
    for length in lengths:
        assert net(mx.nd.ones((length, 2))).asnumpy().shape == (length, 2)


def train(net, lengths):
    for length in lengths:
        x = mx.nd.ones((length, 2))
        x.attach_grad()
        with mx.autograd.record():
            y = net(x)
        y.backward()
        assert np.isfinite(x.grad.asnumpy()).all()


@pytest.mark.parametrize("use", [predict, train])
def test_sixty_lengths_are_compiled_once(use, compiled):
    net = hybridized()
    use(net, range(1, 61))
    assert len(compiled) == 60
    use(net, range(1, 61))
    assert len(compiled) == 60


def test_slightly_more_shapes_than_the_capacity_mostly_hit(alone, compiled):
    net = hybridized()
    predict(net, [1])
    (cache,) = capacity.caches()
    each = cache.held_bytes
    lengths = range(1, (4 << 20) // each + 5)
    with settings.override(graph_cache=4):
        predict(net, lengths)
        first = len(compiled)
        assert first == len(lengths) > 3 * capacity.ALWAYS
        for _ in range(3):
            predict(net, lengths)
        assert len(compiled) - first < 3 * len(lengths) / 2
        assert cache.held_bytes <= 4 << 20


def test_dropped_graphs_are_reported_and_freed(alone, compiled, caplog):
    net = hybridized()
    predict(net, [1])
    (cache,) = capacity.caches()
    graph = weakref.ref(next(iter(cache.graphs.values())))
    gc.disable()
    try:
        with settings.override(graph_cache=0):
            predict(net, range(2, 200))
            assert len(cache.graphs) == capacity.ALWAYS
            assert cache.dropped == 199 - capacity.ALWAYS
            assert graph() is None
    finally:
        gc.enable()
    (record,) = (each for each in caplog.records if each.name == "flowmx.graph")
    assert "compiled graphs of net are dropped" in record.message
    assert "FLOWMX_GRAPH_CACHE" in record.message
    snapshot = {"name": "here", **take()}
    mx.flight_recorder.forget("graphs")
    (finding,) = (each for each in diagnose([snapshot]) if each.kind == "dropped graphs")
    assert f"({cache.dropped} so far)" in finding.text


def test_the_most_recently_used_graphs_stay(alone):
    net = hybridized()
    with settings.override(graph_cache=0):
        predict(net, [1])
        (cache,) = capacity.caches()
        first = next(iter(cache.graphs.values()))
        for length in range(2, 60):
            predict(net, [length, 1])
    assert first in cache.graphs.values()


def test_a_module_binds_each_batch_shape_once(alone, monkeypatch):
    bound = []
    original = mx.executor.Executor.reshape
    monkeypatch.setattr(
        mx.executor.Executor,
        "reshape",
        lambda self, *args, **kwargs: bound.append(1) or original(self, *args, **kwargs),
    )
    net = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2, name="fc")
    module = mx.mod.Module(net, label_names=None)
    module.bind([("data", (1, 3))], for_training=False)
    module.init_params()
    for _ in range(2):
        for rows in range(1, 31):
            module.forward(mx.io.DataBatch([mx.nd.ones((rows, 3))]), is_train=False)
            assert module.get_outputs()[0].asnumpy().shape == (rows, 2)
    assert len(bound) == 29


def test_the_bodies_of_loops_are_bounded(alone):
    with settings.override(graph_cache=0):

        class Loop(mx.gluon.HybridBlock):
            def hybrid_forward(self, F, x):
                return F.contrib.foreach(lambda part, total: (part + total, part + total), x, F.sum(x, axis=0))[0]

        net = Loop()
        net.hybridize()
        for length in range(1, 40):
            assert net(mx.nd.ones((2, length))).asnumpy().shape == (2, length)
        assert all(len(each.graphs) <= capacity.ALWAYS for each in capacity.caches())
        assert sum(each.name == "the body of a loop or branch" for each in capacity.caches())


def test_a_full_table_drops_some_at_random():
    table, misses = {}, 0
    for turn in range(20):
        for key in range(110):
            if key not in table:
                misses += turn > 0
                dropped = make_room(table, 100)
                assert not set(dropped) & set(table.values())
                table[key] = key
            assert len(table) <= 100
    assert misses < 19 * 110 // 2


def test_random_numbers_of_the_user_stay_as_they_are():
    import random

    random.seed(7)
    expected = random.random()
    random.seed(7)
    make_room(dict.fromkeys(range(10)), 10)
    assert random.random() == expected
