"""The examples of docstrings, and whether two systems print the same for them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

__all__ = ["Docstring", "docstrings", "same"]

_PROMPT = re.compile(r"^\s*>>>(.*)$")
_CONTINUED = re.compile(r"^\s*\.\.\.(.*)$")
_PRINTED = re.compile(r"^([ \t]*)print +(?!\()(.+)$", re.M)
_OF_NUMPY = re.compile(r"numpy|_numpy_op_doc|npx")
"""The files whose ``np`` is MXNet's."""
_RANDOM = re.compile(
    r"rand|shuffle|sample|multinomial|Dropout|dropout|\bempty|initialize|init_params|Xavier|Uniform|Normal|Orthogonal"
)
"""Outputs that are random or uninitialized: their numbers are not compared."""
_ARRAY = re.compile(r"<\w*NDArray [\dx]* *@\w+\(\d\)>|<Symbol [^>]*>")
_NUMBER = re.compile(r"(?<![A-Za-z_\d.])[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|inf\b|nan\b)")
_SPELLINGS = [
    (r"0x[0-9a-f]+", "0x"),
    (r"\bflowmx\b", "mxnet"),
    (r"\bnp\.(?:float|int|uint)\d+\(([^()]*)\)", r"\1"),  # NumPy 2 shows the types of its numbers
    (r"\bnp\.(?:str_|bytes_)\(([^()]*)\)", r"\1"),
    (r"\bnp\.(True|False)_", r"\1"),
    (r"<class '(?:[\w.]+\.)?(\w+)'>", r"<class \1>"),
    (r"<mxnet\.executor\.Executor object at 0x>|<Executor of .*>", "<Executor>"),
    (r"\s+", " "),
    (r" ?([\[\](){},:=<>]) ?", r"\1"),
    (r"^ | $", ""),
    (r",shape=\([\d,]*\)", ""),  # so does it with the shape of an array of which not all is shown
    (r"^\w+Result\(\w+=(.*),\w+=(.*)\)$", r"[\1,\2]"),
    (r"^\((array\(.*\))\)$", r"[\1]"),  # where MXNet has lists, NumPy has tuples
    (r",(?=[\])}])", ""),
]


@dataclass
class Docstring:
    """The examples of one docstring.

    Attributes:
        name: the file, and the path of the class or function in it.
        of_numpy: whether ``np`` is MXNet's.
        is_random: whether the numbers that it prints are another time's too.
        lines: the examples, each as one statement with all its lines.
    """

    name: str
    of_numpy: bool
    is_random: bool
    lines: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, object]:
        """All of it, for JSON."""
        return asdict(self)


def docstrings(checkout: Path) -> Iterator[Docstring]:
    """The docstrings with examples in the Python package of a checkout of MXNet."""
    package = checkout / "python" / "mxnet"
    for file in sorted(package.rglob("*.py")):
        if not file.is_file():  # a link to what is fetched when MXNet is built
            continue
        path = str(file.relative_to(package))
        for name, text in _documented(ast.parse(file.read_text(encoding="utf-8")), ""):
            lines = _examples(text)
            if lines:
                is_random = bool(_RANDOM.search("\n".join(lines)))
                yield Docstring(f"{path}:{name}", bool(_OF_NUMPY.search(path)), is_random, lines)


def _documented(node: ast.AST, within: str) -> Iterator[tuple[str, str]]:
    for each in ast.iter_child_nodes(node):
        name = within
        if isinstance(each, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            name = f"{within}.{each.name}" if within else each.name
            text = ast.get_docstring(each)
            if text:
                yield name, text
        yield from _documented(each, name)


def _examples(text: str) -> list[str]:
    """The statements of a docstring; some go on without dots before them, some print as Python 2 did."""
    groups: list[list[str]] = []
    goes_on = False
    for line in text.splitlines():
        prompt, more = _PROMPT.match(line), _CONTINUED.match(line)
        is_open = goes_on and _is_open(groups[-1])
        if prompt is not None:
            inside = prompt[1].startswith("     ") and goes_on and _is_block(groups[-1])
            if is_open or inside:
                groups[-1].append(prompt[1])
            else:
                groups.append([prompt[1]])
            goes_on = True
        elif goes_on and (more is not None or is_open):
            groups[-1].append(line if more is None else more[1])
        else:
            goes_on = False
    statements = ["\n".join(each[1:] if each[:1] == " " else each for each in lines) for lines in groups]
    return [_PRINTED.sub(r"\1print(\2)", each) for each in statements if re.search(r"^\s*[^\s#]", each, re.M)]


def _is_open(lines: list[str]) -> bool:
    """Return whether a bracket is unclosed."""
    try:
        ast.parse("\n".join(lines).strip())
    except SyntaxError as error:
        return "was never closed" in str(error)
    return False


def _is_block(lines: list[str]) -> bool:
    return any(each.rstrip().endswith(":") for each in lines)


def same(one: str, other: str, with_numbers: bool = True) -> bool:
    """Return whether two outputs agree: numbers approximately, the rest except spaces and spelling.

    Without numbers, compare only the types and shapes of arrays.
    """
    if not with_numbers:
        return _ARRAY.findall(one) == _ARRAY.findall(other)
    one, other = _spelled(one), _spelled(other)
    first, second = _NUMBER.findall(one), _NUMBER.findall(other)
    if len(first) != len(second) or _NUMBER.sub("#", one) != _NUMBER.sub("#", other):
        return False
    return all(_near(float(a), float(b)) for a, b in zip(first, second, strict=True))


def _near(one: float, other: float) -> bool:
    return one == other or (one != one and other != other) or abs(one - other) <= 1e-5 + 2e-4 * abs(one)


def _spelled(text: str) -> str:
    for pattern, spelling in _SPELLINGS:
        text = re.sub(pattern, spelling, text)
    return text
