"""Normalization layers: over the batch, over each sample, over groups of channels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from flowmx.errors import ShapeError
from flowmx.gluon.hybrid import HybridBlock, Layer
from flowmx.gluon.parameter_dict import ParameterDict
from flowmx.gluon.scope import BlockOptions
from flowmx.initializer import InitializerLike
from flowmx.ops.registry.dtypes import DTypeLike, as_dtype, is_floating
from flowmx.ops.registry.tensors import Functions, Tensor

__all__ = ["BatchNorm", "BatchNormReLU", "GroupNorm", "InstanceNorm", "LayerNorm", "RMSNorm"]


class _NormLayer(Layer):
    """The base class of layers whose first argument is an axis, where other libraries expect the channels."""

    _kwargs: dict[str, Any]

    def _explain(self, error: Exception, inputs: Sequence[Any]) -> str | None:
        axis, rank = self._kwargs.get("axis"), getattr(next(iter(inputs), None), "ndim", None)
        if not isinstance(error, ShapeError) or axis is None or rank is None or -rank <= axis < rank:
            return None
        name = type(self).__name__
        return (
            f"{name}: axis is {axis}, but the input has shape {inputs[0].shape}: the first argument of {name} is the "
            f"axis; it finds the number of channels at the first call, or pass in_channels={axis}"
        )


class BatchNorm(_NormLayer):
    """Normalizes over the batch in training, and with running statistics in prediction.

    Ioffe and Szegedy, Batch Normalization, ICML 2015.

    Args:
        axis: the axis of the channels.
        momentum: the momentum of the running statistics.
        epsilon: added to the variance.
        center: learn an offset (beta).
        scale: learn a factor (gamma).
        use_global_stats: use the running statistics in training too.
        beta_initializer: the initializer of the offset.
        gamma_initializer: the initializer of the factor.
        running_mean_initializer: the initializer of the running mean.
        running_variance_initializer: the initializer of the running variance.
        in_channels: the number of channels (default: inferred at the first call).
        **kwargs: ``prefix`` and ``params``.
    """

    def __init__(
        self, axis: int = 1, momentum: float = 0.9, epsilon: float = 1e-5, center: bool = True, scale: bool = True,
        use_global_stats: bool = False, beta_initializer: InitializerLike = "zeros",
        gamma_initializer: InitializerLike = "ones", running_mean_initializer: InitializerLike = "zeros",
        running_variance_initializer: InitializerLike = "ones", in_channels: int = 0, **kwargs: Unpack[BlockOptions],
    ) -> None:  # fmt: skip
        super().__init__(**kwargs)
        self._kwargs = {
            "axis": axis, "eps": epsilon, "momentum": momentum, "fix_gamma": not scale,
            "use_global_stats": use_global_stats,
        }  # fmt: skip
        if in_channels:
            self.in_channels = in_channels
        self.gamma = _vector(self, "gamma", in_channels, gamma_initializer, scale)
        self.beta = _vector(self, "beta", in_channels, beta_initializer, center)
        self.running_mean = _vector(self, "running_mean", in_channels, running_mean_initializer, False)
        self.running_var = _vector(self, "running_var", in_channels, running_variance_initializer, False)

    def cast(self, dtype: DTypeLike) -> None:
        """Change the element type of the parameters; they stay float32 for inputs of 16 bits."""
        kind = as_dtype(dtype)
        super().cast("float32" if kind.itemsize == 2 and is_floating(kind) else dtype)

    def hybrid_forward(
        self, F: Functions, x: Tensor, gamma: Tensor, beta: Tensor, running_mean: Tensor, running_var: Tensor
    ) -> Tensor:
        return F.BatchNorm(x, gamma, beta, running_mean, running_var, name="fwd", **self._kwargs)

    def __repr__(self) -> str:
        return _norm_text(self, self._kwargs)


class BatchNormReLU(BatchNorm):
    """A :class:`BatchNorm` and a ReLU in one operator; its arguments are those of BatchNorm."""

    def hybrid_forward(
        self, F: Functions, x: Tensor, gamma: Tensor, beta: Tensor, running_mean: Tensor, running_var: Tensor
    ) -> Tensor:
        return F.contrib.BatchNormWithReLU(x, gamma, beta, running_mean, running_var, name="fwd", **self._kwargs)


class LayerNorm(_NormLayer):
    """Normalizes each sample over one axis (Ba et al., Layer Normalization, 2016).

    Args:
        axis: the axis.
        epsilon: added to the variance.
        center: learn an offset (beta).
        scale: learn a factor (gamma).
        beta_initializer: the initializer of the offset.
        gamma_initializer: the initializer of the factor.
        in_channels: the length of the axis (default: inferred at the first call).
        prefix: as for ``Block``.
        params: as for ``Block``.
    """

    def __init__(
        self, axis: int = -1, epsilon: float = 1e-5, center: bool = True, scale: bool = True,
        beta_initializer: InitializerLike = "zeros", gamma_initializer: InitializerLike = "ones", in_channels: int = 0,
        prefix: str | None = None, params: ParameterDict | None = None,
    ) -> None:  # fmt: skip
        super().__init__(prefix=prefix, params=params)
        self._kwargs = {"eps": epsilon, "axis": axis, "center": center, "scale": scale}
        self._axis, self._epsilon = axis, epsilon
        self.gamma = _vector(self, "gamma", in_channels, gamma_initializer, scale)
        self.beta = _vector(self, "beta", in_channels, beta_initializer, center)

    def hybrid_forward(self, F: Functions, data: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
        return F.LayerNorm(data, gamma=gamma, beta=beta, axis=self._axis, eps=self._epsilon)

    def __repr__(self) -> str:
        return _norm_text(self, self._kwargs)


class RMSNorm(Layer):
    """Divides each sample by its root mean square along one axis: ``x / sqrt(mean(x * x) + epsilon) * gamma``.

    Zhang and Sennrich, Root Mean Square Layer Normalization, NeurIPS 2019. Input and output have the same shape and
    dtype; for 16-bit inputs the sums are computed in float32.

    Args:
        axis: the axis.
        epsilon: added to the mean of the squares.
        scale: learn a factor (gamma).
        gamma_initializer: the initializer of the factor.
        in_channels: the length of the axis (default: inferred at the first call).
        **kwargs: ``prefix`` and ``params``.

    Raises:
        ValueError: epsilon is negative.
    """

    def __init__(
        self, axis: int = -1, epsilon: float = 1e-6, scale: bool = True, gamma_initializer: InitializerLike = "ones",
        in_channels: int = 0, **kwargs: Unpack[BlockOptions],
    ) -> None:  # fmt: skip
        if epsilon < 0:
            raise ValueError(f"RMSNorm: epsilon is {epsilon}, expected 0 or more")
        super().__init__(**kwargs)
        self._kwargs = {"eps": epsilon, "axis": axis, "scale": scale}
        self._axis, self._epsilon = axis, epsilon
        self.gamma = _vector(self, "gamma", in_channels, gamma_initializer, scale)

    def hybrid_forward(self, F: Functions, data: Tensor, gamma: Tensor) -> Tensor:
        return F.RMSNorm(data, gamma, axis=self._axis, eps=self._epsilon, name="fwd")

    def __repr__(self) -> str:
        return _norm_text(self, self._kwargs)


class InstanceNorm(_NormLayer):
    """Normalizes each channel of each sample (Ulyanov et al., Instance Normalization, 2016).

    Args:
        axis: the axis of the channels.
        epsilon: added to the variance.
        center: learn an offset (beta).
        scale: learn a factor (gamma).
        beta_initializer: the initializer of the offset.
        gamma_initializer: the initializer of the factor.
        in_channels: the number of channels (default: inferred at the first call).
        **kwargs: ``prefix`` and ``params``.
    """

    def __init__(
        self, axis: int = 1, epsilon: float = 1e-5, center: bool = True, scale: bool = False,
        beta_initializer: InitializerLike = "zeros", gamma_initializer: InitializerLike = "ones", in_channels: int = 0,
        **kwargs: Unpack[BlockOptions],
    ) -> None:  # fmt: skip
        super().__init__(**kwargs)
        self._kwargs = {"eps": epsilon, "axis": axis, "center": center, "scale": scale}
        self._axis, self._epsilon = axis, epsilon
        self.gamma = _vector(self, "gamma", in_channels, gamma_initializer, scale)
        self.beta = _vector(self, "beta", in_channels, beta_initializer, center)

    def hybrid_forward(self, F: Functions, x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
        if self._axis == 1:
            return F.InstanceNorm(x, gamma, beta, name="fwd", eps=self._epsilon)
        out = F.InstanceNorm(F.swapaxes(x, 1, self._axis), gamma, beta, name="fwd", eps=self._epsilon)
        return F.swapaxes(out, 1, self._axis)

    def __repr__(self) -> str:
        return _norm_text(self, self._kwargs)


class GroupNorm(Layer):
    """Normalizes groups of channels of each sample (Wu and He, Group Normalization, ECCV 2018).

    Args:
        num_groups: the number of groups of channels.
        epsilon: added to the variance.
        center: learn an offset (beta), one for each group.
        scale: learn a factor (gamma), one for each group.
        beta_initializer: the initializer of the offset.
        gamma_initializer: the initializer of the factor.
        prefix: as for ``Block``.
        params: as for ``Block``.
    """

    def __init__(
        self, num_groups: int = 1, epsilon: float = 1e-5, center: bool = True, scale: bool = True,
        beta_initializer: InitializerLike = "zeros", gamma_initializer: InitializerLike = "ones",
        prefix: str | None = None, params: ParameterDict | None = None,
    ) -> None:  # fmt: skip
        super().__init__(prefix=prefix, params=params)
        self._kwargs = {"eps": epsilon, "num_groups": num_groups, "center": center, "scale": scale}
        self.gamma = _vector(self, "gamma", num_groups, gamma_initializer, scale)
        self.beta = _vector(self, "beta", num_groups, beta_initializer, center)

    def hybrid_forward(self, F: Functions, data: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
        options = self._kwargs
        return F.GroupNorm(data, gamma=gamma, beta=beta, num_groups=options["num_groups"], eps=options["eps"])

    def __repr__(self) -> str:
        options = ", ".join(f"{key}={value!r}" for key, value in self._kwargs.items())
        return f"{type(self).__name__}({options})"


def _vector(block: HybridBlock, name: str, length: int, init: object, learned: bool) -> Any:
    """Return a parameter with one axis, and with a gradient if it is learned."""
    return block.params.get(
        name, grad_req="write" if learned else "null", shape=(length,), init=init, allow_deferred_init=True,
        differentiable=learned,
    )  # fmt: skip


def _norm_text(block: Any, parameters: Mapping[str, object]) -> str:
    options = ", ".join(f"{key}={value!r}" for key, value in parameters.items())
    return f"{type(block).__name__}({options}, in_channels={block.gamma.shape[0] or None})"
