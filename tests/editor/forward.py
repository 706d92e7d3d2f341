"""A plain block with forward."""

from flowmx import gluon, nd
from flowmx.gluon import nn
from flowmx.ndarray import NDArray


class Net(gluon.Block):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential()
        self.body.add(nn.Dense(4, activation="tanh"), nn.Dense(1))

    def forward(self, x: NDArray) -> NDArray:
        return self.body(x).sum(axis=1)


net = Net()
net.initialize()
assert net(nd.ones((3, 2))).shape == (3,)
