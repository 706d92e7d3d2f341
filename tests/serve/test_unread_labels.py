"""Models that were saved for training and prediction are served without their labels."""

import json

import numpy as np
import pytest

import flowmx as mx
from flowmx.comm.metrics import Metrics
from flowmx.serve import Predictor
from tests.serve.test_http import JSON, Client

IMAGE = np.random.default_rng(0).random((3, 8, 8)).astype(np.float32)


def ssd():
    """Return the detections, and the heads that are trained, of an SSD as MXNet's examples save it."""
    data, label = mx.sym.Variable("data"), mx.sym.Variable("label")
    body = mx.sym.Convolution(data, kernel=(3, 3), pad=(1, 1), num_filter=8, name="c")
    anchors = mx.sym.contrib.MultiBoxPrior(body, sizes=(0.5,), ratios=(1,))
    classes = mx.sym.Convolution(body, kernel=(1, 1), num_filter=2, name="k")
    classes = mx.sym.Reshape(mx.sym.transpose(classes, axes=(0, 2, 3, 1)), shape=(0, -1, 2)).transpose((0, 2, 1))
    places = mx.sym.Convolution(body, kernel=(1, 1), num_filter=4, name="l")
    places = mx.sym.Flatten(mx.sym.transpose(places, axes=(0, 2, 3, 1)))
    targets, mask, target = mx.sym.contrib.MultiBoxTarget(anchors, label, classes)
    options = {"multi_output": True, "use_ignore": True, "ignore_label": -1}
    prob = mx.sym.SoftmaxOutput(classes, target, name="cls_prob", **options)
    loss = mx.sym.MakeLoss(mx.sym.smooth_l1(mask * (places - targets), scalar=1.0), name="loc_loss")
    return mx.sym.contrib.MultiBoxDetection(prob, places, anchors, name="detection"), loss


def parameters(symbol):
    shapes, _, _ = symbol.infer_shape(data=(1, 3, 8, 8), label=(1, 1, 5))
    named = zip(symbol.list_arguments(), shapes, strict=True)
    return {n: mx.nd.ones(s) * 0.1 for n, s in named if n not in ("data", "label")}


@pytest.mark.parametrize("saved", [False, True])
async def test_an_ssd_detects_without_a_label(saved, tmp_path):
    detection, _ = ssd()
    params = parameters(detection)
    arguments = {**params, "data": mx.nd.array(IMAGE[None]), "label": mx.nd.zeros((1, 1, 5))}
    (expected,) = detection.bind(mx.cpu(), arguments).forward()
    await expected
    model, options = detection, {"params": params}
    if saved:
        mx.model.save_checkpoint(str(tmp_path / "model"), 0, detection, params, {})
        model, options = tmp_path, {}
    async with Client(Predictor(model, shape=(3, 8, 8), max_batch=2, metrics=Metrics(), **options)) as ask:
        body = json.dumps([IMAGE.tolist()] * 2).encode()
        status, _, answer = await ask("POST", "/predict", body, Content_Type=JSON)
        assert status == 200, answer
        actual = np.array(json.loads(answer)["outputs"])
        assert actual.shape == (2, 64, 6)
        for row in actual:
            np.testing.assert_allclose(row, expected.asnumpy()[0], rtol=1e-4, atol=1e-5)


async def test_outputs_that_need_a_label_say_so():
    group = mx.sym.Group(list(ssd()))
    predictor = Predictor(group, params=parameters(group), shape=(3, 8, 8), max_batch=1, metrics=Metrics())
    expected = "detection_output, loc_loss_output read label, whose shape is unknown: serve the outputs"
    with pytest.raises(ValueError, match=expected):
        await predictor.ready()
    shapes = {"data": (3, 8, 8), "label": (1, 5)}
    async with Predictor(group, params=parameters(group), shape=shapes, max_batch=1, metrics=Metrics()) as predictor:
        detections, loss = await predictor({"data": IMAGE, "label": np.zeros((1, 5), np.float32)})
    assert (detections.shape, loss.shape) == ((64, 6), (256,))


async def test_a_label_that_another_layer_reads_is_zero_and_names_stay_unique():
    data, label = mx.sym.Variable("data"), mx.sym.Variable("label")
    scores = mx.sym.FullyConnected(data + mx.sym.Variable("s_label"), num_hidden=2, no_bias=True, name="fc")
    first = mx.sym.SoftmaxOutput(scores, label * 2, name="s")
    symbol = mx.sym.SoftmaxOutput(mx.sym.log(first), label + 1, name="t")
    params = {"fc_weight": mx.nd.array([[1.0, 0], [0, 1]]), "s_label": mx.nd.array([[1.0, 0]])}
    for options in ({}, {"shape": {"data": (2,), "label": ()}}):
        options = {"shape": (2,), "params": params, "max_batch": 1, "metrics": Metrics(), **options}
        async with Predictor(symbol, **options) as predictor:
            inputs = [0.0, 0.0] if len(predictor.inputs.specs) == 1 else {"data": [0.0, 0.0], "label": 1.0}
            np.testing.assert_allclose(await predictor(inputs), [0.7310586, 0.2689414], rtol=1e-5)
