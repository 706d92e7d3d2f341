"""The statements of a forward method: expressions are nested where that stays readable, and values get variables."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count

from flowmx.source_code.description import Value
from flowmx.source_code.literals import unparse

__all__ = ["Statement", "nest", "placeholder", "with_variables"]

_WIDTH = 88
"""The largest width of a nested expression."""
_VARIABLES = ("x", "y", "z", "u", "v", "w")


def placeholder(value: Value) -> str:
    """Return the name that stands for a value until it has a variable."""
    return f"_v{value}_"


@dataclass
class Statement:
    """An assignment.

    Attributes:
        targets: the values that it assigns.
        code: the expression, with placeholders.
        is_main: whether it calls a block, or a layer that is not only an activation or a normalization.
        loop: the sequence that a loop passes the first target through; "" for an assignment.
        comment: a remark.
    """

    targets: tuple[Value, ...]
    code: str
    is_main: bool = False
    loop: str = ""
    comment: str = ""

    def __post_init__(self) -> None:
        self._tree: ast.expr = ast.parse(self.code, mode="eval").body
        self.has_main = self.is_main

    def reads(self) -> list[str]:
        """Return the placeholders in the expression, in order."""
        names = (node.id for node in ast.walk(self._tree) if isinstance(node, ast.Name))
        return [name for name in names if name.startswith("_v")]

    def absorb(self, other: Statement) -> None:
        """Replace the value that another statement assigns by its expression."""
        self._tree = _Substitution({placeholder(other.targets[0]): other._tree}).visit(self._tree)
        self.has_main |= other.has_main
        self.code = ast.unparse(self._tree)

    def rename(self, names: Mapping[str, str]) -> str:
        """Return the expression with other names."""
        tree = _Substitution({old: ast.Name(new) for old, new in names.items()}).visit(
            ast.parse(self.code, mode="eval")
        )
        return unparse(tree)


class _Substitution(ast.NodeTransformer):
    def __init__(self, replacements: Mapping[str, ast.expr]) -> None:
        self._replacements = replacements

    def visit_Name(self, node: ast.Name) -> ast.expr:  # the method's name is ast's
        return self._replacements.get(node.id, node)


def nest(statements: Iterable[Statement], outputs: Sequence[Value]) -> list[Statement]:
    """Replace values that are read once by their expressions."""
    result: list[Statement] = []
    statements = list(statements)
    uses = Counter(name for statement in statements for name in statement.reads())
    uses.update(placeholder(value) for value in outputs)
    waiting: dict[str, Statement] = {}
    for statement in statements:
        for name in dict.fromkeys(statement.reads()):
            source = waiting.get(name)
            if source is not None and _fits(source, statement):
                statement.absorb(source)
                result.remove(source)
        result.append(statement)
        if len(statement.targets) == 1 and uses[placeholder(statement.targets[0])] == 1 and not statement.comment:
            waiting[placeholder(statement.targets[0])] = statement
    return result


def _fits(inner: Statement, outer: Statement) -> bool:
    if inner.loop or outer.loop or (inner.has_main and outer.is_main):
        return False
    return len(inner.code) + len(outer.code) <= _WIDTH and len(set(inner.reads())) <= 2


def with_variables(
    statements: Sequence[Statement], inputs: Mapping[Value, str], outputs: Sequence[Value], taken: Iterable[str] = ()
) -> tuple[list[str], list[str]]:
    """Return the lines of the statements, and the variables of the outputs."""
    last: dict[str, int] = {placeholder(value): len(statements) for value in outputs}
    for index, statement in enumerate(statements):
        for name in statement.reads():
            last[name] = max(last.get(name, 0), index)
    names = {placeholder(value): name for value, name in inputs.items()}
    fixed = {name for name in inputs.values() if name not in _VARIABLES} | set(taken)
    lines: list[str] = []
    for index, statement in enumerate(statements):
        code = statement.rename(names)
        dying = [name for name in dict.fromkeys(statement.reads()) if last[name] == index]
        free = [names.pop(name) for name in dying]
        targets = []
        for target in statement.targets:
            reusable = [name for name in free if name not in fixed and name not in names.values()]
            name = reusable[0] if reusable else _new_variable({*names.values(), *fixed})
            if last.get(placeholder(target), -1) < index:
                name = "_"
            names[placeholder(target)] = name
            targets.append(name)
        if statement.loop:
            lines += _loop(statement, targets[0], code)
        else:
            comment = f"  # {statement.comment}" if statement.comment else ""
            lines.append(f"{', '.join(targets)} = {code}{comment}")
        for target in statement.targets:
            if names[placeholder(target)] == "_":
                del names[placeholder(target)]
    return lines, [names[placeholder(value)] for value in outputs]


def _loop(statement: Statement, target: str, code: str) -> list[str]:
    """Return a loop; the code is a tuple of the first block's arguments."""
    first, *extra = [ast.unparse(element) for element in ast.parse(code, mode="eval").body.elts]  # type: ignore[attr-defined]  # a tuple
    start = [] if first == target else [f"{target} = {first}"]
    arguments = ", ".join((target, *extra))
    return [*start, f"for layer in {statement.loop}:", f"    {target} = layer({arguments})"]


def _new_variable(taken: set[str]) -> str:
    return next(name for name in chain(_VARIABLES, (f"v{number}" for number in count(1))) if name not in taken)
