"""Train a line by hand."""

import flowmx as mx
from flowmx import autograd, nd

w = nd.zeros((2, 1))
w.attach_grad()
x = nd.random.normal(shape=(32, 2))
y = nd.dot(x, nd.array([[1.0], [2.0]]))
for _ in range(100):
    with autograd.record():
        loss = ((nd.dot(x, w) - y) ** 2).mean()
    loss.backward()
    assert w.grad is not None
    w -= 0.2 * w.grad
assert mx.nd.abs(w - nd.array([[1.0], [2.0]])).max().asscalar() < 0.5
