"""What a convolution or a product does with its result before it writes it: scale, bias, addend, activation."""

from __future__ import annotations

from typing import Any, NamedTuple

from flowmx.ops.kernels.onednn.library import Alg
from flowmx.ops.kernels.onednn.primitives import Post

_ACTIVATIONS = {
    "relu": Alg.ELTWISE_RELU,
    "leaky": Alg.ELTWISE_RELU,
    "sigmoid": Alg.ELTWISE_LOGISTIC,
    "tanh": Alg.ELTWISE_TANH,
}
"""Those of oneDNN that are exact to rounding (its softrelu, elu and gelu are not, near 0 and far below it)."""


class Ends(NamedTuple):
    """Which of them."""

    bias: bool = False
    scaled: bool = False
    added: bool = False
    then: str = ""
    slope: float = 0.0

    def posts(self) -> list[Post]:
        """What is to be done after scale and bias."""
        made: list[Post] = [("sum",)] if self.added else []
        if self.then:
            made.append(("eltwise", _ACTIVATIONS[self.then], self.slope, 0.0))
        return made


PLAIN = Ends()


def ends_of(op: Any) -> Ends:
    """What an operator does, plain or fused."""
    scaled, added = getattr(op, "scaled", False), getattr(op, "added", False)
    then = getattr(op, "then", "")
    return Ends(not op.no_bias, scaled, added, then, op.slope if then == "leaky" else 0.0)
