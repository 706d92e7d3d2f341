"""PyTorch modules: the written source, the state dict, and refusals."""

import ast

import numpy as np
import pytest

import flowmx as mx
from flowmx import cli
from flowmx.serialization import safetensors
from flowmx.source_code import Unsupported
from tests.source_code.networks import parameters, small_network, source_of, zoo

SMALL = '''"""A network for PyTorch, written by flowmx.

    model = Small()
    model.load_state_dict(safetensors.torch.load_file("small.safetensors"))
"""

import torch.nn.functional as F
from torch import nn


class ResidualUnit(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(8, 8, kernel_size=3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(8, eps=0.001)

    def forward(self, x):
        return F.relu(self.bn(self.conv(x))) + x


class Small(nn.Module):
    """Inputs: data (n, 3, 9, 9). Outputs: softmax_output."""

    def __init__(self):
        super().__init__()
        self.conv0 = nn.Conv2d(3, 8, kernel_size=3)
        self.blocks = nn.Sequential(*[ResidualUnit() for _ in range(3)])
        self.drop = nn.Dropout(0.2)
        self.fc1 = nn.Linear(128, 5)

    def forward(self, data):
        x = self.conv0(data)
        x = self.drop(F.max_pool2d(self.blocks(x), 2, 2, ceil_mode=True))
        return F.softmax(self.fc1(x.flatten(1)), dim=1)  # to train, pass the input of softmax to F.cross_entropy
'''
SHAPES = {"data": (2, 3, 9, 9)}


def test_the_source_of_a_small_network():
    assert source_of(small_network(), SHAPES, name="Small", file="small.safetensors").text == SMALL


def test_the_state_dict_has_the_arrays_under_the_names_of_the_layers():
    arrays = parameters(small_network(), SHAPES)
    state = source_of(small_network(), SHAPES, arrays).state_dict()
    assert set(state) == {
        "conv0.weight", "conv0.bias", "fc1.weight", "fc1.bias",
        *(f"blocks.{i}.conv.weight" for i in range(3)),
        *(f"blocks.{i}.bn.{name}" for i in range(3) for name in ("weight", "bias", "running_mean", "running_var")),
    }  # fmt: skip
    np.testing.assert_array_equal(state["blocks.1.conv.weight"], arrays["unit2_conv_weight"].asnumpy())
    np.testing.assert_array_equal(state["blocks.2.bn.running_var"], arrays["unit3_bn_moving_var"].asnumpy())


def test_a_resnet_50_has_fewer_than_120_lines():
    source = source_of(*zoo("resnet50_v1", 64))
    assert source.text.count("\n") < 120
    assert [node.name for node in ast.parse(source.text).body if isinstance(node, ast.ClassDef)] == [
        "ProjectedBottleneck", "Bottleneck", "Network"
    ]  # fmt: skip
    assert "self.stage3 = nn.Sequential(" in source.text
    assert "*[Bottleneck(1024, 256) for _ in range(5)]," in source.text


def test_written_modules_import_only_torch():
    source = source_of(small_network(), SHAPES)
    imports = [node for node in ast.walk(ast.parse(source.text)) if isinstance(node, (ast.Import, ast.ImportFrom))]
    assert {ast.unparse(node) for node in imports} == {"import torch.nn.functional as F", "from torch import nn"}


def test_the_gamma_that_is_fixed_stays_1():
    data = mx.sym.BatchNorm(mx.sym.var("data"), name="bn", momentum=0.8, eps=2e-5)
    source = source_of(data, {"data": (2, 3, 4, 4)})
    assert "self.bn = fix_gamma(nn.BatchNorm2d(3, eps=2e-05, momentum=0.2))" in source.text
    assert "def fix_gamma(norm):" in source.text
    np.testing.assert_array_equal(source.state_dict()["bn.weight"], [1, 1, 1])


def test_layers_that_share_parameters_are_one_layer():
    data, weight, bias = mx.sym.var("data"), mx.sym.var("w"), mx.sym.var("b")
    first = mx.sym.FullyConnected(data, weight, bias, num_hidden=4, name="one")
    second = mx.sym.FullyConnected(mx.sym.tanh(first), weight, bias, num_hidden=4, name="two")
    source = source_of(second, {"data": (2, 4)})
    assert source.text.count("nn.Linear(") == 1
    assert source.text.count("self.one(") == 2
    assert set(source.state) == {"one.weight", "one.bias"}


def test_an_operator_without_code_is_refused_by_name():
    data = mx.sym.khatri_rao(mx.sym.var("data"), mx.sym.var("data"), name="products")
    with pytest.raises(
        Unsupported, match=r"written for PyTorch:\n  'products' \(khatri_rao\): the operator has no code"
    ):
        source_of(data, {"data": (2, 4)})


@pytest.fixture
def checkpoint(tmp_path):
    """Save the small network, and return its prefix."""
    arrays = parameters(small_network(), SHAPES)
    states = {name: array for name, array in arrays.items() if "moving" in name}
    arguments = {name: array for name, array in arrays.items() if name not in states}
    mx.model.save_checkpoint(str(tmp_path / "small"), 0, small_network(), arguments, states)
    return tmp_path / "small"


def test_the_command_writes_a_module_and_its_parameters(checkpoint, capsys):
    target = checkpoint.parent / "small.py"
    assert cli.main(["convert", str(checkpoint), str(target), "--to", "torch", "--shape", "3,9,9"]) == 0
    assert target.read_text() == SMALL
    assert "fc1.weight" in safetensors.load(checkpoint.parent / "small.safetensors")
    assert f"{target} (34 lines)" in capsys.readouterr().out


def test_the_command_needs_the_name_of_a_module(checkpoint, capsys):
    assert cli.main(["convert", str(checkpoint), "small", "--to", "torch", "--shape", "3,9,9"]) == 1
    assert "expected a name that ends with .py" in capsys.readouterr().err


def test_the_command_writes_a_gluon_block_that_computes_the_same(checkpoint, capsys):
    target = checkpoint.parent / "small_block.py"
    assert cli.main(["convert", str(checkpoint), str(target), "--to", "gluon", "--shape", "3,9,9"]) == 0
    assert "self.blocks.add(*[ResidualUnit() for _ in range(3)])" in target.read_text()
    assert "self.conv = nn.Conv2D(8, 3, padding=1, in_channels=8, use_bias=False)" in target.read_text()
    assert "small_block.params: for random inputs, the outputs differ by" in capsys.readouterr().out


def test_the_parameters_of_a_recurrent_layer_are_cut_from_the_vector():
    cell = mx.rnn.FusedRNNCell(4, num_layers=2, mode="lstm", prefix="lstm_")
    outputs, _ = cell.unroll(3, mx.sym.var("data"), layout="TNC", merge_outputs=True)
    shapes = {"data": (3, 2, 5)}
    arrays = parameters(outputs, shapes)
    state = source_of(outputs, shapes, arrays).state_dict()
    vector = next(array for name, array in arrays.items() if name.endswith("parameters")).asnumpy()
    np.testing.assert_array_equal(state["rnn.weight_ih_l0"], vector[:80].reshape(16, 5))
    assert {name.removeprefix("rnn.") for name in state} == {
        f"{kind}_{of}_l{layer}" for kind in ("weight", "bias") for of in ("ih", "hh") for layer in (0, 1)
    }


def test_functions_that_the_module_calls_are_copied_into_it():
    features = mx.sym.Convolution(mx.sym.var("data"), kernel=(1, 1), num_filter=4, name="features")
    anchors = mx.sym.contrib.MultiBoxPrior(features, sizes=(0.2, 0.4), ratios=(1, 2))
    scores = mx.sym.softmax(mx.sym.reshape(features, shape=(0, 4, -1)), axis=1)
    offsets = mx.sym.tile(mx.sym.flatten(features), reps=(1, 3))
    scores = mx.sym.tile(scores, reps=(1, 1, 3))
    net = mx.sym.contrib.MultiBoxDetection(scores, offsets, anchors, name="detection")
    tree = ast.parse(source_of(net, {"data": (2, 3, 5, 5)}).text)
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert [node.name for node in functions] == ["box_anchors", "suppress", "detect_boxes"]
    assert ast.unparse(functions[2].decorator_list[0]) == "torch.no_grad()"


def test_masks_that_all_blocks_read_are_computed_once():
    net = mx.gluon.model_zoo.text.BERT(vocab_size=11, units=8, num_layers=3, num_heads=2, max_length=16)
    names = ["tokens", "token_types", "padding"]
    outputs = mx.sym.Group(list(net(*map(mx.sym.var, names))))
    text = source_of(outputs, dict.fromkeys(names, (2, 6))).text
    assert "nn.ModuleList([TransformerLayer() for _ in range(3)])" in text
    assert text.count("padding.unsqueeze(1)") == 1
    assert "for layer in self.transformerencoder0:" in text
