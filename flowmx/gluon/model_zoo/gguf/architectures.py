"""The supported architectures of GGUF files: the names of their tensors, and their options."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from flowmx.gluon.hybrid import HybridBlock
from flowmx.gluon.model_zoo.gguf.metadata import Metadata
from flowmx.gluon.model_zoo.text import GPT2LM, LlamaLM
from flowmx.ops.registry.operators import Array

__all__ = ["ARCHITECTURES", "Architecture", "Source"]


class Source(NamedTuple):
    """The source of the rows of a parameter.

    Attributes:
        tensors: the names of the tensors; their rows follow each other.
        order: takes the number of rows and of heads; returns the indices of the rows to take. None: all, in order.
        part: the part of the rows to take, and the number of parts.
    """

    tensors: tuple[str, ...]
    order: Callable[[int, int], Array] | None = None
    part: tuple[int, int] = (0, 1)


class Architecture(NamedTuple):
    """A kind of model.

    Attributes:
        model: the class.
        names: the sources of the blocks; N stands for the index of a layer.
        options: returns the arguments of the class for metadata and the names of the tensors.
        ignored: names of tensors that need not be read.
    """

    model: type[HybridBlock]
    names: Mapping[str, Source]
    options: Callable[[Metadata, frozenset[str]], dict[str, Any]]
    ignored: frozenset[str] = frozenset({"rope_freqs.weight"})


def _interleaved_rows(rows: int, heads: int) -> Array:
    """Return the order of rows that moves the second feature of each pair to the second half of a head.

    In the files, the two features of a pair are neighbors.
    """
    return np.arange(rows).reshape(heads, rows // heads // 2, 2).swapaxes(1, 2).reshape(-1)


def _names(order: Callable[[int, int], Array] | None = None) -> dict[str, Source]:
    return {
        "llama.words": Source(("token_embd",)), "llama.norm": Source(("output_norm",)), "output": Source(("output",)),
        "llama.layers.N.attention.query": Source(("blk.N.attn_q",), order),
        "llama.layers.N.attention.key": Source(("blk.N.attn_k",), order),
        "llama.layers.N.attention.value": Source(("blk.N.attn_v",)),
        "llama.layers.N.attention.out": Source(("blk.N.attn_output",)),
        "llama.layers.N.attention.query_norm": Source(("blk.N.attn_q_norm",)),
        "llama.layers.N.attention.key_norm": Source(("blk.N.attn_k_norm",)),
        "llama.layers.N.attention_norm": Source(("blk.N.attn_norm",)),
        "llama.layers.N.attention_out_norm": Source(("blk.N.post_attention_norm",)),
        "llama.layers.N.hidden_norm": Source(("blk.N.ffn_norm",)),
        "llama.layers.N.hidden_out_norm": Source(("blk.N.post_ffw_norm",)),
        "llama.layers.N.widen": Source(("blk.N.ffn_up", "blk.N.ffn_gate")),
        "llama.layers.N.narrow": Source(("blk.N.ffn_down",)),
    }  # fmt: skip


_GPT2_NAMES = {
    "gpt2.words": Source(("token_embd",)), "gpt2.positions": Source(("position_embd",)),
    **{f"gpt2.decoder.layers.N.attention.{name}": Source(("blk.N.attn_qkv",), part=(at, 3))
       for at, name in enumerate(("query", "key", "value"))},
    "gpt2.decoder.layers.N.attention.out": Source(("blk.N.attn_output",)),
    "gpt2.decoder.layers.N.norms.0": Source(("blk.N.attn_norm",)),
    "gpt2.decoder.layers.N.norms.1": Source(("blk.N.ffn_norm",)),
    "gpt2.decoder.layers.N.widen": Source(("blk.N.ffn_up",)),
    "gpt2.decoder.layers.N.narrow": Source(("blk.N.ffn_down",)), "gpt2.decoder.norm": Source(("output_norm",)),
}  # fmt: skip


def _sizes(metadata: Metadata, tensors: frozenset[str]) -> dict[str, Any]:
    """Return the arguments that all relatives of Llama have."""
    units, heads = metadata.count("embedding_length"), metadata.count("attention.head_count")
    size = metadata.count("attention.key_length", max(1, units // heads))
    return {
        "units": units, "num_layers": metadata.count("block_count"), "num_heads": heads,
        "num_key_heads": metadata.count("attention.head_count_kv", heads), "head_units": size,
        "hidden_units": metadata.count("feed_forward_length"), "max_length": metadata.count("context_length"),
        "epsilon": metadata.number("attention.layer_norm_rms_epsilon", 1e-5),
        "rotary_base": metadata.number("rope.freq_base", 10000.0), "rotary_scaling": metadata.scaling(size),
        "attention_bias": "blk.0.attn_q.bias" in tensors, "out_bias": "blk.0.attn_output.bias" in tensors,
        "head_norms": "blk.0.attn_q_norm.weight" in tensors, "tied": "output.weight" not in tensors,
    }  # fmt: skip


def _gemma3_options(metadata: Metadata, tensors: frozenset[str]) -> dict[str, Any]:
    options = _sizes(metadata, tensors)
    period, layers = metadata.count("attention.sliding_window_pattern", 6), range(options["num_layers"])
    is_largest = options["num_layers"] == 62  # the model with 27 billion parameters
    scaled = options["units"] / options["num_heads"] if is_largest else options["head_units"]
    return options | {
        "activation": "geglu_tanh", "out_norms": True, "window": metadata.count("attention.sliding_window"),
        "window_layers": [index for index in layers if (index + 1) % period],
        "rotary_base": metadata.number("rope.freq_base", 1e6),
        "window_rotary_base": metadata.number("rope.freq_base_swa", 10000.0),
        "embedding_scale": math.sqrt(options["units"]), "attention_scale": 1 / math.sqrt(scaled),
        "logit_cap": metadata.number("final_logit_softcapping") if metadata.has("final_logit_softcapping") else None,
    }  # fmt: skip


def _gpt2_options(metadata: Metadata, tensors: frozenset[str]) -> dict[str, Any]:
    return {
        "units": metadata.count("embedding_length"), "num_layers": metadata.count("block_count"),
        "num_heads": metadata.count("attention.head_count"), "hidden_units": metadata.count("feed_forward_length"),
        "max_length": metadata.count("context_length"),
        "epsilon": metadata.number("attention.layer_norm_epsilon", 1e-5),
    }  # fmt: skip


ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture(LlamaLM, _names(_interleaved_rows), _sizes), "qwen2": Architecture(LlamaLM, _names(), _sizes),
    "qwen3": Architecture(LlamaLM, _names(), _sizes), "gemma3": Architecture(LlamaLM, _names(), _gemma3_options),
    "gpt2": Architecture(GPT2LM, _GPT2_NAMES, _gpt2_options, frozenset({"output.weight"})),
}  # fmt: skip
"""The architectures by the names in ``general.architecture``."""
