"""Initializers, one of them custom."""

import flowmx as mx
from flowmx.ndarray import NDArray


@mx.init.register
class EditorSevens(mx.init.Initializer):
    def _init_weight(self, name: str, arr: NDArray) -> None:
        arr[:] = 7


net = mx.gluon.nn.Dense(2, in_units=2, bias_initializer="ones")
net.initialize(EditorSevens())
assert net.weight.data().asnumpy().min() == 7 and net.bias is not None
mixed = mx.init.Mixed([".*bias", ".*"], [mx.init.Zero(), mx.init.Normal(0.1)])
net.initialize(mixed, force_reinit=True)
assert abs(net.weight.data().asnumpy()).max() < 7
