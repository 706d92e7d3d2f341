"""Anchors of detection networks, compared with MXNet 1.9.1 (``fixtures/anchors.json``)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import flowmx as mx
from flowmx.errors import ParameterError, ShapeError
from tests.fixtures.record_anchors import cases

EXPECTED = json.loads((Path(__file__).parent.parent / "fixtures" / "anchors.json").read_text())


def test_anchors_match_mxnet():
    results = cases(mx)
    assert results.keys() == EXPECTED.keys()
    for name, arrays in results.items():
        for array, expected in zip(arrays, EXPECTED[name], strict=True):
            np.testing.assert_allclose(array.asnumpy(), expected, rtol=1e-4, atol=1e-5, err_msg=name)


def test_a_network_with_anchors_is_bound_and_trained():
    data = mx.sym.var("data")
    anchors = mx.sym.contrib.MultiBoxPrior(data, sizes=(0.5,), name="anchors")
    classes = mx.sym.reshape(mx.sym.Convolution(data, kernel=(1, 1), num_filter=2, name="classes"), shape=(0, 2, -1))
    target = mx.sym.contrib.MultiBoxTarget(anchors, mx.sym.var("label"), classes, name="target")
    assert target.list_outputs() == ["target_loc_target", "target_loc_mask", "target_cls_target"]
    loss = mx.sym.SoftmaxOutput(classes, target[2], multi_output=True)
    executor = loss.simple_bind(mx.cpu(), data=(1, 3, 2, 2), label=(1, 1, 5))
    executor.arg_dict["label"][:] = mx.nd.array([[[0, 0, 0, 0.5, 0.5]]])
    executor.forward(is_train=True)
    executor.backward()
    gradient = executor.grad_dict["classes_bias"].asnumpy()
    assert gradient.tolist() == [-0.25, 0.25]  # one of four anchors is an object, each class has probability 1/2


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda c: c.MultiBoxPrior(mx.nd.ones((1, 2, 3))), ShapeError, "expected 4 axes"),
        (lambda c: c.MultiBoxPrior(mx.nd.ones((1, 1, 3, 3)), steps=(0.1,)), ParameterError, "expected 2 numbers"),
        (lambda c: c.MultiBoxPrior(mx.nd.ones((1, 1, 3, 3)), offsets=(2, 0)), ParameterError, "from 0 to 1"),
        (lambda c: c.MultiBoxTarget(mx.nd.ones((1, 3, 4)), mx.nd.ones((1, 2, 4)), mx.nd.ones((1, 2, 3))),
         ShapeError, "expected a class and 4 coordinates"),
        (lambda c: c.MultiBoxDetection(mx.nd.ones((1, 2, 3)), mx.nd.ones((1, 12)), mx.nd.ones((1, 4, 4))),
         ShapeError, "different numbers of anchors"),
    ],
)  # fmt: skip
def test_mismatched_inputs_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        call(mx.nd.contrib)


def test_without_anchors_there_are_no_targets():
    targets = mx.nd.contrib.MultiBoxTarget(mx.nd.ones((1, 0, 4)), mx.nd.ones((2, 1, 5)), mx.nd.ones((2, 3, 0)))
    assert [each.shape for each in targets] == [(2, 0)] * 3
