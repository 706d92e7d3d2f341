"""The epilogue of a convolution or a product, fused before its result is written: scale, bias, addend, activation."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

from flowmx.ops.kernels.onednn.layouts import Desc, Geometry, Shape, plain
from flowmx.ops.kernels.onednn.library import Alg, Arg, DType, Query
from flowmx.ops.kernels.onednn.primitives import Post, Scales

_ACTIVATIONS = {
    "relu": Alg.ELTWISE_RELU,
    "leaky": Alg.ELTWISE_RELU,
    "sigmoid": Alg.ELTWISE_LOGISTIC,
    "tanh": Alg.ELTWISE_TANH,
    "clip": Alg.ELTWISE_CLIP,
}
"""The activations of oneDNN that are exact to rounding (its softrelu, elu and gelu are not, near and far below 0)."""


class Ends(NamedTuple):
    """The parts of an epilogue.

    Attributes:
        bias, scaled, added, then: the parts that it has, as :class:`flowmx.ops.compiled.fused.Fused` names them.
        slope: the activation's slope below 0; of clip its upper end.
        vectors: the element type of bias and scale.
        mask: for layers on bytes, whose scale is part of the product, the weight's axes that it goes along, as bits.
        addend: the element type of what is added, where it is not the output's.
        factor: what that is multiplied by.
        rounded: for what is rounded before that the ends that it is cut off at, a factor and what is added then.
    """

    bias: bool = False
    scaled: bool = False
    added: bool = False
    then: str = ""
    slope: float = 0.0
    vectors: DType = DType.F32
    mask: int | None = None
    addend: DType | None = None
    factor: float = 1.0
    rounded: tuple[float, float, float, float] | None = None

    @property
    def own_bias(self) -> bool:
        """True where the primitive adds the bias itself, which it does before everything else, thus before a scale."""
        return self.bias and not self._scaled_after

    @property
    def _scaled_after(self) -> bool:
        return self.scaled and self.mask is None

    @property
    def scales(self) -> Scales:
        """The scales of the product itself."""
        return () if self.mask is None or not self.scaled else ((int(Arg.WEIGHTS), self.mask),)

    def posts(self, vector: Shape) -> list[Post]:
        """The post-operations of the product; ``vector`` is the shape of scale and bias."""
        made: list[Post] = []
        if self._scaled_after:
            kinds = (Alg.BINARY_MUL, Alg.BINARY_ADD)[: 1 + self.bias]
            made = [("binary", kind, vector, self.vectors) for kind in kinds]
        if self.rounded is not None:
            low, high, factor, shift = self.rounded
            made.append(("eltwise", Alg.ELTWISE_ROUND, 0.0, 0.0))
            made.append(("eltwise", Alg.ELTWISE_CLIP, low, high))
            made.append(("eltwise", Alg.ELTWISE_LINEAR, factor, shift))
        if self.added:
            made.append(("sum", self.factor, self.addend or 0))
        if self.then:
            ends = (0.0, self.slope) if self.then == "clip" else (self.slope, 0.0)
            made.append(("eltwise", _ACTIVATIONS[self.then], *ends))
        return made

    def arguments(self, vector: Shape) -> dict[int, Desc | Query]:
        """The arguments of a primitive that does them, in the order of :meth:`addresses`."""
        made: dict[int, Desc | Query] = {}
        if self.own_bias:
            made[Arg.BIAS] = plain(vector, self.vectors)
        if self.scales:
            made[Arg.ATTR_SCALES | Arg.WEIGHTS] = plain((prod(vector),), self.vectors)
        for position, (kind, *_) in enumerate(self.posts(vector)):
            if kind == "binary":
                made[Arg.ATTR_POST_OP * (position + 1) | Arg.SRC_1] = plain(vector, self.vectors)
        return made

    def addresses(self, bias: list[int], scale: list[int]) -> tuple[int, ...]:
        """The addresses of the arguments that the epilogue adds, in the order of their descriptors."""
        if self.own_bias:
            return (*bias, *(scale if self.scales else ()))
        return (*scale, *bias) if self.scaled else ()


PLAIN = Ends()


def ends_of(op: Any, *given: Geometry) -> Ends:
    """The epilogue of an operator, plain or fused, for what it is given besides data and weight."""
    scaled, added = getattr(op, "scaled", False), getattr(op, "added", False)
    vectors = [each.dtype for each in given[: len(given) - added]]
    return Ends(
        not op.no_bias,
        scaled,
        added,
        getattr(op, "then", ""),
        getattr(op, "edge", 0.0),
        vectors[0] if vectors else DType.F32,
    )
