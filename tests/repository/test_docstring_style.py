"""Docstrings begin with an imperative or a noun phrase."""

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
QUESTIONS = {"What", "Who", "How", "Where", "When"}

FOLDERS = ["flowmx", "devices", "ops", "comm", "tests", "examples", "benchmarks", "packaging"]


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and text of each docstring: of modules, classes and functions, and below assignments (attributes)."""
    for node in blocks(tree):
        body: list[ast.stmt] = getattr(node, "body", [])
        first = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        for before, each in zip([None, *body], body, strict=False):
            is_documentation = first if before is None else isinstance(before, ast.Assign | ast.AnnAssign)
            match each:
                case ast.Expr(ast.Constant(str(text))) if is_documentation:
                    yield each.lineno, text


def blocks(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes that have statements, which no expression has: far fewer than all."""
    yield tree
    for name in ("body", "handlers", "orelse", "finalbody", "cases"):
        for each in getattr(tree, name, ()):
            yield from blocks(each)


def questions(source: str) -> list[tuple[int, str]]:
    """Line and first line of each docstring that begins with a question word."""
    results = [(line, text.strip()) for line, text in docstrings(ast.parse(source))]
    return [
        (line, text.splitlines()[0]) for line, text in results if text and text.split()[0].rstrip(",:") in QUESTIONS
    ]


def python_files(folder: str) -> list[Path]:
    """The Python files of a folder that belong to the repository, or all of them outside a checkout."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", folder],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    paths = [ROOT / line for line in listed.stdout.splitlines()] or list((ROOT / folder).rglob("*"))
    return [path for path in paths if path.suffix == ".py" and path.exists()]


@pytest.mark.parametrize("folder", FOLDERS)
def test_docstrings_begin_with_no_question(folder):
    files = python_files(folder)
    assert files, f"{folder} has no Python files"
    results = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path in files
        for line, text in questions(path.read_text(encoding="utf-8"))
    ]
    assert not results, "begin with an imperative (Return, Raise, Count) or a noun phrase:\n" + "\n".join(results)


def test_every_kind_of_docstring_is_checked():
    source = '''"""What a module is."""
LIMIT = 3
"""How many."""
class Thing:
    """Who it is."""
    size: int = 0
    """How large it is."""
    def method(self):
        """
        Where it is.
        """
        self.name = ""
        """When it was named."""
        def inner():
            """However, this is no question."""
'''
    assert [line for line, _ in questions(source)] == [1, 3, 5, 7, 9, 13]


def test_other_texts_are_not():
    source = 'def ask():\n    """Ask."""\n    print("x")\n    "What is no docstring."\n    return "How"\n'
    assert questions(source) == []
