"""The distance from the reference that a mode may have: as far as the rounding of its dtype can lead, and no farther.

An operator that adds up n numbers is off by about u·√n of what it adds up, where u is the unit roundoff of the dtype
that it adds in (16 bits are added up in float32, and rounded at the end). What the rest of a network makes of an
error, in the outputs, the gradients and the next steps, is not guessed but measured: the reference runs again, with
noise of that size put on what every layer gives, and on every gradient that comes back to it. Every other run rounds
what has noise to numbers of 16 bits where the mode's dtype has these: numbers that were near each other are equal then,
as they may be in the mode, and a maximum's gradient goes to both. A bound is a few times the greatest deviation that
this makes; an array whose values are all off by less than u·√n of the greatest is right in any case.
"""

from dataclasses import replace

import numpy as np

import flowmx as mx
from flowmx import autograd
from flowmx.gluon import nn
from flowmx.gluon.contrib import nn as more
from tests.modes.runners import flat, rounded

MARGIN = 4
RUNS = (0, 1, 24, 96)
"""Noisy runs by which a bound is found: more where what it was found by so far does not allow an error."""
GROSS = 1000
"""An error so many times beyond what one noisy run allows needs no more of them."""
OPERATORS = 16
"""Operators that round one after the other in one layer, at most."""
UNITS = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
GREATEST = {"float16": 65504.0}
"""The greatest number of a dtype that networks come near to."""
_CONTAINERS = (nn.HybridSequential, nn.Sequential, more.HybridConcurrent, more.Concurrent)


def unit(dtype, terms):
    """The relative error of a layer that adds up so many numbers."""
    adding = UNITS[dtype if dtype in ("float32", "float64") else "float32"]
    return UNITS[dtype] * np.sqrt(OPERATORS) + adding * np.sqrt(terms)


class _Noise(autograd.Function):
    """The identity, but for noise on the values and on the gradients, whose sizes are told."""

    def __init__(self, random, size, tell, grid=None):
        super().__init__()
        self.random, self.size, self.tell, self.grid = random, size, tell, grid

    def forward(self, x):
        return self._noisy(x)

    def backward(self, head):
        return self._noisy(head)

    def _noisy(self, x):
        values = x.asnumpy()
        greatest = np.abs(values).max(initial=0)
        self.tell(greatest)
        values = values + self.size * greatest * self.random.standard_normal(values.shape)
        return mx.nd.array(values if self.grid is None else rounded(values, self.grid), x.context, x.dtype)


class _Cancelling(autograd.Function):
    """The identity, whose gradient has noise as great as the terms that a normalisation's gradient is a difference of.

    Where two numbers are normalised, the terms are near each other, and the difference is no more than their rounding.
    """

    def __init__(self, random, size, heads):
        super().__init__()
        self.random, self.size, self.heads = random, size, heads

    def forward(self, x):
        return x + 0

    def backward(self, head):
        values = head.asnumpy()
        scale = self.size * max(self.heads, default=0)
        return mx.nd.array(values + scale * self.random.standard_normal(values.shape), head.context, head.dtype)


class _Heads(autograd.Function):
    """The identity, which tells the greatest number of its gradient."""

    def __init__(self, tell):
        super().__init__()
        self.tell = tell

    def forward(self, x):
        return x + 0

    def backward(self, head):
        self.tell(np.abs(head.asnumpy()).max(initial=0))
        return head


def _normalises(params):
    """Tell whether a layer with these parameters takes means and variances over a batch now."""
    return autograd.is_training() and "running_mean" in params


def _gain(block, data, params):
    """The greatest factor by which the gradient of a normalisation's output is multiplied on its way to the input."""
    values = data.asnumpy().astype(np.float64)
    axis = block._kwargs.get("axis", 1) % values.ndim
    variances = values.var(axis=tuple(each for each in range(values.ndim) if each != axis))
    return np.max(np.abs(params["gamma"].asnumpy() if "gamma" in params else 1), initial=1) / np.sqrt(
        variances.min() + block._kwargs["eps"]
    )


def noisy(dtype, seed, tell=lambda greatest: None):
    """Give a function that puts noise on the outputs of each layer of a block, and tells the greatest numbers there."""
    random = np.random.default_rng(seed)
    grid = dtype if seed % 2 == 0 and dtype in ("float16", "bfloat16") else None

    def noise(terms):
        return lambda array: _Noise(random, unit(dtype, terms), tell, grid)(array)

    def wrap(net):
        for each in [net, *_inside(net)]:
            if not isinstance(each, _CONTAINERS):
                _wrap(each, lambda made, size: _mapped(made, noise(size)), moved=move_averages)
                _wrap_normalisation(each, random, dtype)
        _wrap(net, lambda made, size: made, lambda array: _mapped(array, noise(1)))

    def move_averages(block, data, params):
        """Put noise on running averages, which add up all of an input in rounding of their own."""
        if not _normalises(params):
            return
        share = unit(dtype, data.size) * (1 - block._kwargs["momentum"])
        greatest = np.abs(data.asnumpy().astype(np.float64)).max(initial=0)
        with autograd.pause():
            for name, size in (("running_mean", greatest), ("running_var", greatest**2)):
                values = params[name].asnumpy()
                params[name][:] = values + share * size * random.standard_normal(values.shape)

    return wrap


def _inside(block):
    for each in block._children.values():
        yield each
        yield from _inside(each)


def _wrap(block, after, before=lambda array: array, moved=lambda block, data, params: None):
    """Let functions change what a block is given, and with the greatest number of elements of that, what it gives.

    ``moved`` is called with the block, its first input and its parameters by name, once it has computed.
    """
    name = "hybrid_forward" if hasattr(block, "hybrid_forward") else "forward"
    real = getattr(block, name)

    def forward(*args, **params):
        sizes = [each.size for each in flat([list(args), list(params.values())]) if isinstance(each, mx.nd.NDArray)]
        given = [each if each is mx.nd else before(each) for each in args]
        made = after(real(*given, **params), max(sizes, default=1))
        moved(block, next((each for each in flat([given]) if isinstance(each, mx.nd.NDArray)), None), params)
        return made

    setattr(block, name, forward)


def _wrap_normalisation(block, random, dtype):
    """Put noise on the gradient of what a normalisation over a batch is given."""
    name = "hybrid_forward" if hasattr(block, "hybrid_forward") else "forward"
    real = getattr(block, name)

    def forward(*args, **params):
        given = [each for each in args if each is not mx.nd]
        if not _normalises(params) or not autograd.is_recording():
            return real(*args, **params)
        heads = []
        size = unit(dtype, given[0].size) * _gain(block, given[0], params)
        first = _Cancelling(random, size, heads)(given[0])
        rest = iter([first, *given[1:]])
        made = real(*(each if each is mx.nd else next(rest) for each in args), **params)
        return _mapped(made, lambda array: _Heads(heads.append)(array))

    setattr(block, name, forward)


def _mapped(nested, function):
    if isinstance(nested, (list, tuple)):
        return type(nested)(_mapped(each, function) for each in nested)
    is_float = isinstance(nested, mx.nd.NDArray) and np.dtype(nested.dtype).kind == "f"
    return function(nested) if is_float else nested


class Reference:
    """The right results of a network whose numbers are those of a dtype, and the distance from them that it may have.

    Args:
        network: the network.
        dtype: of the mode that is compared.
        mode: the reference's.
    """

    def __init__(self, network, dtype, mode):
        self.network, self.dtype = network, dtype
        self.record = mode.run(network, dtype)
        self._mode = replace(
            mode, hybridize=None, turns=False, children=False
        )  # noise is put on what layers give, call by call
        self._calm = self._mode.run(network, dtype) if mode.hybridize is not None else self.record
        self._deviations = dict.fromkeys(self.record, 0.0)
        self._done = 0

    def differences(self, found):
        """List what is not as it should be: the name, the error and the bound of each array that is too far off."""
        wrong = []
        for runs in RUNS:
            self._measure(runs)
            wrong = self._beyond(found)
            if not wrong or (runs and any(error > GROSS * bound for _, error, bound in wrong)):
                break
        return wrong

    def _beyond(self, found):
        wrong = []
        for name, array in found.items():
            expected = self.record[name]
            if array.shape != expected.shape:
                wrong.append((name, np.inf, 0.0))
                continue
            error, bound = distance(array, expected), self.bound(name)
            may_overflow = size(expected) + bound > GREATEST.get(self.dtype, np.inf)
            if not error <= bound and not may_overflow:
                wrong.append((name, error, bound))
        return wrong

    def bound(self, name):
        """The greatest error that an array may have."""
        expected = self.record[name]
        least = unit(self.dtype, expected.size) * size(expected)
        return MARGIN * max(least, self._deviations[name])

    def _measure(self, runs):
        while self._done < runs:
            self._done += 1
            made = self._mode.run(self.network, self.dtype, noisy(self.dtype, self._done))
            for name, array in made.items():
                self._deviations[name] = max(self._deviations[name], distance(array, self._calm[name]))

    def greatest(self):
        """The greatest number that occurs, also between layers: what overflows there may be gone at the end."""
        between = []
        self._mode.run(self.network, self.dtype, noisy("float64", 0, between.append))
        return max(*map(size, self.record.values()), *between)


def distance(one, other):
    """Measure the greatest difference of two arrays: infinite where one alone is NaN, as at a pole of a gradient."""
    undefined = np.isnan(one), np.isnan(other)
    if (undefined[0] != undefined[1]).any():
        return np.inf
    same = undefined[0] | (one == other)
    return np.abs(np.where(same, 0, one) - np.where(same, 0, other)).max(initial=0)


def size(array):
    """Measure the greatest number of an array, NaN left out."""
    return np.abs(array[~np.isnan(array)]).max(initial=0)


__all__ = ["MARGIN", "Reference", "noisy", "rounded", "unit"]
