"""Gradients are used while the rest of the backward pass runs; a forward pass starts before all parameters arrive."""

import threading
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

import flowmx as mx
from flowmx.graph.planning.pass_pieces import MAX_PIECES, MIN_BYTES, cuts, pieces

LAYERS, WIDTH = 4, 600  # 1.4 MB a layer


@given(st.lists(st.integers(0, 3 * MIN_BYTES), max_size=40))
def test_pieces_are_few_and_worth_their_operation_and_leave_nothing_out(sizes):
    at = cuts(sizes)
    rows = pieces(sizes, at)
    assert [size for row in rows for size in row] == sizes
    assert at == sorted(set(at)) and 0 not in at and len(sizes) not in at
    assert len(rows) <= MAX_PIECES + 1
    assert all(sum(row) >= MIN_BYTES for row in rows[:-1])


def test_a_small_pass_stays_whole():
    assert cuts([1000] * 20) == []


def as_they_come(backward, first, last):
    """Return the order in which a pass completes two arrays, whose reads are pushed in the order of the layers.

    The head of the pass becomes available only after that.
    """
    order, is_pushed, head = [], threading.Event(), mx.nd.ones(1)
    mx.engine.push(lambda: is_pushed.wait(30), writes=[head], device=mx.cpu(2))
    backward(head)
    for name, array in (("first layer", first), ("last layer", last)):
        mx.engine.push(lambda name=name: order.append(name), reads=[array], device=mx.cpu(1))
    is_pushed.set()
    mx.nd.waitall()
    return order


def test_a_bound_graph_hands_over_the_gradients_of_its_last_layers_first():
    net = mx.sym.Variable("data")
    for index in range(LAYERS):
        net = mx.sym.FullyConnected(net, num_hidden=WIDTH, name=f"fc{index}")
    exe = mx.sym.sum(net).simple_bind(mx.cpu(), data=(8, WIDTH))
    for _ in range(2):
        exe.forward(is_train=True)
        mx.nd.waitall()
        order = as_they_come(exe.backward, exe.grad_dict["fc0_weight"], exe.grad_dict[f"fc{LAYERS - 1}_weight"])
        assert order == ["last layer", "first layer"]


def test_a_bound_graph_begins_before_the_parameters_of_its_last_layers_are_there():
    net = mx.sym.Variable("data")
    for index in range(LAYERS):
        net = mx.sym.FullyConnected(net, num_hidden=WIDTH, name=f"fc{index}")
    exe = net.simple_bind(mx.cpu(), data=(8, WIDTH))
    statistic = mx.nd.zeros(1)
    parameter, go = exe.arg_dict[f"fc{LAYERS - 1}_weight"], []

    async def arrives():
        go.append("parameter")

    before = mx.engine.stats()["completed"]
    late = mx.engine.push(arrives, reads=[statistic], writes=[parameter])
    exe.forward(is_train=True)
    mx.nd.waitall()
    assert go and late.done()
    assert mx.engine.stats()["completed"] - before > 2  # the pass is more than one operation


@pytest.mark.parametrize("again", [False, True], ids=["once", "retained"])
def test_a_cached_graph_hands_over_the_gradients_of_its_last_layers_first(again):
    net = mx.gluon.nn.HybridSequential()
    for _ in range(LAYERS):
        net.add(mx.gluon.nn.Dense(WIDTH, in_units=WIDTH))
    net.initialize()
    net.hybridize()
    for _ in range(2):
        with mx.autograd.record():
            loss = net(mx.nd.ones((8, WIDTH))).sum()
        mx.nd.waitall()
        backward = partial(loss.backward, retain_graph=again)
        order = as_they_come(backward, net[0].weight.grad(), net[LAYERS - 1].weight.grad())
        assert order == ["last layer", "first layer"]
        expected = net[0].weight.grad().asnumpy()
        if again:
            loss.backward()
            assert (net[0].weight.grad().asnumpy() == expected).all()
