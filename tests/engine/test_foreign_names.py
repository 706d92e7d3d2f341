"""PyTorch's and Keras' names: errors say what to use, and what they say exists."""

import copy
import pickle
import re
from typing import Any

import numpy as np
import pytest

import flowmx as mx
from flowmx import foreign_names
from flowmx.gluon import nn
from flowmx.gluon.nn import activations

NET = nn.HybridSequential()
NET.add(nn.Dense(2, in_units=3))
NET.initialize()
X = mx.nd.ones((2, 3))
TRAINER = mx.gluon.Trainer(NET.collect_params(), "sgd")
PARAM = NET[0].weight
MODULE = mx.mod.Module(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2), label_names=None)
METRIC = mx.metric.Accuracy()
OWNERS = {
    "metric": METRIC,
    "x": X,
    "net": NET,
    "trainer": TRAINER,
    "param": PARAM,
    "mod": MODULE,
    "mx": mx,
    "gluon": mx.gluon,
}


@pytest.mark.parametrize(
    ("expression", "advice"),
    [
        ("mx.no_grad", "mx.autograd.pause()"),
        ("mx.autograd.no_grad", "mx.autograd.pause()"),
        ("mx.tensor", "mx.nd.array(values)"),
        ("mx.nn", "mx.gluon.nn"),
        ("mx.nd.no_grad", "mx.autograd.pause()"),
        ("x.view", "x.reshape(shape)"),
        ("x.to", "x.as_in_context(mx.gpu(0)) for a device, x.astype('float16') for an element type"),
        ("x.numpy", "x.asnumpy()"),
        ("net.parameters", "net.collect_params()"),
        ("net.train", "mx.autograd.record() for training"),
        ("net.compile", "net.hybridize()"),
        ("net.fit", "mx.gluon.contrib.estimator.Estimator"),
        ("nn.Sequential().export", "a HybridBlock, such as gluon.nn.HybridSequential"),
        ("trainer.zero_grad", "no call: each backward() overwrites the gradients"),
        ("mx.gluon.loss.CrossEntropyLoss", "mx.gluon.loss.SoftmaxCrossEntropyLoss()"),
        ("mx.gluon.data.TensorDataset", "mx.gluon.data.ArrayDataset(x, y)"),
        ("mx.lr_scheduler.StepLR", "FactorScheduler"),
        ("mx.optimizer.Momentum", "SGD(momentum=0.9)"),
        ("mx.metric.RootMeanSquaredError", "RMSE()"),
        ("mx.metric.binary_accuracy", "Accuracy()"),
        ("mx.metric.MulticlassF1Score", "F1()"),
        ("metric.result", "metric.get()[1]"),
        ("metric.update_state", "metric.update(labels, preds)"),
        ("mx.init.xavier_uniform_", "Xavier()"),
        ("mx.gluon.data.vision.transforms.RandomHorizontalFlip", "RandomFlipLeftRight()"),
        ("mx.gluon.model_zoo.vision.resnet50", "resnet50_v1()"),
        ("nn.Linear", "gluon.nn.Dense(units, flatten=False)"),
        ("nn.MaxPool2d", "gluon.nn.MaxPool2D(size)"),
        ("mx.nd.max_pool2d", "mx.nd.Pooling"),
        ("mx.optim", "mx.gluon.Trainer"),
        ("net[0].weight.requires_grad", "param.grad_req"),
        ("mod.state_dict", "mod.get_params()"),
    ],
)
def test_an_error_names_the_equivalent(expression, advice):
    with pytest.raises(AttributeError, match=rf"{expression.rpartition('.')[2]}.*: use {re.escape(advice)}"):
        eval(expression, {**OWNERS, "nn": nn})


def advised():
    tables = {
        "x": foreign_names.ARRAYS, "net": foreign_names.BLOCKS, "trainer": foreign_names.TRAINERS,
        "param": foreign_names.PARAMETERS, "mod": foreign_names.MODULE_OBJECTS,
        "metric": foreign_names.METRIC_OBJECTS,
    }  # fmt: skip
    for owner, table in {**tables, **foreign_names.MODULES}.items():
        for name, text in table.items():
            yield owner, name, text


@pytest.mark.parametrize(("owner", "name", "text"), list(advised()))
def test_advice_names_what_exists_for_names_that_do_not(owner, name, text):
    subject = OWNERS.get(owner) if owner in OWNERS else pytest.importorskip(owner)
    if owner == "net" and hasattr(NET, name):
        subject = nn.Lambda("relu")  # a block that is not hybrid, or not a container
    assert not hasattr(subject, name)
    for reference in re.findall(r"(?<![\w.])(?:mx|gluon|net|x|trainer|param|mod|metric)(?:\.\w+)+", text):
        eval(reference, OWNERS)


@pytest.mark.parametrize(
    ("create", "name", "advice"),
    [
        (mx.metric.create, "BinaryAccuracy", "Accuracy()"),
        (mx.metric.create, "sparse_categorical_accuracy", "Accuracy()"),
        (mx.metric.create, "MeanIoU", "ConfusionMatrix().matrix"),
        (mx.metric.create, "KLDivergence", "mx.metric.np(function)"),
        (mx.optimizer.create, "Momentum", "SGD(momentum=0.9)"),
        (mx.init.create, "kaiming_normal_", "MSRAPrelu()"),
    ],
)
def test_creating_by_a_foreign_name_names_the_equivalent(create, name, advice):
    with pytest.raises(ValueError, match=rf"{name}.*: use {re.escape(advice)}"):
        create(name)


NUMBERS = {
    "comparison": lambda metric: metric > 0.5, "swapped comparison": lambda metric: metric >= 0.5,
    "maximum": lambda metric: max(metric, 0.5), "comparison of metrics": lambda metric: metric < mx.metric.Accuracy(),
    "sum": lambda metric: metric + 1, "ratio": lambda metric: 1 / metric, "float": float, "round": round,
    "format": lambda metric: f"{metric:.3f}",
}  # fmt: skip


@pytest.mark.parametrize("use", NUMBERS)
def test_a_metric_that_is_used_as_a_number_names_its_value(use):
    with pytest.raises(TypeError, match=r"is a metric, expected a number: its value is metric\.get\(\)\[1\]"):
        NUMBERS[use](METRIC)
    assert f"{METRIC}" == str(METRIC)
    assert METRIC == METRIC and mx.metric.Accuracy() != METRIC


def test_other_names_have_pythons_message():
    for subject, kind in ((X, "NDArray"), (NET, "HybridSequential"), (TRAINER, "Trainer")):
        with pytest.raises(AttributeError, match=f"^'{kind}' object has no attribute 'unknown'$") as caught:
            _ = subject.unknown
        assert caught.value.name == "unknown"
        assert caught.value.obj is subject


def test_a_property_that_fails_raises_its_own_error():
    class Broken(nn.Block):
        @property
        def width(self):
            return self.missing_part

    with pytest.raises(AttributeError, match="'missing_part'"):
        _ = Broken().width


def test_arrays_and_blocks_are_copied_and_pickled():
    np.testing.assert_array_equal(copy.deepcopy(X).asnumpy(), X.asnumpy())
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(X)).asnumpy(), X.asnumpy())
    np.testing.assert_array_equal(np.asarray(X), X.asnumpy())
    assert copy.deepcopy(NET)(X).shape == (2, 2)


class Tensor:
    """Looks like another library's."""


Tensor.__module__ = "torch"


@pytest.mark.parametrize("hybridize", [False, True])
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            np.ones((2, 3), "f4"),
            r"the input is numpy\.ndarray, expected an NDArray: convert it with mx\.nd\.array\(x\)",
        ),
        ([[1.0, 2.0, 3.0]], r"the input is list, expected an NDArray: convert it with mx\.nd\.array\(x\)"),
        (Tensor(), r"the input is torch\.Tensor, expected an NDArray: convert it with mx\.nd\.from_dlpack\(x\)"),
        (None, "(?m)the input is NoneType, expected an NDArray$"),
    ],
    ids=["ndarray", "list", "tensor", "None"],
)
def test_what_is_no_array_is_named(value, message, hybridize):
    net = nn.HybridSequential()
    net.add(nn.Dense(2, in_units=3))
    net.initialize()
    if hybridize:
        net.hybridize()
    with pytest.raises(ValueError, match=message):
        net(value)


def test_a_wrong_input_name_lists_the_inputs(tmp_path):
    NET.hybridize()
    NET(X)
    NET.export(str(tmp_path / "net"))
    files = str(tmp_path / "net-symbol.json"), str(tmp_path / "net-0000.params")
    with pytest.raises(ValueError, match=r"no input 'input': its inputs without parameters are \['data'\]"):
        mx.gluon.SymbolBlock.imports(files[0], ["input"], files[1])
    assert mx.gluon.SymbolBlock.imports(files[0], ["data"], files[1])(X).shape == (2, 2)


class WithoutF(mx.gluon.HybridBlock):
    def hybrid_forward(self, x):
        return x


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: mx.metric.Accuracy().update(X, mx.nd.ones(2)),
            r"labels are the first argument: metric\.update\(labels",
        ),
        (lambda: mx.metric.F1().update(X, mx.nd.ones(2)), r"labels are the first argument: metric\.update\(labels"),
        (lambda: nn.Dense(3).summary(), r"pass one, such as net\.summary\(mx\.nd\.ones\(\(1, 3\)\)\)"),
        (lambda: WithoutF()(X), r"hybrid_forward\(self, F, x, \.\.\.\) is called with F"),
        (
            lambda: nn.Activation("gelu")(X),
            r"there is no activation 'gelu', only 'relu'.*use the layer gluon\.nn\.GELU",
        ),
        (lambda: mx.nd.concat(X, X, axis=1), "did you mean 'dim'"),  # type: ignore[call-arg]
        (lambda: mx.gluon.Trainer([X], "sgd"), r"params holds NDArray, expected Parameters: pass net\.collect_params"),  # type: ignore[list-item]
    ],
)
def test_frequent_mistakes_are_explained(call, message):
    with pytest.raises((ValueError, TypeError)) as caught:
        call()
    assert re.search(message, "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())]))


def test_a_pickle_is_named(tmp_path):
    (tmp_path / "arrays.pkl").write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(ValueError, match="expected a pickle of arrays, found a pickle without arrays"):
        mx.nd.load(tmp_path / "arrays.pkl")


@pytest.mark.parametrize("name", list(activations._LAYERS))
def test_layers_of_activations_exist(name):
    layer = eval(f"nn.{activations._LAYERS[name]}", {"nn": nn})
    layer.initialize()
    assert layer(X).shape == X.shape


ANY: Any = mx  # calls with wrong types
LAYERS: Any = nn
MISTAKES = {
    "Activation(softmax)": (lambda: LAYERS.Activation("softmax")(X), "SoftmaxCrossEntropyLoss applies it"),
    "Conv2D(same)": (lambda: LAYERS.Conv2D(2, 3, padding="same"), "padding=k // 2 keeps the size"),
    "Trainer(net)": (lambda: ANY.gluon.Trainer(NET, "adam"), r"pass net\.collect_params\(\)"),
    "ones(2, 3)": (lambda: ANY.nd.ones(2, 3), r"a shape is one argument: ones\(\(2, 3\)\)"),
    "NDArrayIter(list)": (lambda: ANY.io.NDArrayIter(X, [1, 2], 2), r"pass numpy\.array\(values\)"),
    "load(gpt2)": (lambda: ANY.generation.load("gpt2"), "models are not downloaded by name"),
    "Generator(net)": (lambda: ANY.generation.Generator(NET), r"write Generator\(PagedDecoder\(net, pages=128\)\)"),
    "Predictor(shape)": (
        lambda: ANY.serve.Predictor(NET, shape="5"),
        r"expected a tuple of sizes such as \(3, 32, 32\)",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_common_mistake_has_a_message_that_says_what_to_write(name):
    call, message = MISTAKES[name]
    with pytest.raises((mx.MXNetError, ValueError, TypeError, FileNotFoundError), match=message):
        call()
