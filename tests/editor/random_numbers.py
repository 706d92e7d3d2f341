"""Random numbers from seeds."""

import flowmx as mx

mx.random.seed(7)
first = mx.nd.random.uniform(0, 1, shape=(3, 2))
mx.random.seed(7)
again = mx.nd.random.uniform(0, 1, shape=(3, 2))
assert (first == again).min().asscalar() == 1
kinds = mx.nd.random.multinomial(mx.nd.array([0.0, 1.0]), shape=4)
assert kinds.asnumpy().tolist() == [1, 1, 1, 1]
assert mx.nd.random.shuffle(mx.nd.arange(5)).sum().asscalar() == 10
