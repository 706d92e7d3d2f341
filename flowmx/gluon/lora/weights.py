"""The weights of a low-rank adapter, as arrays of the host, and the folders of Hugging Face's PEFT."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flowmx.errors import DataError, MismatchError
from flowmx.gluon.base_block import Block
from flowmx.gluon.lora.layers import Wrapped, dense_layers
from flowmx.gluon.lora.names import Source, bare_name, sources
from flowmx.gluon.model_zoo.huggingface.folder import Config, read_json
from flowmx.gluon.utils import brief_list
from flowmx.ops.registry.operators import Array
from flowmx.serialization import formats, safetensors

__all__ = ["AdapterWeights", "LayerWeights", "read", "write"]

_CONFIG, _FILES = "adapter_config.json", ("adapter_model.safetensors", "adapter_model.bin")
_MAX_BYTES = 1 << 30
_MAX_JSON = 1 << 20
_KEY = re.compile(r"(?P<module>.+)\.lora_(?P<side>[AB])(\.default)?\.weight")
_UNSUPPORTED = (
    "use_dora", "use_qalora", "lora_bias", "modules_to_save", "layer_replication", "target_parameters",
    "trainable_token_indices", "corda_config", "alora_invocation_tokens",
)  # fmt: skip
"""Options with an effect on the outputs that the layers here do not have."""


class LayerWeights(NamedTuple):
    """The adapter of a layer: it adds ``scale · B · A`` to the weight, for each part of the outputs.

    Attributes:
        a: float32 (parts, rank, inputs).
        b: float32 (parts, outputs / parts, rank).
        scales: the factor of each part.
    """

    a: Array
    b: Array
    scales: tuple[float, ...]

    @property
    def rank(self) -> int:
        """The rank."""
        return int(self.a.shape[1])


class AdapterWeights(NamedTuple):
    """The adapters of the layers of a network.

    Attributes:
        layers: those of the layers by path.
        source: where they come from, for messages.
    """

    layers: Mapping[str, LayerWeights]
    source: str

    @property
    def rank(self) -> int:
        """The highest rank."""
        return max(layer.rank for layer in self.layers.values())

    @property
    def nbytes(self) -> int:
        """The size of all arrays in bytes."""
        return sum(layer.a.nbytes + layer.b.nbytes for layer in self.layers.values())


class _Pair(NamedTuple):
    """A and B of one of Hugging Face's layers, and the factor."""

    a: Array
    b: Array
    scale: float


def read(net: Block, folder: str | os.PathLike[str], max_bytes: int = _MAX_BYTES) -> AdapterWeights:
    """Read the adapter of a network from a folder of PEFT: ``adapter_config.json`` and ``adapter_model.safetensors``.

    Args:
        net: the network, of the model zoo.
        folder: the folder.
        max_bytes: the maximum size of the file of weights in bytes.

    Raises:
        FileNotFoundError: a file is missing.
        DataError: a file is malformed or too large, the adapter is of an unsupported kind, or its weights do not fit
            the network, or are not finite.
    """
    path = Path(folder)
    config = _read_config(path / _CONFIG)
    file = next((path / name for name in _FILES if (path / name).is_file()), None)
    if file is None:
        raise FileNotFoundError(f"{path} has no weights of an adapter, expected {' or '.join(_FILES)}")
    if file.stat().st_size > max_bytes:
        raise DataError(f"{file} has {file.stat().st_size} bytes, expected at most {max_bytes}: raise max_bytes")
    arrays = formats.load(file)
    if not isinstance(arrays, dict):
        raise DataError(f"{file} holds a list of arrays without names, expected names")
    pairs = _pairs(arrays, config, str(file))
    layers: dict[str, LayerWeights] = {}
    unused = set(pairs)
    for place, layer in dense_layers(net).items():
        wanted = sources(net, place)
        unused -= {bare_name(source.module) for source in wanted}
        if any(bare_name(source.module) in pairs for source in wanted):
            layers[place] = _layer(place, layer, wanted, pairs, str(file))
    if unused:
        raise DataError(f"{file} has adapters of layers that the network does not have: {brief_list(sorted(unused))}")
    return AdapterWeights(layers, str(path))


def _read_config(path: Path) -> Config:
    """Return the config of an adapter."""
    if not path.is_file():
        raise FileNotFoundError(f"{path.parent} has no {path.name}, expected the folder of an adapter of PEFT")
    config = Config(read_json(path, _MAX_JSON), str(path))
    config.expect(peft_type="LORA", bias="none")
    for name in _UNSUPPORTED:
        if config.values.get(name):
            config.refuse(name, "no value: it is not supported")
    return config


def _pairs(arrays: Mapping[str, Array], config: Config, source: str) -> dict[str, _Pair]:
    """Return A and B of each layer by its bare name."""
    sides: dict[str, dict[str, Array]] = {}
    scales: dict[str, float] = {}
    for key, array in arrays.items():
        match = _KEY.fullmatch(key)
        if match is None:
            raise DataError(f"{source} has the array {key[:200]!r}, expected names such as LAYER.lora_A.weight")
        if array.ndim != 2 or array.dtype.kind not in "fV" or not array.size:
            raise DataError(f"{source}: {key!r} is {array.dtype} {array.shape}, expected floating point with two axes")
        values = np.ascontiguousarray(array, np.float32)
        if not np.isfinite(values).all():
            raise DataError(f"{source}: {key!r} has values that are not finite")
        module = bare_name(match["module"])
        sides.setdefault(module, {})[match["side"]] = values
        if match["side"] == "A":
            scales[module] = _scale(match["module"], len(values), config)
    pairs = {}
    for module, pair in sides.items():
        if len(pair) < 2 or len(pair["A"]) != pair["B"].shape[1]:
            shapes = ", ".join(f"{side} {each.shape}" for side, each in sorted(pair.items()))
            raise DataError(
                f"{source}: the layer {module!r} has {shapes}, expected A (rank, inputs), B (outputs, rank)"
            )
        pairs[module] = _Pair(pair["A"], pair["B"], scales[module])
    if not pairs:
        raise DataError(f"{source} has no weights")
    return pairs


def _scale(module: str, rank: int, config: Config) -> float:
    """Return the factor of the adapter of a layer."""
    patterns = config.part("alpha_pattern").values
    if any(set(name) & set(r"*+?()[]{}|^$\\") for name in patterns):
        config.refuse("alpha_pattern", "names of layers: regular expressions are not supported")
    alpha: Any = next(
        (value for name, value in patterns.items() if module.endswith(f".{name}")),
        config.values.get("lora_alpha", 8),
    )
    if isinstance(alpha, bool) or not isinstance(alpha, (int, float)) or not math.isfinite(alpha):
        config.refuse("lora_alpha", "a number")
    return float(alpha) / (math.sqrt(rank) if config.flag("use_rslora", False) else rank)


def _layer(
    path: str, layer: Any, wanted: list[Source], pairs: Mapping[str, _Pair], source: str
) -> LayerWeights:  # fmt: skip
    """Return the adapter of a layer, whose parts may come from several ones of Hugging Face's."""
    shape = Wrapped(layer, "check") if not isinstance(layer, Wrapped) else layer
    size = shape.units // len(wanted)
    present = [pairs[name] for each in wanted if (name := bare_name(each.module)) in pairs]
    rank, scales = max(len(pair.a) for pair in present), [present[0].scale] * len(wanted)
    a = np.zeros((len(wanted), rank, shape.in_units), np.float32)
    b = np.zeros((len(wanted), size, rank), np.float32)
    for part, each in enumerate(wanted):
        pair = pairs.get(bare_name(each.module))
        if pair is None:
            continue
        if pair.a.shape[1] != shape.in_units or len(pair.b) != size * each.parts:
            raise MismatchError(
                f"{source}: the adapter of {each.module!r} has {pair.a.shape[1]} inputs and {len(pair.b)} outputs, "
                f"expected {shape.in_units} and {size * each.parts}, as {path} has"
            )
        a[part, : len(pair.a)] = pair.a
        b[part, :, : len(pair.a)] = pair.b[each.place * size : (each.place + 1) * size]
        scales[part] = pair.scale
    return LayerWeights(a, b, tuple(scales))


def write(net: Block, weights: AdapterWeights, folder: str | os.PathLike[str], dropout: float = 0.0) -> None:
    """Write an adapter as a folder of PEFT.

    Args:
        net: the network.
        weights: the adapter.
        folder: the folder, created if necessary.
        dropout: the probability for the config.

    Raises:
        OSError: a file cannot be written.
    """
    pieces: dict[str, dict[int, tuple[Array, Array, int, float]]] = {}
    for path, layer in weights.layers.items():
        for part, each in enumerate(sources(net, path)):
            pieces.setdefault(each.module, {})[each.place] = (
                layer.a[part],
                layer.b[part],
                each.parts,
                layer.scales[part],
            )
    arrays, ranks, alphas = {}, {}, {}
    for module, places in pieces.items():
        a, b, scale = _joined(places)
        arrays[f"base_model.model.{module}.lora_A.weight"] = a
        arrays[f"base_model.model.{module}.lora_B.weight"] = b
        ranks[module], alphas[module] = len(a), scale * len(a)
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    rank = max(set(ranks.values()), key=list(ranks.values()).count)
    alpha = max(set(alphas.values()), key=list(alphas.values()).count)
    config = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": None, "inference_mode": True,
        "r": rank, "lora_alpha": int(alpha) if alpha == int(alpha) else alpha, "lora_dropout": dropout,
        "bias": "none", "fan_in_fan_out": any(".c_" in module for module in ranks),
        "target_modules": sorted(ranks), "use_rslora": False, "use_dora": False, "modules_to_save": None,
        "rank_pattern": {module: each for module, each in ranks.items() if each != rank},
        "alpha_pattern": {module: each for module, each in alphas.items() if each != alpha},
    }  # fmt: skip
    (target / _CONFIG).write_text(json.dumps(config, indent=2) + "\n")
    safetensors.save(target / _FILES[0], arrays, {"format": "pt"})


def _joined(places: Mapping[int, tuple[Array, Array, int, float]]) -> tuple[Array, Array, float]:
    """Return A, B and the factor of one of Hugging Face's layers, of which each place has a part of the outputs."""
    count, scale = next((count, scale) for _, _, count, scale in places.values())
    if count == 1:
        return places[0][0], places[0][1], scale
    size, first = len(next(iter(places.values()))[1]), next(iter(places.values()))[0]
    if all(np.array_equal(a, first) for a, *_ in places.values()):  # as a file had it
        b = np.zeros((size * count, len(first)), np.float32)
        for place, (_, piece, _, factor) in places.items():
            b[place * size : (place + 1) * size] = piece * (factor / scale)
        return first, b, scale
    a = np.concatenate([a for a, *_ in places.values()])
    b, begin = np.zeros((size * count, len(a)), np.float32), 0
    for place, (piece_a, piece, _, factor) in places.items():
        b[place * size : (place + 1) * size, begin : begin + len(piece_a)] = piece * (factor / scale)
        begin += len(piece_a)
    return a, b, scale
