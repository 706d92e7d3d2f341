"""Docstrings of the functions derived from operators: inputs, parameters, outputs, errors and examples."""

from __future__ import annotations

import inspect

from flowmx.ops.registry.examples import example
from flowmx.ops.registry.operators import Operator

_ERRORS = """
Raises:
    ParameterError: a parameter is unknown, missing or out of its range.
    ShapeError, TypeInferenceError: shapes or dtypes of the inputs do not fit the operator or each other."""


def documentation(cls: type[Operator], *, is_method: bool = False) -> str:
    """The docstring of an operator's function; that of its method leaves out the first input, which is ``self``."""
    items = [f"{name}: {text}." for name, text in list(inputs_of(cls).items())[is_method:]]
    for parameter in cls.parameters.values():
        default = "required" if parameter.required else f"default {parameter.default!r}"
        doc = f" {parameter.doc}" if parameter.doc else ""
        items.append(f"{parameter.name}: {parameter.describe()}, {default}.{doc}")
    text = [inspect.cleandoc(cls.__doc__ or cls.name)]
    if items:
        text += ["", "Args:", *(f"    {item}" for item in items)]
    text += ["", "Returns:", f"    {outputs_of(cls)}.", _ERRORS]
    shown = example(cls.name)
    if shown is not None:
        text += ["", "Example:", f"    >>> {shown[0]}", f"    {shown[1]}"]
    return "\n".join(text)


def inputs_of(cls: type[Operator]) -> dict[str, str]:
    """The shape, dtype and meaning of each input by name, auxiliary states last; ``*data`` for any number of inputs."""
    described: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        described |= base.__dict__.get("input_docs", {})
    if cls.variadic or cls.traits.open_ended:
        return {"*data": described.get("data", "arrays of one shape and one dtype")}
    names = (*cls.arguments, *cls.auxiliary)
    default = ["an array"] * len(names)
    if is_elementwise(cls):
        default = ["any shape, any dtype", *[f"the shape and dtype of {each}" for each in names[:1]] * len(names)]
    return {name: described.get(name, text) for name, text in zip(names, default, strict=False)}


def outputs_of(cls: type[Operator]) -> str:
    """The shapes and dtypes of an operator's outputs."""
    if cls.output_doc or not is_elementwise(cls):
        return cls.output_doc or "The outputs"
    return f"The shape and dtype of {'the inputs' if cls.variadic else cls.arguments[0]}"


def is_elementwise(cls: type[Operator]) -> bool:
    """Tell whether all inputs and outputs have one shape and one dtype, which the defaults here state."""
    return cls.infer_shape is Operator.infer_shape and cls.infer_type is Operator.infer_type
