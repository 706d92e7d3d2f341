"""Written code contains nothing of a model file but numbers, escaped names and quoted texts."""

import ast

import pytest

import flowmx as mx
from flowmx.source_code import literals, to_gluon, to_torch
from tests.source_code.networks import source_of

NAMES = [
    'a"""\nimport os\nos.abort()\n"""',
    'a"""; raise SystemExit; """',
    "a'''\\",
    'a"\\',
    "class",
    "é\u2028\x00",
    "n" * 100_000,
    "\x00" * 1000,
]


def code_of(text):
    """Return the names that a module imports, defines and calls, without its docstrings."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef)) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return tree


@pytest.mark.parametrize("write", [to_torch, to_gluon])
@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_names_are_only_text(write, name):
    data, weight, bias = mx.sym.var(name), mx.sym.var(name + "w"), mx.sym.var(name + "b")
    symbol = mx.sym.FullyConnected(data, weight, bias, num_hidden=3, name=name + "layer")
    arrays = {name + "w": mx.nd.ones((3, 4)), name + "b": mx.nd.ones(3)}
    source = write(symbol, arrays, {name: (2, 4)})
    tree = code_of(source.text)
    (network,) = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    assert [node.name for node in network.body] == ["__init__", "forward" if write is to_torch else "hybrid_forward"]
    assert all(isinstance(node, (ast.Import, ast.ImportFrom, ast.ClassDef)) for node in tree.body)
    assert max(map(len, source.text.split("\n"))) < 400


@pytest.mark.parametrize("text", ['x"', "'", '" + f() + "', "' + f() + '", '"""', "\\", "a\nb", "{0}"])
def test_texts_are_quoted(text):
    assert ast.literal_eval(literals.literal(text)) == text
    tree = ast.parse(f"f({text!r}, {text + chr(34)!r})", mode="eval")
    assert ast.dump(ast.parse(literals.unparse(tree), mode="eval")) == ast.dump(tree)


def test_plain_texts_have_double_quotes():
    assert literals.literal("mean") == '"mean"'


def test_infinite_numbers_and_long_ranges():
    data = mx.sym.var("data")
    masked = mx.sym.broadcast_add(mx.sym.clip(data, 0.5, float("inf")), mx.sym.full((1, 2), -float("inf")))
    text = source_of(mx.sym.Group([masked, mx.sym.arange(1_000_001)]), {"data": (2, 2)}).text
    assert "from math import inf\n" in text
    assert "torch.full((1, 2), -inf)" in text
    assert "torch.arange(0, 1000001, 1" in text
    compile(text, "module", "exec")
