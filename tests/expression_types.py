"""The types that pyright finds for the expressions of a program.

:func:`instrument` wraps the expressions in ``reveal_type``, which returns its argument. :func:`all_types` runs pyright
on such programs and reads its report. :func:`vague` selects the types that contain an Any.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

_References = (ast.Name, ast.Attribute, ast.Subscript)
_Node = TypeVar("_Node", bound=ast.AST)

_OF_OTHERS = re.compile(
    r"(?:Coroutine(?:Type)?|Generator)\[Any, (?:Any|None), |\btuple\[Any, \.\.\.\]"
    r"|\b(?:ndarray|NDArray|dtype|floating|generic)\["
)
"""Types of Python and NumPy that contain an Any: coroutines, and the arrays, shapes and dtypes of NumPy."""


class Typed(NamedTuple):
    """An expression of a program, with its type as pyright writes it."""

    program: str
    expression: str
    type: str


class _Instrument(ast.NodeTransformer):
    """Wraps expressions in ``reveal_type``, except those that pyright narrows or whose type it takes from the context.

    A reference such as ``x.grad[0]`` is wrapped as a whole, since pyright narrows references.
    """

    def __init__(self, imported: frozenset[str]) -> None:
        self._imported = imported

    def _children(self, node: _Node) -> _Node:
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "bases", "targets", "target", "type_params"):
                continue
            if isinstance(value, ast.AST):
                setattr(node, name, self.visit(value))
            elif isinstance(value, list):
                setattr(node, name, [self.visit(each) if isinstance(each, ast.AST) else each for each in value])
        return node

    generic_visit = _children

    def _bare(self, node: ast.expr) -> ast.expr:
        """Return an expression with its parts wrapped, but not itself."""
        if isinstance(node, ast.Attribute):
            node.value = self._bare(node.value) if isinstance(node.value, _References) else self.visit(node.value)
            return node
        if isinstance(node, ast.Subscript):
            node.value = self._bare(node.value) if isinstance(node.value, _References) else self.visit(node.value)
            if not isinstance(node.slice, ast.Constant):
                node.slice = self.visit(node.slice)
            return node
        return node if isinstance(node, ast.Name) else self._children(node)

    def _condition(self, node: ast.expr) -> ast.expr:
        """Return a condition with its parts wrapped: pyright narrows what is tested, or compared by identity."""
        return self._bare(node) if isinstance(node, _References) else self.visit(node)

    def _reveal(self, node: ast.expr) -> ast.expr:
        return ast.Call(ast.Name("reveal_type", ast.Load()), [node], [])

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return node if node.id in self._imported or not isinstance(node.ctx, ast.Load) else self._reveal(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        return self._reveal(self._bare(node)) if isinstance(node.ctx, ast.Load) else node

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        return self._reveal(self._bare(node)) if isinstance(node.ctx, ast.Load) else node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        if isinstance(node.func, ast.Name) and node.func.id in ("isinstance", "super", "callable", "cast", "TypeVar"):
            return node
        if isinstance(node.func, ast.Attribute):  # the receiver is an expression, unless it is a module
            node.func.value = self._receiver(node.func.value)
        elif not isinstance(node.func, ast.Name):
            node.func = self.visit(node.func)
        node.args = [self.visit(each) for each in node.args]
        node.keywords = [self.visit(each) for each in node.keywords]
        return self._reveal(node)

    def _receiver(self, node: ast.expr) -> ast.expr:
        root = node
        while isinstance(root, ast.Attribute):
            root = root.value
        return node if isinstance(root, ast.Name) and root.id in self._imported else self.visit(node)

    def visit_Await(self, node: ast.Await) -> ast.expr:
        return self._reveal(self._children(node))

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        return self._reveal(self._children(node))

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        narrows = any(isinstance(each, ast.Is | ast.IsNot | ast.In | ast.NotIn) for each in node.ops)
        operand = self._condition if narrows else self.visit
        node.left = operand(node.left)
        node.comparators = [operand(each) for each in node.comparators]
        return self._reveal(node) if isinstance(node.ops[0], ast.Lt | ast.LtE | ast.Gt | ast.GtE) else node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        node.values = [self._condition(each) for each in node.values]
        return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        node.operand = self._condition(node.operand)
        return node

    def visit_If(self, node: ast.If) -> ast.If:
        return self._tested(node)

    def visit_While(self, node: ast.While) -> ast.While:
        return self._tested(node)

    def visit_IfExp(self, node: ast.IfExp) -> ast.IfExp:
        return self._tested(node)

    def visit_Assert(self, node: ast.Assert) -> ast.Assert:
        return self._tested(node)

    def _tested(self, node: _Node) -> _Node:
        test: ast.expr = node.test  # type: ignore[attr-defined]
        node.test = ast.Constant(True)  # type: ignore[attr-defined]
        node = self._children(node)
        node.test = self._condition(test)  # type: ignore[attr-defined]
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AnnAssign:
        if node.value is not None:
            node.value = self._children(node.value) if isinstance(node.value, ast.Call) else self.visit(node.value)
        return node

    def visit_Slice(self, node: ast.Slice) -> ast.Slice:
        return self._children(node)

    def visit_match_case(self, node: ast.match_case) -> ast.match_case:
        node.body = [self.visit(each) for each in node.body]
        return node


def instrument(source: str) -> str:
    """Return a program whose expressions are wrapped in ``reveal_type``."""
    tree = ast.parse(source)
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom))
    imported = frozenset((each.asname or each.name).partition(".")[0] for node in imports for each in node.names)
    return ast.unparse(ast.fix_missing_locations(_Instrument(imported).visit(tree)))


class _Unwrap(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        return node.args[0] if isinstance(node.func, ast.Name) and node.func.id == "reveal_type" else node


def _plain(expression: str) -> str:
    """Return an expression without ``reveal_type``."""
    try:
        return ast.unparse(_Unwrap().visit(ast.parse(expression.strip(), mode="eval")))
    except SyntaxError:  # shortened by pyright
        return expression


def is_vague(text: str) -> bool:
    """Return whether a type, as pyright writes it, contains an Any or is unknown; see :data:`_OF_OTHERS`.

    Of a function, only the result counts.
    """
    while match := _OF_OTHERS.search(text):
        end = match.end()
        if match[0].endswith("["):
            depth = 1
            while depth:
                depth += {"[": 1, "]": -1}.get(text[end], 0)
                end += 1
        text = text[: match.start()] + text[end:]
    return bool(re.search(r"\b(Any|Unknown)\b", _results(text)))


def _results(text: str) -> str:
    """Return a type without the parameters of its functions."""
    while match := re.search(r"\(([^()]*)\) ->", text):
        text = text[: match.start()] + text[match.end() :]
    return text


def vague(types: Sequence[Typed]) -> list[Typed]:
    """Return the expressions whose type contains an Any or is unknown, except those computed from arrays of NumPy.

    NumPy types the numbers in an array of an unknown dtype as Any.
    """
    numbers = {(each.program, each.expression) for each in types if re.match(r"(np\.)?(ndarray|NDArray)\[", each.type)}
    return [each for each in types if is_vague(each.type) and not _is_of(each, numbers)]


def _is_of(typed: Typed, arrays: set[tuple[str, str]]) -> bool:
    """Return whether an expression is computed from an array of NumPy: its method, an element, or a comparison."""
    node: ast.AST = ast.parse(typed.expression, mode="eval").body
    while True:
        if isinstance(node, ast.Call):
            node = node.func
        elif isinstance(node, ast.Attribute | ast.Subscript):
            node = node.value
        elif isinstance(node, ast.BinOp | ast.Compare):
            node = node.left
        else:
            return False
        if (typed.program, ast.unparse(node)) in arrays:
            return True


def _revealed(report: str) -> Iterator[Typed]:
    for each in json.loads(report)["generalDiagnostics"]:
        match = re.fullmatch(r'Type of "(.*)" is "(.*)"', each["message"], re.DOTALL)
        if match:
            yield Typed(Path(each["file"]).stem, _plain(match[1]), match[2])


def all_types(folder: Path, installed: Path) -> list[Typed]:
    """Return the types of the expressions of the programs in a folder, which are instrumented in place."""
    for program in folder.glob("*.py"):
        program.write_text(instrument(program.read_text(encoding="utf-8")), encoding="utf-8")
    settings = {"typeCheckingMode": "strict", "extraPaths": [str(installed)], "pythonVersion": "3.11"}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", "."]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    return list(_revealed(done.stdout))
