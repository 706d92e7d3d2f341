"""The functions ``mx.nd.*``, derived from the operator registry.

``op(name, *arrays, **parameters)`` calls any operator by name, including the hidden ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from flowmx import devices
from flowmx.bounded_tables import make_room
from flowmx.errors import ParameterError
from flowmx.ndarray.core import BaseArray, invoke
from flowmx.ndarray.fast_calls import FastCall
from flowmx.ops.registry import calling
from flowmx.ops.registry.namespaces import operator_attributes
from flowmx.ops.registry.operators import Operator, lookup

_EXTRA = ("out", "name")


def _is_array(value: object) -> bool:
    return isinstance(value, BaseArray)


_is_array.__name__ = "an NDArray"


def call(cls: type[Operator], args: tuple[object, ...], kwargs: dict[str, Any], depth: int = 4) -> Any:
    """Call an operator on arrays with the user's arguments."""
    out = kwargs.pop("out", None)
    kwargs.pop("name", None)
    inputs, parameters = calling.split(cls, args, kwargs, _is_array)
    # The device of an operator without inputs; otherwise the inputs decide.
    ctx = parameters.pop("ctx", None) if "ctx" in cls.parameters else None
    if not cls.parameters:
        calling.drop_unknown(cls, parameters)
    op = cls.create(**parameters)
    ordered = calling.in_order(op, inputs)
    return invoke(op, ordered, out, _device(ctx) if ctx and not ordered else None, depth)


class Calls:
    """A cache of the calls of one operator's function, keyed by all arguments except the arrays.

    Loops repeat the same calls, and sorting arguments takes longer than a small operator.
    """

    def __init__(self, cls: type[Operator]) -> None:
        self._cls = cls
        self._bound: dict[object, _BoundCall] = {}
        self._alone: Callable[[BaseArray], Any] | None = None

    def on(self, array: BaseArray) -> Any:
        """Call the operator with one array, and no other arguments."""
        if self._alone is None:
            fast = plain_call(self._cls) if len(self._cls.arguments) == 1 else None
            self._alone = fast or (lambda array: self((array,), {}))
        return self._alone(array)

    def __call__(self, args: tuple[object, ...], kwargs: dict[str, Any]) -> Any:
        """Call the operator with the user's arguments."""
        arrays: list[BaseArray] = []
        key: list[Any] = []
        for value in args:
            if isinstance(value, BaseArray):
                arrays.append(value)
                value = _ARRAY
            elif isinstance(value, _FLOATS) and not value:
                value = _ZERO, str(value)  # 0, 0.0 and -0.0 are equal as keys
            key.append(value)
        for name, value in kwargs.items():
            if name == "name":
                value = None  # it has no effect here
            elif type(value) in _PLAIN:
                pass
            elif isinstance(value, BaseArray):
                arrays.append(value)
                value = _ARRAY
            elif isinstance(value, _FLOATS) and not value:
                value = _ZERO, str(value)
            key += (name, value)
        whole = tuple(key)
        try:
            bound = self._bound.get(whole)
            if bound is None:
                bound = self._bind(args, kwargs, whole)
        except TypeError:  # unhashable: an argument contains a list
            bound = None
        if bound is None:
            return call(self._cls, args, kwargs, 5)
        op, order, fast = bound
        if fast is not None:
            return fast(*arrays)
        return invoke(op, arrays if order is None else [arrays[at] for at in order], None, None, 4)

    def _bind(self, args: tuple[object, ...], kwargs: Mapping[str, object], key: object) -> _BoundCall | None:
        """Bind calls with these arguments, and cache the result; None if they are unusual or invalid."""
        cls = self._cls
        if "out" in kwargs or "ctx" in cls.parameters or cls.traits.open_ended:
            return None
        placeholders: list[BaseArray] = []  # new ones, since one array may be passed twice

        def placeholder(value: object) -> Any:
            if isinstance(value, BaseArray):
                placeholders.append(value := object.__new__(BaseArray))
            return value

        try:
            positional, by_name = [placeholder(each) for each in args], {k: placeholder(v) for k, v in kwargs.items()}
            by_name.pop("name", None)
            inputs, parameters = calling.split(cls, positional, by_name, _is_array)
            op = cls.create(**parameters)
            ordered = calling.in_order(op, inputs)
        except Exception:  # the call itself raises the error
            return None
        if not placeholders or len(ordered) != len(placeholders):
            return None
        at = {id(each): position for position, each in enumerate(placeholders)}
        order = tuple([at[id(each)] for each in ordered])
        make_room(self._bound, _MAX_CALLS)
        is_ordered = order == tuple(range(len(placeholders)))
        is_simple = is_ordered and len(placeholders) <= _MAX_FAST and op.visible_outputs() == 1 and not op.auxiliary
        bound = self._bound[key] = op, None if is_ordered else order, FastCall(op) if is_simple else None
        return bound


_ARRAY, _ZERO = object(), object()
_FLOATS = (float, np.floating)
_PLAIN = frozenset({bool, int, str, tuple, type(None)})
"""Types of arguments that are used as keys unchanged."""
_MAX_CALLS = 1024
_MAX_FAST = 2
"""Maximum number of arrays of a :class:`FastCall`."""
_BoundCall = tuple[Operator, tuple[int, ...] | None, FastCall | None]
"""An operator; the order of its arrays if it differs from the call's; and its fast call if it is simple."""


def _device(ctx: devices.Context | str) -> devices.Device:
    """Return the device of a context, or of its text such as ``gpu(1)``."""
    if isinstance(ctx, str):
        kind, _, number = ctx.rstrip(")").partition("(")
        ctx = devices.Context(kind, int(number or 0))
    return devices.get(ctx)


def plain_call(cls: type[Operator]) -> FastCall | None:
    """Return the call of an operator of one or two arrays without parameters; None if calls need more."""
    plain = _without_parameters(cls)
    return None if plain is None or len(cls.arguments) > _MAX_FAST else FastCall(plain)


def _without_parameters(cls: type[Operator]) -> Operator | None:
    """Return the operator with its default parameters, or None if calls need more than arrays."""
    if cls.variadic or cls.auxiliary or not cls.arguments or cls.updates or cls.traits.uses_random:
        return None
    if any(parameter.required for parameter in cls.parameters.values()):
        return None
    try:
        op = cls.create()
    except ParameterError:  # no parameter is required alone, but one of several is
        return None
    return op if op.inputs() == cls.arguments and op.visible_outputs() == 1 else None


def function_for(name: str) -> Callable[..., Any]:
    """Return the array function of an operator."""
    cls = lookup(name)
    fast = plain_call(cls)
    count = len(cls.arguments)
    calls = Calls(cls)
    if fast is None:

        def function(*args: object, **kwargs: object) -> Any:
            return calls(args, kwargs)

    else:

        def function(*args: object, **kwargs: object) -> Any:
            # The usual call: only arrays, so there is nothing to sort.
            if kwargs or len(args) != count:
                return calls(args, kwargs)
            for each in args:
                if not isinstance(each, BaseArray):
                    return calls(args, kwargs)
            return fast(*args)

    calling.set_signature(function, cls, name, "flowmx.ndarray", _EXTRA)
    return function


_hidden: dict[str, Calls] = {}


def op(name: str, /, *args: object, **kwargs: object) -> Any:
    """Call an operator by name on arrays."""
    calls = _hidden.get(name)
    if calls is None:
        calls = _hidden[name] = Calls(lookup(name))
    return calls(args, kwargs)


def apply(operator: Operator, arrays: Sequence[BaseArray]) -> Any:
    """Call an operator whose parameters are already bound."""
    return invoke(operator, arrays)


__getattr__, __dir__ = operator_attributes(function_for)
