"""Gluon's code of operators without a layer: calls of their functions."""

from __future__ import annotations

from flowmx.ops.registry.dtypes import name_of
from flowmx.source_code.reading import Code, Site

__all__ = ["call"]

_NAMESPACES = {"_contrib_": "contrib", "_linalg_": "linalg", "_image_": "image", "_random_": "random"}


def call(n: Site) -> Code:
    """Return the call of an operator's function, with the parameters that differ from their defaults."""
    place = next((place for place in _NAMESPACES if n.op.name.startswith(place)), "")
    name = n.op.name.removeprefix(place)
    where = f"F.{_NAMESPACES[place]}" if place else "F._internal" if name.startswith("_") else "F"
    arguments = [f"{{{index}}}" for index in range(n.count)]
    options = [f"{key}={_literal(getattr(n.op, key))}" for key in n.op.attributes() if key != n.op.variadic]
    outputs = tuple(range(n.op.visible_outputs()))
    return Code(f"{where}.{name}({', '.join((*arguments, *options))})", outputs=outputs)


def _literal(value: object) -> str:
    is_dtype = hasattr(value, "kind") and hasattr(value, "itemsize")
    text = repr(name_of(value)) if is_dtype else repr(value)  # type: ignore[arg-type]  # a dtype
    return text.replace("{", "{{").replace("}", "}}")  # the code is a template
