"""Messages about unknown names: each repeats the name and suggests the one that was probably intended."""

import pytest

import flowmx as mx
from flowmx.gluon import nn
from flowmx.suggestions import EQUIVALENTS, did_you_mean, nearest


@pytest.mark.parametrize(
    ("misspelled", "meant"),
    [("convolution", "Convolution"), ("linear", "FullyConnected"), ("Convolutoin", "Convolution"), ("qqqq", None)],
)
def test_the_nearest_name(misspelled, meant):
    assert nearest(misspelled, ["Deconvolution", "Convolution", "FullyConnected"], EQUIVALENTS) == meant
    assert did_you_mean("x", []) == ""


def test_other_libraries_words_stand_for_operators():
    for name in EQUIVALENTS.values():
        assert hasattr(mx.nd, name)


class Custom(nn.HybridBlock):
    """A user's block that passes its arguments to the base class."""

    def __init__(self, width, **kwargs):
        super().__init__(**kwargs)
        self.width = width


MISTAKES = {
    "operator": (lambda: mx.nd.convolution, AttributeError, "did you mean 'Convolution'"),  # type: ignore[attr-defined]
    "symbol": (lambda: mx.sym.Linear, AttributeError, "did you mean 'FullyConnected'"),  # type: ignore[attr-defined]
    "layer": (lambda: nn.Linear, AttributeError, r"'Linear': use gluon\.nn\.Dense\("),
    "module": (lambda: mx.numpy_, AttributeError, "'numpy_'"),
    "parameter": (
        lambda: mx.nd.Convolution(mx.nd.ones((1, 1, 4, 4)), numfilter=3), ValueError,  # type: ignore[call-arg]
        "no parameter 'numfilter', only .*; did you mean 'num_filter'",
    ),
    "argument of an optimizer": (
        lambda: mx.optimizer.create("sgd", lr=0.1), TypeError,
        "SGD has no argument 'lr', expected some of .*; lr is learning_rate here",
    ),
    "argument of a layer": (
        lambda: nn.Dense(3, activatio="relu"), TypeError,  # type: ignore[call-arg]
        "Dense has no argument 'activatio', expected some of .*; did you mean 'activation'",
    ),
    "argument of a user's block": (
        lambda: Custom(3, widht=4), TypeError, "no argument 'widht', expected some of width.*'width'"
    ),
    "model": (
        lambda: mx.gluon.model_zoo.vision.get_model("resnet18v1"), ValueError, "'resnet18v1', only.*'resnet18_v1'"
    ),
    "optimizer": (lambda: mx.optimizer.create("adamm"), ValueError, "unknown optimizer 'adamm'; did you mean 'adam'"),
    "variable": (lambda: network().infer_shape(dat=(2, 3)), ValueError, "no variable 'dat', only data.*mean 'data'"),
    "variable's type": (lambda: network().infer_type(foo="int8"), ValueError, "no variable 'foo', only data"),
    "variable to bind": (
        lambda: network().simple_bind(mx.cpu(), dat=(2, 3)), ValueError,
        "'data' cannot be inferred.*'dat' was given.*did you mean 'data'",
    ),
}  # fmt: skip


def network():
    return mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_message_suggests_the_intended_name(mistake):
    make, error, message = MISTAKES[mistake]
    with pytest.raises(error, match=message):
        make()


def test_a_network_without_a_loss_is_bound_with_the_shape_of_a_label():
    assert network().simple_bind(mx.cpu(), data=(2, 3), softmax_label=(2,)).outputs is not None
