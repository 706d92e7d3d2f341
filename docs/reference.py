"""The site's sources: the pages of this folder, and a page for each operator and each class.

``make docs`` writes them with ``python -m docs.reference FOLDER``, where Sphinx finds them.

A page of an operator has all that the registry knows of it: inputs and outputs with shapes and dtypes, parameters, what
raises, an example, how its gradient is written, which operators of ONNX it is. It is an entry of the index, so that a
search for its name finds it first.
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
from flowmx.contrib.onnx.families.elementwise import WRITTEN
from flowmx.graph.gradient import Builder, Value
from flowmx.graph.node import Entry, Node
from flowmx.ops.registry.documentation import inputs_of, outputs_of
from flowmx.ops.registry.examples import example
from flowmx.ops.registry.operators import Operator, registered
from flowmx.ops.registry.parameters import Parameter
from flowmx.suggestions import STANDS_FOR
from tests.op_cases import every_case
from tests.op_cases.case import Case
from tests.operator_page import call_of, families, sentence

HERE = Path(__file__).parent
KINDS = ("nn", "recurrent", "math", "arrays", "linalg", "random", "vision", "optimizers", "control")
"""The folders of operators, in the order of their pages."""
SPACES = {f"_{space}_": space for space in ("contrib", "image", "linalg", "random", "sample")}
SHOWN = 8
"""Elements of an array that an example writes out."""


# -- what an operator is made of ---------------------------------------------------------------------------


def public() -> list[type[Operator]]:
    """The operators that users call."""
    return list(dict.fromkeys(cls for cls in registered().values() if not cls.traits.hidden))


def paths(cls: type[Operator]) -> list[str]:
    """The names under which an operator is called on arrays, without ``mx.nd.``: the plainest first."""
    found = []
    for name in (cls.name, *cls.aliases):
        for prefix, space in SPACES.items():
            if name.startswith(prefix):
                found.append(f"{space}.{name.removeprefix(prefix)}")
        found.append(name)

    def place(name: str) -> tuple[bool, bool, bool]:
        is_random = name.startswith(("random.", "sample."))  # which take their arguments in an order of their own
        return name.startswith("_"), is_random, "." not in name

    return sorted(dict.fromkeys(found), key=place)


def names_in(function: Any, known: Iterable[str]) -> set[str]:
    """Those of some names that stand in a function's code: as texts, as attributes, in tables that it looks into."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    found: set[str] = set()
    stack = [code] if code else []
    while stack:
        code = stack.pop()
        stack += [each for each in code.co_consts if inspect.iscode(each)]
        found |= {each for each in code.co_consts if isinstance(each, str)} | set(code.co_names)
        for table in (function.__globals__.get(name) for name in code.co_names):
            found |= {str(each) for each in (*table, *table.values())} if isinstance(table, dict) else set()
    return found & set(known)


def gradient_of(cls: type[Operator]) -> str:
    """The way of gradients through an operator, as a sentence."""
    if cls.traits.no_gradient:
        return "None flows through it."
    if cls.traits.is_loss:
        return "That of its loss; gradients that arrive from behind it are ignored."
    if cls.gradient is Operator.gradient:
        return "It has none: recording it is an error once its gradient is asked for."
    if (used := gradient_made_of(cls)) is None:
        return "It has one."
    parts = ", ".join(f"``{each.name}``" if each.traits.hidden or each is cls else link(each) for each in used)
    return f"Written with {parts}." if parts else "The gradients that arrive, passed on."


def gradient_made_of(cls: type[Operator]) -> list[type[Operator]] | None:
    """The operators that an operator's gradient is written in; None where the tests' tables have no row of it."""
    case = smallest().get(cls.name)
    if case is None or cls.traits.open_ended:
        return None
    counted = {cls.variadic: len(case.inputs)} if cls.variadic and cls.variadic not in case.params else {}
    op, build = cls.create(**case.params, **counted), Noting({}, {})
    inputs = []
    for at, array in enumerate(case.given()):
        entry = Entry(Node(None, f"x{at}", ()), 0)
        build.shapes[entry], build.dtypes[entry] = array.shape, array.dtype
        inputs.append(Value(entry, build))
    visible = build.apply(op, inputs)
    first = visible[0] if isinstance(visible, list) else visible
    outputs = [Value(Entry(first.entry.node, at), build) for at in range(len(op.outputs()))]
    heads = [build.op("ones_like", each) for each in outputs[: op.visible_outputs()]]
    build.noted.clear()
    op.gradient(build, inputs, outputs, heads)
    return sorted(build.noted, key=lambda each: (each.traits.hidden, each.name))


class Noting(Builder):
    """Makes the nodes of a gradient, and notes of which operators they are."""

    def __init__(self, *known: Any) -> None:
        super().__init__(*known)
        self.noted: set[type[Operator]] = set()

    def apply(self, op: Operator, inputs: Any) -> Any:
        self.noted.add(type(op))
        return super().apply(op, inputs)


def raised_by(cls: type[Operator]) -> Iterator[str]:
    """The errors of an operator's own checks, by the docstrings of its methods."""
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
    """The operators of ONNX as which each operator is written."""
    table, kinds = exporters(), importers()
    return {
        name: {registered()[name].onnx} - {""} or names_in(WRITTEN.get(name, converter), kinds)
        for name, converter in table.items()
    }


@cache
def read_from_onnx() -> dict[str, set[str]]:
    """The operators of ONNX that are read as each operator alone, or as that among others."""
    found: dict[str, set[str]] = {}
    for kind, converter in importers().items():
        for name in names_in(converter, registered()):
            if kind in written_in_onnx().get(name, ()):
                found.setdefault(name, set()).add(kind)
    for name, kinds in written_in_onnx().items():
        if (own := registered()[name].onnx) in kinds:
            found.setdefault(name, set()).add(own)
    return found


def onnx_of(cls: type[Operator]) -> str:
    """The operators of ONNX that an operator is written as, and read from."""
    written, read = sorted(written_in_onnx().get(cls.name, ())), sorted(read_from_onnx().get(cls.name, ()))
    if not written and not read:
        return "It is not written." if cls.name not in exporters() else "It is written as constants."
    parts = [f"{verb} {', '.join(f'``{each}``' for each in kinds)}"
             for verb, kinds in (("written as", written), ("read from", read)) if kinds]  # fmt: skip
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."


# -- examples ----------------------------------------------------------------------------------------------


def example_of(cls: type[Operator]) -> list[str]:
    """Lines of a session with an operator: what the registry has, or else the smallest row of the operators' tables."""
    if (known := example(cls.name)) is not None:
        return [f">>> {known[0]}", known[1]]
    if cls.name == "Custom":
        return ['>>> mx.nd.Custom(x, op_type="name")  # of a class under @mx.operator.register("name")']
    case = smallest().get(cls.name)
    if case is None:
        return [f">>> mx.nd.{CALLS[cls.name]}.shape", str(call_of_text(CALLS[cls.name]).shape)]
    inputs = [literal(array) for array in case.given()]
    out = [f"out=[{', '.join(inputs[at] for at in case.out)}]"] if case.out else []
    keywords = [f"{key}={value!r}" for key, value in case.params.items()]
    path = next(each for each in paths(cls) if found_at(each) is not None)
    text = f"{path}({', '.join([*inputs, *keywords, *out])})"
    call, made = f"mx.nd.{text}", call_of_text(text)
    several = isinstance(made, list | tuple)
    if cls.traits.uses_random:
        return [f">>> {call}.shape", str(made.shape)] if not several else [f">>> len({call})", str(len(made))]
    results = made if several else [made]
    if sum(each.size for each in results) <= 2 * SHOWN:
        suffix = ("", "") if not several else ("[each.asnumpy() for each in ", "]")
        line = f">>> {suffix[0]}{call}{suffix[1] or '.asnumpy()'}"
        shown = [repr(np.round(each.asnumpy(), 4)) for each in results]
        return [line, *("\n".join(shown) if not several else f"[{', '.join(shown)}]").splitlines()]
    if several:
        return [f">>> [each.shape for each in {call}]", repr([each.shape for each in made])]
    return [f">>> {call}.shape", repr(made.shape)]


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
"""Calls of those that no row of the tables has, mostly since what they give is random."""


def call_of_text(text: str) -> Any:
    """The value of a call under ``mx.nd``."""
    return eval(f"mx.nd.{text}", {"mx": mx})


@cache
def smallest() -> dict[str, Case]:
    """Of each operator the row of the tests' tables with the fewest elements."""
    found: dict[str, tuple[int, Case]] = {}
    for case in every_case():
        name = registered()[case.op].name
        size = sum(array.size for array in case.arrays())
        if all(array.size for array in case.arrays()) and (name not in found or size < found[name][0]):
            found[name] = (size, case)
    return {name: case for name, (_, case) in found.items()}


def literal(array: Any) -> str:
    """An array as a call that makes it; large ones are ones of its shape."""
    dtype = "" if array.dtype == np.float32 else f', dtype="{array.dtype}"'
    if array.size > SHOWN:
        return f"mx.nd.ones({array.shape}{dtype})"
    values = re.sub(r"\b(nan|inf)\b", r'float("\1")', str(np.round(array.astype(np.float64), 2).tolist()))
    return f"mx.nd.array({values}{dtype})"


def found_at(path: str) -> Any:
    """The function of ``mx.nd`` of a dotted name; None where there is none."""
    made: Any = mx.nd
    for part in path.split("."):
        made = getattr(made, part, None)
    return made


# -- pages -------------------------------------------------------------------------------------------------


@cache
def files() -> dict[type[Operator], str]:
    """The name of each operator's page; names that differ in their case alone are told apart."""
    taken: set[str] = set()
    made = {}
    for cls in public():
        name = cls.name
        while name.lower() in taken:
            name += "-"
        taken.add(name.lower())
        made[cls] = name
    return made


def link(cls: type[Operator]) -> str:
    """A link to an operator's page."""
    return f":doc:`{cls.name} </reference/operators/{files()[cls]}>`"


def plain(text: str) -> str:
    """Words for a cell or a paragraph, in which asterisks and bars have no meaning."""
    parts = re.split(r"(``?[^`]+``?)", text)
    return "".join(each if each.startswith("`") else re.sub(r"([*|\\_])", r"\\\1", each) for each in parts)


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]], widths: str) -> list[str]:
    """A table."""
    lines = ["", ".. list-table::", "   :header-rows: 1", f"   :widths: {widths}", ""]
    for row in (head, *rows):
        lines += [f"   {'* -' if at == 0 else '  -'} {cell}" for at, cell in enumerate(row)]
    return [*lines, ""]


def parameter_row(parameter: Parameter) -> tuple[str, ...]:
    """A parameter as a row: its name, what it may be, its default, its meaning."""
    default = "must be given" if parameter.required else f"``{parameter.default!r}``"
    return f"``{parameter.name}``", plain(parameter.describe()), default, plain(parameter.doc)


def operator_page(cls: type[Operator], group: str) -> str:
    """The page of an operator, in reStructuredText."""
    title = cls.name
    layers = {each.lower() for each in mx.gluon.nn.__all__}  # which have pages of their own
    also = [word for word, meant in STANDS_FOR.items() if meant in (cls.name, *cls.aliases) and word not in layers]
    words = dict.fromkeys([cls.name, *cls.aliases, *(each.rpartition(".")[2] for each in paths(cls)), *also])
    signature = call_of(cls).removeprefix(cls.name).replace("=?", "")
    called = [each for each in paths(cls) if found_at(each) is not None] or [cls.name]
    lines = [":orphan:", "", ".. index::", *(f"   ! single: {each}" for each in words), "", title, "=" * len(title), ""]
    lines += [f":doc:`Operators </operators>` › :doc:`/reference/{group}`", ""]
    lines += [f".. py:function:: mx.nd.{called[0]}{signature}"]
    lines += [f"                 mx.sym.{called[0]}{signature}", "   :no-index-entry:", "", ""]
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
    "uses_random": "It may draw random numbers, of the device's generator.",
    "mode_matters": "It computes something else in training than in prediction.",
    "dynamic": "The shape of what it gives follows from the contents of its inputs, so that symbols can not bind it.",
}
"""Traits that users should know of."""


def section(title: str) -> list[str]:
    """The title of a section."""
    return ["", title, "-" * len(title), ""]


def group_of(cls: type[Operator]) -> str:
    """The folder that an operator stands in."""
    folder = cls.__module__.removeprefix("flowmx.ops.").split(".")[0]
    return folder if folder in KINDS else "more"


def group_title(group: str) -> str:
    """The title of a folder's page."""
    if group == "more":
        return "Further names of operators"
    return (importlib.import_module(f"flowmx.ops.{group}").__doc__ or group).partition(".")[0]


def group_page(group: str) -> str:
    """The page of a folder of operators: a table for each family."""
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
    """A class with a page of its own."""

    name: str
    module: str
    page: str


DIRECTIVE = re.compile(r"\.\. auto(module|class):: (\S+)\n((?:   :.*\n)*)")


def classes_of(module: Any) -> list[tuple[str, type]]:
    """The classes that a module offers."""
    names = getattr(module, "__all__", [])
    return [(name, found) for name in names if name[0] != "_" and inspect.isclass(found := getattr(module, name))]


def class_page(name: str, target: str, page: str, given: str = "") -> str:
    """The page of a class."""
    head = [":orphan:", "", ".. index::", f"   ! single: {name}", "", name, "=" * len(name), "", f":doc:`/api/{page}`"]
    return "\n".join([*head, "", f".. autoclass:: {target}", given.rstrip("\n"), ""])


def with_classes(text: str, page: str, write: Callable[[str, str], None], seen: dict[type, str]) -> str:
    """A page of modules, whose classes are links to pages of their own, which are written."""

    def replaced(found: re.Match[str]) -> str:
        kind, target, options = found.groups()
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
            path = seen.setdefault(cls, f"{target}.{name}")
            inherited = [each for each in excluded if not hasattr(module, each)]
            given = f"   :exclude-members: {', '.join(inherited)}\n" if inherited else ""
            write(f"reference/classes/{path}.rst", class_page(path.rpartition(".")[2], path, page, given))
            rows.append((f":doc:`{name} </reference/classes/{path}>`", plain(first_sentence(cls))))
        names = [*excluded, *(name for name, _ in classes_of(module))]
        more = f"   :exclude-members: {', '.join(dict.fromkeys(names))}\n" if names else ""
        return "\n".join(table(("class", ""), rows, "30 70") if rows else []) + f"\n.. automodule:: {target}\n{more}"

    return DIRECTIVE.sub(replaced, text)


def first_sentence(cls: type) -> str:
    """The first sentence of a class's docstring."""
    doc = " ".join((inspect.getdoc(cls) or "").partition("\n\n")[0].split())
    return re.sub(r":\w+:`~?([^`]*)`", r"``\1``", doc)


# -- writing -----------------------------------------------------------------------------------------------


def write_sources(folder: Path) -> None:
    """Write the site's sources; files whose text is the same keep their time, so that Sphinx leaves them."""
    written: set[Path] = set()

    def write(name: str, text: str | bytes) -> None:
        path = folder / name
        data = text.encode() if isinstance(text, str) else text
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.read_bytes() != data:
            path.write_bytes(data)
        written.add(path)

    seen: dict[type, str] = {}
    for path in sorted(HERE.rglob("*")):
        name = path.relative_to(HERE).as_posix()
        if not path.is_file() or (path.suffix in (".py", ".pyc") and name != "conf.py"):
            continue
        if name.startswith("api/"):
            write(name, with_classes(path.read_text(encoding="utf-8"), Path(name).stem, write, seen))
        elif name == "operators.md":
            write(name, path.read_text(encoding="utf-8").replace("\n## ", f"{kinds_listed()}\n## ", 1))
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


def kinds_listed() -> str:
    """The contents of the page of all operators: a page for each kind, from which each operator's own is reached."""
    listed = "\n".join(f"reference/{group}" for group in (*KINDS, "more"))
    return f"\nEach has a page of its own, by kind:\n\n```{{toctree}}\n{listed}\n```\n"


def main() -> None:
    """Write the sources into the folder that is named."""
    write_sources(Path(sys.argv[1]))


if __name__ == "__main__":
    main()
