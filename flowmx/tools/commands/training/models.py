"""Models by name: two small ones, the model zoo, and symbol files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from flowmx import symbol as sym
from flowmx.gluon.model_zoo import vision
from flowmx.suggestions import did_you_mean
from flowmx.symbol import Symbol

__all__ = ["SMALL", "check_name", "make", "names", "scores"]

Shape = tuple[int, ...]

_LABELLED = ("SoftmaxOutput", "Softmax")


def make(model: str, shape: Shape, classes: int) -> Symbol:
    """Return a model as a symbol with a softmax loss and the shape of its input.

    Args:
        model: a name, or a ``.json`` file.
        shape: shape of a row.
        classes: number of classes.

    Raises:
        ValueError: the model is unknown, or has several inputs.
        OSError: the file cannot be read.
    """
    if model.endswith(".json"):
        return _from_file(model, shape)
    data = sym.var("data", shape=(0, *shape))
    return _with_loss(scores(model, data, classes))


def scores(model: str, data: Symbol, classes: int) -> Symbol:
    """Return the scores of a model for data.

    Args:
        model: name of the model.
        data: the input.
        classes: number of classes.

    Raises:
        ValueError: the model is unknown.
    """
    name = check_name(model)
    if name in SMALL:
        return SMALL[name](data, classes)
    symbol: Symbol = vision.get_model(name, classes=classes)(data)
    return symbol


def check_name(model: str) -> str:
    """Return the name of a model in lower case.

    Raises:
        ValueError: the model is unknown.
    """
    if model.lower() not in names():
        raise ValueError(f"unknown model {model!r}, expected one of {', '.join(names())}{did_you_mean(model, names())}")
    return model.lower()


def names() -> list[str]:
    """Return the names of all models, sorted."""
    return sorted([*SMALL, *vision._MODELS])


def _with_loss(scores: Symbol) -> Symbol:
    return sym.SoftmaxOutput(scores, name="softmax")


def _from_file(path: str, shape: Shape) -> Symbol:
    symbol = sym.load(Path(path))
    last = symbol.entries[0].node
    if last.op is not None and last.op.name in _LABELLED:
        if "softmax_label" not in symbol.list_arguments() or "data" not in symbol.list_arguments():
            raise ValueError(f"{path} takes {symbol.list_arguments()}, expected data and softmax_label among them")
        return symbol
    if "data" not in symbol.list_arguments():
        raise ValueError(f"{path} takes {', '.join(symbol.list_arguments())}, expected an input named data")
    return _with_loss(symbol)


def _mlp(data: Symbol, classes: int) -> Symbol:
    hidden = sym.Activation(sym.FullyConnected(sym.Flatten(data), num_hidden=128, name="fc1"), act_type="relu")
    hidden = sym.Activation(sym.FullyConnected(hidden, num_hidden=64, name="fc2"), act_type="relu")
    return sym.FullyConnected(hidden, num_hidden=classes, name="fc3")


def _lenet(data: Symbol, classes: int) -> Symbol:
    below = data
    for number, filters in ((1, 20), (2, 50)):
        below = sym.Convolution(below, kernel=(5, 5), num_filter=filters, name=f"conv{number}")
        below = sym.Pooling(sym.Activation(below, act_type="tanh"), pool_type="max", kernel=(2, 2), stride=(2, 2))
    hidden = sym.Activation(sym.FullyConnected(sym.Flatten(below), num_hidden=500, name="fc1"), act_type="tanh")
    return sym.FullyConnected(hidden, num_hidden=classes, name="fc2")


SMALL: dict[str, Callable[[Symbol, int], Symbol]] = {"mlp": _mlp, "lenet": _lenet}
"""Small models: a multilayer perceptron for rows of numbers, and LeNet for small images."""
