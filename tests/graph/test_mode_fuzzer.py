"""Every mode of execution gives the same results, for random networks and the model zoo; the fuzzer finds wrong modes.

`python -m tests.modes.run 1000 0` looks for more.
"""

import contextlib
import functools
import io
import itertools
from collections import Counter

import numpy as np
import pytest

from flowmx import gluon
from flowmx.cached_op.compiled import Compiled
from flowmx.gluon import contrib, loss, nn, rnn
from flowmx.gluon.model_zoo import vision
from flowmx.graph import compiler
from flowmx.graph.graph import Rewriter
from flowmx.graph.node import Entry
from flowmx.ops.nn.common import non_defaults
from flowmx.ops.registry.operators import lookup
from tests.fixtures.record_zoo import SIZES
from tests.modes.bounds import distance
from tests.modes.drawing import LAYERS, LOSSES, TOGETHER, draw
from tests.modes.modes import MODES
from tests.modes.network import Input, Network, Step, layer
from tests.modes.run import fuzz, program, quiet
from tests.modes.trial import Trial

NAMES = list(MODES)
SAMPLE, SOAK, PART = 300, 3000, 100
PARTS = 3


@pytest.fixture(autouse=True)
def without_warnings():
    with quiet():
        yield


def some(seed):
    """Return the modes of a network of the sample, so that each mode has equally many networks."""
    return [NAMES[seed % len(NAMES)]]


@functools.cache
def sample():
    """Return the layers and losses of each network of the sample."""
    return {seed: {*draw(seed).names()} for seed in range(SAMPLE)}


@functools.cache
def chosen(times=2):
    """Return seeds of a few networks of the sample with each layer and mode, if possible ``times`` times."""
    features = {seed: {*names, *some(seed)} for seed, names in sample().items()}
    there = Counter(itertools.chain.from_iterable(features.values()))
    missing = Counter({name: min(times, count) for name, count in there.items()})
    seeds = []
    while +missing:
        seeds.append(max(features, key=lambda seed: sum(missing[name] > 0 for name in features[seed])))
        missing.subtract(features.pop(seeds[-1]))
    return seeds


@pytest.mark.parametrize("part", range(PARTS))
def test_random_networks_agree_in_some_modes(part):
    assert "\n\n".join(map(str, fuzz(chosen()[part::PARTS], some))) == ""


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(SAMPLE, SAMPLE + SOAK, PART))
def test_random_networks_agree_in_every_mode(first):
    assert "\n\n".join(map(str, fuzz(range(first, first + PART)))) == ""


# -- what is covered --------------------------------------------------------------------------------------

PUBLIC = {"nn": nn, "rnn": rnn, "loss": loss, "contrib.nn": contrib.nn, "contrib.cnn": contrib.cnn,
          "contrib.rnn": contrib.rnn}  # fmt: skip
ELSEWHERE = {
    **dict.fromkeys(["nn.Block", "nn.HybridBlock"], "a base: what networks are put together of derives from it"),
    **dict.fromkeys(["rnn.RecurrentCell", "rnn.HybridRecurrentCell", "rnn.ModifierCell"], "a base of cells"),
    "loss.Loss": "the base of losses",
    "nn.SymbolBlock": "what a network is once it was imported, which is a mode",
    **dict.fromkeys(
        ["nn.TransformerDecoder", "nn.TransformerDecoderLayer"],
        "layers with two inputs: tests/gluon/test_transformer_layers.py",
    ),
    "contrib.nn.SparseEmbedding": "a plain block with a sparse gradient: tests/ndarray/test_sparse.py",
}


def public_layers():
    for prefix, module in PUBLIC.items():
        for name in module.__all__:
            value = getattr(module, name)
            if isinstance(value, type) and issubclass(value, gluon.Block):
                yield f"{prefix}.{name}"


def test_every_public_layer_is_drawn():
    drawn = {*LAYERS, *LOSSES, *TOGETHER}
    assert set(public_layers()) == drawn | set(ELSEWHERE)
    assert not drawn & set(ELSEWHERE)
    names_drawn = {name for seed in chosen() for name in sample()[seed]}
    assert not [name for name in drawn if TOGETHER.get(name, name) not in names_drawn]
    assert {name for seed in chosen() for name in some(seed)} == {*MODES}


# -- the model zoo ----------------------------------------------------------------------------------------

ZOO_MODES = [
    "imperative", "hybridized", "static shape", "mirrored", "executor", "module", "imported", "two devices, hybridized",
    "simulated, hybridized", "partitioned, imported", "float64, imported", "float16, hybridized", "bfloat16, imported",
]  # fmt: skip


def narrow(name, by=16):
    return layer("narrow", name=name, by=by)


# A model of each family with few channels, and the images that it takes.
SMALL = {
    "AlexNet": (narrow("alexnet"), 64),
    "DenseNet": (
        layer("vision.DenseNet", num_init_features=8, growth_rate=4, block_config=(2, 2), classes=4), 64
    ),
    "Inception": (narrow("inceptionv3"), 80),
    "MobileNet": (narrow("mobilenet0.25", 4), 32),
    "MobileNetV2": (narrow("mobilenetv2_0.25", 4), 32),
    "ResNetV1": (narrow("resnet18_v1"), 32),
    "ResNetV2": (narrow("resnet18_v2"), 32),
    "SqueezeNet": (narrow("squeezenet1.1"), 48),
    "VGG": (narrow("vgg11_bn"), 32),
}  # fmt: skip
# On 32 pixels the last 9 blocks of resnet152_v2 normalize three numbers on each of two devices, and amplify rounding.
SIZES_OF_NARROW = {"alexnet": 64, "squeezenet": 48, "inception": 80, "resnet152_v2": 64}


def images_through(result, size):
    """Return a model with steps on images of this size, in batches of different lengths."""
    steps = Step("predict", 6), Step("train", 6), Step("predict", 7)
    # A longer step makes the numbers of narrow networks with many layers grow beyond all bounds.
    slowly = ("sgd", {"learning_rate": 1e-4})
    return Network(result, (Input((3, size, size)),), steps, whole=True, draws=True, optimizer=slowly)


def size_of(name, sizes, otherwise):
    return next((size for start, size in sizes.items() if name.startswith(start)), otherwise)


def found_in(network, modes):
    trial = Trial(network)
    return [fault for name in modes if (fault := trial.fault(name)) is not None]


def zoo_modes(number):
    """Return the mode of a family of models; the last families get two, so that each mode is used."""
    return ZOO_MODES[len(SMALL) - 1 - number :: len(SMALL)]


def test_each_mode_has_a_family_of_the_zoo():
    assert {mode for number in range(len(SMALL)) for mode in zoo_modes(number)} == set(ZOO_MODES)


@pytest.mark.parametrize("family", SMALL)
def test_zoo_families_agree_in_some_modes(family):
    assert not found_in(images_through(*SMALL[family]), zoo_modes(list(SMALL).index(family)))


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", vision._MODELS)
def test_a_narrow_model_agrees_in_every_mode(name):
    model = narrow(name, 4 if name.startswith("mobilenet") else 16)
    assert not found_in(images_through(model, size_of(name, SIZES_OF_NARROW, 32)), ZOO_MODES)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", vision._MODELS)
def test_a_model_agrees_in_every_mode(name):
    model = layer("vision.get_model", name=name, classes=4)
    assert not found_in(images_through(model, size_of(name, SIZES, 64)), ZOO_MODES)


# -- the fuzzer itself ------------------------------------------------------------------------------------


def test_nan_equals_only_nan():
    pole = np.array([np.nan, 1.0, np.inf])
    assert distance(pole, np.array([np.nan, 1.5, np.inf])) == 0.5
    assert distance(pole, np.array([0.0, 1.0, np.inf])) == np.inf


def replaced(wanted, make):
    """Return a pass that replaces some nodes."""

    def wrong(graph, options):
        rewriter = Rewriter(graph)
        for node in rewriter.nodes:
            if node.op is not None and wanted(node.op, graph):
                replacement = make(rewriter, node, [rewriter.new(entry) for entry in node.inputs])
                for index in range(node.outputs()):
                    rewriter.replace(Entry(node, index), Entry(replacement, index))
            elif node.op is not None:
                rewriter.keep(node)
        return rewriter.result()

    return wrong


def without_bias(rewriter, node, inputs):
    op = lookup(node.op.name).create(**non_defaults(node.op) | {"no_bias": True})
    return rewriter.make(op, inputs[:2], node)


def standing_still(rewriter, node, inputs):
    return rewriter.make(lookup("BatchNorm").create(**non_defaults(node.op) | {"momentum": 1.0}), inputs, node)


def in_one_group(rewriter, node, inputs):
    groups = node.op.num_group
    whole = rewriter.make(lookup("Concat").create(num_args=groups, dim=1), [inputs[1]] * groups, node)
    op = lookup("Convolution").create(**non_defaults(node.op) | {"num_group": 1})
    return rewriter.make(op, [inputs[0], Entry(whole, 0), *inputs[2:]], node)


PLANTED = {
    "a bias is dropped": (
        replaced(lambda op, _: op.name == "FullyConnected" and not op.no_bias, without_bias),
        {"nn.Dense", "Tied", "Scan", "Repeated", "Attention"},
    ),
    "a running mean stands still": (
        replaced(lambda op, graph: op.name == "BatchNorm" and graph.train, standing_still), {"nn.BatchNorm"}
    ),
    "groups are ignored": (
        replaced(lambda op, _: op.name == "Convolution" and op.num_group > 1, in_one_group),
        {"nn.Conv1D", "nn.Conv2D", "nn.Conv3D"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", PLANTED)
def test_a_wrong_pass_is_detected_and_shown(monkeypatch, fault):
    wrong, blamed = PLANTED[fault]
    with monkeypatch.context() as patched:
        patched.setattr(compiler, "PASSES", [wrong, *compiler.PASSES])
        finding = next(fuzz(range(300), lambda seed: ["hybridized"]))
        assert finding.fault.kind == "differs"
        assert blamed & set(finding.network.names())
        assert len(finding.network.names()) == len(finding.network.steps) == 1
        assert "differs" in printed(finding)
    assert "nothing is wrong" in printed(finding)


def printed(actual):
    """Return the text that a program prints."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        exec(program(actual.network, actual.fault.mode), {})
    return text.getvalue()


def test_stale_packed_weights_are_detected(monkeypatch):
    compute = Compiled._compute

    def compute_stale(self, runner, versions):
        compute(self, runner, versions._replace(numbers=(1,) * len(versions.numbers)))

    monkeypatch.setattr(Compiled, "_compute", compute_stale)
    assert next(fuzz(range(300), lambda seed: ["static shape"])).fault.kind == "differs"


def test_a_mode_that_raises_is_detected(monkeypatch):
    def refusing(graph, options):
        if any(node.op is not None and node.op.name == "LayerNorm" for node in graph.nodes()):
            raise ZeroDivisionError("no LayerNorm")
        return graph

    monkeypatch.setattr(compiler, "PASSES", [refusing, *compiler.PASSES])
    fault = next(fuzz(range(300), lambda seed: ["hybridized"]))
    assert (fault.fault.kind, fault.fault.error) == ("raises", "ZeroDivisionError")
    assert fault.network.names() == ["nn.LayerNorm"]
    assert "no LayerNorm" in str(fault)
