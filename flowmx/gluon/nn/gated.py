"""Gated linear units: one half of the features decides how much of the other half passes."""

from __future__ import annotations

from typing import Unpack

from flowmx.gluon.hybrid import Layer
from flowmx.gluon.scope import BlockOptions
from flowmx.ops.registry.tensors import Functions, Tensor

__all__ = ["GEGLU", "GLU", "SwiGLU"]


class GLU(Layer):
    """Splits an axis in halves ``a`` and ``b``, and returns ``a * sigmoid(b)``.

    Dauphin et al., Language Modeling with Gated Convolutional Networks, ICML 2017. The layer has no parameters: a
    :class:`Dense` before it computes both halves.

    Shapes: the axis has an even length, ``2 * n``, in the input, and the length ``n`` in the output. The dtype, float,
    does not change.

    Args:
        axis: the axis.
        **kwargs: ``prefix`` and ``params``.

    Raises:
        ShapeError: the length of the axis is odd (when called).

    Example:
        >>> mx.gluon.nn.GLU()(mx.nd.array([[2, 4, 0, 0]])).asnumpy()
        array([[1., 2.]], dtype=float32)
    """

    def __init__(self, axis: int = -1, **kwargs: Unpack[BlockOptions]) -> None:
        super().__init__(**kwargs)
        self._axis = axis

    def hybrid_forward(self, F: Functions, x: Tensor) -> Tensor:
        passed, gate = F.split(x, num_outputs=2, axis=self._axis)
        return passed * self._activate(F, gate)

    def _activate(self, F: Functions, gate: Tensor) -> Tensor:
        """Return the factor of the first half."""
        return F.sigmoid(gate)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(axis={self._axis})"


class SwiGLU(GLU):
    """A :class:`GLU` with :class:`SiLU` in place of the sigmoid: ``a * silu(b)``.

    Shazeer, GLU Variants Improve Transformer, 2020. Its arguments, shapes and errors are those of GLU.
    """

    def _activate(self, F: Functions, gate: Tensor) -> Tensor:
        return F.silu(gate)


class GEGLU(GLU):
    """A :class:`GLU` with :class:`GELU` in place of the sigmoid: ``a * gelu(b)``.

    Shazeer, GLU Variants Improve Transformer, 2020. Its shapes and errors are those of GLU.

    Args:
        axis: the axis.
        approximation: as for :class:`GELU`.
        **kwargs: ``prefix`` and ``params``.
    """

    def __init__(self, axis: int = -1, approximation: str = "erf", **kwargs: Unpack[BlockOptions]) -> None:
        if approximation not in ("erf", "tanh"):
            raise ValueError(f"GEGLU: approximation is {approximation!r}, expected 'erf' or 'tanh'")
        super().__init__(axis, **kwargs)
        self._approximation = approximation

    def _activate(self, F: Functions, gate: Tensor) -> Tensor:
        return F.gelu_tanh(gate) if self._approximation == "tanh" else F.LeakyReLU(gate, act_type="gelu")
