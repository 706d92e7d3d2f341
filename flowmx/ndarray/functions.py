"""The functions ``mx.nd.*``, derived from the operator registry.

``op(name, *arrays, **parameters)`` calls any operator by name, the hidden ones too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flowmx import devices
from flowmx.errors import ParameterError
from flowmx.ndarray.core import BaseArray, Elementwise, invoke
from flowmx.ops import calling
from flowmx.ops.registry import Operator, lookup, registered

_EXTRA = ("out", "name")


def _is_array(value: Any) -> bool:
    return isinstance(value, BaseArray)


_is_array.__name__ = "an NDArray"


def call(cls: type[Operator], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call an operator on arrays, with arguments as the user wrote them."""
    out = kwargs.pop("out", None)
    kwargs.pop("name", None)
    inputs, parameters = calling.split(cls, args, kwargs, _is_array)
    # The device that an operator without inputs runs on; where there are inputs, they decide.
    ctx = parameters.pop("ctx", None) if "ctx" in cls.parameters else None
    op = cls.create(**parameters)
    ordered = calling.in_order(op, inputs)
    return invoke(op, ordered, out, _device(ctx) if ctx and not ordered else None, 4)


def _device(ctx: devices.Context | str) -> devices.Device:
    """The device of a context, or of its text such as ``gpu(1)``."""
    if isinstance(ctx, str):
        kind, _, number = ctx.rstrip(")").partition("(")
        ctx = devices.Context(kind, int(number or 0))
    return devices.get(ctx)


def _without_parameters(cls: type[Operator]) -> Operator | None:
    """The operator with its defaults, where arrays are all that a call must give, else None."""
    if cls.variadic or cls.auxiliary or not cls.arguments or cls.updates or cls.uses_random:
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
    if plain is None or count > 2:

        def function(*args: Any, **kwargs: Any) -> Any:
            return call(cls, args, kwargs)

    else:
        quick = Elementwise(plain)

        def function(*args: Any, **kwargs: Any) -> Any:
            # The usual call, arrays alone, without sorting its arguments.
            if kwargs or len(args) != count:
                return call(cls, args, kwargs)
            for each in args:
                if not isinstance(each, BaseArray):
                    return call(cls, args, kwargs)
            return quick(*args)

    calling.dress(function, cls, name, "flowmx.ndarray", _EXTRA)
    return function


_functions: dict[str, Callable[..., Any]] = {}


def op(name: str, /, *args: Any, **kwargs: Any) -> Any:
    """Call the operator of that name on arrays."""
    return call(lookup(name), args, kwargs)


def apply(made: Operator, arrays: Sequence[BaseArray]) -> Any:
    """Call an operator whose parameters are bound already."""
    return invoke(made, arrays)


def __getattr__(name: str) -> Callable[..., Any]:
    if name.startswith("__"):
        raise AttributeError(name)
    made = _functions.get(name)
    if made is None:
        made = _functions[name] = function_for(name)
    return made


def __dir__() -> list[str]:
    return sorted(name for name, cls in registered().items() if not cls.hidden)
