"""Argument parsing for the functions derived from the registry, for arrays and symbols alike.

Positional arguments have MXNet's order: inputs, auxiliary states, parameters.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flowmx.engine.origin import warn_user
from flowmx.errors import ArgumentTypeError
from flowmx.ops.registry.documentation import documentation
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Operator

Inputs = dict[str, Any]

METHODS = [
    "abs", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctanh", "argmax", "argmax_channel",
    "argmin", "argsort", "batch_dot", "broadcast_axes", "broadcast_axis", "broadcast_like", "cbrt", "ceil",
    "clip", "cos", "cosh", "degrees", "depth_to_space", "diag", "dot", "erf", "exp", "expm1",
    "fix", "flip", "floor", "log", "log10", "log1p", "log2", "log_softmax", "max", "mean", "min",
    "nanprod", "nansum", "norm", "one_hot", "ones_like", "pad", "pick", "prod", "radians", "rcbrt",
    "reciprocal", "relu", "repeat", "reshape_like", "rint", "round", "rsqrt", "shape_array", "sigmoid", "sign", "sin",
    "sinh", "size_array", "slice", "slice_axis", "slice_like", "softmax", "softmin", "sort",
    "space_to_depth", "split", "sqrt", "square", "sum", "swapaxes", "take", "tan", "tanh",
    "tile", "topk", "trunc", "zeros_like",
]  # fmt: skip
"""Operators that are also methods of their first input, an array or a symbol."""


def split(
    cls: type[Operator],
    args: Sequence[object],
    kwargs: Mapping[str, object],
    is_input: Callable[[Any], bool],
    partial: bool = False,
) -> tuple[Inputs, dict[str, Any]]:
    """Split a call's arguments into inputs by name and parameters.

    The inputs of a variadic operator are named ``arg0``, ``arg1``, ..., and the parameter that counts them is set;
    in a partial call it may exceed their number. A parameter of None is dropped unless None is one of its values.

    Raises:
        TypeError: too many arguments, a duplicate one, or an input of the wrong type.
    """
    parameters = {name: value for name, value in kwargs.items() if value is not None or _takes_none(cls, name)}
    if cls.traits.open_ended:
        return _split_open(cls, args, dict(kwargs), is_input)
    if cls.variadic:
        return _split_variadic(cls, args, parameters, is_input, partial)
    names, order = _order(cls)
    inputs: Inputs = {}
    if parameters:
        inputs = {name: parameters.pop(name) for name in names if name in parameters and name not in cls.parameters}
    if len(args) > len(order):
        raise TypeError(f"{cls.name}: {len(args)} positional arguments were given, expected at most {len(order)}")
    for name, value in zip(order, args, strict=False):
        target = inputs if name in names else parameters
        if name in target:
            raise TypeError(f"{cls.name}: argument {name} was given twice")
        if target is inputs or value is not None or _takes_none(cls, name):
            target[name] = value
    inputs = {name: value for name, value in inputs.items() if value is not None}
    for name, value in inputs.items():
        if not is_input(value):
            raise ArgumentTypeError(f"{cls.name}: input {name} is {_summary(value)}, expected {is_input.__name__}")
    return inputs, parameters


def _order(cls: type[Operator]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of an operator's inputs, and of all its arguments, in order."""
    order = _orders.get(cls)
    if order is None:
        names = (*cls.arguments, *cls.auxiliary)
        order = _orders[cls] = names, (*names, *cls.parameters)
    return order


_orders: dict[type[Operator], tuple[tuple[str, ...], tuple[str, ...]]] = {}


def drop_unknown(cls: type[Operator], parameters: dict[str, Any]) -> dict[str, Any]:
    """Remove and return the keywords of an operator without parameters, with a warning.

    MXNet stores such keywords as attributes of a node and never reads them.
    """
    if not parameters or cls.parameters or cls.traits.open_ended:
        return {}
    unknown = dict(parameters)
    parameters.clear()
    warn_user(f"{cls.name}: it has no parameters, so {', '.join(unknown)} is ignored", _warned)
    return unknown


_warned: set[tuple[str, int]] = set()


def _takes_none(cls: type[Operator], name: str) -> bool:
    """Return False for a parameter where None means its default."""
    parameter = cls.parameters.get(name)
    return parameter is None or parameter.optional


def _split_variadic(
    cls: type[Operator],
    args: Sequence[object],
    parameters: dict[str, Any],
    is_input: Callable[[Any], bool],
    partial: bool,
) -> tuple[Inputs, dict[str, Any]]:
    inputs = list(args)
    if len(inputs) == 1 and isinstance(inputs[0], (list, tuple)):
        inputs = list(inputs[0])
    for name in ("data", "args"):
        if name in parameters and name not in cls.parameters:
            values = parameters.pop(name)
            inputs += list(values) if isinstance(values, (list, tuple)) else [values]
    position = len(inputs)
    while f"arg{position}" in parameters:
        inputs.append(parameters.pop(f"arg{position}"))
        position += 1
    for value in inputs:
        if not is_input(value):
            raise ArgumentTypeError(f"{cls.name}: input is {_summary(value)}, expected {is_input.__name__}")
    group_size, extra = cls.inputs_counted
    parameters.setdefault(cls.variadic, max(0, len(inputs) - extra) // group_size)
    count = int(parameters[cls.variadic]) * group_size + extra
    if not (cls.traits.skips or count == len(inputs) or (partial and count > len(inputs))):
        raise TypeError(
            f"{cls.name}: {cls.variadic} is {parameters[cls.variadic]}, but {len(inputs)} inputs were given"
        )
    return {f"arg{index}": value for index, value in enumerate(inputs)}, parameters


def _split_open(
    cls: type[Operator], args: Sequence[object], parameters: dict[str, Any], is_input: Callable[[Any], bool]
) -> tuple[Inputs, dict[str, Any]]:
    """Split the arguments of an operator whose parameters determine the names of its inputs."""
    inputs = {name: parameters.pop(name) for name in list(parameters) if is_input(parameters[name])}
    parameters = {name: value for name, value in parameters.items() if value is not None}
    op = cls.create(**parameters)
    names = (*op.inputs(), *op.auxiliary)
    if len(args) > len(names):
        raise TypeError(f"{cls.name}: {len(args)} inputs were given, expected {len(names)}: {', '.join(names)}")
    for name, value in zip(names, args, strict=False):
        if name in inputs:
            raise TypeError(f"{cls.name}: input {name} was given twice")
        if value is None:
            continue
        if not is_input(value):
            raise ArgumentTypeError(f"{cls.name}: input {name} is {_summary(value)}, expected {is_input.__name__}")
        inputs[name] = value
    return inputs, parameters


def shift_skipped(op: Operator, inputs: Mapping[str, object]) -> Mapping[str, Any]:
    """Rename inputs that stand at the position of an omitted input to the next input of this instance.

    MXNet reads ``RNN(data, parameters, state, lengths, mode="gru", use_sequence_length=True)`` in this way.
    """
    if not op.traits.skips:
        return inputs
    names = op.inputs()
    extra = [name for name in inputs if name not in names]
    if not extra:
        return inputs
    first = op.arguments[: len(inputs)]
    if len(inputs) == len(names) and all(name in inputs for name in first):  # all inputs were passed by position
        return dict(zip(names, [inputs[name] for name in first], strict=True))
    new_names = dict(zip(extra, [name for name in names if name not in inputs], strict=False))
    return {new_names.get(name, name): value for name, value in inputs.items()}


def in_order(op: Operator, inputs: Mapping[str, object]) -> list[Any]:
    """Return the inputs in the operator's order.

    Raises:
        TypeError: an input is missing or unknown.
    """
    inputs = shift_skipped(op, inputs)
    names = (*op.inputs(), *op.auxiliary)
    accepted = names if len(names) < 16 else frozenset(names)
    missing = [name for name in names if name not in inputs]
    extra = [name for name in inputs if name not in accepted]
    if missing or extra:
        problem = f"input {missing[0]} is missing" if missing else f"{op!r} does not take input {extra[0]}"
        raise TypeError(f"{op.name}: {problem}; it takes {', '.join(names) or 'none'}")
    return [inputs[name] for name in names]


def signature(cls: type[Operator], extra: Sequence[str]) -> inspect.Signature:
    """Return the signature of a derived function; ``extra`` are keyword arguments such as ``out`` and ``name``.

    A parameter of the operator replaces an extra argument of the same name.
    """
    kind = inspect.Parameter
    parameters = []
    style: Any = kind.KEYWORD_ONLY if cls.variadic or cls.traits.open_ended else kind.POSITIONAL_OR_KEYWORD
    if cls.variadic or cls.traits.open_ended:
        parameters.append(kind("data", kind.VAR_POSITIONAL, annotation=Any))
    else:
        parameters += [kind(name, style, default=None, annotation=Any) for name in (*cls.arguments, *cls.auxiliary)]
    for parameter in cls.parameters.values():
        # Dtypes and devices have many spellings.
        annotation = Any if parameter.kind is DType or parameter.name == "ctx" else parameter.kind
        default = None if parameter.required else parameter.default
        parameters.append(kind(parameter.name, style, default=default, annotation=annotation))
    names = {parameter.name for parameter in parameters}
    parameters += [kind(name, kind.KEYWORD_ONLY, default=None, annotation=Any) for name in extra if name not in names]
    if cls.traits.open_ended:
        parameters.append(kind("kwargs", kind.VAR_KEYWORD, annotation=Any))
    return inspect.Signature(parameters)


def set_signature(
    function: Any, cls: type[Operator], name: str, module: str, extra: Sequence[str], *, is_method: bool = False
) -> None:
    """Set the name, signature and docstring of a derived function."""
    function.__name__ = function.__qualname__ = name
    function.__module__ = module
    function.__doc__ = documentation(cls, is_method=is_method)
    function.__signature__ = signature(cls, extra)


def set_method_signature(
    function: Any, cls: type[Operator], name: str, module: str, owner: str, extra: Sequence[str]
) -> None:
    """Set the name, signature and docstring of a derived method; the operator's first input is ``self``."""
    set_signature(function, cls, name, module, extra, is_method=True)
    _, *parameters = function.__signature__.parameters.values()
    self_parameter = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    function.__signature__ = function.__signature__.replace(parameters=[self_parameter, *parameters])
    function.__qualname__ = f"{owner}.{name}"


def _summary(value: object) -> str:
    if hasattr(value, "shape") and hasattr(value, "dtype"):  # printing its elements would wait for them
        return f"{type(value).__name__} of shape {tuple(value.shape)}"
    text = " ".join(repr(value).split())
    return f"{type(value).__name__} {text if len(text) < 40 else text[:37] + '...'}"
