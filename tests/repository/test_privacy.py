"""Private names stay private: a package reads few of another package's underscore names, and writes none."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent.parent
FOLDERS = ("flowmx", "devices", "ops", "comm")
MAX_READS = 150
STANDARD_LIBRARY = {
    "_acquire_restore", "_args_from_interpreter_flags", "_asdict", "_at_fork_reinit", "_current_frames", "_exit",
    "_fields", "_get_running_loop", "_getframe", "_is_owned", "_make", "_obj", "_release_save", "_replace",
    "_unregister_task",
}  # fmt: skip
"""Names of Python's own modules and classes."""


class Access(NamedTuple):
    """An access to a private attribute of another object."""

    place: str
    package: str
    name: str
    is_write: bool


def package_of(path: Path) -> str:
    """Return the package of a file: a folder of flowmx/, or devices, ops or comm."""
    parts = path.parts
    return parts[0] if parts[0] != "flowmx" else parts[1].removesuffix(".py")


def read_tree(path: Path, source: str, definitions: dict[str, set[str]]) -> Iterator[Access]:
    """Yield the accesses of a module to private attributes of other objects, and add the names that it defines."""
    package = package_of(path)
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                definitions[name].add(package)
            case ast.Name(id=name, ctx=ast.Store()):
                definitions[name].add(package)
            case ast.Attribute(value=value, attr=name, ctx=context) if name.startswith("_") and name[:2] != "__":
                is_write = not isinstance(context, ast.Load)
                if not _is_own(value):
                    yield Access(f"{path}:{node.lineno}", package, name, is_write)
                elif is_write:
                    definitions[name].add(package)


def _is_own(value: ast.expr) -> bool:
    """Return whether an expression is the object whose method contains it."""
    if isinstance(value, ast.Call):
        return ast.unparse(value.func) == "super"
    return isinstance(value, ast.Name) and value.id in ("self", "cls")


def foreign(sources: dict[Path, str]) -> list[Access]:
    """Return the accesses to private names that the accessing package does not define itself."""
    definitions: dict[str, set[str]] = defaultdict(set)
    accesses = [access for path, source in sources.items() for access in read_tree(path, source, definitions)]
    return [
        access for access in accesses
        if access.name not in STANDARD_LIBRARY and access.package not in definitions.get(access.name, set())
    ]  # fmt: skip


@pytest.fixture(scope="module")
def accesses() -> list[Access]:
    """The accesses of all packages to private names of others."""
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    return foreign({path.relative_to(ROOT): path.read_text(encoding="utf-8") for path in paths})


def test_no_package_writes_private_names_of_another(accesses):
    assert [access for access in accesses if access.is_write] == []


def test_few_private_names_of_other_packages_are_read(accesses):
    names = defaultdict(list)
    for access in accesses:
        names[access.name].append(access.place)
    assert len(accesses) < MAX_READS, "\n".join(f"{len(places)} {name}: {places[:3]}" for name, places in names.items())


def test_accesses_are_found():
    sources = {
        Path("flowmx/gluon/block.py"): "class Block:\n    def __init__(self):\n        self._children = {}\n",
        Path("flowmx/gluon/other.py"): "def f(block):\n    return block._children\n",
        Path("flowmx/amp/overflow_checks.py"): "def f(block):\n    block._children = block._children or os._exit(1)\n",
    }
    assert foreign(sources) == [
        Access("flowmx/amp/overflow_checks.py:2", "amp", "_children", True),
        Access("flowmx/amp/overflow_checks.py:2", "amp", "_children", False),
    ]
