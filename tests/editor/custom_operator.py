"""A custom operator in Python."""

from typing import Any

import flowmx as mx
from flowmx.ndarray import NDArray


class Square(mx.operator.CustomOp):
    def forward(
        self, is_train: bool, req: list[str], in_data: list[NDArray], out_data: list[NDArray], aux: list[NDArray]
    ) -> None:
        self.assign(out_data[0], req[0], in_data[0] ** 2)

    def backward(
        self, req: list[str], out_grad: list[NDArray], in_data: list[NDArray], out_data: list[NDArray],
        in_grad: list[NDArray], aux: list[NDArray],
    ) -> None:  # fmt: skip
        self.assign(in_grad[0], req[0], 2 * in_data[0] * out_grad[0])


@mx.operator.register("editor_square")
class SquareProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx: Any, shapes: Any, dtypes: Any) -> Square:
        return Square()


x = mx.nd.array([1, 2, 3])
x.attach_grad()
with mx.autograd.record():
    y = mx.nd.Custom(x, op_type="editor_square")
y.backward()
assert x.grad is not None and x.grad.asnumpy().tolist() == [2, 4, 6]
