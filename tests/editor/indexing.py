"""Slices, arithmetic and conversions of arrays."""

import numpy as np

import flowmx as mx

x = mx.nd.arange(12).reshape((3, 4))
assert x[1].shape == (4,) and x[1:, ::2].shape == (2, 2)
x[0] = 5
x[1, 2:] = mx.nd.zeros((2,))
y = -x.T + 1.5 * x.transpose() - (x > 3).astype("float32").T
assert y.shape == (4, 3) and len(x) == 3 and x.size == 12
total = sum(float(row.sum().asscalar()) for row in x)
assert total == float(np.asarray(x).sum())
parts = mx.nd.split(x, num_outputs=2, axis=1)
assert [part.shape for part in parts] == [(3, 2), (3, 2)]
stacked = mx.nd.stack(x, x, axis=0)
assert stacked.as_in_context(mx.cpu()).context == mx.cpu(0)
