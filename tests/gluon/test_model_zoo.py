"""The model zoo: MXNet 1.9.1's names, files and outputs (recorded by tests/fixtures/record_zoo.py)."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest

import flowmx as mx
from flowmx.gluon.model_zoo import model_store, vision
from tests.fixtures import record_zoo
from tests.fixtures.record_zoo import FAMILIES, FILE, MODELS

RECORDED = json.loads(FILE.read_text())
NAMES = [pytest.param(name, marks=() if name in FAMILIES else pytest.mark.soak) for name in MODELS]
SMALL = [name for name in FAMILIES if name.startswith(("resnet18", "mobilenet", "squeezenet1.1"))]


def check(output, name):
    expected = np.array(RECORDED[name]["output"])
    np.testing.assert_allclose(output.asnumpy()[0], expected, rtol=1e-5, atol=1e-5 * max(1, np.abs(expected).max()))


@pytest.mark.parametrize("name", NAMES)
def test_a_model_has_mxnets_names_and_outputs(name):
    net, data = record_zoo.made(mx, name)
    assert record_zoo.described(net) == RECORDED[name]["digests"]
    net.hybridize()
    check(net(data), name)


@pytest.mark.parametrize("name", SMALL)
def test_a_model_computes_the_same_without_hybridize(name):
    net, data = record_zoo.made(mx, name)
    check(net(data), name)


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in SMALL else pytest.mark.soak) for n in MODELS])
def test_a_model_is_exported_and_imported(name, tmp_path):
    net, data = record_zoo.made(mx, name, hybridize=True)
    expected = net(data).asnumpy()
    symbol, params = net.export(tmp_path / "model")
    imported = mx.gluon.SymbolBlock.imports(symbol, ["data"], params)
    np.testing.assert_allclose(imported(data).asnumpy(), expected, rtol=1e-6)


def test_every_model_has_a_function_and_a_name():
    assert sorted(vision._MODELS) == sorted(MODELS)
    assert vision.resnet34_v2.__name__ == "resnet34_v2"
    assert "ResNet v2 with 34 layers" in (vision.resnet34_v2.__doc__ or "")


def test_an_unknown_model_is_refused_with_a_list():
    with pytest.raises(ValueError, match=r"no model 'resnet19_v1', only .*resnet18_v1"):
        vision.get_model("resnet19_v1")
    for make in (
        lambda: vision.get_resnet(3, 18), lambda: vision.get_vgg(12), lambda: vision.SqueezeNet("2.0"),
        lambda: vision.densenet.get_densenet(7), lambda: vision.ResNetV1(vision.BasicBlockV1, [1], [3]),
        lambda: vision.VGG([1], [1, 2]),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="expected"):
            make()


@pytest.mark.usefixtures("offline")
def test_weights_come_from_a_local_file(tmp_path):
    net = vision.mobilenet0_25(classes=7)
    net.initialize()
    x = mx.nd.ones((1, 3, 32, 32))
    expected = net(x).asnumpy()
    with pytest.raises(
        FileNotFoundError, match=r"neither at .*mobilenet0.25-9f83e440.params nor at .*mobilenet0.25.params"
    ):
        vision.mobilenet0_25(classes=7, pretrained=True, root=tmp_path)
    net.save_parameters(tmp_path / "mobilenet0.25.params")
    loaded = vision.get_model("mobilenet0.25", classes=7, pretrained=True, root=tmp_path)
    np.testing.assert_array_equal(loaded(x).asnumpy(), expected)


@pytest.mark.usefixtures("offline")
def test_a_file_with_mxnets_hash_in_its_name_must_have_it(tmp_path, monkeypatch):
    net = vision.squeezenet1_1(classes=2)
    net.initialize()
    net(mx.nd.ones((1, 3, 224, 224)))
    file = tmp_path / f"squeezenet1.1-{model_store.short_hash('squeezenet1.1')}.params"
    net.save_parameters(file)
    with (
        pytest.warns(UserWarning, match="not the file that MXNet published"),
        pytest.raises(FileNotFoundError, match="could not be downloaded"),
    ):
        vision.squeezenet1_1(classes=2, pretrained=True, root=tmp_path)
    digest = hashlib.sha1(file.read_bytes(), usedforsecurity=False).hexdigest()
    monkeypatch.setitem(model_store._model_sha1, "squeezenet1.1", digest)
    file.rename(tmp_path / f"squeezenet1.1-{digest[:8]}.params")
    loaded = vision.squeezenet1_1(classes=2, pretrained=True, ctx=mx.cpu(1), root=tmp_path)
    assert loaded.collect_params().list_ctx() == [mx.cpu(1)]


def test_every_model_of_mxnet_has_a_published_hash():
    assert sorted(set(MODELS) - set(model_store._model_sha1)) == []
    with pytest.raises(ValueError, match="no published weights for 'own'"):
        model_store.get_model_file("own")


def test_purge_removes_weights_and_nothing_else(tmp_path):
    for name in ("one.params", "notes.txt"):
        (tmp_path / name).write_text("")
    model_store.purge(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_model_trains():
    mx.random.seed(0)
    net = vision.ResNetV1(vision.BasicBlockV1, [1, 1], [4, 4, 8], classes=3, thumbnail=True)
    net.initialize(mx.init.Xavier())
    net.hybridize()
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    rng = np.random.default_rng(0)
    x, y = mx.nd.array(rng.standard_normal((9, 3, 8, 8))), mx.nd.array(np.arange(9) % 3)
    losses = []
    for _ in range(24):
        with mx.autograd.record():
            loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()(net(x), y)
        loss.backward()
        trainer.step(9)
        losses.append(loss.mean().asscalar())
    assert losses[-1] < 0.5 * losses[0]
