"""The tests closest to a place in the source: those that share its rarest words."""

import ast
import math
import re
from collections import Counter
from functools import cache
from pathlib import Path

from tests.durations import waits

WORD = re.compile(r"[A-Za-z_]\w{2,}")
IMPORTED = re.compile(r"from tests(?:\.([\w.]+))? import (\w+)")

OF_MODULE, OF_NAMES, OF_FUNCTION = 4, 1, 3
"""Weights of a shared word: one of the module's path, a name defined in the module, a word of the definition."""

OF_IMPORT, OF_FILE_NAME = 40, 40
"""Weights of an import of the module, and of a test file whose name only has words of its path."""

OF_FOLDER = {
    "ops/": {"test_gradients": 40, "test_recorded_operators": 30},
    "ops/kernels/": {},
    "ops/kernels/llvm/": {"test_compiled_loops": 40, "test_half_precision_loops": 40},
    "flowmx/contrib/onnx/families/": {"test_onnx_operators": 40},
}
"""Weights of the files that go through all that a folder has, such as the values and gradients of every operator.

The innermost folder counts.
"""
OF_FACTS = {"test_traits": 60, "test_operator_docs": 60}
"""Weights of the test files that check operator attributes, for faults in operator classes."""

OF_PRIVATE_NAME = 0.3
"""Factor on the weight of a name that begins with an underscore, which tests share by chance."""


class Tests:
    """The test files of a checkout and their words."""

    __test__ = False

    def __init__(self, root: Path) -> None:
        self.root = root
        self.texts = {path: self._text(path) for path in sorted((root / "tests").rglob("test_*.py"))}
        self.words = {path: words_of(text) for path, text in self.texts.items()}
        self._counts = Counter(word for words in self.words.values() for word in words)

    def closest(self, source: str, path: str, function: str) -> list[Path]:
        """The test files, those that share most with a definition of a source file first."""
        weights = self.weights(source, path, function)
        in_path = {*re.split(r"[/_]", path.removesuffix(".py"))}
        folder = max((each for each in OF_FOLDER if path.startswith(each)), key=len, default="")
        of_folder = OF_FOLDER.get(folder, {})
        if folder == "ops/" and isinstance(definition(ast.parse(source), function), ast.ClassDef):
            of_folder = of_folder | OF_FACTS
        module = re.compile(rf"\b{re.escape(dotted(path))}\b|\bfrom {_imported(path)}\b")

        def closeness(test: Path) -> float:
            shared = sum(weight for word, weight in weights.items() if word in self.words[test])
            shared /= (1 + len(self.words[test]) / 1000) ** 0.5  # what has all words is close to nothing
            named = [any(_are_alike(part, word) for word in in_path) for part in test.stem.split("_")[1:]]
            close: float = shared + OF_FILE_NAME * sum(named) / len(named)
            close += OF_IMPORT * bool(module.search(self.texts[test]))
            close += of_folder.get(test.stem, 0)
            return close / 2 if waits(test) else close  # they are slow

        return sorted(self.texts, key=closeness, reverse=True)

    def weights(self, source: str, path: str, function: str) -> dict[str, float]:
        """The weight of each word of a definition and its surroundings: the fewer test files know it, the more."""
        module = ast.parse(source)
        weights: dict[str, float] = {}
        for words, weight in (
            (words_of(ast.unparse(definition(module, function))), OF_FUNCTION),
            ({*function.split(".")}, OF_FUNCTION),
            ({node.name for node in ast.walk(module) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}, OF_NAMES),
            (words_of(path), OF_MODULE),
        ):
            for word in words:
                if counts := self._counts[word]:
                    rarity = math.log(1 + len(self.texts) / counts) - math.log(2)
                    factor = OF_PRIVATE_NAME if word.startswith("_") else 1
                    weights[word] = weights.get(word, 0) + factor * weight * rarity**2
        return weights

    def _text(self, path: Path) -> str:
        """The text of a test file, with that of the modules of tests/ that it imports."""
        text = path.read_text()
        helpers = {
            part for module, name in IMPORTED.findall(text) for part in (module, f"{module}.{name}".lstrip(".")) if part
        }
        return " ".join((path.stem, text, *(_helper(self.root, helper) for helper in sorted(helpers))))


def _are_alike(one: str, other: str) -> bool:
    """True for a word and its plural, and for others of one stem, such as quantizing and quantization."""
    return one.rstrip("s") == other.rstrip("s") or (len(one) >= 6 and one[:6] == other[:6])


@cache
def _helper(root: Path, module: str) -> str:
    path = root / "tests" / module.replace(".", "/")
    files = sorted(path.glob("*.py")) if path.is_dir() else [path.with_suffix(".py")]
    return " ".join(file.read_text() for file in files if file.is_file())


def definition(module: ast.Module, function: str) -> ast.AST:
    """The definition of a dotted name in a module, or the module where the name is empty."""
    scope: ast.AST = module
    for name in function.split(".") if function else ():
        scope = next(node for node in ast.walk(scope) if getattr(node, "name", None) == name)
    return scope


def dotted(path: str) -> str:
    """The name under which a source file is imported: ``flowmx.ops.nn.norm`` for ``ops/nn/norm.py``."""
    parts = path.removesuffix(".py").removesuffix("/__init__").split("/")
    return ".".join(parts if parts[0] == "flowmx" else ["flowmx", *parts])


def _imported(path: str) -> str:
    package, _, name = dotted(path).rpartition(".")
    return rf"{re.escape(package)} import (\w+, )*{name}"


def words_of(text: str) -> set[str]:
    words = set(WORD.findall(text))
    return words | {part for word in words for part in word.split("_") if len(part) > 2}
