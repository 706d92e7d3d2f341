"""The table of losses: for each, the call and its further inputs."""

from typing import Any

from tests.modes.network import Input, layer

LOSSES: dict[str, Any] = {}


def drawn(name, *ranks):
    """Register a function from random choices and the prediction's shape in the table."""

    def put(function):
        LOSSES[name] = lambda d, shape: function(d, shape) if len(shape) in (ranks or (1, 2, 3)) else None
        return function

    return put


def weighted(d, shape, axes):
    """Draw weights of samples, or none."""
    return [Input((1,) * axes, "unit")] if d.often(0.3) else []


def elementwise(name, kind, **choices):
    """Register a loss whose label has the prediction's shape."""

    @drawn(f"loss.{name}")
    def function(d, shape):
        options = {key: d.maybe(*values, often=0.4) for key, values in choices.items()}
        call = layer(f"loss.{name}", weight=d.maybe(0.5, 2.0, often=0.3), **options)
        return call, [Input(shape, kind), *weighted(d, shape, len(shape))]


elementwise("L1Loss", "label")
elementwise("L2Loss", "label")
elementwise("HuberLoss", "label", rho=(0.5,))
elementwise("HingeLoss", "sign", margin=(0.5,))
elementwise("SquaredHingeLoss", "sign", margin=(0.5,))


@drawn("loss.LogisticLoss")
def logistic(d, shape):
    binary = d.often(0.5)
    call = layer("loss.LogisticLoss", label_format="binary" if binary else None)
    return call, [Input(shape, "index" if binary else "sign"), *weighted(d, shape, len(shape))]


for alias in ("SigmoidBinaryCrossEntropyLoss", "SigmoidBCELoss"):

    @drawn(f"loss.{alias}")
    def binary(d, shape, name=f"loss.{alias}"):
        labels = [Input(shape, "unit"), *weighted(d, shape, len(shape))]
        if len(labels) == 2 and d.often(0.5):
            labels.append(Input((1,) * (len(shape) - 1) + shape[-1:], "unit"))
        return layer(name), labels


for alias in ("SoftmaxCrossEntropyLoss", "SoftmaxCELoss"):

    @drawn(f"loss.{alias}")
    def cross_entropy(d, shape, name=f"loss.{alias}"):
        axis = 1 if len(shape) > 1 and d.often(0.3) else None
        at = 0 if axis else -1
        if d.often(0.3):
            return layer(name, axis=axis, sparse_label=False), [Input(shape, "unit")]
        rest = shape[1:] if axis else shape[:-1]
        return layer(name, axis=axis), [Input(rest, "index", shape[at]), *weighted(d, shape, len(shape))]


@drawn("loss.KLDivLoss")
def divergence(d, shape):
    return layer("loss.KLDivLoss", from_logits=False), [Input(shape, "odds")]


@drawn("loss.PoissonNLLLoss")
def poisson(d, shape):
    call = layer("loss.PoissonNLLLoss", compute_full=d.maybe(True))
    return call, [Input(shape, "index", 5)]


@drawn("loss.CTCLoss", 2)
def alignment(d, shape):
    time, classes = shape
    if time < 2 or classes < 2:
        return None
    return layer("loss.CTCLoss", weight=d.maybe(0.5)), [Input((time // 2,), "padded", classes - 1)]


@drawn("loss.CosineEmbeddingLoss", 1)
def cosine(d, shape):
    if shape[0] < 2:
        return None
    return layer("loss.CosineEmbeddingLoss", margin=d.maybe(0.2)), [Input(shape), Input((), "sign")]


@drawn("loss.TripletLoss")
def triplet(d, shape):
    return layer("loss.TripletLoss", margin=d.maybe(0.5)), [Input(shape), Input(shape)]


@drawn("loss.SDMLLoss", 1)
def metric_learning(d, shape):
    return layer("loss.SDMLLoss", smoothing_parameter=d.maybe(0.1)), [Input(shape)]


SCALAR = ("loss.PoissonNLLLoss",)
"""Losses of a whole batch, one number."""
WHOLE = ("loss.PoissonNLLLoss", "loss.SDMLLoss")
"""Losses that combine samples."""
