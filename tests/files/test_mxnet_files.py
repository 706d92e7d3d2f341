"""Files written by MXNet 1.9.1 load with the same meaning, and flowmx writes the same files as MXNet."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import flowmx as mx

FOLDER = Path(__file__).parent.parent / "fixtures" / "mxnet"
NETWORKS = ("mlp", "lenet", "resnet")
INFERRED = json.loads((FOLDER / "inferred.json").read_text())


@pytest.fixture(params=NETWORKS)
def network(request):
    return request.param


def load(network):
    symbol = mx.sym.load(FOLDER / f"{network}-symbol.json")
    arrays = mx.nd.load(str(FOLDER / f"{network}-0001.params"))
    return symbol, arrays, np.load(FOLDER / f"{network}-io.npz")


def bind(symbol, arrays, data):
    executor = symbol.simple_bind(mx.cpu(), grad_req="null", data=data.shape)
    executor.copy_params_from(
        {key[4:]: value for key, value in arrays.items() if key.startswith("arg:")},
        {key[4:]: value for key, value in arrays.items() if key.startswith("aux:")},
    )
    return executor


def test_predicts_as_mxnet_did(network):
    symbol, arrays, io = load(network)
    executor = bind(symbol, arrays, io["data"])
    output = executor.forward(data=io["data"])[0].asnumpy()
    np.testing.assert_allclose(output, io["output"], atol=1e-5, rtol=1e-5)


def test_symbol_is_written_back_byte_for_byte(network):
    text = (FOLDER / f"{network}-symbol.json").read_text()
    assert mx.sym.load_json(text).tojson() == text


def test_parameters_are_written_back_byte_for_byte(network, tmp_path):
    _, arrays, _ = load(network)
    mx.nd.save(str(tmp_path / "again.params"), arrays)
    assert (tmp_path / "again.params").read_bytes() == (FOLDER / f"{network}-0001.params").read_bytes()


def test_names_and_shapes_are_those_of_mxnet(network):
    expected = INFERRED[network]
    symbol = mx.sym.load(FOLDER / f"{network}-symbol.json")
    assert symbol.list_arguments() == expected["arguments"]
    assert symbol.list_auxiliary_states() == expected["auxiliary_states"]
    assert symbol.list_outputs() == expected["outputs"]
    assert symbol.get_internals().list_outputs() == expected["internals"]
    shapes = {name: tuple(shape) for name, shape in expected["input_shapes"].items()}
    arguments, outputs, auxiliary = symbol.infer_shape(**shapes)
    assert [list(s) for s in arguments] == expected["arg_shapes"]
    assert [list(s) for s in outputs] == expected["out_shapes"]
    assert [list(s) for s in auxiliary] == expected["aux_shapes"]
    internals = symbol.get_internals().infer_shape(**shapes)[1]
    assert [list(s) for s in internals] == expected["internal_shapes"]


@pytest.mark.parametrize("name", sorted(json.loads((FOLDER / "symbols.json").read_text())))
def test_recorded_symbols_survive_a_round_trip(name):
    text = json.loads((FOLDER / "symbols.json").read_text())[name]
    assert mx.sym.load_json(text).tojson() == text


def test_a_symbol_composed_here_is_the_text_that_mxnet_writes():
    with mx.name.NameManager():
        data = mx.sym.Variable("data")
        conv1 = mx.sym.Convolution(data=data, kernel=(5, 5), num_filter=20, name="conv1")
    text = json.loads(conv1.tojson())
    assert text["nodes"][1]["attrs"] == {"kernel": "(5, 5)", "num_filter": "20"}
    assert [node["name"] for node in text["nodes"]] == ["data", "conv1_weight", "conv1_bias", "conv1"]


def test_unknown_operator_is_named_with_its_node():
    text = mx.sym.exp(mx.sym.Variable("x"), name="here").tojson().replace('"exp"', '"expo"')
    with pytest.raises(mx.MXNetError, match=r"'here'.*no operator 'expo'.*'exp'"):
        mx.sym.load_json(text)
