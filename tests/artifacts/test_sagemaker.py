"""Models of SageMaker's built-in algorithms are served, or refused in one sentence with the reason."""

import json
import tarfile
import zipfile

import numpy as np
import pytest

import flowmx as mx
from flowmx.artifacts import inspect
from flowmx.cli import main


def pack(folder, *files):
    """Return the ``model.tar.gz`` of some files."""
    path = folder / "model.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for file in files:
            archive.add(file, file.name)
    return path


def predict(model, sample, shape=None):
    async def answer():
        async with mx.serve.Predictor(model, shape=shape, max_batch=1) as predictor:
            return await predictor(sample)

    return mx.run(answer())


@pytest.fixture
def k_means(tmp_path):
    """The file of a model, and the centers of its clusters."""
    centers = np.random.RandomState(0).rand(5, 3).astype(np.float32)
    path = tmp_path / "model_algo-1"
    mx.nd.save(str(path), [mx.nd.array(centers)])
    return path, centers


def test_k_means_returns_the_closest_cluster_and_its_distance(k_means, tmp_path):
    file, centers = k_means
    sample = np.array([0.1, 0.9, 0.4], np.float32)
    distances = np.linalg.norm(centers - sample, axis=1)
    for path in (file, pack(tmp_path, file)):
        cluster, distance = predict(path, sample)
        assert cluster == distances.argmin() and distance == pytest.approx(distances.min(), rel=1e-5)
    report = inspect(file)
    assert report.kind == "a model of SageMaker's k-means" and report.facts["clusters"] == "5"
    assert inspect(tmp_path / "model.tar.gz").commands == [f"flowmx serve {tmp_path / 'model.tar.gz'}"]


def test_pca_projects_a_sample(tmp_path):
    draw = np.random.RandomState(1)
    mean, vectors = draw.rand(1, 4).astype(np.float32), draw.rand(4, 2).astype(np.float32)
    arrays = {"mean": mean, "v": vectors, "s": np.ones(2, np.float32)}
    mx.nd.save(str(tmp_path / "model_algo-1"), {name: mx.nd.array(array) for name, array in arrays.items()})
    path = pack(tmp_path, tmp_path / "model_algo-1")
    sample = draw.rand(4).astype(np.float32)
    np.testing.assert_allclose(predict(path, sample), (sample - mean[0]) @ vectors, rtol=1e-5)
    assert main(["convert", str(path), str(tmp_path / "pca.npz"), "--check"]) == 0


def test_lda_names_its_topics_and_says_why_it_is_not_served(tmp_path):
    mx.nd.save(str(tmp_path / "model_algo-1"), [mx.nd.ones((3,)), mx.nd.ones((3, 20))])
    report = inspect(tmp_path / "model_algo-1")
    assert report.kind == "a model of SageMaker's LDA" and report.facts["topics"] == "3"
    assert "is not public" in report.problem


def test_a_linear_learner_needs_no_shape_in_the_report_and_no_label(tmp_path):
    data, label = mx.sym.var("data"), mx.sym.var("out_label")
    score = mx.sym.broadcast_add(mx.sym.dot(data, mx.sym.var("fc0_weight")), mx.sym.var("fc0_bias"))
    symbol = mx.sym.LinearRegressionOutput(score, label)
    arguments = {"fc0_weight": mx.nd.ones((6, 1)), "fc0_bias": mx.nd.ones((1, 1))}
    mx.model.save_checkpoint(str(tmp_path / "mx-mod"), 0, symbol, arguments, {})
    with zipfile.ZipFile(tmp_path / "model_algo-1", "w") as archive:
        for name in ("mx-mod-symbol.json", "mx-mod-0000.params"):
            archive.write(tmp_path / name, name)
        archive.writestr("manifest.json", json.dumps({"mx-mod": "mxnet_module", "version": 1}))
    path = pack(tmp_path, tmp_path / "model_algo-1")
    report = inspect(path)
    assert report.kind == "an archive: a model of a built-in algorithm of SageMaker"
    assert report.commands == [f"flowmx serve {path} --shape 6"]


def test_the_first_of_the_models_that_several_machines_wrote_is_opened(k_means, tmp_path):
    file, _ = k_means
    with zipfile.ZipFile(tmp_path / "zipped", "w") as archive:
        archive.write(file, "arrays")
    names = ["model_algo-1", "model_algo-2"]
    with tarfile.open(tmp_path / "model.tar", "w") as archive:
        for name in names:
            archive.add(file, name)
    cluster, _ = predict(tmp_path / "model.tar", np.zeros(3, np.float32))
    assert 0 <= cluster < 5


def test_the_shape_of_images_is_read_from_the_settings_of_an_object_detector(tmp_path):
    data, label = mx.sym.var("data"), mx.sym.var("label")
    body = mx.sym.Convolution(data, kernel=(3, 3), pad=(1, 1), num_filter=8, name="c")
    anchors = mx.sym.contrib.MultiBoxPrior(body, sizes=(0.5,), ratios=(1,))
    scores = mx.sym.transpose(mx.sym.Convolution(body, kernel=(1, 1), num_filter=2, name="k"), axes=(0, 2, 3, 1))
    scores = mx.sym.transpose(mx.sym.Reshape(scores, shape=(0, -1, 2)), axes=(0, 2, 1))
    boxes = mx.sym.Flatten(mx.sym.transpose(
        mx.sym.Convolution(body, kernel=(1, 1), num_filter=4, name="l"), axes=(0, 2, 3, 1)))  # fmt: skip
    target = mx.sym.contrib.MultiBoxTarget(anchors, label, scores)[2]
    scores = mx.sym.SoftmaxOutput(scores, target, multi_output=True, use_ignore=True, ignore_label=-1)
    symbol = mx.sym.contrib.MultiBoxDetection(scores, boxes, anchors, name="detection")
    shapes, _, _ = symbol.infer_shape(data=(1, 3, 8, 8), label=(1, 1, 5))
    arguments = dict(zip(symbol.list_arguments(), map(mx.nd.ones, shapes), strict=True))
    del arguments["data"], arguments["label"]
    mx.model.save_checkpoint(str(tmp_path / "model_algo_1"), 0, symbol, arguments, {})
    (tmp_path / "hyperparams.json").write_text('{"image_shape": "8", "base_network": "resnet-50"}')
    path = pack(tmp_path, *(tmp_path / f"model_algo_1{end}" for end in ("-symbol.json", "-0000.params")),
                tmp_path / "hyperparams.json")  # fmt: skip
    report = inspect(path)
    assert report.kind == "an archive: a model of SageMaker's object detection"
    assert report.commands == [f"flowmx serve {path} --shape 3,8,8"]
    assert predict(path, np.zeros((3, 8, 8), np.float32), (3, 8, 8)).shape == (64, 6)
