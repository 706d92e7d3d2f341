"""Bind a symbol and run it forward and backward."""

import flowmx as mx

x = mx.sym.Variable("x")
y = mx.sym.sum(x * x)
bound = y.simple_bind(mx.cpu(), x=(3,))
bound.arg_dict["x"][:] = 2
outputs = bound.forward(is_train=True)
bound.backward()
gradient = bound.grad_dict["x"]
assert gradient is not None
assert outputs[0].asnumpy().tolist() == [12] and gradient.asnumpy().tolist() == [4, 4, 4]
