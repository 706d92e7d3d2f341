"""`ExponentialMovingAverage`: averages of a model's weights over its updates."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from flowmx import autograd
from flowmx import ndarray as nd
from flowmx.checkpoint.parameters import by_name
from flowmx.errors import ArgumentError, ArgumentKindError
from flowmx.gluon.base_block import Block
from flowmx.gluon.parameter import Parameter
from flowmx.gluon.parameter_dict import ParameterDict
from flowmx.ndarray import NDArray

__all__ = ["ExponentialMovingAverage"]

_UPDATES = "number of updates"
"""The name of the count in files; no parameter has spaces in its name."""

Params = Block | ParameterDict | Mapping[str, Parameter] | Sequence[Parameter]


class ExponentialMovingAverage:
    """Averages of a model's weights, which often predict better than the latest weights.

    After each update, ``average = decay * average + (1 - decay) * weight``. Parameters without a gradient are not
    averaged: the running means of BatchNorm are averages already. All calls except :meth:`save` and :meth:`load` return
    immediately, and take effect in program order. An average takes as much memory as the weights; averages of 16-bit
    weights are float32.

    Polyak and Juditsky, Acceleration of stochastic approximation by averaging, 1992.

    Args:
        params: the network, or its parameters.
        decay: the weight of the past, between 0 and 1; 0.999 averages about a thousand updates.
        ramp: begin with a smaller decay, at most ``(1 + n) / (10 + n)`` in update n, so that the average soon forgets
            the initial weights.

    Attributes:
        updates: the number of calls of :meth:`update`.

    Raises:
        TypeError: ``params`` is neither a network nor parameters.
        ValueError: the decay is not between 0 and 1, no parameter has a gradient, or one is sparse.

    Example:
        >>> average = mx.gluon.ExponentialMovingAverage(net, decay=0.999)
        >>> for data, label in loader:
        ...     train_step(data, label)
        ...     average.update()
        >>> with average.average_parameters():
        ...     accuracy = evaluate(net)
    """

    def __init__(self, params: Params, decay: float = 0.999, ramp: bool = True) -> None:
        if not 0 <= decay < 1:
            raise ArgumentError(f"ExponentialMovingAverage: decay is {decay!r}, expected at least 0 and below 1")
        named = _parameters_by_name(params)
        self._params = {name: param for name, param in named.items() if param.grad_req != "null"}
        if not self._params:
            raise ArgumentError(
                f"ExponentialMovingAverage: none of the {len(named)} parameters has a gradient, expected some to train"
            )
        for param in self._params.values():
            if param._stype != "default":
                raise ArgumentError(
                    f"ExponentialMovingAverage: parameter {param.name!r} is {param._stype}, expected dense parameters: "
                    "pass only those"
                )
        self.decay, self.ramp = decay, ramp
        self.updates = 0
        self._averages: dict[str, NDArray] = {}
        self._begin()

    def _begin(self) -> None:
        """Start the average of each newly initialized parameter with the parameter's value."""
        with autograd.pause():
            for name, param in self._params.items():
                if name not in self._averages and param._arrays is not None:
                    self._averages[name] = _to_float32(param.list_data()[0])

    def update(self) -> None:
        """Update the averages with the current weights; call it after ``trainer.step``.

        Raises:
            RuntimeError: a parameter is not initialized yet.
        """
        self._begin()
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates)) if self.ramp else self.decay
        with autograd.pause():
            for name, param in self._params.items():
                weight = param.list_data()[0]
                average = self._averages[name]
                weight = weight if weight.dtype == average.dtype else weight.astype(average.dtype)
                # average - (1 - decay) * (average - weight), in one pass over memory
                nd.sgd_update(average, weight, lr=1 - decay, wd=1, rescale_grad=-1, out=average)

    @property
    def averages(self) -> dict[str, NDArray]:
        """The averages by the attribute paths of parameters, such as ``features.0.weight``."""
        return dict(self._averages)

    def copy_to(self) -> None:
        """Enqueue the replacement of the weights on all devices by the averages, for example before saving a model."""
        with autograd.pause():
            for name, average in self._averages.items():
                _write(self._params[name], average)

    @contextmanager
    def average_parameters(self) -> Iterator[None]:
        """Replace the weights by the averages in a ``with`` block, to evaluate or save; then restore them.

        Other tasks and threads see the averages meanwhile: do not train the network there.
        """
        with autograd.pause():
            weights = {name: self._params[name].list_data()[0].copy() for name in self._averages}
            self.copy_to()
        try:
            yield
        finally:
            with autograd.pause():
                for name, weight in weights.items():
                    _write(self._params[name], weight)

    # -- files -----------------------------------------------------------------------------------------

    def save(self, fname: str | os.PathLike[str]) -> None:
        """Write the averages to a file, as ``mx.nd.save`` does; blocks. :class:`mx.checkpoint.Run` saves them, too.

        Raises:
            OSError: the file cannot be written.
        """
        nd.save(fname, {**self._averages, _UPDATES: nd.array([self.updates], dtype="int64")})

    def load(self, fname: str | os.PathLike[str]) -> None:
        """Restore the averages that :meth:`save` wrote.

        Raises:
            ValueError: the file belongs to another network, or is no file of averages.
            OSError: the file cannot be read.
        """
        arrays = nd.load(fname)
        if not isinstance(arrays, dict) or _UPDATES not in arrays:
            raise ValueError(
                f"load: {os.fspath(fname)!r} has no averages, expected a file of ExponentialMovingAverage.save; load "
                "parameters with net.load_parameters"
            )
        updates = int(arrays.pop(_UPDATES).asnumpy()[0])
        self.set_state(updates, arrays)

    def set_state(self, updates: int, arrays: Mapping[str, Any]) -> None:
        """Restore :attr:`updates` and :attr:`averages`.

        Raises:
            ValueError: names or shapes are those of another network.
        """
        if arrays.keys() != self._params.keys():
            differing = sorted(arrays.keys() ^ self._params.keys())
            raise ValueError(f"averages of another network: {differing[:5]} are in only one of them")
        averages = {}
        for name, param in self._params.items():
            shape = tuple(arrays[name].shape)
            if param._arrays is not None and param.shape != shape:
                raise ValueError(f"the average {name!r} has shape {shape}, but the parameter has {param.shape}")
            ctx = param.list_ctx()[0]
            value = arrays[name]
            averages[name] = value.copyto(ctx) if isinstance(value, NDArray) else nd.array(value, ctx, value.dtype)
        self.updates, self._averages = updates, averages


def _parameters_by_name(params: object) -> dict[str, Parameter]:
    """Return parameters by attribute path, or by name if there is no network."""
    if isinstance(params, Block):
        return by_name(params)
    if isinstance(params, (ParameterDict, Mapping)):
        named = dict(params.items())
    elif isinstance(params, (list, tuple)):
        named = {getattr(param, "name", str(number)): param for number, param in enumerate(params)}
    else:
        named = {"": params}
    wrong = [param for param in named.values() if not isinstance(param, Parameter)]
    if wrong:
        raise ArgumentKindError(
            f"ExponentialMovingAverage: params is or holds {type(wrong[0]).__name__}, expected a network, or its "
            "collect_params()"
        )
    return named


def _to_float32(weight: NDArray) -> NDArray:
    """Return a copy of a weight, in float32 if it has 16 bits."""
    return weight.astype("float32") if weight.element_type.itemsize == 2 else weight.copy()


def _write(param: Parameter, value: NDArray) -> None:
    for ctx, weight in zip(param.list_ctx(), param.list_data(), strict=True):
        narrow = value if value.dtype == weight.dtype else value.astype(weight.dtype)
        weight[:] = narrow.as_in_context(ctx)
