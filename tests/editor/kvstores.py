"""Keys and values, and a custom updater."""

import flowmx as mx
from flowmx.ndarray import NDArray


def update(key: int | str, gradient: NDArray, weight: NDArray) -> None:
    weight += gradient * 2


kv = mx.kv.create("local")
kv.init(3, mx.nd.zeros((2,)))
kv.set_updater(update)
kv.push(3, [mx.nd.ones((2,)), mx.nd.ones((2,))])
out = mx.nd.empty((2,))
kv.pull(3, out=out)
assert out.asnumpy().tolist() == [4, 4] and kv.num_workers == 1 and kv.rank == 0
