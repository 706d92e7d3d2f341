"""Imports run one way: a module may import from its own layer and from those below it, and never in a circle.

Imports inside functions count too; those under TYPE_CHECKING do not. Upward imports are listed in
flowmx/late_binding.py.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

from flowmx.late_binding import TARGETS, late

ROOT = Path(__file__).parent.parent.parent
FOLDERS = {"flowmx": "flowmx", "flowmx.devices": "devices", "flowmx.ops": "ops", "flowmx.comm": "comm"}

# From the ground up. A name stands for the module and all that is in it, where no longer name says otherwise, except
# the top, `flowmx`, which stands for the package's __init__ alone.
LAYERS: list[set[str]] = [
    {
        "flowmx._checkout",
        "flowmx.settings",
        "flowmx.errors",
        "flowmx.event_loops",
        "flowmx.foreign_names",
        "flowmx.forks",
        "flowmx.registry",
        "flowmx.renaming",
        "flowmx.bounded_tables",
        "flowmx.base",
        "flowmx.compat.aliases",
        "flowmx.compat.paths",
        "flowmx.disk_cache",
        "flowmx.download",
        "flowmx.overrides",
        "flowmx.log",
        "flowmx.keywords",
        "flowmx.late_binding",
        "flowmx.lazy",
        "flowmx.markup",
        "flowmx.observability",
        "flowmx.process_hooks",
        "flowmx.progress",
        "flowmx.scanning",
        "flowmx.scopes",
        "flowmx.shape_limits",
        "flowmx.suggestions",
        "flowmx.process_changes",
        "flowmx.tools",
        "flowmx.tools.script",
        "flowmx.tools.usage",
        "flowmx.tracebacks",
        "flowmx.version",
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
        "flowmx.model",
        "flowmx.optimizer",
        "flowmx.visualization",
    },
    {"flowmx.feedforward", "flowmx.gluon", "flowmx.module", "flowmx.rnn", "flowmx.test_utils"},
    {
        "flowmx.amp",
        "flowmx.artifacts",
        "flowmx.contrib.amp",
        "flowmx.generation",
        "flowmx.observability.doctor",
        "flowmx.monitor",
    },
    {
        "flowmx.compat",
        "flowmx.contrib",
        "flowmx.observability.dashboard",
        "flowmx.onnx",
        "flowmx.sklearn",
        "flowmx.tools.plan",
    },
    {"flowmx.serve", "flowmx.source_code"},
    {"flowmx.tools.commands", "flowmx.tools.numpy_stubs", "flowmx.tools.stubs"},
    {"flowmx.cli", "flowmx.__main__"},
    {"flowmx"},
]

PREFIX = "flowmx."

# What stands apart: it may import only itself and these.
APART: dict[str, set[str]] = {
    "flowmx.comm": {
        "flowmx.settings",
        "flowmx.errors",
        "flowmx.forks",
        "flowmx.process_hooks",
        "flowmx.registry",
        "flowmx.scanning",
        "flowmx.scopes",
        "flowmx.shape_limits",
        "flowmx.suggestions",
        "flowmx.process_changes",
        "flowmx.tools.usage",
    }
}


class Module(NamedTuple):
    source: str
    is_package: bool = False


def read_modules() -> dict[str, Module]:
    modules_by_name = {}
    for package, folder in FOLDERS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            is_package = parts[-1] == "__init__"
            name = ".".join((package, *(parts[:-1] if is_package else parts)))
            modules_by_name[name] = Module(path.read_text(encoding="utf-8"), is_package)
    return modules_by_name


def import_graph(modules: Mapping[str, Module]) -> dict[str, set[str]]:
    """Map each module to those of `modules` that it imports, inside functions too."""
    return {name: set(_imported(name, module, modules)) - {name} for name, module in modules.items()}


def _imported(name: str, module: Module, modules: Mapping[str, Module]) -> Iterator[str]:
    for node in _nodes(ast.parse(module.source)):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = _base(name, module, node)
            targets = [f"{base}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            targets = [str(argument.value) for argument in node.args if isinstance(argument, ast.Constant)]
        else:
            continue
        for target in targets:
            # `from flowmx import x` is an import of flowmx itself, unless x is a module.
            while target and target not in modules:
                target = target.rpartition(".")[0]
            if target:
                yield target


def _base(name: str, module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = name.split(".")
    package = parts[: len(parts) - node.level + module.is_package]
    return ".".join([*package, *([node.module] if node.module else [])])


def _nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes except those under TYPE_CHECKING."""
    for node in ast.iter_child_nodes(tree):
        yield node
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            for other in node.orelse:
                yield other
                yield from _nodes(other)
        else:
            yield from _nodes(node)


def _is_in(name: str, prefix: str) -> bool:
    return name == prefix or (prefix != "flowmx" and name.startswith(prefix + "."))


def _layer(name: str) -> int | None:
    """Return the layer of the longest of the names in `LAYERS` that the module is in."""
    _, index = max(((len(p), i) for i, layer in enumerate(LAYERS) for p in layer if _is_in(name, p)), default=(0, None))
    return index


def violations(graph: Mapping[str, set[str]]) -> list[str]:
    """Say which modules have no layer, and which imports go up."""
    results = [
        f"{name} is on no layer: add it to LAYERS in tests/repository/test_import_rules.py"
        for name in graph
        if _layer(name) is None
    ]
    for name, targets in graph.items():
        allowed = next((APART[p] | {p} for p in APART if _is_in(name, p)), None)
        for target in sorted(targets):
            here, there = _layer(name), _layer(target)
            if here is not None and there is not None and there > here:
                results.append(f"{name} (layer {here}) imports {target} (layer {there})")
            elif allowed is not None and not any(_is_in(target, p) for p in allowed):
                results.append(f"{name} stands apart and imports {target}: it may import {', '.join(sorted(allowed))}")
    return results


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


def test_imports_run_down_the_layers(imports):
    assert violations(imports) == []


def test_the_page_has_these_layers():
    rows = [
        f"| {at} | {', '.join(f'`{m.removeprefix(PREFIX)}`' for m in sorted(LAYERS[at]))} |"
        for at in range(len(LAYERS))
    ]
    table = "\n".join(rows[::-1])
    assert table in (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"), f"the layers are:\n{table}"


def test_late_bindings_name_modules_and_each_is_used():
    modules = read_modules()
    assert {f"flowmx.{target}" for target in TARGETS} <= modules.keys()
    source = "".join(module.source for module in modules.values())
    calls = re.findall(r"\blate\((.*?)\)", source)
    assert set(re.findall(r'"([\w.]+)"', " ".join(calls))) >= TARGETS
    with pytest.raises(KeyError, match="not in the table"):
        late("numpy.nonsense")


def test_there_are_no_import_cycles(imports):
    cycle = circle(imports)
    assert not cycle, "import circle, each imported by the next: " + " <- ".join(cycle)


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
        ("def f():\n    from flowmx import ops", "flowmx.ops"),
        ("def f():\n    return importlib.import_module('flowmx.ops.nn')", "flowmx.ops.nn"),
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
        ("flowmx.engine.runtime", "flowmx.ops", r"flowmx.engine.runtime \(layer 1\) imports flowmx.ops"),
        ("flowmx.ops.nn", "flowmx", "imports flowmx "),
        ("flowmx.comm.client", "flowmx.engine", "stands apart"),
        ("flowmx.novelty", "flowmx.settings", "flowmx.novelty is on no layer: add it"),
    ],
)
def test_finds_a_wrong_import(name, target, message):
    (actual,) = violations({name: {target}})
    assert re.search(message, actual)


def test_accepts_valid_imports():
    graph = {
        "flowmx.comm.client": {"flowmx.comm.wire", "flowmx.errors"},
        "flowmx": {"flowmx.cli", "flowmx.ops"},
    }
    assert violations(graph) == []


def test_finds_a_cycle():
    cycle = circle({"flowmx.a": {"flowmx.b"}, "flowmx.b": {"flowmx.c"}, "flowmx.c": {"flowmx.a"}})
    assert set(cycle) == {"flowmx.a", "flowmx.b", "flowmx.c"}
    assert cycle[0] == cycle[-1]
    assert circle({"flowmx.a": {"flowmx.b"}, "flowmx.b": set()}) == []
