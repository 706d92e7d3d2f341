"""The allowed distance of a mode from the reference: as far as the rounding of its dtype can lead, and no farther.

The relative error of a sum of n numbers is about u·√n, where u is the unit roundoff of the dtype of the sum (16-bit
numbers are summed in float32, and rounded at the end). The effect of an error on the rest of a network, on the outputs,
the gradients and the next steps, is measured: the reference runs again, with noise of that size added to the outputs of
every layer, and to every gradient that returns to it. If the mode's dtype has 16 bits, every other run also rounds the
noisy numbers to 16 bits: close numbers become equal, as they may in the mode, and a maximum's gradient goes to both. A
bound is a few times the largest resulting deviation; an array whose errors are all below u·√n of its largest value is
always accepted.
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
"""The numbers of noisy runs for a bound; more are run while the bound does not allow an error."""
GROSS = 1000
"""An error this many times beyond the bound of one noisy run needs no further runs."""
OPERATORS = 16
"""The most consecutive rounding operators in one layer."""
UNITS = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
GREATEST = {"float16": 65504.0}
"""The largest number of each dtype that networks approach."""
_CONTAINERS = (nn.HybridSequential, nn.Sequential, more.HybridConcurrent, more.Concurrent)


def unit(dtype, terms):
    """Return the relative error of a layer that sums this many numbers."""
    adding = UNITS[dtype if dtype in ("float32", "float64") else "float32"]
    return UNITS[dtype] * np.sqrt(OPERATORS) + adding * np.sqrt(terms)


class _Noise(autograd.Function):
    """The identity with noise of known size on values and gradients."""

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
    """The identity, whose gradient has noise as great as the terms that a normalization's gradient is a difference of.

    Where two numbers are normalized, the terms are near each other, and the difference is no more than their rounding.
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
    """The identity, which reports the largest number of its gradient."""

    def __init__(self, tell):
        super().__init__()
        self.tell = tell

    def forward(self, x):
        return x + 0

    def backward(self, head):
        self.tell(np.abs(head.asnumpy()).max(initial=0))
        return head


def _normalizes(params):
    """Return whether a layer with these parameters computes batch statistics now."""
    return autograd.is_training() and "running_mean" in params


def _gain(block, data, params):
    """Return the largest factor from the gradient of a normalization's output to that of its input."""
    values = data.asnumpy().astype(np.float64)
    axis = block._kwargs.get("axis", 1) % values.ndim
    variances = values.var(axis=tuple(each for each in range(values.ndim) if each != axis))
    return np.max(np.abs(params["gamma"].asnumpy() if "gamma" in params else 1), initial=1) / np.sqrt(
        variances.min() + block._kwargs["eps"]
    )


def noisy(dtype, seed, tell=lambda greatest: None):
    """Return a function that adds noise to the outputs of each layer of a block, and reports their largest numbers."""
    random = np.random.default_rng(seed)
    grid = dtype if seed % 2 == 0 and dtype in ("float16", "bfloat16") else None

    def noise(terms):
        return lambda array: _Noise(random, unit(dtype, terms), tell, grid)(array)

    def wrap(net):
        for each in [net, *_inside(net)]:
            if not isinstance(each, _CONTAINERS):
                _wrap(each, lambda output, size: _mapped(output, noise(size)), moved=move_averages)
                _wrap_normalization(each, random, dtype)
        _wrap(net, lambda output, size: output, lambda array: _mapped(array, noise(1)))

    def move_averages(block, data, params):
        """Add noise to running averages, which sum a whole input with separate rounding."""
        if not _normalizes(params):
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
    """Wrap a block so that functions change its inputs, and its outputs, given the largest number of input elements.

    ``moved`` is called with the block, its first input and its parameters by name, once it has computed.
    """
    name = "hybrid_forward" if hasattr(block, "hybrid_forward") else "forward"
    real = getattr(block, name)

    def forward(*args, **params):
        sizes = [each.size for each in flat([list(args), list(params.values())]) if isinstance(each, mx.nd.NDArray)]
        arguments = [each if each is mx.nd else before(each) for each in args]
        output = after(real(*arguments, **params), max(sizes, default=1))
        moved(block, next((each for each in flat([arguments]) if isinstance(each, mx.nd.NDArray)), None), params)
        return output

    setattr(block, name, forward)


def _wrap_normalization(block, random, dtype):
    """Add noise to the gradient of a batch normalization's input."""
    name = "hybrid_forward" if hasattr(block, "hybrid_forward") else "forward"
    real = getattr(block, name)

    def forward(*args, **params):
        arguments = [each for each in args if each is not mx.nd]
        if not _normalizes(params) or not autograd.is_recording():
            return real(*args, **params)
        heads = []
        size = unit(dtype, arguments[0].size) * _gain(block, arguments[0], params)
        first = _Cancelling(random, size, heads)(arguments[0])
        rest = iter([first, *arguments[1:]])
        output = real(*(each if each is mx.nd else next(rest) for each in args), **params)
        return _mapped(output, lambda array: _Heads(heads.append)(array))

    setattr(block, name, forward)


def _mapped(nested, function):
    if isinstance(nested, (list, tuple)):
        return type(nested)(_mapped(each, function) for each in nested)
    is_float = isinstance(nested, mx.nd.NDArray) and np.dtype(nested.dtype).kind == "f"
    return function(nested) if is_float else nested


class Reference:
    """The expected results of a network with numbers of a dtype, and the allowed distance from them.

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

    def differences(self, results):
        """List the arrays that are too far off: name, error and bound."""
        wrong = []
        for runs in RUNS:
            self._measure(runs)
            wrong = self._beyond(results)
            if not wrong or (runs and any(error > GROSS * bound for _, error, bound in wrong)):
                break
        return wrong

    def _beyond(self, results):
        wrong = []
        for name, array in results.items():
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
        """Return the largest allowed error of an array."""
        expected = self.record[name]
        least = unit(self.dtype, expected.size) * size(expected)
        return MARGIN * max(least, self._deviations[name])

    def _measure(self, runs):
        while self._done < runs:
            self._done += 1
            output = self._mode.run(self.network, self.dtype, noisy(self.dtype, self._done))
            for name, array in output.items():
                self._deviations[name] = max(self._deviations[name], distance(array, self._calm[name]))

    def greatest(self):
        """Return the largest number, also between layers: an overflow there may be invisible at the end."""
        between = []
        self._mode.run(self.network, self.dtype, noisy("float64", 0, between.append))
        return max(*map(size, self.record.values()), *between)


def distance(one, other):
    """Return the largest difference of two arrays: infinite if only one is NaN, as at a pole of a gradient."""
    undefined = np.isnan(one), np.isnan(other)
    if (undefined[0] != undefined[1]).any():
        return np.inf
    same = undefined[0] | (one == other)
    return np.abs(np.where(same, 0, one) - np.where(same, 0, other)).max(initial=0)


def size(array):
    """Return the largest magnitude in an array, ignoring NaN."""
    return np.abs(array[~np.isnan(array)]).max(initial=0)


__all__ = ["MARGIN", "Reference", "noisy", "rounded", "unit"]
