"""Jets: values with their first and second derivatives in a few directions.

This is forward-mode differentiation with NumPy in float64, and shares no code with flowmx: the reverse mode that is
checked with it has nothing to do with how a jet comes by its derivatives.
"""

import numpy as np

DIRECTIONS = 12
"""The number of directions in which the elements of all variables of a program vary."""


class Jet:
    """An array with derivatives.

    Attributes:
        value: of shape S.
        first: (DIRECTIONS, *S), or None if it is 0.
        second: (DIRECTIONS, DIRECTIONS, *S), or None if it is 0.
        order: the number of known derivatives.
        reach: the variables that the value came from by recorded operators; None: it is no part of the tape.
    """

    __slots__ = ("first", "order", "reach", "second", "value")

    def __init__(self, value, first=None, second=None, order=2, reach=None):
        self.value, self.first, self.second = np.asarray(value, np.float64), first, second
        self.order, self.reach = order, reach

    @property
    def shape(self):
        return self.value.shape

    def constant(self):
        """Return the value without derivatives."""
        return Jet(self.value)

    def blocked(self):
        """The value, which still came from the same variables, without derivatives."""
        return Jet(self.value, reach=self.reach, order=self.order)

    def apply(self, function, slope, curve):
        """Apply an elementwise function with its first two derivatives."""
        x, first, second = self.value, None, None
        if self.first is not None:
            one = slope(x)
            first = one * self.first
            second = curve(x) * self.first[:, None] * self.first[None]
            if self.second is not None:
                second = second + one * self.second
        return Jet(function(x), first, second, self.order, self.reach)

    def linear(self, function):
        """Apply a linear function that works on arrays with one more leading axis."""
        first = None if self.first is None else function(self.first)
        second = None
        if self.second is not None:
            moved = function(self.second.reshape(DIRECTIONS**2, *self.shape))
            second = moved.reshape(DIRECTIONS, DIRECTIONS, *moved.shape[1:])
        return Jet(function(self.value[None])[0], first, second, self.order, self.reach)

    def at(self, places):
        """Select elements by flat positions, an array of any shape."""
        return self.linear(lambda x: x.reshape(len(x), -1)[:, places])

    def _padded(self, ndim):
        return self if self.value.ndim == ndim else self.linear(
            lambda x: x.reshape(len(x), *(1,) * (ndim - self.value.ndim), *self.shape)
        )  # fmt: skip

    def __add__(self, other):
        one, two = _together(self, other)
        return Jet(
            one.value + two.value, _sum(one.first, two.first, one, two, 1), _sum(one.second, two.second, one, two, 2),
            *_common(one, two),
        )  # fmt: skip

    def __mul__(self, other):
        one, two = _together(self, other)
        first = second = None
        for x, y in ((one, two), (two, one)):
            if x.first is not None:
                first = _plus(first, x.first * y.value)
            if x.second is not None:
                second = _plus(second, x.second * y.value)
        if one.first is not None and two.first is not None:
            cross = one.first[:, None] * two.first[None]
            second = _plus(second, cross + cross.swapaxes(0, 1))
        return Jet(one.value * two.value, first, second, *_common(one, two))

    def __neg__(self):
        return self.linear(np.negative)

    def __sub__(self, other):
        return self + -_jet(other)

    def reciprocal(self):
        return self.apply(lambda x: 1 / x, lambda x: -1 / x**2, lambda x: 2 / x**3)

    def sum(self, axis=None, keepdims=False):
        axes = tuple(range(self.value.ndim)) if axis is None else (axis,)
        return self.linear(lambda x: x.sum(tuple(1 + each for each in axes), keepdims=keepdims))


def _jet(value):
    return value if isinstance(value, Jet) else Jet(value)


def _together(one, other):
    one, other = _jet(one), _jet(other)
    ndim = max(one.value.ndim, other.value.ndim)
    return one._padded(ndim), other._padded(ndim)


def _common(one, other):
    reach = None if one.reach is None and other.reach is None else (one.reach or frozenset()) | (
        other.reach or frozenset()
    )  # fmt: skip
    return min(one.order, other.order), reach


def _plus(one, other):
    return other if one is None else one + other


def _sum(one, other, first, second, order):
    """Add derivatives of two jets with broadcasting."""
    if one is None and other is None:
        return None
    shape = np.broadcast_shapes(first.shape, second.shape)
    terms = [np.broadcast_to(each, (DIRECTIONS,) * order + shape) for each in (one, other) if each is not None]
    return sum(terms)


def join(jets, function):
    """The result for several jets of a function that only moves elements: a concatenation, a choice.

    Args:
        jets: of any shapes.
        function: called with arrays that have one more axis in front; returns one with that axis too.
    """
    jets = [_jet(each) for each in jets]
    order, reach = 2, None
    for each in jets:
        order, reach = min(order, each.order), _common(Jet(0, reach=reach), each)[1]
    first = second = None
    if any(each.first is not None for each in jets):
        first = function([np.zeros((DIRECTIONS, *j.shape)) if j.first is None else j.first for j in jets])
    if any(each.second is not None for each in jets):
        count = DIRECTIONS**2
        moved = function([
            np.zeros((count, *j.shape)) if j.second is None else j.second.reshape(count, *j.shape) for j in jets
        ])  # fmt: skip
        second = moved.reshape(DIRECTIONS, DIRECTIONS, *moved.shape[1:])
    return Jet(function([j.value[None] for j in jets])[0], first, second, order, reach)
