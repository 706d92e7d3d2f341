"""A differentiable function with a custom gradient."""

from flowmx import autograd, nd
from flowmx.ndarray import NDArray


class Sigmoid(autograd.Function):
    def forward(self, x: NDArray) -> NDArray:
        y = 1 / (1 + nd.exp(-x))
        self.save_for_backward(y)
        return y

    def backward(self, dy: NDArray) -> NDArray:
        (y,) = self.saved_tensors
        return dy * y * (1 - y)


x = nd.zeros((2,))
x.attach_grad()
with autograd.record():
    y = Sigmoid()(x)
y.backward()
assert x.grad is not None and x.grad.asnumpy().tolist() == [0.25, 0.25]
