"""Messages about names that nothing has: each says what was given and what was probably meant."""

import pytest

import flowmx as mx
from flowmx.gluon import nn
from flowmx.suggestions import STANDS_FOR, did_you_mean, nearest


@pytest.mark.parametrize(
    ("given", "meant"),
    [("convolution", "Convolution"), ("linear", "FullyConnected"), ("Convolutoin", "Convolution"), ("qqqq", None)],
)
def test_the_nearest_name(given, meant):
    assert nearest(given, ["Deconvolution", "Convolution", "FullyConnected"], STANDS_FOR) == meant
    assert did_you_mean("x", []) == ""


def test_other_libraries_words_stand_for_operators():
    for name in STANDS_FOR.values():
        assert hasattr(mx.nd, name)


class Custom(nn.HybridBlock):
    """A block of a user, whose arguments go on to its base."""

    def __init__(self, width, **kwargs):
        super().__init__(**kwargs)
        self.width = width


MISTAKES = {
    "operator": (lambda: mx.nd.convolution, AttributeError, "did you mean 'Convolution'"),  # type: ignore[attr-defined]
    "symbol": (lambda: mx.sym.Linear, AttributeError, "did you mean 'FullyConnected'"),  # type: ignore[attr-defined]
    "layer": (lambda: nn.Linear, AttributeError, "'Linear'; did you mean 'Dense'"),
    "module": (lambda: mx.numpy_, AttributeError, "'numpy_'"),
    "parameter": (
        lambda: mx.nd.Convolution(mx.nd.ones((1, 1, 4, 4)), numfilter=3), ValueError,  # type: ignore[call-arg]
        "no parameter 'numfilter', only .*; did you mean 'num_filter'",
    ),
    "argument of an optimizer": (
        lambda: mx.optimizer.create("sgd", lr=0.1), TypeError,
        "SGD has no argument 'lr', only .*; did you mean 'learning_rate'",
    ),
    "argument of a layer": (
        lambda: nn.Dense(3, activatio="relu"), TypeError,
        "Dense has no argument 'activatio', only .*; did you mean 'activation'",
    ),
    "argument of a user's block": (lambda: Custom(3, widht=4), TypeError, "no argument 'widht', only width.*'width'"),
    "model": (
        lambda: mx.gluon.model_zoo.vision.get_model("resnet18v1"), ValueError, "'resnet18v1', only.*'resnet18_v1'"
    ),
    "optimizer": (lambda: mx.optimizer.create("adamm"), ValueError, "no optimizer 'adamm'; did you mean 'adam'"),
    "variable": (lambda: network().infer_shape(dat=(2, 3)), ValueError, "no variable 'dat', only data.*mean 'data'"),
    "variable's type": (lambda: network().infer_type(foo="int8"), ValueError, "no variable 'foo', only data"),
    "variable to bind": (
        lambda: network().simple_bind(mx.cpu(), dat=(2, 3)), ValueError,
        "'data' does not follow.*'dat' was given.*did you mean 'data'",
    ),
}  # fmt: skip


def network():
    return mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistaken_name_is_told_what_was_meant(mistake):
    make, error, message = MISTAKES[mistake]
    with pytest.raises(error, match=message):
        make()


def test_a_network_without_a_loss_is_bound_with_the_shape_of_a_label():
    assert network().simple_bind(mx.cpu(), data=(2, 3), softmax_label=(2,)).outputs is not None
