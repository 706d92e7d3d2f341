"""Gradients of hybridized blocks are written straight into their buffers, and only where that changes nothing."""

import numpy as np
import pytest

import flowmx as mx
from flowmx import autograd
from flowmx.devices.sim import simulated
from flowmx.gluon import nn

SHAPE = (3, 3)


def array(seed):
    return mx.nd.array(np.random.default_rng(seed).standard_normal(SHAPE))


class Twice(nn.HybridSequential):
    """A function of two arrays."""

    def hybrid_forward(self, F, x, y):
        return F.tanh(F.dot(x, y)) * x


def both(program):
    """The results of a program with an imperative block and with a hybridized one."""
    results = []
    for hybrid in (False, True):
        net = Twice()
        if hybrid:
            net.hybridize()
        results.append([each.asnumpy() for each in program(net)])
    return results


def leaves(request="write"):
    x, y = array(1), array(2)
    x.attach_grad(request)
    y.attach_grad(request)
    return x, y


def plain(net):
    x, y = leaves()
    for _ in range(2):
        with autograd.record():
            z = net(x, y)
        z.backward()
    return x.grad, y.grad


def added(net):
    x, y = leaves("add")
    for _ in range(2):
        with autograd.record():
            z = net(x, y)
        z.backward()
    return x.grad, y.grad


def used_twice(net):
    x, y = leaves()
    with autograd.record():
        z = net(net(x, y), y)
    z.backward()
    return x.grad, y.grad


def the_same_array_for_both(net):
    x, _ = leaves()
    with autograd.record():
        z = net(x, x)
    z.backward()
    return (x.grad,)


def used_beside_the_block(net):
    x, y = leaves()
    with autograd.record():
        z = net(x, y) + 3 * x
    z.backward()
    return x.grad, y.grad


def a_gradient_is_an_input(net):
    x, y = leaves()
    with autograd.record():
        z = net(x, y)
    z.backward()
    with autograd.record():
        z = net(x, y.grad + 0) + net(x.grad, y)
    z.backward()
    return x.grad, y.grad


def a_gradient_is_the_head(net):
    x, y = leaves()
    x.grad[:] = array(5)
    with autograd.record():
        z = net(x, y)
    z.backward(x.grad)
    return x.grad, y.grad


def two_leaves_share_a_buffer(net):
    x, y, buffer = array(1), array(2), mx.nd.zeros(SHAPE)
    autograd.mark_variables([x, y], [buffer, buffer])
    with autograd.record():
        z = net(x, y)
    z.backward()
    return (buffer,)


def a_buffer_is_a_view(net):
    x, y, whole = array(1), array(2), mx.nd.ones((6, 3))
    autograd.mark_variables([x, y], [whole[0:3], whole[3:6]])
    with autograd.record():
        z = net(x, y)
    z.backward()
    return (whole,)


def retained(net):
    x, y = leaves()
    with autograd.record():
        z = net(x, y)
    z.backward(retain_graph=True)
    first = x.grad.copy()
    z.backward()
    return first, x.grad, y.grad


def of_gradients(net):
    x, y = leaves()
    with autograd.record():
        z = net(x, y)
        (g,) = autograd.grad([z], [x], create_graph=True, retain_graph=True)
        (g * g).sum().backward()
    return x.grad, y.grad


PROGRAMS = [
    plain, added, used_twice, the_same_array_for_both, used_beside_the_block, a_gradient_is_an_input,
    a_gradient_is_the_head, two_leaves_share_a_buffer, a_buffer_is_a_view, retained, of_gradients,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_hybridized_gradients_match_imperative_ones(program):
    imperative, hybridized = both(program)
    for one, other in zip(imperative, hybridized, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_nothing_is_copied_after_the_backward_pass():
    net = nn.HybridSequential()
    net.add(*[nn.Dense(4, in_units=4) for _ in range(5)])
    net.initialize(ctx=mx.cpu(0))
    net.hybridize()
    x = mx.nd.ones((2, 4))
    for _ in range(2):
        with autograd.record():
            z = net(x)
        before = mx.engine.stats()["pushed"]
        z.backward()
    assert mx.engine.stats()["pushed"] - before <= 3  # the head's gradient, and the pass


def test_a_gradient_is_available_before_the_backward_pass_ends():
    with simulated("gtx980", numerics=False) as machine:
        net = nn.HybridSequential()
        net.add(*[nn.Dense(1024, in_units=1024) for _ in range(6)])
        net.initialize(ctx=mx.sim(0))
        net.hybridize()
        with autograd.record():
            z = net(mx.nd.ones((8, 1024), ctx=mx.sim(0)))
        z.backward()
        mx.nd.waitall()
        last, first = (net[index].weight.grad().storage.marks.write.event.event for index in (-1, 0))
        machine.advance_clock()
        assert last.end < first.end
