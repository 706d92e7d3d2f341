"""``mx.contrib.torch``: loading parameters of PyTorch models into Gluon networks, without PyTorch.

=====================================  ==============================================================================
PyTorch                                Gluon
=====================================  ==============================================================================
Linear, Conv, Embedding                ``weight``, ``bias`` under the same names, in the same layouts
ConvTranspose                          the same: (in, out, ...) in both
BatchNorm, LayerNorm, Instance-,       ``weight`` is ``gamma``, ``bias`` is ``beta``; ``running_mean`` and
GroupNorm                              ``running_var`` are unchanged; ``num_batches_tracked`` is dropped
PReLU                                  ``weight`` is ``alpha``
RNN, LSTM, GRU                         ``weight_ih_l0`` is ``l0_i2h_weight``, ``bias_hh_l0_reverse`` is
                                       ``r0_h2h_bias``; the gates have the same order (LSTM: i, f, g, o; GRU:
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
_NORM_NAMES = {"weight": "gamma", "bias": "beta"}
_RNN_NAME = re.compile(r"(weight|bias)_(ih|hh)_l(\d+)(_reverse)?")


class _Layer(NamedTuple):
    """A layer with parameters."""

    path: str
    block: Block
    params: dict[str, Parameter]


def load_state_dict(
    net: Block, source: str | os.PathLike[str] | Mapping[str, Any], names: Mapping[str, str] | None = None,
    ctx: Contexts = None,
) -> None:  # fmt: skip
    """Load the parameters of a PyTorch model with the same layers into a network; on a mismatch nothing changes.

    Layers are matched by path if the paths are equal on both sides, otherwise by the order in which they were assigned
    to the models. Only layers with parameters count, so ReLU and Flatten may differ. A warning lists the pairs that
    were matched only by order and are ambiguous because other layers have the same shapes.

    Args:
        net: the network; its shapes may be unknown.
        source: a file of ``torch.save(model.state_dict(), ...)`` or of safetensors, or its content by name.
        names: the path in ``net`` for each path in the PyTorch model (such as ``{"encoder.fc": "features.0"}``),
            instead of both rules; other layers are ignored on both sides.
        ctx: the device of parameters that are not initialized (default: the CPU).

    Raises:
        MismatchError: a layer has no counterpart, or other parameters or shapes; it lists all mismatches.
        KeyError: ``names`` has an unknown path.
        ValueError: the file has no names.

    Example:
        >>> net = mx.gluon.nn.HybridSequential()
        >>> net.add(mx.gluon.nn.Dense(2))
        >>> mx.contrib.torch.load_state_dict(net, {"fc.weight": numpy.ones((2, 3)), "fc.bias": numpy.zeros(2)})
        >>> net(mx.nd.ones((1, 3))).asnumpy().tolist()
        [[3.0, 3.0]]
    """
    modules = _modules(source if isinstance(source, Mapping) else nd.files.load_named(source))
    layers = {layer.path: layer for layer in _layers(net, "")}
    problems, assignments = [], []
    pairs = list(_pairs(modules, layers, names))
    for path, layer in pairs:
        if layer is None:
            problems.append(f"{_describe(path, modules[path])}: the network has no layer for it")
        elif path is None:
            problems.append(f"{_block(layer)}: the state dict has no layer for it")
        else:
            values = {_gluon_name(layer.block, name): value for name, value in modules[path].items()}
            differences = _differences(values, layer.params)
            problems += [f"{_describe(path, modules[path])} and {_block(layer)}: {text}" for text in differences]
            assignments += [(layer.params[name], value) for name, value in values.items() if not differences]
    if problems:
        raise MismatchError(
            "load_state_dict: the network was not changed, because these do not match:\n  "
            + "\n  ".join(problems)
            + "\nIf the order of layers differs, name them: names={'path in PyTorch': 'path in the network'}"
        )
    if names is None and modules.keys() != layers.keys():
        _warn_if_ambiguous(modules, [(path, layer.path) for path, layer in pairs if layer is not None])
    for parameter, value in assignments:
        array = value if isinstance(value, NDArray) else nd.array(value)
        parameter._load_init(array, ctx, cast_dtype=True)


def _modules(state: Mapping[str, object]) -> dict[str, dict[str, Any]]:
    """Return the values of a state dict by module, then by name."""
    modules: dict[str, dict[str, Any]] = {}
    for name, value in state.items():
        path, _, last = name.rpartition(".")
        if last != "num_batches_tracked":
            modules.setdefault(path, {})[last] = value
    return modules


def _layers(block: Block, path: str) -> Iterator[_Layer]:
    if isinstance(block, _RECURRENT):
        params = block.collect_params()
        yield _Layer(path, block, {name.removeprefix(block.prefix): param for name, param in params.items()})
        return
    if block._reg_params:
        yield _Layer(path, block, dict(block._reg_params))
    for name, child in block._children.items():
        yield from _layers(child, f"{path}.{name}" if path else name)


def _pairs(
    modules: Mapping[str, object], layers: Mapping[str, _Layer], names: Mapping[str, str] | None
) -> Iterator[tuple[Any, _Layer | None]]:
    if names is not None:
        for path, target in names.items():
            for index, paths, what in ((path, modules, "state dict"), (target, layers, "network")):
                if index not in paths:
                    raise KeyError(f"load_state_dict: names has {index!r}, and the {what} has {', '.join(paths)}")
            yield path, layers[target]
    elif modules.keys() == layers.keys():
        yield from layers.items()
    else:
        yield from zip_longest(list(modules), list(layers.values()))


def _warn_if_ambiguous(modules: Mapping[str, Mapping[str, Any]], pairs: list[tuple[str, str]]) -> None:
    """Warn about layers with equal shapes that were matched by order, except those that containers number."""
    groups: dict[object, list[tuple[str, str]]] = {}
    for path, target in pairs:
        shapes = tuple(sorted((name, tuple(value.shape)) for name, value in modules[path].items()))
        groups.setdefault(shapes, []).append((path, target))
    ambiguous = [
        f"{path!r} as {target!r}"
        for group in groups.values()
        if any(len({re.sub(r"\d+", "", name) for name in side}) > 1 for side in zip(*group, strict=True))
        for path, target in group
    ]
    if ambiguous:
        warnings.warn(
            f"load_state_dict: layers of the same shapes were matched by their order: {', '.join(ambiguous)}. If that "
            "is wrong, name them: names={'path in PyTorch': 'path in the network'}",
            stacklevel=3,
        )


def _gluon_name(block: Block, name: str) -> str:
    """Return Gluon's name of a parameter."""
    if isinstance(block, _NORMS):
        return _NORM_NAMES.get(name, name)
    if isinstance(block, nn.PReLU):
        return "alpha" if name == "weight" else name
    if isinstance(block, _RECURRENT) and (match := _RNN_NAME.fullmatch(name)):
        kind, side, number, reverse = match.groups()
        return f"{'r' if reverse else 'l'}{number}_{'i2h' if side == 'ih' else 'h2h'}_{kind}"
    return name


def _differences(values: Mapping[str, Any], params: Mapping[str, Parameter]) -> list[str]:
    differences = [f"{name!r} is missing in the state dict" for name in params if name not in values]
    for name, value in values.items():
        if name not in params:
            differences.append(f"{name!r} is only in the state dict")
            continue
        shape, expected = tuple(value.shape), params[name].shape
        matches = expected is None or (
            len(shape) == len(expected)
            and all(theirs == ours or ours <= 0 for theirs, ours in zip(shape, expected, strict=True))
        )
        if not matches:
            differences.append(f"{name!r} has shape {shape}, expected {expected}")
    return differences


def _describe(path: str, values: Mapping[str, Any]) -> str:
    return f"{path!r} ({', '.join(f'{name} {tuple(value.shape)}' for name, value in values.items())})"


def _block(layer: _Layer) -> str:
    return f"{type(layer.block).__name__} {layer.path!r}"
