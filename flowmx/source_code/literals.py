"""Literals and docstrings in written code. Their content comes from model files, and must never become code."""

from __future__ import annotations

import ast

__all__ = ["display_name", "literal", "number", "unparse"]

_LONGEST = 64
"""Characters of a name in a docstring."""


def literal(value: object) -> str:
    """Return a number, a text or a tuple of them as Python code."""
    return unparse(ast.parse(repr(value), mode="eval").body)


def number(value: float) -> str:
    """Return a number as Python code, whole ones without a fraction."""
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def unparse(tree: ast.AST) -> str:
    """Return an expression as code, with double quotes where that does not change it."""
    text = ast.unparse(tree)
    quoted = text.replace("'", '"')
    try:
        is_same = ast.dump(ast.parse(quoted)) == ast.dump(ast.parse(text))
    except SyntaxError:
        return text
    return quoted if is_same else text


def display_name(name: str) -> str:
    """Return a name for a docstring, of limited length, with ``?`` for quotes, backslashes and invisible characters."""
    text = "".join(char if char.isprintable() and char not in '"\\' else "?" for char in name[:_LONGEST])
    return text if len(name) <= _LONGEST else f"{text}..."
