"""Gluon's names, files, texts and values are those of MXNet 1.9.1 (recorded by tests/fixtures/record_gluon.py)."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

import flowmx as mx
from benchmarks.turns import python_of
from tests import peers
from tests.fixtures import record_gluon
from tests.fixtures.record_gluon import FOLDER, NETWORKS, flat

MXNET = python_of("mxnet")
IMPORT = """
import sys
import mxnet as mx
from tests.fixtures.record_gluon import NETWORKS, flat
prefix, network = sys.argv[1:]
inputs = flat(NETWORKS[network](mx)[1])
names = ["data"] if len(inputs) == 1 else ["data%d" % i for i in range(len(inputs))]
block = mx.gluon.SymbolBlock.imports(prefix + "-symbol.json", names, prefix + "-0000.params")
mx.nd.save(prefix + "-mxnet.params", flat(block(*inputs)))
"""
NAMES = json.loads((FOLDER / "names.json").read_text())


@pytest.fixture(params=NETWORKS)
def network(request):
    return request.param


def compute_outputs(net, inputs):
    return [output.asnumpy() for output in flat(net(*inputs))]


def check_outputs(network, net, inputs):
    expected = mx.nd.load(str(FOLDER / f"{network}-outputs.params"))
    actual = compute_outputs(net, inputs)
    assert len(actual) == len(expected)
    for ours, theirs in zip(actual, expected, strict=True):
        np.testing.assert_allclose(ours, theirs.asnumpy(), atol=2e-6, rtol=1e-5)


def test_parameters_have_mxnets_names_and_shapes(network):
    net, inputs = NETWORKS[network](mx)
    net.initialize()
    net(*inputs)
    shapes = {name: list(param.shape) for name, param in net.collect_params().items()}
    assert shapes == NAMES[network]["params"]
    assert list(shapes) == list(NAMES[network]["params"])


def test_the_repr_of_a_block_matches_mxnet():
    net, inputs = NETWORKS["conv"](mx)
    net.initialize()
    net(*inputs)
    assert repr(net) == NAMES["conv"]["text"]


@pytest.mark.parametrize("file", ["block", "full"])
@pytest.mark.parametrize("hybridized", [False, True])
def test_loads_mxnets_files_and_computes_the_same(network, file, hybridized):
    net, inputs = NETWORKS[network](mx)
    net.load_parameters(FOLDER / f"{network}-{file}.params")
    net.hybridize(hybridized)
    check_outputs(network, net, inputs)


def test_saves_the_same_files_as_mxnet(network, tmp_path):
    net, inputs = NETWORKS[network](mx)
    net.load_parameters(FOLDER / f"{network}-block.params")
    net.hybridize()
    net(*inputs)
    net.save_parameters(tmp_path / f"{network}-block.params")
    net.collect_params().save(tmp_path / f"{network}-full.params")
    net.export(tmp_path / network)
    for file in ("block.params", "full.params"):
        assert (tmp_path / f"{network}-{file}").read_bytes() == (FOLDER / f"{network}-{file}").read_bytes()
    ours, theirs = (mx.nd.load(str(folder / f"{network}-0000.params")) for folder in (tmp_path, FOLDER))
    assert ours.keys() == theirs.keys()


def test_exported_graphs_match_mxnet(network, tmp_path):
    net, inputs = NETWORKS[network](mx)
    net.load_parameters(FOLDER / f"{network}-block.params")
    net.hybridize()
    net(*inputs)
    net.export(tmp_path / network)
    ours, theirs = (mx.sym.load(str(folder / f"{network}-symbol.json")) for folder in (tmp_path, FOLDER))
    assert ours.list_arguments() == theirs.list_arguments()
    assert ours.list_auxiliary_states() == theirs.list_auxiliary_states()
    assert ours.list_outputs() == theirs.list_outputs()
    if network == "conv":  # a GRU is composed of fewer operators here
        assert ours.get_internals().list_outputs() == theirs.get_internals().list_outputs()
        operators = {name: attrs for name, attrs in theirs.attr_dict().items() if name not in theirs.list_inputs()}
        assert {name: ours.attr_dict()[name] for name in operators} == operators


def test_imports_models_exported_by_mxnet(network):
    _, inputs = NETWORKS[network](mx)
    flattened = flat(inputs)
    names = ["data"] if len(flattened) == 1 else [f"data{i}" for i in range(len(flattened))]
    block = mx.gluon.SymbolBlock.imports(FOLDER / f"{network}-symbol.json", names, FOLDER / f"{network}-0000.params")
    check_outputs(network, block, flattened)


@pytest.mark.parametrize("index", range(len(NAMES["losses"])))
@pytest.mark.parametrize("hybridized", [False, True])
def test_losses_match_mxnet(index, hybridized):
    loss, pred, label = record_gluon.losses(mx)[index]
    loss.hybridize(hybridized)
    actual = [loss(pred, label).asnumpy(), loss(pred, label, record_gluon.sample_weight(mx)).asnumpy()]
    np.testing.assert_allclose(actual, NAMES["losses"][index], rtol=1e-5)


@pytest.mark.skipif(MXNET is None, reason="no MXNet 1.9.1 environment under PEERS")
def test_mxnet_imports_exported_models(network, tmp_path):
    net, inputs = NETWORKS[network](mx)
    net.load_parameters(FOLDER / f"{network}-block.params")
    net.hybridize()
    expected = compute_outputs(net, inputs)
    net.export(tmp_path / network)
    assert MXNET is not None
    subprocess.run(
        [MXNET, "-c", IMPORT, str(tmp_path / network), network], check=True, capture_output=True, timeout=100,
        cwd=Path(__file__).parent.parent.parent, env=peers.environment(),
    )  # fmt: skip
    actual = mx.nd.load(str(tmp_path / f"{network}-mxnet.params"))
    for ours, theirs in zip(expected, actual, strict=True):
        np.testing.assert_allclose(theirs.asnumpy(), ours, atol=2e-6, rtol=1e-5)
