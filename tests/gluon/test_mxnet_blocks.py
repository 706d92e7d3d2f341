"""Blocks and losses have MXNet 1.9.1's names, reprs and values (recorded by tests/fixtures/record_blocks.py)."""

from __future__ import annotations

import json

import numpy as np
import pytest

import flowmx as mx
from tests.fixtures import record_blocks
from tests.fixtures.record_blocks import CASES, FILE

RECORDED = json.loads(FILE.read_text())
LOSSES = record_blocks.losses(mx)


@pytest.fixture(params=[name for name in CASES if name in RECORDED])
def case(request):
    return request.param


def test_only_cases_that_mxnet_cannot_compute_on_the_cpu_are_not_recorded():
    assert set(CASES) - set(RECORDED) == {"batch_norm_relu", "modulated"}


def test_names_shapes_and_reprs_match_mxnet(case):
    block, *_ = record_blocks.made(mx, case)
    recorded = RECORDED[case]
    assert [(key, list(param.shape)) for key, param in block.collect_params().items()] == list(
        recorded["params"].items()
    )
    assert sorted(block._collect_params_with_prefix()) == recorded["files"]
    assert repr(block) == recorded["text"]


@pytest.mark.parametrize("hybridized", [False, True])
def test_outputs_and_gradients_match_mxnet(case, hybridized):
    block, x, call = record_blocks.made(mx, case)
    if hybridized:
        block.hybridize()
    values, shapes = record_blocks.computed(mx, x, call)
    assert [list(shape) for shape in shapes] == RECORDED[case]["shapes"]
    for ours, theirs in zip(values, RECORDED[case]["values"], strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", LOSSES)
def test_losses_match_mxnet(name):
    loss, arguments = LOSSES[name]
    for hybridized in (False, True):
        loss.hybridize(hybridized)
        np.testing.assert_allclose(loss(*arguments).asnumpy().ravel(), RECORDED["losses"][name], rtol=1e-5, atol=1e-6)


def test_a_batch_norm_with_a_relu_matches_both_layers():
    block, x, call = record_blocks.made(mx, "batch_norm_relu")
    plain = mx.gluon.nn.BatchNorm(params=block.params)
    np.testing.assert_allclose(call().asnumpy(), mx.nd.relu(plain(x)).asnumpy(), rtol=1e-6)
    values, _ = record_blocks.computed(mx, x, call)
    expected, _ = record_blocks.computed(mx, x, lambda: mx.nd.relu(plain(x)))
    for ours, theirs in zip(values, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_a_modulated_convolution_without_offsets_is_a_convolution():
    block, x, call = record_blocks.made(mx, "modulated")
    for name, param in block.collect_params().items():
        if "offset" in name:
            param.set_data(mx.nd.zeros(param.shape))  # then every factor is 1
    conv = mx.gluon.nn.Conv2D(3, 3, padding=1, in_channels=2)
    conv.initialize()
    conv.weight.set_data(block.deformable_conv_weight.data())
    conv.bias.set_data(block.deformable_conv_bias.data())
    np.testing.assert_allclose(call().asnumpy(), conv(x).asnumpy(), rtol=1e-5, atol=1e-6)


def test_every_name_of_mxnet_exists():
    names = RECORDED["names"]
    for module, expected in names.items():
        namespace = mx
        for part in module.split("."):
            namespace = getattr(namespace, part)
        assert [name for name in expected if not hasattr(namespace, name)] == []
