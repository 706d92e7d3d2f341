"""Operators' counts of arithmetic: each gradient of a product takes as many operations as the product."""

import pytest

import flowmx as mx
from flowmx import autograd
from flowmx.devices.sim import Description, simulated
from flowmx.ops.registry.operators import lookup

COUNTS = Description(
    name="counts", memory=1 << 32, flops={"float32": 1.0}, bandwidth=1e30, kernel_seconds=0.0, launch_seconds=0.0,
    efficiency=1.0,
)  # fmt: skip


def arithmetic(function, *shapes):
    """Count the floating-point operations of the products in a function, forward and backward."""
    with simulated(COUNTS, numerics=False, races=False) as machine:
        arrays = [mx.nd.zeros(shape, ctx=mx.sim(0)) for shape in shapes]
        for each in arrays:
            each.attach_grad()
        with autograd.record():
            out = function(*arrays)
        mx.nd.waitall()
        forward = dict(machine.operators)
        out.backward()
        mx.nd.waitall()
        both = {name: seconds - forward.get(name, 0) for name, seconds in machine.operators.items()}
    products = ("Convolution", "Deconvolution", "FullyConnected", "dot", "matmul")
    return [sum(s for name, s in each.items() if any(p in name for p in products)) for each in (forward, both)]


@pytest.mark.parametrize(
    ("function", "shapes", "flops"),
    [
        (lambda x, w: mx.nd.Convolution(x, w, kernel=(3, 3), num_filter=8, pad=(1, 1), no_bias=True),
         [(2, 4, 10, 10), (8, 4, 3, 3)], 2 * 2 * 8 * 100 * 4 * 9),
        (lambda x, w: mx.nd.Convolution(x, w, kernel=(3, 3), num_filter=8, num_group=2, no_bias=True),
         [(2, 4, 10, 10), (8, 2, 3, 3)], 2 * 2 * 8 * 64 * 2 * 9),
        (lambda x, w: mx.nd.Deconvolution(x, w, kernel=(2, 2), stride=(2, 2), num_filter=6, no_bias=True),
         [(2, 4, 5, 5), (4, 6, 2, 2)], 2 * 2 * 4 * 25 * 6 * 4),
        (lambda x, w: mx.nd.FullyConnected(x, w, num_hidden=7, no_bias=True), [(5, 4, 3), (7, 12)], 2 * 5 * 12 * 7),
        (lambda x, w: mx.nd.FullyConnected(x, w, num_hidden=7, no_bias=True, flatten=False), [(5, 4, 3), (7, 3)],
         2 * 5 * 4 * 3 * 7),
        (mx.nd.dot, [(4, 5), (5, 6)], 2 * 4 * 5 * 6),
        (lambda a, b: mx.nd.dot(a, b, transpose_a=True), [(5, 4), (5, 6)], 2 * 4 * 5 * 6),
        (lambda a, b: mx.nd.dot(a, b, transpose_b=True), [(4, 5), (6, 5)], 2 * 4 * 5 * 6),
        (mx.nd.batch_dot, [(3, 4, 5), (3, 5, 6)], 3 * 2 * 4 * 5 * 6),
        (lambda q: mx.nd.contrib.interleaved_matmul_selfatt_qk(q, heads=2), [(5, 3, 2 * 3 * 4)], 2 * 3 * 2 * 5 * 5 * 4),
        (lambda q, a: mx.nd.contrib.interleaved_matmul_selfatt_valatt(q, a, heads=2),
         [(5, 3, 2 * 3 * 4), (6, 5, 5)], 2 * 3 * 2 * 5 * 5 * 4),
    ],
)  # fmt: skip
def test_gradients_of_products_cost_as_much_as_the_products(function, shapes, flops):
    forward, backward = arithmetic(function, *shapes)
    assert forward == flops
    assert backward == 2 * flops


def test_the_cost_of_a_transposed_dot_follows_the_summed_axis():
    op = lookup("dot").create(transpose_a=True)
    assert op.cost([(5, 4), (5, 6)], [(4, 6)])[0] == 2 * 4 * 5 * 6
