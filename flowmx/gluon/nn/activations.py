"""Activations as layers."""

from __future__ import annotations

import warnings
from typing import Unpack

from flowmx import initializer
from flowmx.errors import ParameterError
from flowmx.gluon.hybrid import Layer
from flowmx.gluon.scope import BlockOptions
from flowmx.initializer import InitializerLike
from flowmx.ops.registry.tensors import Functions, Tensor

__all__ = ["ELU", "GELU", "SELU", "Activation", "LeakyReLU", "PReLU", "SiLU", "Swish"]

_LAYERS = {
    "elu": "ELU()", "gelu": "GELU()", "leaky": "LeakyReLU(0.01)", "leaky_relu": "LeakyReLU(0.01)", "prelu": "PReLU()",
    "selu": "SELU()", "silu": "SiLU()", "swish": "Swish()",
}  # fmt: skip
"""Activations that are layers, by the names that other libraries use."""


def _check_name(activation: object) -> None:
    """Warn about a number, which is the number of outputs in other libraries, or a function; MXNet accepts them."""
    if not isinstance(activation, str):
        warnings.warn(
            f"the activation is {activation!r}, expected a name such as 'relu', or None; layers find the number of "
            "their inputs at the first call: nn.Dense(10), or nn.Dense(10, in_units=64)",
            stacklevel=4,
        )


class Activation(Layer):
    """An activation by name.

    Args:
        activation: ``"relu"``, ``"sigmoid"``, ``"tanh"``, ``"softrelu"`` or ``"softsign"``.
        **kwargs: ``prefix`` and ``params``.
    """

    def __init__(self, activation: str, **kwargs: Unpack[BlockOptions]) -> None:
        _check_name(activation)
        self._act_type = activation
        super().__init__(**kwargs)

    def _alias(self) -> str:
        return self._act_type

    def hybrid_forward(self, F: Functions, x: Tensor) -> Tensor:
        if self._act_type in ("softmax", "log_softmax"):
            raise ParameterError(
                f"Activation: there is no activation {self._act_type!r}: leave it out, since SoftmaxCrossEntropyLoss "
                f"applies it, or use gluon.nn.HybridLambda({self._act_type!r})"
            )
        if not isinstance(self._act_type, str):
            raise ParameterError(
                f"Activation: the activation is {self._act_type!r}, expected 'relu', 'sigmoid', 'tanh', 'softrelu' or "
                "'softsign': for a function use gluon.nn.HybridLambda"
            )
        if self._act_type in _LAYERS:
            raise ParameterError(
                f"Activation: there is no activation {self._act_type!r}, only 'relu', 'sigmoid', 'tanh', 'softrelu' "
                f"and 'softsign': use the layer gluon.nn.{_LAYERS[self._act_type]}"
            )
        return F.Activation(x, act_type=self._act_type, name="fwd")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._act_type})"


class LeakyReLU(Layer):
    """``x`` where it is positive, else ``alpha * x``.

    Args:
        alpha: the slope for negative inputs.
        **kwargs: ``prefix`` and ``params``.

    Raises:
        ValueError: the slope is negative.
    """

    def __init__(self, alpha: float, **kwargs: Unpack[BlockOptions]) -> None:
        if alpha < 0:
            raise ValueError(f"LeakyReLU: alpha is {alpha}, expected 0 or more")
        super().__init__(**kwargs)
        self._alpha = alpha

    def hybrid_forward(self, F: Functions, x: Tensor) -> Tensor:
        return F.LeakyReLU(x, act_type="leaky", slope=self._alpha, name="fwd")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._alpha})"


class PReLU(Layer):
    """A leaky ReLU whose slope is learned.

    He et al., Delving Deep into Rectifiers, ICCV 2015.

    Args:
        alpha_initializer: the initializer of the slope.
        in_channels: 1 for one slope, or the number of channels.
        **kwargs: ``prefix`` and ``params``.
    """

    def __init__(
        self, alpha_initializer: InitializerLike = None, in_channels: int = 1, **kwargs: Unpack[BlockOptions]
    ) -> None:
        super().__init__(**kwargs)
        init = initializer.Constant(0.25) if alpha_initializer is None else alpha_initializer
        self.alpha = self.params.get("alpha", shape=(in_channels,), init=init)

    def hybrid_forward(self, F: Functions, x: Tensor, alpha: Tensor) -> Tensor:
        return F.LeakyReLU(x, gamma=alpha, act_type="prelu", name="fwd")


class ELU(Layer):
    """``x`` where it is positive, else ``alpha * (exp(x) - 1)``.

    Clevert et al., Fast and Accurate Deep Network Learning by Exponential Linear Units, ICLR 2016.

    Args:
        alpha: the magnitude of the limit for large negative inputs.
        **kwargs: ``prefix`` and ``params``.
    """

    def __init__(self, alpha: float = 1.0, **kwargs: Unpack[BlockOptions]) -> None:
        super().__init__(**kwargs)
        self._alpha = alpha

    def hybrid_forward(self, F: Functions, x: Tensor) -> Tensor:
        return F.LeakyReLU(x, act_type="elu", slope=self._alpha)


class SELU(Layer):
    """The scaled exponential linear unit (Klambauer et al., Self-Normalizing Neural Networks, NIPS 2017)."""

    def hybrid_forward(self, F: Functions, x: Tensor) -> Tensor:
        return F.LeakyReLU(x, act_type="selu", name="fwd")


class GELU(Layer):
    """``x`` times the normal distribution function of ``x`` (Hendrycks and Gimpel, 2016).

    Args:
        approximation: ``"erf"`` for the exact function; ``"tanh"`` for the paper's approximation, which GPT-2 uses.
        **kwargs: ``prefix`` and ``params``.

    Raises:
        ValueError: the approximation is unknown.
    """

    def __init__(self, approximation: str = "erf", **kwargs: Unpack[BlockOptions]) -> None:
        if approximation not in ("erf", "tanh"):
            raise ValueError(f"GELU: approximation is {approximation!r}, expected 'erf' or 'tanh'")
        super().__init__(**kwargs)
        self._approximation = approximation

    def hybrid_forward(self, F: Functions, x: Tensor) -> Tensor:
        if self._approximation == "tanh":
            return F.gelu_tanh(x, name="fwd")
        return F.LeakyReLU(x, act_type="gelu", name="fwd")


class SiLU(Layer):
    """``x * sigmoid(x)`` (Elfwing et al., Sigmoid-Weighted Linear Units, Neural Networks 107, 2018)."""

    def hybrid_forward(self, F: Functions, x: Tensor) -> Tensor:
        return F.silu(x, name="fwd")


class Swish(Layer):
    """``x * sigmoid(beta * x)`` (Ramachandran et al., Searching for Activation Functions, 2017).

    Args:
        beta: the factor.
        **kwargs: ``prefix`` and ``params``.
    """

    def __init__(self, beta: float = 1.0, **kwargs: Unpack[BlockOptions]) -> None:
        super().__init__(**kwargs)
        self._beta = beta

    def hybrid_forward(self, F: Functions, x: Tensor) -> Tensor:
        return x * F.sigmoid(self._beta * x, name="fwd")
