"""Compare networks with the PyTorch modules written from them, and print a table.

    python -m tests.source_code.against_torch PYTHON [zoo] [text] [FOLDER ...]

PYTHON is the interpreter that has torch. ``zoo`` are the networks of the model zoo, ``text`` language models and
recurrent layers, and a FOLDER is searched for ``-symbol.json`` files, which get random parameters.
"""

import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

import flowmx as mx
from flowmx.contrib.onnx.dynamic_lengths import Varying
from flowmx.gluon.model_zoo import text
from flowmx.serve.unread_labels import without_computed_labels
from flowmx.source_code import to_torch
from flowmx.source_code.check import compare, random_inputs
from tests.source_code.networks import parameters, zoo

SIZES = {"inceptionv3": 299, "alexnet": 224, "squeezenet1.0": 224, "squeezenet1.1": 224, "densenet121": 224}
NETWORKS = (
    "alexnet", "densenet121", "inceptionv3", "mobilenet0.25", "mobilenetv2_0.25", "resnet18_v1", "resnet50_v1",
    "resnet18_v2", "resnet50_v2", "squeezenet1.0", "squeezenet1.1", "vgg11", "vgg16_bn",
)  # fmt: skip
SHAPES = [(2, 3, n, n) for n in (112, 64, 224, 32, 128, 256, 299, 512)] + [(2, 1, 28, 28), (2, 784), (2, 1, 112, 112)]
OUTPUTS, GRADIENTS = 1e-5, 1e-4


class Case(NamedTuple):
    """A network to compare, with the shapes of its inputs and the largest integers of those that are indices."""

    name: str
    symbol: mx.sym.Symbol
    shapes: dict[str, tuple[int, ...]]
    integers: Mapping[str, int] = MappingProxyType({})
    batch_axis: int = 0


def of_zoo() -> Iterator[Case]:
    """Networks of the model zoo."""
    for name in NETWORKS:
        yield Case(name, *zoo(name, SIZES.get(name, 64)))


def of_text() -> Iterator[Case]:
    """Language models and recurrent layers."""
    options = {"vocab_size": 11, "units": 8, "num_layers": 3, "num_heads": 2, "max_length": 16}
    for name, names in (("GPT2LM", 1), ("BERT", 3), ("BERTMaskedLM", 3), ("LlamaLM", 1)):
        extra = {} if name != "LlamaLM" else {"hidden_units": 16}
        inputs = ["tokens", "token_types", "padding"][:names]
        outputs = getattr(text, name)(**options, **extra)(*map(mx.sym.var, inputs))
        symbol = mx.sym.Group(list(outputs)) if isinstance(outputs, (list, tuple)) else outputs
        yield Case(name, symbol, dict.fromkeys(inputs, (2, 6)), dict.fromkeys(inputs, 2))
    rows = mx.sym.Embedding(mx.sym.var("tokens"), input_dim=11, output_dim=8, name="words")
    fused = mx.rnn.FusedRNNCell(8, num_layers=2, mode="lstm", get_next_state=True, prefix="lstm_")
    begin = [mx.sym.var("hidden"), mx.sym.var("cell")]
    outputs, states = fused.unroll(6, rows, begin_state=begin, layout="TNC", merge_outputs=True)
    words = mx.sym.FullyConnected(outputs, num_hidden=11, flatten=False, name="decoder")
    shapes = {"tokens": (6, 2), "hidden": (2, 2, 8), "cell": (2, 2, 8)}
    yield Case("LSTM language model", mx.sym.Group([words, *states]), shapes, {"tokens": 11}, 1)


def of_folder(folder: Path) -> Iterator[Case]:
    """Symbols of a folder that take images, each with the first size that fits."""
    for path in sorted(folder.rglob("*-symbol.json")):
        try:
            symbol = mx.sym.load(path)
            labels = [name for name in symbol.list_arguments() if name.endswith("label")]
            symbol = without_computed_labels(symbol, labels)
        except mx.MXNetError:
            continue
        shapes = next((each for each in SHAPES if fits(symbol, {"data": each})), None)
        if "data" in symbol.list_arguments() and shapes:
            yield Case(path.name.removesuffix("-symbol.json"), symbol, {"data": shapes})


def fits(symbol, shapes) -> bool:
    """Whether a symbol computes outputs for these shapes."""
    try:
        arguments, _, states = symbol.infer_shape(**shapes)
    except mx.MXNetError:
        return False
    return arguments is not None and states is not None


def compared(case: Case, python: str) -> tuple[str, str, str]:
    """The number of lines, and the differences."""
    arrays = parameters(case.symbol, case.shapes)
    types = {name: np.dtype(np.float32) for name in case.shapes}
    batch = {
        name: tuple(Varying(2, 4) if axis == case.batch_axis else size for axis, size in enumerate(shape))
        for name, shape in case.shapes.items()
    }
    source = to_torch(case.symbol, arrays, batch, types, "Network")
    inputs = random_inputs(case.shapes, types)
    for name, limit in case.integers.items():
        inputs[name] = np.random.default_rng(0).integers(0, limit, case.shapes[name]).astype(np.float32)
    result = compare(source, case.symbol, inputs, python)
    mark = "" if result.outputs <= OUTPUTS and result.gradients <= GRADIENTS else " **differs**"
    return str(source.text.count("\n")), f"{result.outputs:.0e}", f"{result.gradients:.0e}{mark}"


def main(python: str, *parts: str) -> None:
    """Print the table."""
    sources = {"zoo": of_zoo, "text": of_text}
    print("| network | lines | outputs | gradients |\n|---|---|---|---|")
    for part in parts or tuple(sources):
        for case in sources[part]() if part in sources else of_folder(Path(part)):
            start = time.monotonic()
            try:
                row = compared(case, python)
            except Exception as error:
                row = ("", "", " ".join(str(error).split())[:300])
            print(f"| {case.name} | {' | '.join(row)} |", flush=True)
            print(f"{case.name}: {time.monotonic() - start:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    mx.random.seed(0)
    main(*sys.argv[1:])
