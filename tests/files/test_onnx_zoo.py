"""The vision models written as ONNX: onnxruntime's outputs, for one image and for several, and read back."""

import numpy as np
import pytest

import flowmx as mx
from flowmx.contrib import onnx as mxonnx
from tests.fixtures import record_zoo
from tests.onnx_round import close, runtime

SHORT = ["resnet18_v1", "resnet18_v2", "squeezenet1.1", "mobilenet0.25", "mobilenetv2_0.25"]
SOAKED = [pytest.param(name, marks=() if name in SHORT else pytest.mark.soak) for name in record_zoo.MODELS]


@pytest.mark.parametrize("name", SOAKED)
def test_a_model_written_as_onnx_computes_the_same(name, tmp_path):
    net, data = record_zoo.made(mx, name, hybridize=True)
    net(data)
    one = data.asnumpy()
    several = np.concatenate([one, one[:, :, ::-1] * 0.5, one + 1])
    expected = [net(mx.nd.array(images)).asnumpy() for images in (one, several)]
    symbol, params = net.export(tmp_path / "model")
    path = mx.onnx.export_model(
        str(symbol), str(params), [one.shape], np.float32, str(tmp_path / "model.onnx"), dynamic=True,
        dynamic_input_shapes=[(None, *one.shape[1:])],
    )  # fmt: skip
    back = mxonnx.import_to_gluon(path, mx.cpu())
    for images, right in zip((one, several), expected, strict=True):
        close(runtime(path, {"data": images})[0], right, "onnxruntime's output")
        close(back(mx.nd.array(images)).asnumpy(), right, "the output of what was read back")
    metadata = mxonnx.get_model_metadata(path)
    assert metadata["input_tensor_data"] == [("data", (0, *one.shape[1:]))]
    assert [shape for _, shape in metadata["output_tensor_data"]] == [(0, 10)]


def test_the_imported_network_keeps_parameter_names_and_can_be_trained(tmp_path):
    net, data = record_zoo.made(mx, "mobilenet0.25", hybridize=True)
    net(data)
    symbol, params = net.export(tmp_path / "model")
    path = mxonnx.export_model(str(symbol), str(params), [data.shape], onnx_file_path=str(tmp_path / "model.onnx"))
    _, arguments, auxiliary = mxonnx.import_model(path)
    assert set(arguments) | set(auxiliary) == set(net.collect_params())
    assert set(auxiliary) == {name for name in net.collect_params() if "running" in name}
    block = mxonnx.import_to_gluon(path, mx.cpu())
    trainer = mx.gluon.Trainer(block.collect_params(), "sgd", {"learning_rate": 0.01})
    losses = []
    for _ in range(3):
        with mx.autograd.record():
            loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()(block(data), mx.nd.array([3]))
        loss.backward()
        trainer.step(1)
        losses.append(float(loss.asnumpy()[0]))
    assert losses[-1] < losses[0]
