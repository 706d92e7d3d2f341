"""``mx.contrib.torch``: parameters of PyTorch models in Gluon networks. torch is not needed.

=====================================  ==============================================================================
PyTorch                                Gluon
=====================================  ==============================================================================
Linear, Conv, Embedding                ``weight``, ``bias`` under the same names, in the same layouts
ConvTranspose                          likewise: (in, out, ...) in both
BatchNorm, LayerNorm, Instance-,       ``weight`` is ``gamma``, ``bias`` is ``beta``; ``running_mean`` and
GroupNorm                              ``running_var`` as they are; ``num_batches_tracked`` is left out
PReLU                                  ``weight`` is ``alpha``
RNN, LSTM, GRU                         ``weight_ih_l0`` is ``l0_i2h_weight``, ``bias_hh_l0_reverse`` is
                                       ``r0_h2h_bias``; the gates come in the same order (LSTM: i, f, g, o; GRU:
                                       r, z, n)
=====================================  ==============================================================================
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any, NamedTuple

from flowmx import ndarray as nd
from flowmx.errors import MismatchError
from flowmx.gluon import Block, nn, rnn
from flowmx.gluon.parameter import Contexts, Parameter
from flowmx.ndarray import NDArray

__all__ = ["load_state_dict"]

_NORMS = (nn.BatchNorm, nn.LayerNorm, nn.InstanceNorm, nn.GroupNorm)
_RECURRENT = (rnn.RNN, rnn.LSTM, rnn.GRU)
_IN_NORMS = {"weight": "gamma", "bias": "beta"}
_OF_RNN = re.compile(r"(weight|bias)_(ih|hh)_l(\d+)(_reverse)?")


class _Layer(NamedTuple):
    """A layer with parameters of its own, and these by name."""

    path: str
    block: Block
    params: dict[str, Parameter]


def load_state_dict(
    net: Block, source: str | os.PathLike[str] | Mapping[str, Any], names: Mapping[str, str] | None = None,
    ctx: Contexts = None,
) -> None:  # fmt: skip
    """Give a network the values of a PyTorch model of the same layers; nothing changes where some do not match.

    Layers belong together by their paths where all are the same on both sides, else by their order: that in which they
    were assigned to the models. Only layers with parameters count, so ReLU and Flatten may be written otherwise. A
    warning names the pairs that were found by their order alone and could be others, since their shapes are the same.

    Args:
        net: the network; shapes need not be known yet.
        source: a file of ``torch.save(model.state_dict(), ...)`` or of safetensors, or what it holds by name.
        names: the path in ``net`` for each path in the PyTorch model (such as ``{"encoder.fc": "features.0"}``), in the
            place of both rules; layers that it does not name are left alone on both sides.
        ctx: where to put parameters that are not initialized (default: the CPU).

    Raises:
        MismatchError: layers are left over, or differ in their parameters or shapes; it lists all of them.
        KeyError: ``names`` has a path that is not there.
        ValueError: the file has no names.

    Example:
        >>> net = mx.gluon.nn.HybridSequential()
        >>> net.add(mx.gluon.nn.Dense(2))
        >>> mx.contrib.torch.load_state_dict(net, {"fc.weight": numpy.ones((2, 3)), "fc.bias": numpy.zeros(2)})
        >>> net(mx.nd.ones((1, 3))).asnumpy().tolist()
        [[3.0, 3.0]]
    """
    given = _modules(source if isinstance(source, Mapping) else nd.creation.load_named(source))
    layers = {layer.path: layer for layer in _layers(net, "")}
    problems, found = [], []
    pairs = list(_pairs(given, layers, names))
    for path, layer in pairs:
        if layer is None:
            problems.append(f"{_told(path, given[path])}: no layer of the network is left for it")
        elif path is None:
            problems.append(f"{_block(layer)}: no layer of the state dict is left for it")
        else:
            values = {_renamed(layer.block, name): value for name, value in given[path].items()}
            wrong = _differences(values, layer.params)
            problems += [f"{_told(path, given[path])} and {_block(layer)}: {each}" for each in wrong]
            found += [(layer.params[name], value) for name, value in values.items() if not wrong]
    if problems:
        raise MismatchError(
            "load_state_dict: the network was left as it is, since these do not match:\n  "
            + "\n  ".join(problems)
            + "\nWhere the layers come in another order, name them: names={'path in PyTorch': 'path in the network'}"
        )
    if names is None and given.keys() != layers.keys():
        _warn_of_doubt(given, [(path, layer.path) for path, layer in pairs if layer is not None])
    for parameter, value in found:
        array = value if isinstance(value, NDArray) else nd.array(value)
        parameter._load_init(array, ctx, cast_dtype=True)


def _modules(state: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The values of a state dict by module, then by name."""
    found: dict[str, dict[str, Any]] = {}
    for name, value in state.items():
        path, _, own = name.rpartition(".")
        if own != "num_batches_tracked":
            found.setdefault(path, {})[own] = value
    return found


def _layers(block: Block, path: str) -> Iterator[_Layer]:
    if isinstance(block, _RECURRENT):
        params = block.collect_params()
        yield _Layer(path, block, {name.removeprefix(block.prefix): each for name, each in params.items()})
        return
    if block._reg_params:
        yield _Layer(path, block, dict(block._reg_params))
    for name, child in block._children.items():
        yield from _layers(child, f"{path}.{name}" if path else name)


def _pairs(
    given: Mapping[str, Any], layers: Mapping[str, _Layer], names: Mapping[str, str] | None
) -> Iterator[tuple[Any, _Layer | None]]:
    if names is not None:
        for path, own in names.items():
            for at, known, what in ((path, given, "state dict"), (own, layers, "network")):
                if at not in known:
                    raise KeyError(f"load_state_dict: names has {at!r}, and the {what} has {', '.join(known)}")
            yield path, layers[own]
    elif given.keys() == layers.keys():
        yield from layers.items()
    else:
        paths, own_layers = list(given), list(layers.values())
        yield from zip_longest(paths, own_layers)


def _warn_of_doubt(given: Mapping[str, Mapping[str, Any]], pairs: list[tuple[str, str]]) -> None:
    """Name layers of the same shapes whose order says which is which, but for those that containers number."""
    groups: dict[Any, list[tuple[str, str]]] = {}
    for path, own in pairs:
        shapes = tuple(sorted((name, tuple(value.shape)) for name, value in given[path].items()))
        groups.setdefault(shapes, []).append((path, own))
    doubtful = [
        f"{path!r} as {own!r}"
        for group in groups.values()
        if any(len({re.sub(r"\d+", "", each) for each in side}) > 1 for side in zip(*group, strict=True))
        for path, own in group
    ]
    if doubtful:
        warnings.warn(
            f"load_state_dict: layers of the same shapes were taken in their order: {', '.join(doubtful)}. If that is "
            "wrong, name them: names={'path in PyTorch': 'path in the network'}",
            stacklevel=3,
        )


def _renamed(block: Block, name: str) -> str:
    """A layer's parameter by Gluon's name for it."""
    if isinstance(block, _NORMS):
        return _IN_NORMS.get(name, name)
    if isinstance(block, nn.PReLU):
        return "alpha" if name == "weight" else name
    if isinstance(block, _RECURRENT) and (match := _OF_RNN.fullmatch(name)):
        kind, side, number, reverse = match.groups()
        return f"{'r' if reverse else 'l'}{number}_{'i2h' if side == 'ih' else 'h2h'}_{kind}"
    return name


def _differences(values: Mapping[str, Any], params: Mapping[str, Parameter]) -> list[str]:
    found = [f"{name!r} is missing in the state dict" for name in params if name not in values]
    for name, value in values.items():
        if name not in params:
            found.append(f"{name!r} is in the state dict alone")
            continue
        shape, expected = tuple(value.shape), params[name].shape
        known = expected is None or (
            len(shape) == len(expected)
            and all(theirs == ours or ours <= 0 for theirs, ours in zip(shape, expected, strict=True))
        )
        if not known:
            found.append(f"{name!r} has shape {shape}, expected {expected}")
    return found


def _told(path: str, values: Mapping[str, Any]) -> str:
    return f"{path!r} ({', '.join(f'{name} {tuple(value.shape)}' for name, value in values.items())})"


def _block(layer: _Layer) -> str:
    return f"{type(layer.block).__name__} {layer.path!r}"
