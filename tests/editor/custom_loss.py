"""A custom loss, next to one of Gluon."""

from flowmx import gluon, nd
from flowmx.ndarray import NDArray


class Huber(gluon.loss.Loss):
    def __init__(self, rho: float = 1.0) -> None:
        super().__init__(None, 0)
        self.rho = rho

    def hybrid_forward(self, F: gluon.Operators, pred: NDArray, label: NDArray) -> NDArray:
        error = F.abs(pred - label)
        return F.mean(F.where(error < self.rho, error**2 / 2, self.rho * (error - self.rho / 2)), axis=0, exclude=True)


pred, label = nd.array([[0.0], [3.0]]), nd.array([[1.0], [0.0]])
custom = Huber()(pred, label)
builtin = gluon.loss.HuberLoss()(pred, label)
assert custom.asnumpy().tolist() == builtin.asnumpy().tolist()
