"""The site's sources: the pages of this folder, and a page for each operator and each class.

``make docs`` writes them with ``python -m docs.reference FOLDER``, where Sphinx finds them.

The page of an operator lists what the registry holds: inputs and outputs with shapes and dtypes, parameters, errors,
an example, the operators of its gradient, its ONNX operators. It has an entry in the index, so that a search for the
name finds it first.
"""

from __future__ import annotations

import importlib
import inspect
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import flowmx as mx
from flowmx.contrib.onnx.converters import exporters, importers
from flowmx.contrib.onnx.families.elementwise import COMPOSED
from flowmx.graph.gradient import Builder, Value, call_gradient
from flowmx.graph.node import Entry, Node
from flowmx.ops.registry.documentation import inputs_of, outputs_of
from flowmx.ops.registry.examples import example
from flowmx.ops.registry.operators import Operator, registered_operators
from flowmx.ops.registry.parameters import Parameter
from flowmx.suggestions import EQUIVALENTS
from flowmx.tools import stubs
from tests.op_cases import every_case
from tests.op_cases.case import Case
from tests.operator_page import families, sentence

HERE = Path(__file__).parent
KINDS = ("nn", "recurrent", "math", "arrays", "linalg", "random", "vision", "optimizers", "control")
"""The folders of operators, in the order of their pages."""
SPACES = {f"_{space}_": space for space in ("contrib", "image", "linalg", "random", "sample")}
SHOWN = 8
"""Elements of an array that an example writes out."""


# -- facts about operators ----------------------------------------------------------------------------------


def public() -> list[type[Operator]]:
    """Return the operators that users call."""
    return list(dict.fromkeys(cls for cls in registered_operators().values() if not cls.traits.hidden))


def paths(cls: type[Operator]) -> list[str]:
    """Return the names of an operator for arrays, without ``mx.nd.``, the simplest first."""
    names = []
    for name in (cls.name, *cls.aliases):
        for prefix, space in SPACES.items():
            if name.startswith(prefix):
                names.append(f"{space}.{name.removeprefix(prefix)}")
        names.append(name)

    def place(name: str) -> tuple[bool, bool, bool]:
        is_random = name.startswith(("random.", "sample."))  # with another order of arguments
        return name.startswith("_"), is_random, "." not in name

    return sorted(dict.fromkeys(names), key=place)


def names_in(function: Any, names: Iterable[str]) -> set[str]:
    """Return the names that occur in a function's code: as strings, as attributes, or in tables that it reads."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    words: set[str] = set()
    stack = [code] if code else []
    while stack:
        code = stack.pop()
        stack += [each for each in code.co_consts if inspect.iscode(each)]
        words |= {each for each in code.co_consts if isinstance(each, str)} | set(code.co_names)
        for table in (function.__globals__.get(name) for name in code.co_names):
            words |= {str(each) for each in (*table, *table.values())} if isinstance(table, dict) else set()
    return words & set(names)


def gradient_of(cls: type[Operator]) -> str:
    """Describe an operator's gradient in a sentence."""
    if cls.traits.no_gradient:
        return "It has no gradient."
    if cls.traits.is_loss:
        return "The gradient of its loss; incoming gradients are ignored."
    if cls.gradient is Operator.gradient:
        return "It has none: backward through it raises an error."
    if (used := gradient_made_of(cls)) is None:
        return "It has one."
    parts = ", ".join(f"``{each.name}``" if each.traits.hidden or each is cls else link(each) for each in used)
    return f"Written with {parts}." if parts else "Incoming gradients are passed on."


def gradient_made_of(cls: type[Operator]) -> list[type[Operator]] | None:
    """Return the operators that compute an operator's gradient; None if the tests' tables have no case of it."""
    case = smallest().get(cls.name)
    if case is None or cls.traits.open_ended:
        return None
    counted = {cls.variadic: len(case.inputs)} if cls.variadic and cls.variadic not in case.params else {}
    op, build = cls.create(**case.params, **counted), RecordingBuilder({}, {})
    inputs = []
    for at, array in enumerate(case.call_inputs()):
        entry = Entry(Node(None, f"x{at}", ()), 0)
        build.shapes[entry], build.dtypes[entry] = array.shape, array.dtype
        inputs.append(Value(entry, build))
    visible = build.apply(op, inputs)
    first = visible[0] if isinstance(visible, list) else visible
    outputs = [Value(Entry(first.entry.node, at), build) for at in range(len(op.outputs()))]
    heads = [build.op("ones_like", each) for each in outputs[: op.visible_outputs()]]
    build.noted.clear()
    call_gradient(build, op, inputs, outputs, heads)
    return sorted(build.noted, key=lambda each: (each.traits.hidden, each.name))


class RecordingBuilder(Builder):
    """Builds the nodes of a gradient, and records their operators."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.noted: set[type[Operator]] = set()

    def apply(self, op: Operator, inputs: Any) -> Any:
        self.noted.add(type(op))
        return super().apply(op, inputs)


def raised_by(cls: type[Operator]) -> Iterator[str]:
    """Return the errors of an operator's checks, from the docstrings of its methods."""
    for method in ("__post_init__", "infer_shape", "infer_type", "forward", "gradient"):
        for base in cls.__mro__:
            if base is Operator:
                break
            doc = inspect.getdoc(base.__dict__.get(method)) if method in base.__dict__ else None
            if doc and "Raises:" in doc:
                yield from (line.strip() for line in doc.partition("Raises:")[2].split("\n\n")[0].strip().splitlines())
                break


@cache
def written_in_onnx() -> dict[str, set[str]]:
    """Return the ONNX operators to which each operator is exported."""
    table, kinds = exporters(), importers()
    return {
        name: {registered_operators()[name].onnx} - {""} or names_in(COMPOSED.get(name, converter), kinds)
        for name, converter in table.items()
    }


@cache
def read_from_onnx() -> dict[str, set[str]]:
    """Return the ONNX operators that are imported as each operator, alone or with others."""
    operators: dict[str, set[str]] = {}
    for kind, converter in importers().items():
        for name in names_in(converter, registered_operators()):
            if kind in written_in_onnx().get(name, ()):
                operators.setdefault(name, set()).add(kind)
    for name, kinds in written_in_onnx().items():
        if (own := registered_operators()[name].onnx) in kinds:
            operators.setdefault(name, set()).add(own)
    return operators


def onnx_of(cls: type[Operator]) -> str:
    """Describe the ONNX operators of an operator's export and import."""
    written, read = sorted(written_in_onnx().get(cls.name, ())), sorted(read_from_onnx().get(cls.name, ()))
    if not written and not read:
        return "It is not exported." if cls.name not in exporters() else "It is exported as constants."
    parts = [f"{verb} {', '.join(f'``{each}``' for each in kinds)}"
             for verb, kinds in (("written as", written), ("read from", read)) if kinds]  # fmt: skip
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."


# -- examples ----------------------------------------------------------------------------------------------


def example_of(cls: type[Operator]) -> list[str]:
    """Return the lines of an example session: the registry's, or the smallest case of the tests' tables."""
    if (registered_example := example(cls.name)) is not None:
        return [f">>> {registered_example[0]}", registered_example[1]]
    if cls.name == "Custom":
        return ['>>> mx.nd.Custom(x, op_type="name")  # of a class under @mx.operator.register("name")']
    case = smallest().get(cls.name)
    if case is None:
        return [f">>> mx.nd.{CALLS[cls.name]}.shape", str(call_of_text(CALLS[cls.name]).shape)]
    inputs = [literal(array) for array in case.call_inputs()]
    out = [f"out=[{', '.join(inputs[at] for at in case.out)}]"] if case.out else []
    keywords = [f"{key}={value!r}" for key, value in case.params.items()]
    path = next(each for each in paths(cls) if found_at(each) is not None)
    text = f"{path}({', '.join([*inputs, *keywords, *out])})"
    call, result = f"mx.nd.{text}", call_of_text(text)
    several = isinstance(result, list | tuple)
    if cls.traits.uses_random:
        return [f">>> {call}.shape", str(result.shape)] if not several else [f">>> len({call})", str(len(result))]
    results = result if several else [result]
    if sum(each.size for each in results) <= 2 * SHOWN:
        suffix = ("", "") if not several else ("[each.asnumpy() for each in ", "]")
        line = f">>> {suffix[0]}{call}{suffix[1] or '.asnumpy()'}"
        shown = [repr(np.round(each.asnumpy(), 4)) for each in results]
        return [line, *("\n".join(shown) if not several else f"[{', '.join(shown)}]").splitlines()]
    if several:
        return [f">>> [each.shape for each in {call}]", repr([each.shape for each in result])]
    return [f">>> {call}.shape", repr(result.shape)]


CALLS = {
    "_contrib_MultiBoxDetection": "contrib.MultiBoxDetection(mx.nd.ones((1, 3, 2)), mx.nd.ones((1, 8)), "
                                  "mx.nd.ones((1, 2, 4)))",
    "_contrib_MultiBoxPrior": "contrib.MultiBoxPrior(mx.nd.ones((1, 3, 2, 2)), sizes=(0.5, 0.25), ratios=(1, 2))",
    "_contrib_box_decode": "contrib.box_decode(mx.nd.ones((1, 2, 4)), mx.nd.ones((1, 2, 4)))",
    "_image_random_color_jitter": "image.random_color_jitter(mx.nd.ones((4, 4, 3)), brightness=0.1, contrast=0.1, "
                                  "saturation=0.1, hue=0.1)",
    "_image_random_flip_left_right": "image.random_flip_left_right(mx.nd.ones((4, 4, 3)))",
    "_image_random_flip_top_bottom": "image.random_flip_top_bottom(mx.nd.ones((4, 4, 3)))",
    "_random_exponential": "random.exponential(2, shape=(2, 3))",
    "_random_exponential_like": "random.exponential_like(mx.nd.ones((2, 3)), lam=2)",
    "_random_gamma": "random.gamma(2, 1, shape=(2, 3))",
    "_random_gamma_like": "random.gamma_like(mx.nd.ones((2, 3)), alpha=2)",
    "_random_generalized_negative_binomial": "random.generalized_negative_binomial(2, 0.5, shape=(2, 3))",
    "_random_generalized_negative_binomial_like": "random.generalized_negative_binomial_like(mx.nd.ones((2, 3)), mu=2)",
    "_random_negative_binomial": "random.negative_binomial(3, 0.5, shape=(2, 3))",
    "_random_negative_binomial_like": "random.negative_binomial_like(mx.nd.ones((2, 3)), k=3, p=0.5)",
    "_random_normal": "random.normal(0, 1, shape=(2, 3))",
    "_random_normal_like": "random.normal_like(mx.nd.ones((2, 3)), scale=0.1)",
    "_random_poisson": "random.poisson(4, shape=(2, 3))",
    "_random_poisson_like": "random.poisson_like(mx.nd.ones((2, 3)), lam=4)",
    "_random_randint": "random.randint(0, 10, shape=(2, 3))",
    "_random_uniform": "random.uniform(-1, 1, shape=(2, 3))",
    "_random_uniform_like": "random.uniform_like(mx.nd.ones((2, 3)), low=-1)",
    "_sample_exponential": "sample_exponential(mx.nd.array([1, 2]), shape=(3,))",
    "_sample_gamma": "sample_gamma(mx.nd.array([1, 2]), mx.nd.array([1, 1]), shape=(3,))",
    "_sample_generalized_negative_binomial": "sample_generalized_negative_binomial(mx.nd.array([1, 2]), "
                                             "mx.nd.array([0.5, 1]), shape=(3,))",
    "_sample_multinomial": "sample_multinomial(mx.nd.array([0.2, 0.8]), shape=(3,))",
    "_sample_negative_binomial": "sample_negative_binomial(mx.nd.array([1, 2]), mx.nd.array([0.5, 0.4]), shape=(3,))",
    "_sample_normal": "sample_normal(mx.nd.array([0, 10]), mx.nd.array([1, 1]), shape=(3,))",
    "_sample_poisson": "sample_poisson(mx.nd.array([1, 20]), shape=(3,))",
    "_sample_uniform": "sample_uniform(mx.nd.array([0, 10]), mx.nd.array([1, 11]), shape=(3,))",
    "_shuffle": "random.shuffle(mx.nd.array([1, 2, 3]))",
    "mp_nag_mom_update": "mp_nag_mom_update(mx.nd.ones((2,), dtype=\"float16\"), mx.nd.ones((2,), dtype=\"float16\"), "
                         "mx.nd.zeros((2,)), mx.nd.ones((2,)), lr=0.1)",
    "mp_sgd_mom_update": "mp_sgd_mom_update(mx.nd.ones((2,), dtype=\"float16\"), mx.nd.ones((2,), dtype=\"float16\"), "
                         "mx.nd.zeros((2,)), mx.nd.ones((2,)), lr=0.1)",
    "mp_sgd_update": "mp_sgd_update(mx.nd.ones((2,), dtype=\"float16\"), mx.nd.ones((2,), dtype=\"float16\"), "
                     "mx.nd.ones((2,)), lr=0.1)",
    "_contrib_MultiBoxTarget": "contrib.MultiBoxTarget(mx.nd.ones((1, 2, 4)), mx.nd.ones((1, 1, 5)), "
                               "mx.nd.ones((1, 3, 2)))[0]",
    "_contrib_box_encode": "contrib.box_encode(mx.nd.ones((1, 2)), mx.nd.zeros((1, 2)), mx.nd.ones((1, 2, 4)), "
                           "mx.nd.ones((1, 1, 4)), mx.nd.zeros((4,)), mx.nd.ones((4,)))[0]",
    "_sample_unique_zipfian": "_sample_unique_zipfian(range_max=100, shape=(1, 3))[0]",
}  # fmt: skip
"""Calls of operators without a case in the tables, mostly because their outputs are random."""


def call_of_text(text: str) -> Any:
    """Return the value of a call under ``mx.nd``."""
    return eval(f"mx.nd.{text}", {"mx": mx})


@cache
def smallest() -> dict[str, Case]:
    """Return for each operator the case of the tests' tables with the fewest elements."""
    rows: dict[str, tuple[int, Case]] = {}
    for case in every_case():
        name = registered_operators()[case.op].name
        size = sum(array.size for array in case.arrays())
        if all(array.size for array in case.arrays()) and (name not in rows or size < rows[name][0]):
            rows[name] = (size, case)
    return {name: case for name, (_, case) in rows.items()}


def literal(array: Any) -> str:
    """Return a call that creates an array; large arrays become ones of the same shape."""
    dtype = "" if array.dtype == np.float32 else f', dtype="{array.dtype}"'
    if array.size > SHOWN:
        return f"mx.nd.ones({array.shape}{dtype})"
    values = re.sub(r"\b(nan|inf)\b", r'float("\1")', str(np.round(array.astype(np.float64), 2).tolist()))
    return f"mx.nd.array({values}{dtype})"


def found_at(path: str) -> Any:
    """Return the function of ``mx.nd`` with a dotted name, or None."""
    value: Any = mx.nd
    for part in path.split("."):
        value = getattr(value, part, None)
    return value


# -- pages -------------------------------------------------------------------------------------------------


@cache
def files() -> dict[type[Operator], str]:
    """Return the file name of each operator's page; names that differ only in case get a suffix."""
    taken: set[str] = set()
    names = {}
    for cls in public():
        name = cls.name
        while name.lower() in taken:
            name += "-"
        taken.add(name.lower())
        names[cls] = name
    return names


def link(cls: type[Operator]) -> str:
    """Return a link to an operator's page."""
    return f":doc:`{cls.name} </reference/operators/{files()[cls]}>`"


def plain(text: str) -> str:
    """Escape asterisks and bars in the text of a cell or paragraph."""
    parts = re.split(r"(``?[^`]+``?)", text)
    return "".join(each if each.startswith("`") else re.sub(r"([*|\\_])", r"\\\1", each) for each in parts)


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]], widths: str) -> list[str]:
    """Return the lines of a table."""
    lines = ["", ".. list-table::", "   :header-rows: 1", f"   :widths: {widths}", ""]
    for row in (head, *rows):
        lines += [f"   {'* -' if at == 0 else '  -'} {cell}" for at, cell in enumerate(row)]
    return [*lines, ""]


def parameter_row(parameter: Parameter) -> tuple[str, ...]:
    """Return a parameter as a row: name, values, default, meaning."""
    default = "must be given" if parameter.required else f"``{parameter.default!r}``"
    return f"``{parameter.name}``", plain(parameter.describe()), default, plain(parameter.doc)


def signature(cls: type[Operator], array: str) -> str:
    """Return the typed signature of an operator's function for arrays or symbols, as in its stub."""
    result = " | ".join(kind for _, kind in stubs.results(cls, array))
    arguments = ", ".join(stubs.arguments(cls, array)).replace("ctx: Any", "ctx: Context | str")
    return f"({arguments.replace('Any', 'DTypeLike')}) -> {result}"


def operator_page(cls: type[Operator], group: str) -> str:
    """Return the page of an operator, in reStructuredText."""
    title = cls.name
    layers = {each.lower() for each in mx.gluon.nn.__all__}  # classes with separate pages
    also = [word for word, meant in EQUIVALENTS.items() if meant in (cls.name, *cls.aliases) and word not in layers]
    words = dict.fromkeys([cls.name, *cls.aliases, *(each.rpartition(".")[2] for each in paths(cls)), *also])
    called = [each for each in paths(cls) if found_at(each) is not None] or [cls.name]
    lines = [":orphan:", "", ".. index::", *(f"   ! single: {each}" for each in words), "", title, "=" * len(title), ""]
    lines += [f":doc:`Operators </operators>` › :doc:`/reference/{group}`", ""]
    lines += [f".. py:function:: mx.nd.{called[0]}{signature(cls, 'NDArray')}"]
    lines += [f"                 mx.sym.{called[0]}{signature(cls, 'Symbol')}", "   :no-index-entry:", "", ""]
    doc = inspect.cleandoc(cls.__doc__ or "")
    lines += [plain(doc), ""]
    if more := [f"``mx.nd.{each}``" for each in called[1:]]:
        lines += [f"Also {', '.join(more)}.", ""]
    lines += section("Inputs and outputs")
    rows = [(f"``{name}``", plain(f"{text[0].upper()}{text[1:]}.")) for name, text in inputs_of(cls).items()]
    lines += table(("", "shape, dtype, meaning"), [*rows, ("returns", plain(f"{outputs_of(cls)}."))], "20 80")
    if cls.parameters:
        lines += section("Parameters")
        described = [parameter_row(each) for each in cls.parameters.values()]
        lines += table(("parameter", "value", "default", "meaning"), described, "18 32 20 30")
    lines += section("What raises")
    lines += ["``ParameterError``: a parameter is unknown, missing or out of its range.", ""]
    lines += ["``ShapeError``, ``TypeInferenceError``: shapes or dtypes of the inputs do not fit it or each other.", ""]
    lines += [f"- {plain(text)}" for text in dict.fromkeys(raised_by(cls)) if "they contradict each other" not in text]
    lines += [""]
    if session := example_of(cls):
        lines += [*section("Example"), ".. code-block:: pycon", "", *(f"   {each}" for each in session), ""]
    lines += [*section("Gradient"), gradient_of(cls), "", *section("ONNX"), onnx_of(cls), ""]
    facts = [text for trait, text in FACTS.items() if getattr(cls.traits, trait)]
    if facts:
        lines += [*section("Besides"), *(f"- {each}" for each in facts), ""]
    source = cls.__module__.removeprefix("flowmx.").replace(".", "/")
    lines += [f"Source: ``{source}.py``", ""]
    return "\n".join(lines)


FACTS = {
    "uses_random": "It may draw random numbers from the device's generator.",
    "mode_matters": "It computes different values in training and in prediction.",
    "dynamic": "Its output shape depends on the values of its inputs, so symbols cannot bind it.",
}
"""Descriptions of the traits that matter to users."""


def section(title: str) -> list[str]:
    """Return the title of a section."""
    return ["", title, "-" * len(title), ""]


def group_of(cls: type[Operator]) -> str:
    """Return the folder of an operator."""
    folder = cls.__module__.removeprefix("flowmx.ops.").split(".")[0]
    return folder if folder in KINDS else "more"


def group_title(group: str) -> str:
    """Return the title of a folder's page."""
    if group == "more":
        return "Further names of operators"
    return (importlib.import_module(f"flowmx.ops.{group}").__doc__ or group).partition(".")[0]


def group_page(group: str) -> str:
    """Return the page of a folder of operators: a table for each family."""
    title = group_title(group)
    lines = [title, "=" * len(title), ""]
    for family, classes in families().items():
        rows = [(link(cls), plain(sentence(cls))) for cls in classes if group_of(cls) == group]
        if rows:
            lines += [*section(family), *table(("operator", "what it computes"), rows, "30 70")]
    return "\n".join(lines)


# -- classes -----------------------------------------------------------------------------------------------


@dataclass
class Documented:
    """A class with a separate page."""

    name: str
    module: str
    page: str


DIRECTIVE = re.compile(r"\.\. auto(module|class):: (\S+)\n((?:   :.*\n)*)")


def classes_of(module: Any) -> list[tuple[str, type]]:
    """Return the public classes of a module."""
    names = getattr(module, "__all__", [])
    return [(name, cls) for name in names if name[0] != "_" and inspect.isclass(cls := getattr(module, name))]


def class_page(name: str, target: str, page: str, options: str = "") -> str:
    """Return the page of a class."""
    head = [":orphan:", "", ".. index::", f"   ! single: {name}", "", name, "=" * len(name), "", f":doc:`/api/{page}`"]
    return "\n".join([*head, "", f".. autoclass:: {target}", options.rstrip("\n"), ""])


def with_classes(text: str, page: str, write: Callable[[str, str], None], pages: dict[type, str]) -> str:
    """Return a page of modules with links to its classes, and write the pages of the classes."""

    def replaced(match: re.Match[str]) -> str:
        kind, target, options = match.groups()
        if kind == "class":
            name = target.rpartition(".")[2]
            write(f"reference/classes/{target}.rst", class_page(name, target, page, options))
            return f":doc:`{name} </reference/classes/{target}>`\n"
        module = importlib.import_module(target)
        left_out = re.findall(r":exclude-members: (.*)", options)
        excluded = [each.strip() for line in left_out for each in line.split(",")]
        rows = []
        for name, cls in classes_of(module):
            if name in excluded:
                continue
            path = pages.setdefault(cls, f"{target}.{name}")
            inherited = [each for each in excluded if not hasattr(module, each)]
            members = f"   :exclude-members: {', '.join(inherited)}\n" if inherited else ""
            write(f"reference/classes/{path}.rst", class_page(path.rpartition(".")[2], path, page, members))
            rows.append((f":doc:`{name} </reference/classes/{path}>`", plain(first_sentence(cls))))
        names = [*excluded, *(name for name, _ in classes_of(module))]
        more = f"   :exclude-members: {', '.join(dict.fromkeys(names))}\n" if names else ""
        return "\n".join(table(("class", ""), rows, "30 70") if rows else []) + f"\n.. automodule:: {target}\n{more}"

    return DIRECTIVE.sub(replaced, text)


def first_sentence(cls: type) -> str:
    """Return the first sentence of a class's docstring."""
    doc = " ".join((inspect.getdoc(cls) or "").partition("\n\n")[0].split())
    return re.sub(r":\w+:`~?([^`]*)`", r"``\1``", doc)


# -- writing -----------------------------------------------------------------------------------------------


def write_sources(folder: Path) -> None:
    """Write the site's sources; unchanged files keep their time, so that Sphinx skips them."""
    written: set[Path] = set()

    def write(name: str, text: str | bytes) -> None:
        path = folder / name
        data = text.encode() if isinstance(text, str) else text
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.read_bytes() != data:
            path.write_bytes(data)
        written.add(path)

    pages: dict[type, str] = {}
    for path in sorted(HERE.rglob("*")):
        name = path.relative_to(HERE).as_posix()
        if not path.is_file() or (path.suffix in (".py", ".pyc") and name != "conf.py"):
            continue
        if name.endswith(".md"):
            text = with_index_entries(path.read_text(encoding="utf-8"))
        if name.startswith("api/"):
            write(name, with_classes(text, Path(name).stem, write, pages))
        elif name == "operators.md":
            write(name, text.replace("\n## ", f"{kinds_listed()}\n## ", 1))
        elif name.endswith(".md"):
            write(name, text)
        else:
            write(name, path.read_bytes())
    for group in (*KINDS, "more"):
        write(f"reference/{group}.rst", group_page(group))
    for cls in public():
        write(f"reference/operators/{files()[cls]}.rst", operator_page(cls, group_of(cls)))
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_file() and path not in written:
            path.unlink()
        elif path.is_dir() and not any(path.iterdir()):
            shutil.rmtree(path)


_WORDS = re.compile(r"<!-- search: (.*?) -->", re.DOTALL)


def with_index_entries(text: str) -> str:
    """Return a page with an index entry for each word in its comments ``<!-- search: ... -->``.

    The search of the site lists the entries first, and links to their section.
    """

    def entries(match: re.Match[str]) -> str:
        words = ", ".join(f"! {word.strip()}" for word in match[1].split(","))
        return f"```{{index}} {words}\n```"

    return _WORDS.sub(entries, text)


def kinds_listed() -> str:
    """Return the contents of the page of all operators: a page for each kind, which links to each operator."""
    listed = "\n".join(f"reference/{group}" for group in (*KINDS, "more"))
    return f"\nEach operator has a page, listed by kind:\n\n```{{toctree}}\n{listed}\n```\n"


def main() -> None:
    """Write the sources into the folder on the command line."""
    write_sources(Path(sys.argv[1]))


if __name__ == "__main__":
    main()
