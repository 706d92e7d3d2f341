"""A block with hybrid_forward, for arrays and symbols."""

from flowmx import gluon, nd
from flowmx.gluon import nn
from flowmx.ndarray import NDArray


class Net(gluon.HybridBlock):
    def __init__(self, units: int) -> None:
        super().__init__()
        with self.name_scope():
            self.hidden = nn.Dense(units, activation="relu")
            self.out = nn.Dense(2)

    def hybrid_forward(self, F: gluon.Operators, x: NDArray) -> NDArray:
        return self.out(self.hidden(x))


net = Net(8)
net.initialize()
net.hybridize()
out = net(nd.ones((4, 3)))
assert out.shape == (4, 2)
