"""Symbols and arrays of older MXNet versions, back to 0.8, are read as MXNet 1.9.1 reads them."""

from __future__ import annotations

import json

import numpy as np
import pytest

import flowmx as mx
from flowmx.serialization import params
from tests.fixtures import record_legacy as recorded
from tests.fixtures import record_networks as networks
from tests.rows import rows

CASES = recorded.cases()
DIGESTS = json.loads(recorded.FILE.read_text())


def test_every_recorded_file_has_a_case():
    assert sorted(CASES) == sorted(DIGESTS)


@rows("name", CASES, of=lambda name: name.partition("-")[0])
def test_is_converted_to_the_same_text_as_by_mxnet(name):
    assert recorded.digest(mx.sym.load_json(CASES[name]).tojson()) == DIGESTS[name]


@pytest.mark.parametrize("version", recorded.VERSIONS)
def test_an_old_checkpoint_computes_the_same_as_the_new_one(version, tmp_path):
    stored = np.load(networks.FILE)
    shapes = json.loads(stored["inception_bn/shapes"].tobytes())
    arrays = {key: networks.value("inception_bn", key.partition(":")[2], shape) for key, shape in shapes.items()}
    params.save(tmp_path / "net-0003.params", arrays)
    (tmp_path / "net-symbol.json").write_text(CASES[f"inception_bn-{version}"])
    checkpoint = mx.model.load_checkpoint(str(tmp_path / "net"), 3)
    (actual,) = networks.predict(mx, *checkpoint, networks.given("inception_bn"))
    np.testing.assert_allclose(actual, stored["inception_bn/output0"], atol=1e-5)


@pytest.mark.parametrize("file", ["net-symbol.json", "net-0003.params"])
@pytest.mark.parametrize("part", [0, 0.01, 0.3, 0.9, 0.999])
def test_a_truncated_checkpoint_is_refused_by_name(file, part, tmp_path):
    arrays = {"arg:conv_weight": np.ones((4, 3, 3, 3), np.float32), "aux:bn_moving_var": np.ones(4, np.float32)}
    params.save(tmp_path / "net-0003.params", arrays)
    (tmp_path / "net-symbol.json").write_text(CASES["old_network"])
    whole = (tmp_path / file).read_bytes()
    (tmp_path / file).write_bytes(whole[: int(len(whole) * part)])
    with pytest.raises(mx.MXNetError, match=file):
        mx.model.load_checkpoint(str(tmp_path / "net"), 3)


def test_unsupported_operators_of_mxnet_s_numpy_are_refused_by_name():
    text = CASES["old_reductions"].replace('"argmin"', '"_npi_multinomial"')
    with pytest.raises(
        mx.MXNetError, match="node 'worst' of the loaded symbol: there is no operator '_npi_multinomial'"
    ):
        mx.sym.load_json(text)


def test_groups_of_devices_and_factors_of_0_8_are_heeded():
    symbol = mx.sym.load_json(CASES["old_network"])
    attributes = symbol.attr_dict()
    assert attributes["conv_weight"] == {
        "__ctx_group__": "stage1", "__lr_mult__": "2", "__wd_mult__": "0.1", "ctx_group": "stage1", "lr_mult": "2",
        "wd_mult": "0.1",
    }  # fmt: skip
    assert attributes["conv_bias"]["__wd_mult__"] == "0"
    assert attributes["fc_weight"]["__force_mirroring__"] == "True"
    assert symbol.list_auxiliary_states() == ["bn_moving_mean", "bn_moving_var"]
    arguments, outputs, _ = symbol.infer_shape(data=(2, 3, 7, 7))
    assert arguments[symbol.list_arguments().index("fc_weight")] == (5, 4 * 4 * 4)  # the pool rounds up
    assert outputs == [(2, 5)]


def test_states_missing_from_a_0_8_file_are_initialized_as_in_mxnet():
    module = mx.mod.Module(mx.sym.load_json(CASES["old_network"]), context=mx.cpu())
    module.bind([("data", (2, 3, 8, 8))], [("softmax_label", (2,))])
    module.init_params(mx.init.Xavier())
    states = module.get_params()[1]
    np.testing.assert_array_equal(states["bn_moving_mean"].asnumpy(), 0)
    np.testing.assert_array_equal(states["bn_moving_var"].asnumpy(), 1)


def test_slopes_of_prelu_are_initialized_to_a_quarter():
    net = mx.sym.LeakyReLU(mx.sym.var("data"), act_type="prelu", name="relu")
    module = mx.mod.Module(net, label_names=None, context=mx.cpu())
    module.bind([("data", (2, 3))], for_training=False)
    module.init_params(mx.init.Xavier())
    np.testing.assert_array_equal(module.get_params()[0]["relu_gamma"].asnumpy(), 0.25)


def test_a_variable_with_an_initializer_is_unchanged():
    gamma = mx.sym.var("gamma", init=mx.init.One())
    mx.sym.LeakyReLU(mx.sym.var("data"), gamma, act_type="prelu")
    assert gamma.attr("__init__") == mx.init.One().dumps()
