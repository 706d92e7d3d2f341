"""Operations that are fused with a convolution or matrix product: scale, bias, addend, activation."""

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
    "swish": Alg.ELTWISE_SWISH,
    "clip": Alg.ELTWISE_CLIP,
}
"""Activations that oneDNN computes exactly up to rounding (unlike softrelu, elu and gelu near and far below 0)."""


class Epilogue(NamedTuple):
    """The parts of an epilogue.

    Attributes:
        has_bias, has_scale, has_addend, activation: the operations, as in
            :class:`flowmx.ops.compiled.fused_layers.Fused`.
        slope: the slope of the activation below 0; for clip, the upper bound; for swish, the factor in its sigmoid.
        vector_type: the element type of bias and scale.
        mask: for int8 layers, whose scale is part of the product: a bit mask of the weight's axes along which the
            scale varies.
        addend_type: the element type of the addend, if it differs from that of the output.
        addend_factor: the factor of the addend.
        rounding: for rounding before the addend: the lower and upper bound, a factor and a shift.
    """

    has_bias: bool = False
    has_scale: bool = False
    has_addend: bool = False
    activation: str = ""
    slope: float = 0.0
    vector_type: DType = DType.F32
    mask: int | None = None
    addend_type: DType | None = None
    addend_factor: float = 1.0
    rounding: tuple[float, float, float, float] | None = None

    @property
    def has_primitive_bias(self) -> bool:
        """Whether the primitive itself adds the bias: before all other operations, including the scale."""
        return self.has_bias and not self._has_scale_step

    @property
    def _has_scale_step(self) -> bool:
        return self.has_scale and self.mask is None

    @property
    def scales(self) -> Scales:
        """The scales that are part of the product."""
        return () if self.mask is None or not self.has_scale else ((int(Arg.WEIGHTS), self.mask),)

    def posts(self, vector: Shape) -> list[Post]:
        """Return the post-operations of the product; ``vector`` is the shape of scale and bias."""
        posts: list[Post] = []
        if self._has_scale_step:
            kinds = (Alg.BINARY_MUL, Alg.BINARY_ADD)[: 1 + self.has_bias]
            posts = [("binary", kind, vector, self.vector_type) for kind in kinds]
        if self.rounding is not None:
            low, high, factor, shift = self.rounding
            posts.append(("eltwise", Alg.ELTWISE_ROUND, 0.0, 0.0))
            posts.append(("eltwise", Alg.ELTWISE_CLIP, low, high))
            posts.append(("eltwise", Alg.ELTWISE_LINEAR, factor, shift))
        if self.has_addend:
            posts.append(("sum", self.addend_factor, self.addend_type or 0))
        if self.activation:
            numbers = (0.0, self.slope) if self.activation == "clip" else (self.slope, 0.0)
            posts.append(("eltwise", _ACTIVATIONS[self.activation], *numbers))
        return posts

    def arguments(self, vector: Shape) -> dict[int, Desc | Query]:
        """Return the arguments that the epilogue adds to a primitive, in the order of :meth:`addresses`."""
        arguments: dict[int, Desc | Query] = {}
        if self.has_primitive_bias:
            arguments[Arg.BIAS] = plain(vector, self.vector_type)
        if self.scales:
            arguments[Arg.ATTR_SCALES | Arg.WEIGHTS] = plain((prod(vector),), self.vector_type)
        for position, (kind, *_) in enumerate(self.posts(vector)):
            if kind == "binary":
                arguments[Arg.ATTR_POST_OP * (position + 1) | Arg.SRC_1] = plain(vector, self.vector_type)
        return arguments

    def addresses(self, bias: list[int], scale: list[int]) -> tuple[int, ...]:
        """Return the addresses of the arguments that the epilogue adds, in the order of their descriptors."""
        if self.has_primitive_bias:
            return (*bias, *(scale if self.scales else ()))
        return (*scale, *bias) if self.has_scale else ()


PLAIN = Epilogue()


def epilogue_of(op: Any, *extra_inputs: Geometry) -> Epilogue:
    """Return the epilogue of an operator, plain or fused, for its inputs after data and weight."""
    has_scale, has_addend = getattr(op, "scaled", False), getattr(op, "has_addend", False)
    vectors = [vector.dtype for vector in extra_inputs[: len(extra_inputs) - has_addend]]
    return Epilogue(
        not op.no_bias,
        has_scale,
        has_addend,
        getattr(op, "activation", ""),
        getattr(op, "activation_bound", 0.0),
        vectors[0] if vectors else DType.F32,
    )
