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
    """Return the docstring of an operator's function; a method's omits the first input, which is ``self``."""
    items = [f"{name}: {text}." for name, text in list(inputs_of(cls).items())[is_method:]]
    for parameter in cls.parameters.values():
        default = "required" if parameter.required else f"default {parameter.default!r}"
        doc = f" {parameter.doc}" if parameter.doc else ""
        items.append(f"{parameter.name}: {parameter.describe()}, {default}.{doc}")
    text = [inspect.cleandoc(cls.__doc__ or cls.name)]
    if items:
        text += ["", "Args:", *(f"    {item}" for item in items)]
    text += ["", "Returns:", f"    {outputs_of(cls)}.", _ERRORS]
    session = example(cls.name)
    if session is not None:
        text += ["", "Example:", f"    >>> {session[0]}", f"    {session[1]}"]
    return "\n".join(text)


def inputs_of(cls: type[Operator]) -> dict[str, str]:
    """Return shape, dtype and meaning of each input, auxiliary states last; variadic operators have only ``*data``."""
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        texts |= base.__dict__.get("input_docs", {})
    if cls.variadic or cls.traits.open_ended:
        return {"*data": texts.get("data", "arrays of the same shape and dtype")}
    names = (*cls.arguments, *cls.auxiliary)
    default = ["an array"] * len(names)
    if is_elementwise(cls):
        default = [
            "any shape, any dtype",
            *[f"the shape and dtype of {first}" for first in names[:1]] * len(names),
        ]
    return {name: texts.get(name, text) for name, text in zip(names, default, strict=False)}


def outputs_of(cls: type[Operator]) -> str:
    """Return the shapes and dtypes of an operator's outputs."""
    if cls.output_doc or not is_elementwise(cls):
        return cls.output_doc or "The outputs"
    return f"The shape and dtype of {'the inputs' if cls.variadic else cls.arguments[0]}"


def is_elementwise(cls: type[Operator]) -> bool:
    """Return whether all inputs and outputs have the same shape and dtype, as the default descriptions state."""
    return cls.infer_shape is Operator.infer_shape and cls.infer_type is Operator.infer_type
