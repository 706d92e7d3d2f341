"""Faults to inject into a source file: a flipped comparison, sign or constant, or a missing statement."""

import ast
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDERS = "flowmx", "ops", "comm", "devices"

HEURISTICS = re.compile(r"(?i)cost|estimate|seconds|flops|heuristic")
"""Names of files, classes and functions that guess durations or sizes: a slightly wrong guess is no fault."""

UNTESTED = re.compile(r"__(repr|str|dir)__|overload|TYPE_CHECKING")
MESSAGES = re.compile(r"(?i)\blog(ger|ging)?\b|\b_log\b|\bwarn(ings)?\b|\bprint\b|\w*(Error|Warning|Exception)$")
"""Calls whose arguments are texts for people."""

OPPOSITES: dict[type[ast.AST], tuple[Callable[[], Any], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div,),
    ast.Div: (ast.Mult,),
}

DROPPED = ast.Expr, ast.Assign, ast.AugAssign, ast.Raise, ast.Delete, ast.Continue, ast.Break
FUNCTIONS = ast.FunctionDef, ast.AsyncFunctionDef


@dataclass(frozen=True)
class Fault:
    """A change to one place of a source file."""

    path: str
    function: str
    """The definition that the place is in, e.g. ``Engine.push``; empty at the level of the module."""
    line: int
    start: int
    stop: int
    """The place, in bytes of the file."""
    before: str
    after: str

    def applied(self, source: bytes) -> bytes:
        return source[: self.start] + self.after.encode() + source[self.stop :]

    def __str__(self) -> str:
        before, after = (" ".join(text.split()) for text in (self.before, self.after))
        return f"{self.path}:{self.line} `{before}` -> `{after}`"


def faults_of(path: str, source: str, choose: random.Random) -> list[Fault]:
    """One fault for each place of a file that can have one, in the order of the places.

    Left out: docstrings, annotations, messages and logging, assertions (``strict=`` of zip is one), ``__repr__``, stubs
    of types, and what estimates costs.
    """
    lengths = [0]
    for line in source.encode().splitlines(keepends=True):
        lengths.append(lengths[-1] + len(line))

    def fault(node: ast.stmt | ast.expr, function: str, after: str) -> Fault:
        assert node.end_lineno is not None and node.end_col_offset is not None
        start = lengths[node.lineno - 1] + node.col_offset
        stop = lengths[node.end_lineno - 1] + node.end_col_offset
        return Fault(path, function, node.lineno, start, stop, source.encode()[start:stop].decode(), after)

    return [fault(node, function, after) for node, function, after in _changes(ast.parse(source), "", choose)]


def _changes(node: ast.AST, function: str, choose: random.Random) -> Iterator[tuple[ast.stmt | ast.expr, str, str]]:
    if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
        if any(pattern.search(node.name) for pattern in (HEURISTICS, UNTESTED)):
            return
        if any(UNTESTED.search(ast.unparse(decorator)) for decorator in node.decorator_list):
            return
        function = f"{function}.{node.name}".lstrip(".")
    if isinstance(node, ast.If) and UNTESTED.search(ast.unparse(node.test)):
        return
    if isinstance(node, DROPPED) and function and not _is_text(node):
        yield node, function, "pass"
    if isinstance(node, ast.expr) and (changed := _change(node, choose)):
        yield node, function, changed
    for child in _code(node):
        yield from _changes(child, function, choose)


def _is_text(node: ast.stmt) -> bool:
    """True for docstrings, ``...`` and calls that only say something."""
    if not isinstance(node, ast.Expr):
        return False
    return isinstance(node.value, ast.Constant) or _says(node.value)


def _says(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and MESSAGES.search(ast.unparse(node.func)) is not None


def _code(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of a node that are neither annotations, messages nor assertions, and that stand where the node says."""
    if isinstance(node, (ast.Raise, ast.JoinedStr, ast.Assert)) or _says(node):
        return
    if isinstance(node, ast.keyword) and node.arg == "strict":
        return
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "returns", "type_comment"):
            yield from (part for part in (value if isinstance(value, list) else [value]) if isinstance(part, ast.AST))


def _change(node: ast.expr, choose: random.Random) -> str | None:
    """Return the text that replaces an expression, or None to leave it unchanged."""
    match node:
        case ast.Compare(left, [first, *others], comparators):
            return _written(ast.Compare(left, [_opposite(first, choose), *others], comparators))
        case ast.BinOp(left, op, right) if type(op) in OPPOSITES and not _is_string(left) and not _is_string(right):
            return _written(ast.BinOp(left, _opposite(op, choose), right))
        case ast.UnaryOp(ast.USub(), operand):
            return _written(operand)
        case ast.UnaryOp(ast.Not(), operand):
            return _written(operand)
        case ast.Constant(bool(value)):
            return repr(not value)
        case ast.Constant(int(value) | float(value)):
            return repr(value + 1)
    return None


def _opposite(op: ast.cmpop | ast.operator, choose: random.Random) -> Any:
    return choose.choice(OPPOSITES[type(op)])()


def _written(node: ast.expr) -> str:
    return f"({ast.unparse(node)})"


def _is_string(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def drawn(root: Path, count: int, seed: int, folders: tuple[str, ...] = FOLDERS) -> list[Fault]:
    """Draw faults: a file, weighted by its lines; a place in it; the change.

    Raises:
        ValueError: the files have not so many.
    """
    choose = random.Random(seed)
    files = sorted(path for folder in folders for path in (root / folder).rglob("*.py"))
    files = [path for path in files if not HEURISTICS.search(path.stem)]
    sources = {path: path.read_text() for path in files}
    weights = [source.count("\n") for source in sources.values()]
    faults: dict[Fault, None] = {}
    for _ in range(100 * count):
        [path] = choose.choices(files, weights)
        if candidates := faults_of(str(path.relative_to(root)), sources[path], choose):
            faults[choose.choice(candidates)] = None
        if len(faults) == count:
            return list(faults)
    raise ValueError(f"the source in {root} has {len(faults)} of the {count} faults")
