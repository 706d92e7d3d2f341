"""Names, docstrings, comments, messages and pages use the words of docs/vocabulary.md."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.repository.test_docstring_style import python_files

ROOT = Path(__file__).parent.parent.parent

WORDS = {
    "of one's own": r"\bof (one's|its|their|his|our) own\b",
    "goes on": r"\b(goes on|go on with)\b",
    "let go of": r"\b(lets? go of|is let go)\b",
    "given up": r"\b(is|are|was|were|be) given up\b",
    "real numbers": r"\breal numbers\b",
    "stranger": r"\bstrangers?\b",
    "doorman": r"\b(doorman|doormen|doorkeeper)\b",
    "goodbye": r"\bgoodbyes?\b",
    "deserter": r"\bdesert(ed|ers?|s)\b",
    "beside": r"\bbeside\b",
    "but for": r"\b(but|save) for\b",
    "is none": r"\b(is|are|was|were) none( that| of|\b)",
    "0.52 of X's time": r"\b0\.\d+ of [A-Z][A-Za-z]+'s\b",
    "tell whether": r"\b[Tt]ells? whether\b",
    "Let, Have, Say that": r'"""(Let |Have |Say (that|what)|Take down|Put down)',
    "which is what": r"\b(which|that) is what\b",
    "anew": r"\banew\b",
    "to its end": r"\b(run|runs|ran|come|comes|came) to (its|their) end\b",
    "which start of": r"\bwhich start of\b",
    "can not": r"\b[Cc]an not\b",
    "the most bytes": r'(\w: |"""|# )([Tt]he )?[Mm]ost (bytes|seconds|connections|requests|pushes|characters|keys)\b',
    "a function from X to Y": r"\bfunction from (the|a|an) \w+( and the \w+)? to\b",
    "of one shape": r"\bof one (float )?(shape|dtype)\b",
    "derivative by x": r"\b[Dd]erivatives? by (the|x|y)\b",
    "-ise": r"\b\w*(recogn|synchron|serial|normal|vector|initial)is(e|ed|es|ing|ation)\b",
    "is read from": r"\b(is|are) (not|no longer) read from\b",
    "Pure.": r"(^|[.:] )Pure[.:]",
    "plain code": r"\b[Pp]lain code\b",
    "bitwise equal": r"\b[Bb]itwise (equal|identical)\b",
    "also if": r"\balso if\b",
    "inside of": r"(?<!the )\b(in|out)side of (a|an|all|any|its|it|the|their|them|this|those|graphs?|operations|mx)\b",
    "halves": r"\b[Hh]alves (to even|away from|up|down|downwards)\b|\b[Rr]ounds? halves\b",
    "the same bits as": r"\b(with|has|have|gives?) the (same )?bits\b",
    "None where": r"\b(None|False) where (it|they|the|no|there|one|each|another|servers)\b",
    "has another type": r"\b(has|have|had|of|to|with) another (type|dtype|shape)\b",
    "likewise": r"[,:;] likewise\b",
    "colour": r"\b[A-Za-z_]*([Cc]olour|COLOUR|[Nn]eighbour|[Bb]ehaviour(?! for \{key\}))\w*",
    "already at the end": r"\b(exists?|initialized|started|registered|in progress|in use) already\b",
}
"""Patterns of prose: docstrings, comments, messages and pages."""
NAMES = {
    "found", "made", "given", "known", "kept", "told", "seen", "gone", "settle", "settled", "settles", "lies", "mine",
    "MOST", "LEAST",
}  # fmt: skip
"""Names that say nothing of what they hold or do."""
SOURCE_NAMES = {"apart", "coming", "halves", "some"}
"""More such names, which only tests may use."""
SOURCES = ("flowmx/", "devices/", "ops/", "comm/")
EXCEPTIONS = {
    "docs/vocabulary.md": "lists the words",
    "tests/repository/test_vocabulary.py": "lists the words",
}
"""Files that the words may stand in, and why."""
FOLDERS = ["flowmx", "devices", "ops", "comm", "tests", "examples", "benchmarks", "packaging", "docs"]
NOT_YET: tuple[str, ...] = (
    "tests/cupy_stand_in/queued.py",
    "tests/engine/test_wrong_programs.py",
    "tests/fuzz/formats.py",
    "tests/fuzz/growth.py",
    "tests/graph/test_quantization.py",
    "tests/graph/test_recompute.py",
    "tests/graph/test_weight_packing.py",
    "tests/ops/test_fix_gamma.py",
    "tests/ops/test_int8.py",
    "tests/ops/test_quantized_rnn.py",
    "tests/ops/test_spatial.py",
)
"""The beginnings of paths that are still to be rewritten. A room whose words are right leaves this list."""


class Place(NamedTuple):
    """A line with a replaced word."""

    line: int
    word: str
    text: str


def in_prose(text: str) -> Iterator[Place]:
    """Iterate over the replaced words of a text, line by line."""
    for number, line in enumerate(text.splitlines(), 1):
        for word, pattern in WORDS.items():
            if re.search(pattern, line):
                yield Place(number, word, line.strip())


def in_names(source: str, names: set[str] = NAMES) -> Iterator[Place]:
    """Iterate over the names of a module's variables, functions and arguments that say nothing."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                pass
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                pass
            case _:
                continue
        if name.strip("_") in names:
            yield Place(node.lineno, "a noun", name)


def pages() -> list[Path]:
    """The pages of the documentation, and those at the top."""
    return [*sorted((ROOT / "docs").rglob("*.md")), *(ROOT / name for name in ("README.md", "CONTRIBUTING.md"))]


def places(path: Path) -> list[str]:
    """Describe each replaced word of a file."""
    name, text = str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
    if name in EXCEPTIONS or "/fixtures/" in name or name.startswith(NOT_YET):
        return []
    names = NAMES | SOURCE_NAMES if name.startswith(SOURCES) else NAMES
    named = in_names(text, names) if path.suffix == ".py" else ()
    return [f"{name}:{each.line}: {each.word}: {each.text[:100]}" for each in (*in_prose(text), *named)]


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_fields_words_are_used(folder):
    files = pages() if folder == "docs" else python_files(folder)
    wrong = [place for path in files for place in places(path)]
    assert not wrong, f"{len(wrong)} places use words that docs/vocabulary.md replaces:\n" + "\n".join(wrong[:50])


@pytest.mark.parametrize(
    "text",
    [
        "a layer of one's own", "training goes on", "it is given up after 5 s", "a stranger's request",
        "beside PyTorch", "all but for one", "the name is none of these", "0.52 of PyTorch's time",
        "Tell whether it runs",
        '"""Let it run."""', "which is what it does", "also if it is closed", "outside of a graph",
        "rounds halves to even", "with the bits of NumPy", "the kernel, or None where there is none",
        "it has another dtype", "dtypes: likewise.",
        "random changes of colour",
    ],
)  # fmt: skip
def test_replaced_words_are_found(text):
    assert list(in_prose(f"a line\n{text}"))


def test_plain_prose_is_not():
    assert not list(in_prose("Return whether the node is alive. Drop the oldest entry. A custom layer resumes."))


def test_names_that_say_nothing_are_found():
    source = (
        "def f(given):\n    found = made = given\n    for seen in found:\n        rows = seen\n    def _settle(): ...\n"
    )
    assert sorted(place.text for place in in_names(source)) == sorted(["_settle", "given", "found", "made", "seen"])
