"""The functions ``mx.nd.*``, derived from the operator registry.

``op(name, *arrays, **parameters)`` calls any operator by name, the hidden ones too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flowmx import devices
from flowmx.errors import ParameterError
from flowmx.ndarray.core import BaseArray, Elementwise, invoke
from flowmx.ops.registry import calling
from flowmx.ops.registry.namespaces import derived
from flowmx.ops.registry.operators import Operator, lookup

_EXTRA = ("out", "name")


def _is_array(value: Any) -> bool:
    return isinstance(value, BaseArray)


_is_array.__name__ = "an NDArray"


def call(cls: type[Operator], args: tuple[Any, ...], kwargs: dict[str, Any], depth: int = 4) -> Any:
    """Call an operator on arrays, with arguments as the user wrote them."""
    out = kwargs.pop("out", None)
    kwargs.pop("name", None)
    inputs, parameters = calling.split(cls, args, kwargs, _is_array)
    # The device that an operator without inputs runs on; where there are inputs, they decide.
    ctx = parameters.pop("ctx", None) if "ctx" in cls.parameters else None
    if not cls.parameters:
        calling.drop_unknown(cls, parameters)
    op = cls.create(**parameters)
    ordered = calling.in_order(op, inputs)
    return invoke(op, ordered, out, _device(ctx) if ctx and not ordered else None, depth)


class _Calls:
    """The calls of one operator's function, by everything about their arguments but the arrays: what they come to.

    A loop makes the same calls again and again, and sorting arguments costs more than a small operator.
    """

    def __init__(self, cls: type[Operator]) -> None:
        self._cls = cls
        self._known: dict[Any, _Known] = {}

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the operator as the user wrote it."""
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
                value = None  # it says nothing here
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
            known = self._known.get(whole)
        except TypeError:  # a list among them
            return call(self._cls, args, kwargs, 5)
        if known is None:
            known = self._learn(args, kwargs, whole)
            if known is None:
                return call(self._cls, args, kwargs, 5)
        op, order, quick = known
        if quick is not None:
            return quick(*arrays)
        return invoke(op, arrays if order is None else [arrays[at] for at in order], None, None, 4)

    def _learn(self, args: tuple[Any, ...], kwargs: dict[str, Any], key: Any) -> _Known | None:
        """Remember what such calls come to; None where they are not of the usual kind, or wrong."""
        cls = self._cls
        if "out" in kwargs or "ctx" in cls.parameters or cls.traits.open_ended:
            return None
        stand: list[BaseArray] = []  # the same array may be given twice

        def instead(value: Any) -> Any:
            if isinstance(value, BaseArray):
                stand.append(value := object.__new__(BaseArray))
            return value

        try:
            given = [instead(each) for each in args], {name: instead(value) for name, value in kwargs.items()}
            given[1].pop("name", None)
            inputs, parameters = calling.split(cls, *given, _is_array)
            op = cls.create(**parameters)
            ordered = calling.in_order(op, inputs)
        except Exception:  # what is wrong with it is said where it is called
            return None
        if not stand or len(ordered) != len(stand):
            return None
        at = {id(each): position for position, each in enumerate(stand)}
        order = tuple([at[id(each)] for each in ordered])
        if len(self._known) >= _KEPT:
            self._known.clear()
        is_ordered = order == tuple(range(len(stand)))
        is_simple = is_ordered and len(stand) <= _MOST_QUICK and op.visible_outputs() == 1 and not op.auxiliary
        made = self._known[key] = op, None if is_ordered else order, Elementwise(op) if is_simple else None
        return made


_ARRAY, _ZERO = object(), object()
_FLOATS = (float, np.floating)
_PLAIN = frozenset({bool, int, str, tuple, type(None)})
"""Types of arguments about which there is nothing to look at."""
_KEPT = 1024
_MOST_QUICK = 2
"""Arrays with which a call may be one that is remembered whole."""
_Known = tuple[Operator, tuple[int, ...] | None, Elementwise | None]
"""An operator, and the order in which it takes the arrays of a call, where it is another one; its calls as a whole."""


def _device(ctx: devices.Context | str) -> devices.Device:
    """The device of a context, or of its text such as ``gpu(1)``."""
    if isinstance(ctx, str):
        kind, _, number = ctx.rstrip(")").partition("(")
        ctx = devices.Context(kind, int(number or 0))
    return devices.get(ctx)


def _without_parameters(cls: type[Operator]) -> Operator | None:
    """The operator with its defaults, where arrays are all that a call must give, else None."""
    if cls.variadic or cls.auxiliary or not cls.arguments or cls.updates or cls.traits.uses_random:
        return None
    if any(parameter.required for parameter in cls.parameters.values()):
        return None
    try:
        made = cls.create()
    except ParameterError:  # none is required by itself, but not all may be left out
        return None
    return made if made.inputs() == cls.arguments and made.visible_outputs() == 1 else None


def function_for(name: str) -> Callable[..., Any]:
    """The array function of an operator."""
    cls = lookup(name)
    plain = _without_parameters(cls)
    count = len(cls.arguments)
    calls = _Calls(cls)
    if plain is None or count > 2:

        def function(*args: Any, **kwargs: Any) -> Any:
            return calls(args, kwargs)

    else:
        quick = Elementwise(plain)

        def function(*args: Any, **kwargs: Any) -> Any:
            # The usual call, arrays alone, without sorting its arguments.
            if kwargs or len(args) != count:
                return calls(args, kwargs)
            for each in args:
                if not isinstance(each, BaseArray):
                    return calls(args, kwargs)
            return quick(*args)

    calling.dress(function, cls, name, "flowmx.ndarray", _EXTRA)
    return function


_hidden: dict[str, _Calls] = {}


def op(name: str, /, *args: Any, **kwargs: Any) -> Any:
    """Call the operator of that name on arrays."""
    calls = _hidden.get(name)
    if calls is None:
        calls = _hidden[name] = _Calls(lookup(name))
    return calls(args, kwargs)


def apply(made: Operator, arrays: Sequence[BaseArray]) -> Any:
    """Call an operator whose parameters are bound already."""
    return invoke(made, arrays)


__getattr__, __dir__ = derived(function_for)
