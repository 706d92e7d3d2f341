"""Initializers (``mx.init``): the initial values of parameters.

An initializer is called with a description of the parameter and its array. The suffix of the name selects the rule: a
weight is filled by the initializer's rule, a bias, beta or minimum is 0, a gamma or maximum is 1. A parameter made with
``mx.sym.Variable(name, init=...)`` has a separate initializer.

Random initializers draw from the generators that ``mx.random.seed`` seeds. Initializers do not wait for arrays.

Example:
    >>> mx.init.Xavier()(mx.init.InitDesc("fc1_weight"), array)
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from flowmx import ndarray as nd
from flowmx import random
from flowmx.devices import cpu
from flowmx.devices import get as device_of
from flowmx.keywords import ChecksKeywords
from flowmx.ndarray import NDArray
from flowmx.ndarray.core import push_on
from flowmx.ndarray.files import load_named
from flowmx.ops.recurrent.layout import GATES, PackedWeights
from flowmx.registry import Registry

__all__ = [
    "Bilinear", "Constant", "FusedRNN", "InitDesc", "Initializer", "LSTMBias", "Load", "MSRAPrelu", "Mixed", "Normal",
    "One", "Orthogonal", "Uniform", "Xavier", "Zero", "alias", "create", "register",
]  # fmt: skip


InitializerLike: TypeAlias = "Initializer | str | Callable[..., object] | None"
"""An initializer, its name or JSON, or a function of a name and an array; None for the default."""


class InitDesc(str):
    """A parameter's name, with its attributes.

    Args:
        name: the name.
        attrs: the attributes of its variable; ``__init__`` is the JSON form of the parameter's initializer.
        global_init: the initializer of the whole model, to which an initializer may delegate.
    """

    attrs: dict[str, str]
    global_init: Initializer | None

    def __new__(
        cls, name: str, attrs: Mapping[str, str] | None = None, global_init: Initializer | None = None
    ) -> InitDesc:
        desc = super().__new__(cls, name)
        desc.attrs = dict(attrs or {})
        desc.global_init = global_init
        return desc


class Initializer(ChecksKeywords):
    """Base class of initializers; a subclass implements ``_init_weight(name, array)``.

    Args:
        **kwargs: the arguments of the subclass, for :meth:`dumps`.
    """

    def __init__(self, **kwargs: Any) -> None:
        self._kwargs = kwargs
        self._verbose = False
        self._print_func: Callable[[NDArray], str] = _root_mean_square

    def set_verbosity(self, verbose: bool = False, print_func: Callable[[NDArray], str] | None = None) -> Initializer:
        """Log each initialized array, with the result of ``print_func``; this blocks until the array is computed."""
        self._verbose = verbose
        self._print_func = print_func or _root_mean_square
        return self

    def dumps(self) -> str:
        """Return the initializer as JSON, ``'["xavier", {"magnitude": 2}]'``, which :func:`create` reads."""
        return json.dumps([type(self).__name__.lower(), self._kwargs])

    def __call__(self, desc: InitDesc | str, arr: NDArray) -> None:
        """Initialize an array by the rule that its name and attributes select.

        Raises:
            ValueError: no rule matches the name.
        """
        if not isinstance(desc, InitDesc):
            for prefix, suffix, method in _PLAIN_NAME_RULES:
                if desc.startswith(prefix) and desc.endswith(suffix):
                    getattr(self, method)(desc, arr)
                    return
            desc = InitDesc(desc)
        if desc.global_init is None:
            desc.global_init = self
        init = desc.attrs.get("__init__")
        if init:
            create(init)._init_weight(desc, arr)
            self._verbose_print(desc, init, arr)
            return
        for suffix, method in _SUFFIX_RULES:
            if desc.endswith(suffix):
                getattr(self, method)(desc, arr)
                self._verbose_print(desc, suffix, arr)
                return
        self._init_default(desc, arr)

    def _verbose_print(self, desc: str, init: str, arr: NDArray) -> None:
        if self._verbose:
            logging.info("Initialized %s as %s: %s", desc, init, self._print_func(arr))

    def _init_weight(self, name: InitDesc, arr: NDArray) -> None:
        raise NotImplementedError(f"{type(self).__name__} must implement _init_weight(name, array)")

    def _init_zero(self, name: InitDesc, arr: NDArray) -> None:
        arr[:] = 0

    def _init_one(self, name: InitDesc, arr: NDArray) -> None:
        arr[:] = 1

    # Separate methods, because custom initializers override them.

    def _init_bias(self, name: InitDesc, arr: NDArray) -> None:
        self._init_zero(name, arr)

    def _init_gamma(self, name: InitDesc, arr: NDArray) -> None:
        self._init_one(name, arr)

    def _init_beta(self, name: InitDesc, arr: NDArray) -> None:
        self._init_zero(name, arr)

    def _init_bilinear(self, name: InitDesc, arr: NDArray) -> None:
        _upsample(name, arr)

    def _init_loc_bias(self, name: InitDesc, arr: NDArray) -> None:
        """Set the bias of a spatial transformer's last layer to the identity transform."""
        if arr.shape != (6,):
            raise ValueError(f"initializer: the bias {str(name)!r} has shape {arr.shape}, expected (6,)")
        arr[:] = np.array([1, 0, 0, 0, 1, 0], np.float32)

    def _init_quantized_weight(self, name: InitDesc, arr: NDArray) -> None:
        arr[:] = random.randint(-127, 127, arr.shape, ctx=arr.context)

    def _init_quantized_bias(self, name: InitDesc, arr: NDArray) -> None:
        self._init_zero(name, arr)

    def _init_default(self, name: InitDesc, arr: NDArray) -> None:
        raise ValueError(
            f"initializer: no rule for the parameter {str(name)!r}: names end in _weight, _bias, _gamma, _beta, "
            "moving_mean or moving_var; otherwise give the variable an initializer with "
            "mx.sym.Variable(name, init=...)"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Initializer):
            return NotImplemented
        return type(self) is type(other) and self._kwargs == other._kwargs

    __hash__ = object.__hash__


_SUFFIX_RULES: list[tuple[str, str]] = [
    ("weight", "_init_weight"),
    ("bias", "_init_bias"),
    ("gamma", "_init_gamma"),
    ("beta", "_init_beta"),
    ("min", "_init_zero"),
    ("max", "_init_one"),
    ("moving_mean", "_init_zero"),
    ("moving_var", "_init_one"),
    ("moving_inv_var", "_init_zero"),
    ("moving_avg", "_init_zero"),
    ("weight_quantize", "_init_quantized_weight"),
    ("bias_quantize", "_init_quantized_bias"),
]

_PLAIN_NAME_RULES: list[tuple[str, str, str]] = [
    ("upsampling", "", "_init_bilinear"),
    ("stn_loc", "weight", "_init_zero"),
    ("stn_loc", "bias", "_init_loc_bias"),
]
"""Methods by prefix and suffix of a name that is a plain str, as before :class:`InitDesc` existed."""

_registry: Registry[Initializer] = Registry(Initializer, "initializer")
register = _registry.register
alias = _registry.alias
create = _registry.create


def _root_mean_square(array: NDArray) -> str:
    return str(np.sqrt(np.mean(np.square(array.asnumpy()))))


# -- constants ---------------------------------------------------------------------------------------------


@register
@alias("zeros")
class Zero(Initializer):
    """Fill with 0."""

    def _init_weight(self, name: InitDesc, arr: NDArray) -> None:
        arr[:] = 0


@register
@alias("ones")
class One(Initializer):
    """Fill with 1."""

    def _init_weight(self, name: InitDesc, arr: NDArray) -> None:
        arr[:] = 1


@register
class Constant(Initializer):
    """Fill with a number, or with the content of an array of the parameter's shape.

    Args:
        value: the number or array.
    """

    def __init__(self, value: Any) -> None:
        super().__init__(value=value)
        self.value = value

    def _init_weight(self, name: InitDesc, arr: NDArray) -> None:
        arr[:] = np.asarray(self.value) if isinstance(self.value, (list, tuple)) else self.value

    def dumps(self) -> str:
        if hasattr(self.value, "tolist"):
            self._kwargs["value"] = self.value.tolist()
        return super().dumps()


# -- random ------------------------------------------------------------------------------------------------


def _draw(distribution: str, scale: float, arr: NDArray) -> None:
    """Fill an array uniformly from (-scale, scale), or normally with standard deviation ``scale``."""
    low = -scale if distribution == "uniform" else 0
    getattr(random, distribution)(low, scale, arr.shape, arr.dtype, arr.context, out=arr)


@register
class Uniform(Initializer):
    """Uniformly random in ``[-scale, scale]``.

    Args:
        scale: the bound.
    """

    def __init__(self, scale: float = 0.07) -> None:
        super().__init__(scale=scale)
        self.scale = scale

    def _init_weight(self, name: InitDesc, arr: NDArray) -> None:
        _draw("uniform", self.scale, arr)


@register
class Normal(Initializer):
    """Normally distributed with mean 0.

    Args:
        sigma: the standard deviation.
    """

    def __init__(self, sigma: float = 0.01) -> None:
        super().__init__(sigma=sigma)
        self.sigma = sigma

    def _init_weight(self, name: InitDesc, arr: NDArray) -> None:
        _draw("normal", self.sigma, arr)


@register
class Orthogonal(Initializer):
    """A random matrix with orthogonal rows or columns (whichever are fewer), each of length ``scale``.

    Saxe, McClelland and Ganguli, Exact solutions to the nonlinear dynamics of learning in deep linear neural
    networks, arXiv:1312.6120.

    Args:
        scale: the length.
        rand_type: ``"uniform"`` or ``"normal"``, the distribution of the matrix before orthogonalization.

    Raises:
        ValueError: ``rand_type`` is unknown.
    """

    def __init__(self, scale: float = 1.414, rand_type: str = "uniform") -> None:
        super().__init__(scale=scale, rand_type=rand_type)
        if rand_type not in ("uniform", "normal"):
            raise ValueError(f"Orthogonal: rand_type is {rand_type!r}, expected 'uniform' or 'normal'")
        self.scale = scale
        self.rand_type = rand_type

    def _init_weight(self, name: InitDesc, arr: NDArray) -> None:
        shape = (arr.shape[0], math.prod(arr.shape[1:]))
        sample = nd.empty(shape, cpu(), np.float32)
        _draw(self.rand_type, 1.0, sample)
        basis_array = nd.empty(arr.shape, cpu(), np.float32)

        def orthogonalize() -> None:
            matrix = sample.raw()
            left, _, right = np.linalg.svd(matrix, full_matrices=False)
            basis = left if left.shape == matrix.shape else right
            basis_array.raw_for_writing()[...] = self.scale * basis.reshape(arr.shape)

        push_on(device_of(cpu()), orthogonalize, (), (sample.variable,), (basis_array.variable,), "orthogonalize")
        basis_array.copyto(arr)


@register
class Xavier(Initializer):
    """Random weights with a scale that keeps gradients of about equal size in all layers.

    Glorot and Bengio, Understanding the difficulty of training deep feedforward neural networks, AISTATS
    2010. With the default arguments uniform in ``[-c, c]``, ``c = sqrt(3 / ((fan_in + fan_out) / 2))``.

    Args:
        rnd_type: ``"uniform"``, or ``"gaussian"`` with standard deviation ``c``.
        factor_type: divide by the mean of both fans (``"avg"``), or by one of them (``"in"`` or ``"out"``).
        magnitude: the 3 in the formula.

    Raises:
        ValueError: ``rnd_type`` or ``factor_type`` is unknown; or, in a call, a parameter has fewer than two axes.
    """

    def __init__(self, rnd_type: str = "uniform", factor_type: str = "avg", magnitude: float = 3) -> None:
        super().__init__(rnd_type=rnd_type, factor_type=factor_type, magnitude=magnitude)
        if rnd_type not in ("uniform", "gaussian"):
            raise ValueError(f"Xavier: rnd_type is {rnd_type!r}, expected 'uniform' or 'gaussian'")
        if factor_type not in ("avg", "in", "out"):
            raise ValueError(f"Xavier: factor_type is {factor_type!r}, expected 'avg', 'in' or 'out'")
        self.rnd_type = rnd_type
        self.factor_type = factor_type
        self.magnitude = float(magnitude)

    def _init_weight(self, name: InitDesc, arr: NDArray) -> None:
        if arr.ndim < 2:
            raise ValueError(
                f"Xavier: the parameter {str(name)!r} has shape {arr.shape}, expected at least two axes; give it "
                "another initializer with mx.sym.Variable(name, init=...) or mx.init.Mixed"
            )
        field = math.prod(arr.shape[2:])
        fan_out, fan_in = arr.shape[0] * field, arr.shape[1] * field
        factor = {"avg": (fan_in + fan_out) / 2, "in": fan_in, "out": fan_out}[self.factor_type]
        _draw("uniform" if self.rnd_type == "uniform" else "normal", math.sqrt(self.magnitude / factor), arr)


@register
class MSRAPrelu(Xavier):
    """Xavier for layers with ReLU or PReLU: gaussian, with magnitude ``2 / (1 + slope**2)``.

    He, Zhang, Ren and Sun, Delving Deep into Rectifiers, arXiv:1502.01852.

    Args:
        factor_type: as for :class:`Xavier`.
        slope: the slope of the rectifier's negative half.
    """

    def __init__(self, factor_type: str = "avg", slope: float = 0.25) -> None:
        super().__init__("gaussian", factor_type, 2 / (1 + slope**2))
        self._kwargs = {"factor_type": factor_type, "slope": slope}


# -- by structure ------------------------------------------------------------------------------------------


@register
class Bilinear(Initializer):
    """The kernel of bilinear upsampling, for the weights of a deconvolution."""

    def _init_weight(self, name: InitDesc, arr: NDArray) -> None:
        _upsample(name, arr)


def _upsample(name: str, arr: NDArray) -> None:
    if arr.ndim != 4:
        raise ValueError(f"Bilinear: {str(name)!r} has shape {arr.shape}, expected four axes")
    # As in MXNet, the reach of the kernel depends on its width only.
    reach = math.ceil(arr.shape[3] / 2)
    centre = (2 * reach - 1 - reach % 2) / (2 * reach)
    rows, columns = (1 - abs(np.arange(length) / reach - centre) for length in arr.shape[2:])
    arr[:] = np.broadcast_to(np.outer(rows, columns).astype(np.float32), arr.shape)


@register
class LSTMBias(Initializer):
    """Fill an LSTM's bias with 0, and its second quarter, the bias of the forget gate, with ``forget_bias``.

    Jozefowicz, Zaremba and Sutskever, An Empirical Exploration of Recurrent Network Architectures, ICML 2015.

    Args:
        forget_bias: the forget gate's bias.
    """

    def __init__(self, forget_bias: float = 1.0) -> None:
        super().__init__(forget_bias=forget_bias)
        self.forget_bias = forget_bias

    def _init_weight(self, name: InitDesc, arr: NDArray) -> None:
        quarter = arr.shape[0] // 4
        arr[:] = 0
        arr[quarter : 2 * quarter] = self.forget_bias


@register
class FusedRNN(Initializer):
    """The packed parameters of the fused ``RNN`` operator; each gate's weights and biases are initialized separately.

    A gate's arrays have the names of an unfused cell (``l0_i2h_f_weight``), which select the rule.

    Args:
        init: the initializer of the parts, or its JSON form; None uses that of the whole model.
        num_hidden: the number of units of a layer.
        num_layers: the number of layers.
        mode: ``"rnn_relu"``, ``"rnn_tanh"``, ``"lstm"`` or ``"gru"``.
        bidirectional: True for two directions.
        forget_bias: both biases of an LSTM's forget gates.

    Raises:
        ValueError: ``mode`` is unknown; or, in a call, the length of an array does not match these layers.
    """

    def __init__(
        self,
        init: Initializer | str | None,
        num_hidden: int,
        num_layers: int,
        mode: str,
        bidirectional: bool = False,
        forget_bias: float = 1.0,
    ) -> None:
        inner = None if init is None else create(init)
        super().__init__(
            init=None if inner is None else inner.dumps(), num_hidden=num_hidden, num_layers=num_layers, mode=mode,
            bidirectional=bidirectional, forget_bias=forget_bias,
        )  # fmt: skip
        if mode not in GATES:
            raise ValueError(f"FusedRNN: mode is {mode!r}, expected one of {', '.join(GATES)}")
        self._init = inner
        self._packed = PackedWeights(mode, num_hidden, num_layers, "lr" if bidirectional else "l")
        self._forget_bias = forget_bias

    def _init_weight(self, name: InitDesc, arr: NDArray) -> None:
        init = self._init or name.global_init
        assert init is not None
        start = 0
        for part, shape in self._parts(name, arr.size):
            piece = nd.empty(shape, arr.context, arr.dtype)
            if self._packed.mode == "lstm" and part.endswith("_f_bias"):
                piece[:] = self._forget_bias
            else:
                init(InitDesc(part, global_init=name.global_init), piece)
            arr[start : start + piece.size] = piece.reshape((-1,))
            start += piece.size

    def _parts(self, name: str, size: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Return name and shape of each part, in the operator's order: all weights, then all biases."""
        inputs = self._packed.inputs(size)
        if inputs is None:
            raise ValueError(f"FusedRNN: {str(name)!r} has {size} elements, which do not match these layers")
        return self._packed.parts(inputs)


# -- combinations ------------------------------------------------------------------------------------------


class Load:
    """Copy parameters by name from a file or dict; other parameters use another initializer.

    Args:
        param: a file's name, or a dict of arrays by name; a prefix ``arg:`` or ``aux:`` of a name is removed.
        default_init: initializes parameters that are not in ``param``.
        verbose: log the source of each parameter.

    Raises:
        TypeError: ``param`` is neither a file's name nor a dict.
        ValueError: in a call, a shape differs, or a name is missing.
    """

    def __init__(
        self,
        param: str | Mapping[str, NDArray],
        default_init: Callable[[Any, NDArray], object] | None = None,
        verbose: bool = False,
    ) -> None:
        loaded = load_named(param) if isinstance(param, str) else param
        if not isinstance(loaded, Mapping):
            raise TypeError(f"Load: {param!r} holds no names, expected a dict of arrays")
        self.param = {re.sub("^(arg|aux):", "", name): array for name, array in loaded.items()}
        self.default_init = default_init
        self.verbose = verbose

    def __call__(self, name: InitDesc | str, arr: NDArray) -> None:
        """Initialize an array."""
        source = self.param.get(str(name))
        if source is None:
            if self.default_init is None:
                raise ValueError(f"Load: parameter {str(name)!r} was not loaded, and there is no default_init")
            self.default_init(name, arr)
        elif source.shape != arr.shape:
            raise ValueError(
                f"Load: parameter {str(name)!r} was loaded with shape {source.shape}, expected {arr.shape}"
            )
        else:
            arr[:] = source
        if self.verbose:
            logging.info("Initialized %s by %s", name, "default" if source is None else "loading")


class Mixed:
    """Use the first initializer whose pattern matches the start of a parameter's name.

    Args:
        patterns: regular expressions; a last pattern ``".*"`` matches all other names.
        initializers: one for each pattern.

    Raises:
        ValueError: their numbers differ; or, in a call, no pattern matches.

    Example:
        >>> mx.init.Mixed([".*bias", ".*"], [mx.init.Zero(), mx.init.Uniform(0.1)])
    """

    def __init__(self, patterns: Sequence[str], initializers: Sequence[Callable[..., object]]) -> None:
        if len(patterns) != len(initializers):
            raise ValueError(
                f"Mixed: {len(patterns)} patterns and {len(initializers)} initializers, expected equal numbers"
            )
        self.map = list(zip(map(re.compile, patterns), initializers, strict=True))

    def __call__(self, name: InitDesc | str, arr: NDArray) -> None:
        """Initialize an array."""
        for pattern, initializer in self.map:
            if pattern.match(name):
                initializer(name, arr)
                return
        raise ValueError(
            f"Mixed: no pattern matches the parameter {str(name)!r}: add '.*' with a default initializer at the end"
        )
