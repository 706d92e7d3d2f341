"""The epilogue of a convolution or a product, fused before its result is written: scale, bias, addend, activation."""

from __future__ import annotations

from typing import Any, NamedTuple

from flowmx.ops.kernels.onednn.layouts import Desc, Geometry, Shape, plain
from flowmx.ops.kernels.onednn.library import Alg, Arg, DType, Query
from flowmx.ops.kernels.onednn.primitives import Post

_ACTIVATIONS = {
    "relu": Alg.ELTWISE_RELU,
    "leaky": Alg.ELTWISE_RELU,
    "sigmoid": Alg.ELTWISE_LOGISTIC,
    "tanh": Alg.ELTWISE_TANH,
}
"""The activations of oneDNN that are exact to rounding (its softrelu, elu and gelu are not, near and far below 0)."""


class Ends(NamedTuple):
    """The parts of an epilogue; ``vectors`` is the element type of bias and scale."""

    bias: bool = False
    scaled: bool = False
    added: bool = False
    then: str = ""
    slope: float = 0.0
    vectors: DType = DType.F32

    @property
    def own_bias(self) -> bool:
        """True where the primitive adds the bias itself, which it does before everything else, thus before a scale."""
        return self.bias and not self.scaled

    def posts(self, vector: Shape) -> list[Post]:
        """The post-operations of the product; ``vector`` is the shape of scale and bias."""
        made: list[Post] = []
        if self.scaled:
            kinds = (Alg.BINARY_MUL, Alg.BINARY_ADD)[: 1 + self.bias]
            made = [("binary", kind, vector, self.vectors) for kind in kinds]
        if self.added:
            made.append(("sum",))
        if self.then:
            made.append(("eltwise", _ACTIVATIONS[self.then], self.slope, 0.0))
        return made

    def arguments(self, vector: Shape) -> dict[int, Desc | Query]:
        """The arguments of a primitive that does them, in the order of :meth:`addresses`."""
        if self.own_bias:
            return {Arg.BIAS: plain(vector, self.vectors)}
        count = sum(post[0] == "binary" for post in self.posts(vector))
        return {Arg.ATTR_POST_OP * (position + 1) | Arg.SRC_1: plain(vector, self.vectors) for position in range(count)}

    def addresses(self, bias: list[int], scale: list[int]) -> tuple[int, ...]:
        """The addresses of the arguments that the epilogue adds, in the order of their descriptors."""
        return tuple(bias if self.own_bias else [*scale, *bias] if self.scaled else [])


PLAIN = Ends()


def ends_of(op: Any, *given: Geometry) -> Ends:
    """The epilogue of an operator, plain or fused, for what it is given besides data and weight."""
    scaled, added = getattr(op, "scaled", False), getattr(op, "added", False)
    then = getattr(op, "then", "")
    vectors = [each.dtype for each in given[: len(given) - added]]
    return Ends(not op.no_bias, scaled, added, then, op.slope if then == "leaky" else 0.0, *vectors[:1])
