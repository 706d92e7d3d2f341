"""Models to train, by name: small ones, those of the model zoo, and symbols from files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from flowmx import symbol as sym
from flowmx.gluon.model_zoo import vision
from flowmx.suggestions import did_you_mean
from flowmx.symbol import Symbol

__all__ = ["SMALL", "known", "make", "names", "scores"]

Shape = tuple[int, ...]

_LABELLED = ("SoftmaxOutput", "Softmax")


def make(model: str, shape: Shape, classes: int) -> Symbol:
    """A model as a symbol that ends in a softmax loss, and knows the shape of its rows.

    Args:
        model: a name, or a file that ends with ``.json``.
        shape: of a row.
        classes: the number of classes.

    Raises:
        ValueError: there is no such model, or a file's takes several inputs.
        OSError: the file can not be read.
    """
    if model.endswith(".json"):
        return _from_file(model, shape)
    data = sym.var("data", shape=(0, *shape))
    return _with_loss(scores(model, data, classes))


def scores(model: str, data: Symbol, classes: int) -> Symbol:
    """The scores of a model, by its name, for data.

    Args:
        model: its name.
        data: the input.
        classes: the number of classes.

    Raises:
        ValueError: there is no such model.
    """
    name = known(model)
    if name in SMALL:
        return SMALL[name](data, classes)
    found: Symbol = vision.get_model(name, classes=classes)(data)
    return found


def known(model: str) -> str:
    """The name of a model in lower case.

    Raises:
        ValueError: there is no such model.
    """
    if model.lower() not in names():
        raise ValueError(f"there is no model {model!r}, only {', '.join(names())}{did_you_mean(model, names())}")
    return model.lower()


def names() -> list[str]:
    """The names of all models, in order."""
    return sorted([*SMALL, *vision._MODELS])


def _with_loss(scores: Symbol) -> Symbol:
    return sym.SoftmaxOutput(scores, name="softmax")


def _from_file(path: str, shape: Shape) -> Symbol:
    loaded = sym.load(Path(path))
    last = loaded._entries[0].node
    if last.op is not None and last.op.name in _LABELLED:
        if "softmax_label" not in loaded.list_arguments() or "data" not in loaded.list_arguments():
            raise ValueError(f"{path} takes {loaded.list_arguments()}, expected data and softmax_label among them")
        return loaded
    if "data" not in loaded.list_arguments():
        raise ValueError(f"{path} takes {', '.join(loaded.list_arguments())}, expected an input named data")
    return _with_loss(loaded)


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
"""Two layers of units for rows of numbers, and LeNet for small images."""
