"""The configs and names of Llama, Mistral, Qwen 2, Qwen 3 and Gemma 3 in Hugging Face's Transformers."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from flowmx.errors import ShapeError
from flowmx.gluon.model_zoo.huggingface.folder import Arrays, Config

__all__ = [
    "GEMMA3_NORMS", "IGNORED", "NAMES", "NORMS", "arrange", "arrange_gemma3", "gemma3_options", "head_options",
    "llama_options", "mistral_options", "qwen2_options", "qwen3_options",
]  # fmt: skip

NAMES: Mapping[str, str] = {
    "words": "embed_tokens", "norm": "norm", "layers.N.widen": "layers.N.mlp.widen",
    "layers.N.narrow": "layers.N.mlp.down_proj", "layers.N.attention.query": "layers.N.self_attn.q_proj",
    "layers.N.attention.key": "layers.N.self_attn.k_proj", "layers.N.attention.value": "layers.N.self_attn.v_proj",
    "layers.N.attention.out": "layers.N.self_attn.o_proj",
    "layers.N.attention.query_norm": "layers.N.self_attn.q_norm",
    "layers.N.attention.key_norm": "layers.N.self_attn.k_norm",
    "layers.N.attention_norm": "layers.N.input_layernorm",
}  # fmt: skip
"""The names of the blocks; ``mlp.widen`` are ``up_proj`` and ``gate_proj`` together."""
NORMS: Mapping[str, str] = {"layers.N.hidden_norm": "layers.N.post_attention_layernorm"}
GEMMA3_NORMS: Mapping[str, str] = {
    "layers.N.attention_out_norm": "layers.N.post_attention_layernorm",
    "layers.N.hidden_norm": "layers.N.pre_feedforward_layernorm",
    "layers.N.hidden_out_norm": "layers.N.post_feedforward_layernorm",
}
IGNORED = re.compile(
    r"lm_head\.weight|layers\.\d+\.self_attn\.rotary_emb\.inv_freq|(model\.)?(vision_tower|multi_modal_projector)\..*"
)
_ACTIVATIONS = {
    "silu": "swiglu", "swish": "swiglu", "gelu": "geglu", "gelu_pytorch_tanh": "geglu_tanh", "gelu_new": "geglu_tanh",
}  # fmt: skip
_BASE, _NEAR_BASE = 10000.0, 10000.0


def llama_options(config: Config) -> dict[str, Any]:
    """Return the arguments of ``Llama`` for a config of Llama.

    Raises:
        DataError: a value is invalid or unsupported.
    """
    config.expect(mlp_bias=False)
    bias = config.flag("attention_bias", False)
    return _options(config) | {"attention_bias": bias}


def mistral_options(config: Config) -> dict[str, Any]:
    """Return the arguments for a config of Mistral; see :func:`llama_options`."""
    return _options(config) | _windows(config)


def qwen2_options(config: Config) -> dict[str, Any]:
    """Return the arguments for a config of Qwen 2; see :func:`llama_options`."""
    return _options(config) | {"attention_bias": True, "out_bias": False} | _qwen_windows(config)


def qwen3_options(config: Config) -> dict[str, Any]:
    """Return the arguments for a config of Qwen 3; see :func:`llama_options`."""
    bias = config.flag("attention_bias", False)
    return _options(config) | {"attention_bias": bias, "head_norms": True} | _qwen_windows(config)


def gemma3_options(config: Config) -> dict[str, Any]:
    """Return the arguments for a config of Gemma 3, also of one with images; see :func:`llama_options`."""
    config = _text_config(config)
    config.expect(use_bidirectional_attention=False, attn_logit_softcapping=None)
    units = config.count("hidden_size", 2304)
    pattern = config.count("sliding_window_pattern", config.count("_sliding_window_pattern", 6))
    windows = _windows(config, 4096)
    if "window" in windows and "window_layers" not in windows:
        layers = range(config.count("num_hidden_layers", 26))
        windows["window_layers"] = [index for index in layers if (index + 1) % pattern]
    near = config.part("rope_parameters").part("sliding_attention").number("rope_theta", None)
    scalar = config.number("query_pre_attn_scalar", 256)
    assert scalar is not None
    return _options(config, _GEMMA3, ("hidden_activation", "gelu_pytorch_tanh"), 1e6) | windows | {
        "attention_bias": config.flag("attention_bias", False), "head_norms": True, "out_norms": True,
        "window_rotary_base": near or config.number("rope_local_base_freq", _NEAR_BASE),
        "attention_scale": 1 / math.sqrt(scalar),
        "embedding_scale": math.sqrt(units),
    }  # fmt: skip


def head_options(config: Config, tied: bool) -> dict[str, Any]:
    """Return the further arguments of ``LlamaLM``.

    Args:
        config: the config.
        tied: whether the head has the weights of the embedding by default.
    """
    config = _text_config(config)
    return {
        "tied": config.flag("tie_word_embeddings", tied),
        "logit_cap": config.number("final_logit_softcapping", None),
    }  # fmt: skip


def arrange(arrays: Arrays) -> None:
    """Join ``up_proj`` and ``gate_proj`` as one weight, ``mlp.widen``.

    Raises:
        ShapeError: the two do not fit.
    """
    for name in [name for name in arrays if name.endswith(".mlp.up_proj.weight")]:
        gate_name = name.replace("up_proj", "gate_proj")
        up, gate = arrays.pop(name), arrays.pop(gate_name, None)
        if gate is None or up.shape != gate.shape:
            shape = None if gate is None else gate.shape
            raise ShapeError(f"the weight {name!r} has shape {up.shape}, but {gate_name!r} {shape}, expected the same")
        arrays[name.replace("up_proj", "widen")] = np.concatenate([up, gate])


def arrange_gemma3(arrays: Arrays) -> None:
    """Arrange the weights of Gemma 3: those of normalizations are stored less 1.

    Raises:
        ShapeError: as in :func:`arrange`.
    """
    for name in list(arrays):
        plain = re.sub(r"^(model\.)?language_model\.(model\.)?", "", name)
        arrays[plain] = arrays.pop(name)
    arrange(arrays)
    for name in [name for name in arrays if name.endswith("norm.weight") and "vision_tower" not in name]:
        weight = arrays[name]
        arrays[name] = (weight.astype(np.float32) + 1).astype(weight.dtype)


_LLAMA: Mapping[str, int] = {
    "vocab_size": 32000, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "intermediate_size": 11008, "max_position_embeddings": 2048,
}  # fmt: skip
_GEMMA3: Mapping[str, int] = {
    "vocab_size": 262208, "hidden_size": 2304, "num_hidden_layers": 26, "num_attention_heads": 8,
    "intermediate_size": 9216, "max_position_embeddings": 131072, "num_key_value_heads": 4, "head_dim": 256,
}  # fmt: skip
"""The sizes that a config leaves out if they are these."""


def _options(
    config: Config, sizes: Mapping[str, int] = _LLAMA, activation: tuple[str, str] = ("hidden_act", "silu"),
    base: float = _BASE,
) -> dict[str, Any]:  # fmt: skip
    """Return the arguments that all models have."""
    size = {name: config.count(name, value) for name, value in sizes.items()}
    heads = size["num_attention_heads"]
    rotary = config.part("rope_parameters")
    rotary = rotary.part("full_attention") if "full_attention" in rotary.values else rotary
    scaling = rotary.values or config.part("rope_scaling").values
    head_units = size.get("head_dim") or max(1, size["hidden_size"] // heads)
    return {
        "vocab_size": size["vocab_size"], "units": size["hidden_size"], "num_layers": size["num_hidden_layers"],
        "num_heads": heads,
        "num_key_heads": config.count("num_key_value_heads", sizes.get("num_key_value_heads", heads)),
        "head_units": config.count("head_dim", head_units), "hidden_units": size["intermediate_size"],
        "max_length": size["max_position_embeddings"],
        "activation": config.choice(*activation, _ACTIVATIONS), "epsilon": config.epsilon("rms_norm_eps", 1e-6),
        "rotary_base": rotary.number("rope_theta", config.number("rope_theta", base)),
        "rotary_scaling": _scaling(scaling, size["max_position_embeddings"]),
        "attention_dropout": config.probability("attention_dropout", 0.0),
    }  # fmt: skip


def _scaling(values: dict[str, Any], max_length: int) -> dict[str, Any] | None:
    """Return the scaling of rotary positions, or None."""
    scaling = {name: value for name, value in values.items() if name != "rope_theta"}
    if scaling.get("rope_type", scaling.get("type", "default")) == "default":
        return None
    return {"original_max_position_embeddings": max_length} | scaling


def _windows(config: Config, window: int | None = None) -> dict[str, Any]:
    """Return the arguments for layers that see only the last positions.

    Args:
        config: the config.
        window: the number of positions if the config does not specify it.
    """
    positions = config.values.get("sliding_window", window)
    if positions is None:
        return {}
    kinds = config.values.get("layer_types")
    options: dict[str, Any] = {"window": config.count("sliding_window", window or 1)}
    if kinds is not None:
        choices = ("sliding_attention", "full_attention")
        if not isinstance(kinds, list) or not all(kind in choices for kind in kinds):
            config.refuse("layer_types", f"a list of {' and '.join(choices)}")
        options["window_layers"] = [index for index, kind in enumerate(kinds) if kind == "sliding_attention"]
    return options


def _qwen_windows(config: Config) -> dict[str, Any]:
    """Return the arguments for layers of Qwen that see only the last positions."""
    if not config.flag("use_sliding_window", False):
        return {}
    windows = _windows(config)
    if windows and "window_layers" not in windows:
        layers = config.count("num_hidden_layers", 32)
        windows["window_layers"] = [*range(config.count("max_window_layers", 28), layers)]
    return windows


def _text_config(config: Config) -> Config:
    """Return the config of the texts in that of a model with images."""
    return config.part("text_config") if "text_config" in config.values else config
