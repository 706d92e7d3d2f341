"""Imports run one way: a module may import from its own floor and from those below it, and never in a circle.

Only imports that run when the module is imported count: not those inside functions, nor under TYPE_CHECKING.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = {"flowmx": "flowmx", "flowmx.devices": "devices", "flowmx.ops": "ops", "flowmx.comm": "comm"}

# From the ground up. A name stands for the module and all that is in it, where no longer name says otherwise, except
# the top, `flowmx`, which stands for the package's __init__ alone.
FLOORS: list[set[str]] = [
    {
        "flowmx._checkout",
        "flowmx.settings",
        "flowmx.errors",
        "flowmx.registry",
        "flowmx.base",
        "flowmx.compat.aliases",
        "flowmx.compat.paths",
        "flowmx.disk_cache",
        "flowmx.download",
        "flowmx.log",
        "flowmx.lazy",
        "flowmx.markup",
        "flowmx.observability",
        "flowmx.progress",
        "flowmx.scanning",
        "flowmx.suggestions",
        "flowmx.tools",
        "flowmx.tools.script",
        "flowmx.tools.usage",
        "flowmx.tracebacks",
    },
    {"flowmx.engine", "flowmx.comm", "flowmx.program"},
    {"flowmx.devices"},
    {"flowmx.ops"},
    {
        "flowmx.attribute",
        "flowmx.context",
        "flowmx.data",
        "flowmx.observability.flight",
        "flowmx.graph",
        "flowmx.name",
        "flowmx.ndarray",
        "flowmx.profiler",
        "flowmx.random",
        "flowmx.recordio",
        "flowmx.observability.safety",
        "flowmx.runtime",
        "flowmx.semantics",
        "flowmx.serialization",
        "flowmx.symbol",
        "flowmx.util",
    },
    {
        "flowmx.autograd",
        "flowmx.executor",
        "flowmx.library",
        "flowmx.numpy",
        "flowmx.numpy_extension",
        "flowmx.operator",
        "flowmx.rtc",
    },
    {"flowmx.cached_op"},
    {
        "flowmx.callback",
        "flowmx.checkpoint",
        "flowmx.tools.im2rec",
        "flowmx.image",
        "flowmx.initializer",
        "flowmx.io",
        "flowmx.kvstore",
        "flowmx.lr_scheduler",
        "flowmx.metric",
        "flowmx.optimizer",
        "flowmx.visualization",
    },
    {"flowmx.feedforward", "flowmx.gluon", "flowmx.model", "flowmx.module", "flowmx.rnn", "flowmx.test_utils"},
    {"flowmx.amp", "flowmx.contrib.amp", "flowmx.observability.doctor", "flowmx.monitor"},
    {
        "flowmx.compat",
        "flowmx.contrib",
        "flowmx.observability.dashboard",
        "flowmx.onnx",
        "flowmx.sklearn",
        "flowmx.tools.plan",
    },
    {"flowmx.serve"},
    {"flowmx.tools.commands", "flowmx.tools.stubs"},
    {"flowmx.cli", "flowmx.__main__"},
    {"flowmx"},
]

PREFIX = "flowmx."

# What stands apart: it may import only itself and these.
APART: dict[str, set[str]] = {
    "flowmx.comm": {
        "flowmx.settings",
        "flowmx.errors",
        "flowmx.registry",
        "flowmx.scanning",
        "flowmx.suggestions",
        "flowmx.tools.usage",
    }
}


class Module(NamedTuple):
    source: str
    is_package: bool = False


def read_modules() -> dict[str, Module]:
    found = {}
    for package, folder in FOLDERS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            is_package = parts[-1] == "__init__"
            name = ".".join((package, *(parts[:-1] if is_package else parts)))
            found[name] = Module(path.read_text(encoding="utf-8"), is_package)
    return found


def import_graph(modules: Mapping[str, Module]) -> dict[str, set[str]]:
    """Map each module to those of `modules` that it imports when it is imported."""
    return {name: set(_imported(name, module, modules)) - {name} for name, module in modules.items()}


def _imported(name: str, module: Module, known: Mapping[str, Module]) -> Iterator[str]:
    for node in _statements(ast.parse(module.source).body):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = _base(name, module, node)
            targets = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        for target in targets:
            # `from flowmx import x` is an import of flowmx itself, unless x is a module.
            while target and target not in known:
                target = target.rpartition(".")[0]
            if target:
                yield target


def _base(name: str, module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = name.split(".")
    package = parts[: len(parts) - node.level + module.is_package]
    return ".".join([*package, *([node.module] if node.module else [])])


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield what runs on import, inside `if`, `try`, `with` and classes too."""
    for node in body:
        yield node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            yield from _statements(node.orelse)
            continue
        for part in ("body", "orelse", "finalbody"):
            yield from _statements(getattr(node, part, []))
        for handler in getattr(node, "handlers", []):
            yield from _statements(handler.body)


def _is_in(name: str, prefix: str) -> bool:
    return name == prefix or (prefix != "flowmx" and name.startswith(prefix + "."))


def _floor(name: str) -> int | None:
    """Return the floor of the longest of the names in `FLOORS` that the module is in."""
    _, found = max(((len(p), i) for i, floor in enumerate(FLOORS) for p in floor if _is_in(name, p)), default=(0, None))
    return found


def violations(graph: Mapping[str, set[str]]) -> list[str]:
    """Say which modules have no floor, and which imports go up."""
    found = [
        f"{name} is on no floor: add it to FLOORS in tests/test_floors.py" for name in graph if _floor(name) is None
    ]
    for name, targets in graph.items():
        allowed = next((APART[p] | {p} for p in APART if _is_in(name, p)), None)
        for target in sorted(targets):
            here, there = _floor(name), _floor(target)
            if here is not None and there is not None and there > here:
                found.append(f"{name} (floor {here}) imports {target} (floor {there})")
            elif allowed is not None and not any(_is_in(target, p) for p in allowed):
                found.append(f"{name} stands apart and imports {target}: it may import {', '.join(sorted(allowed))}")
    return found


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    """Return one import circle, first module repeated at the end, or nothing."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


@pytest.fixture(scope="module")
def imports():
    """The imports of all modules."""
    return import_graph(read_modules())


def test_imports_run_down_the_floors(imports):
    assert violations(imports) == []


def test_the_page_has_these_floors():
    rows = [
        f"| {at} | {', '.join(f'`{m.removeprefix(PREFIX)}`' for m in sorted(FLOORS[at]))} |"
        for at in range(len(FLOORS))
    ]
    table = "\n".join(rows[::-1])
    assert table in (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"), f"the floors are:\n{table}"


def test_there_are_no_import_circles(imports):
    found = circle(imports)
    assert not found, "import circle, each imported by the next: " + " <- ".join(found)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("import flowmx.ops.nn", "flowmx.ops.nn"),
        ("import flowmx.ops.missing", "flowmx.ops"),
        ("from flowmx import ops", "flowmx.ops"),
        ("from flowmx import waitall", "flowmx"),
        ("from .. import ops", "flowmx.ops"),
        ("from ..ops.nn import relu", "flowmx.ops.nn"),
        ("from . import variable", "flowmx.engine.variable"),
        ("try:\n    import flowmx.ops\nexcept ImportError:\n    pass", "flowmx.ops"),
        ("try:\n    pass\nexcept ImportError:\n    import flowmx.ops", "flowmx.ops"),
        ("class A:\n    from flowmx import ops", "flowmx.ops"),
        ("if TYPE_CHECKING:\n    pass\nelse:\n    from flowmx import ops", "flowmx.ops"),
        ("def f():\n    from flowmx import ops", None),
        ("if typing.TYPE_CHECKING:\n    from flowmx import ops", None),
        ("import numpy, ops", None),
    ],
)
def test_finds_what_a_module_imports(source, target):
    empty = Module("", is_package=True)
    modules = dict.fromkeys(["flowmx", "flowmx.ops", "flowmx.ops.nn", "flowmx.engine", "flowmx.engine.variable"], empty)
    modules["flowmx.engine.runtime"] = Module(source)
    assert import_graph(modules)["flowmx.engine.runtime"] == ({target} if target else set())


def test_relative_imports_of_a_package_start_at_itself():
    modules = {
        "flowmx.engine": Module("from . import variable\nfrom .. import ops", is_package=True),
        "flowmx.engine.variable": Module(""),
        "flowmx.ops": Module("", is_package=True),
    }
    assert import_graph(modules)["flowmx.engine"] == {"flowmx.engine.variable", "flowmx.ops"}


@pytest.mark.parametrize(
    ("name", "target", "message"),
    [
        ("flowmx.engine.runtime", "flowmx.ops", r"flowmx.engine.runtime \(floor 1\) imports flowmx.ops"),
        ("flowmx.ops.nn", "flowmx", "imports flowmx "),
        ("flowmx.comm.client", "flowmx.engine", "stands apart"),
        ("flowmx.novelty", "flowmx.settings", "flowmx.novelty is on no floor: add it"),
    ],
)
def test_finds_a_wrong_import(name, target, message):
    (found,) = violations({name: {target}})
    assert re.search(message, found)


def test_lets_right_imports_pass():
    graph = {
        "flowmx.comm.client": {"flowmx.comm.wire", "flowmx.errors"},
        "flowmx": {"flowmx.cli", "flowmx.ops"},
    }
    assert violations(graph) == []


def test_finds_a_circle():
    found = circle({"flowmx.a": {"flowmx.b"}, "flowmx.b": {"flowmx.c"}, "flowmx.c": {"flowmx.a"}})
    assert set(found) == {"flowmx.a", "flowmx.b", "flowmx.c"}
    assert found[0] == found[-1]
    assert circle({"flowmx.a": {"flowmx.b"}, "flowmx.b": set()}) == []
