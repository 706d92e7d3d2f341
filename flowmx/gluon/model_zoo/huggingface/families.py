"""The models of Hugging Face's Transformers that the zoo has, the names of their weights, and their configs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from flowmx.errors import ShapeError
from flowmx.gluon.hybrid import HybridBlock
from flowmx.gluon.model_zoo.huggingface import llama
from flowmx.gluon.model_zoo.huggingface.folder import Arrays, Config
from flowmx.gluon.model_zoo.text import (
    BERT,
    GPT2,
    GPT2LM,
    BERTClassifier,
    BERTMaskedLM,
    BERTTokenClassifier,
    Llama,
    LlamaLM,
)
from flowmx.gluon.model_zoo.vision.vit import ViT, ViTClassifier
from flowmx.ops.registry.operators import Shape

__all__ = ["FAMILIES", "Family"]

Names = Mapping[str, str]
"""Hugging Face's name for the path of a block or parameter; N stands for the index of a layer."""


class Family(NamedTuple):
    """Models with the same body.

    Attributes:
        body: the attribute of the body in a model with a head.
        prefix: the prefix of the names of the body's weights in a model with a head.
        names: the names of the body's blocks.
        heads: the classes, and the names of their heads' blocks; alternatives are separated by a bar.
        architectures: the class for each of Hugging Face's architecture names.
        inputs: returns the shapes of the inputs for a config, by name in the order of a call; 0 is any length.
        options: returns the arguments of a class for a config.
        arrange: changes arrays in place, so that each is the value of one parameter.
        ignored: matches names of arrays that a model may leave unread: heads, and values that are computed.
        head_options: returns further arguments of a class with a head for a config.
    """

    body: str
    prefix: str
    names: Names
    heads: Mapping[type[HybridBlock], Names]
    architectures: Mapping[str, type[HybridBlock]]
    inputs: Callable[[Config], dict[str, Shape]]
    options: Callable[[Config], dict[str, Any]]
    arrange: Callable[[Arrays], None]
    ignored: re.Pattern[str]
    head_options: Callable[[Config], dict[str, Any]] = lambda config: {}

    def arrays(self, source: Arrays) -> Arrays:
        """Rename arrays as in a model without a head, and arrange each as one parameter."""
        arrays = {_modern(name.removeprefix(self.prefix)): array for name, array in source.items()}
        self.arrange(arrays)
        return arrays

    def name_of(self, path: str, model: type[HybridBlock], arrays: Arrays) -> str:
        """Return the name under which arrays have a parameter; otherwise the first name tried."""
        is_body = self._is_body(path, model)
        names = self.names if is_body else self.heads[model]
        path = path.removeprefix(f"{self.body}.") if is_body else path
        number = re.search(r"\.(\d+)\.", path)
        general = path if number is None else path.replace(number[0], ".N.", 1)
        block, _, kind = general.rpartition(".")
        suffix = "" if general in names else f".{_modern(kind)}"
        pattern = names.get(general) or names[block]
        candidates = [f"{each}{suffix}".replace(".N.", number[0] if number else "") for each in pattern.split("|")]
        return next((each for each in candidates if each in arrays), candidates[0])

    def is_head(self, path: str, model: type[HybridBlock]) -> bool:
        """Return whether a parameter is one of a head or of the pooler, which other models do not have."""
        return not self._is_body(path, model) or path.removeprefix(f"{self.body}.").startswith("pooler.")

    def _is_body(self, path: str, model: type[HybridBlock]) -> bool:
        return model is self.body_class or path.startswith(f"{self.body}.")

    @property
    def body_class(self) -> type[HybridBlock]:
        """The class without a head."""
        return next(iter(self.heads))


def _modern(name: str) -> str:
    """Return the name of a weight with ``weight`` and ``bias`` in place of ``gamma`` and ``beta``."""
    return re.sub(r"(^|\.)gamma$", r"\1weight", re.sub(r"(^|\.)beta$", r"\1bias", name))


def _encoder(attention: str, out: str, norms: tuple[str, str]) -> Names:
    """Return the names of the layers of BERT and ViT."""
    return {
        **{f"encoder.layers.N.attention.{each}": f"encoder.layer.N.{attention}.{each}"
           for each in ("query", "key", "value")},
        "encoder.layers.N.attention.out": f"encoder.layer.N.{out}",
        "encoder.layers.N.widen": "encoder.layer.N.intermediate.dense",
        "encoder.layers.N.narrow": "encoder.layer.N.output.dense",
    } | {f"encoder.layers.N.norms.{index}": f"encoder.layer.N.{name}" for index, name in enumerate(norms)}  # fmt: skip


_ACTIVATIONS = {
    "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu", "silu": "silu",
    "swish": "silu",
}  # fmt: skip
_CLASSES = 2
"""The number of classes if a config does not specify it."""


def classes(config: Config) -> int:
    """Return the number of classes of a config."""
    labels = config.values.get("id2label")
    return len(labels) if isinstance(labels, dict) and labels else config.count("num_labels", _CLASSES)


def _bert_options(config: Config) -> dict[str, Any]:
    config.expect(position_embedding_type="absolute", is_decoder=False, add_cross_attention=False)
    config.expect(tie_word_embeddings=True)
    return {
        "vocab_size": config.count("vocab_size", 30522), "units": config.count("hidden_size", 768),
        "num_layers": config.count("num_hidden_layers", 12), "num_heads": config.count("num_attention_heads", 12),
        "hidden_units": config.count("intermediate_size", 3072),
        "max_length": config.count("max_position_embeddings", 512), "token_types": config.count("type_vocab_size", 2),
        "dropout": config.probability("hidden_dropout_prob", 0.1),
        "attention_dropout": config.probability("attention_probs_dropout_prob", 0.1),
        "activation": config.choice("hidden_act", "gelu", _ACTIVATIONS),
        "epsilon": config.epsilon("layer_norm_eps", 1e-12),
    }  # fmt: skip


def _gpt2_options(config: Config) -> dict[str, Any]:
    config.expect(scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False, add_cross_attention=False)
    config.expect(tie_word_embeddings=True)
    units = config.count("n_embd", 768)
    return {
        "vocab_size": config.count("vocab_size", 50257), "units": units, "num_layers": config.count("n_layer", 12),
        "num_heads": config.count("n_head", 12), "hidden_units": config.count("n_inner", 4 * units),
        "max_length": config.count("n_positions", 1024), "dropout": config.probability("resid_pdrop", 0.1),
        "attention_dropout": config.probability("attn_pdrop", 0.1),
        "embedding_dropout": config.probability("embd_pdrop", 0.1),
        "activation": config.choice("activation_function", "gelu_new", _ACTIVATIONS),
        "epsilon": config.epsilon("layer_norm_epsilon", 1e-5),
    }  # fmt: skip


def _vit_options(config: Config) -> dict[str, Any]:
    config.expect(qkv_bias=True, pooler_act="tanh")
    units = config.count("hidden_size", 768)
    config.expect(pooler_output_size=units)
    return {
        "image_size": config.count("image_size", 224), "patch_size": config.count("patch_size", 16),
        "channels": config.count("num_channels", 3), "units": units,
        "num_layers": config.count("num_hidden_layers", 12), "num_heads": config.count("num_attention_heads", 12),
        "hidden_units": config.count("intermediate_size", 3072),
        "dropout": config.probability("hidden_dropout_prob", 0.0),
        "attention_dropout": config.probability("attention_probs_dropout_prob", 0.0),
        "activation": config.choice("hidden_act", "gelu", _ACTIVATIONS),
        "epsilon": config.epsilon("layer_norm_eps", 1e-12),
    }  # fmt: skip


def _vit_inputs(config: Config) -> dict[str, Shape]:
    size = config.count("image_size", 224)
    return {"images": (0, config.count("num_channels", 3), size, size)}


def _as_stored(arrays: Arrays) -> None:
    """Leave arrays unchanged."""


def _arrange_gpt2(arrays: Arrays) -> None:
    """Transpose the weights, and split those of queries, keys and values.

    Raises:
        ShapeError: a weight cannot be split.
    """
    for name in [name for name in arrays if re.fullmatch(r"h\.\d+\.(attn|mlp)\.c_\w+\.(weight|bias)", name)]:
        array = arrays.pop(name).T
        if ".c_attn." not in name:
            arrays[name] = array
        elif not array.ndim or len(array) % 3:
            raise ShapeError(f"the weight {name!r} has shape {array.shape[::-1]}, expected a multiple of 3 columns")
        else:
            for part, each in zip(("query", "key", "value"), np.split(array, 3), strict=True):
                arrays[name.replace("c_attn", part)] = each


def _arrange_vit(arrays: Arrays) -> None:
    """Remove the first axis of the positions."""
    positions = arrays.get("embeddings.position_embeddings")
    if positions is not None and positions.ndim == 3 and len(positions) == 1:
        arrays["embeddings.position_embeddings"] = positions[0]


_BERT = Family(
    body="bert", prefix="bert.",
    names={
        "words": "embeddings.word_embeddings", "token_types": "embeddings.token_type_embeddings",
        "positions": "embeddings.position_embeddings", "norm": "embeddings.LayerNorm", "pooler": "pooler.dense",
        **_encoder("attention.self", "attention.output.dense", ("attention.output.LayerNorm", "output.LayerNorm")),
    },
    heads={
        BERT: {},
        BERTClassifier: {"output": "classifier"},
        BERTTokenClassifier: {"output": "classifier|qa_outputs"},
        BERTMaskedLM: {
            "transform": "cls.predictions.transform.dense", "norm": "cls.predictions.transform.LayerNorm",
            "output.bias": "cls.predictions.bias",
        },
    },
    architectures={
        "BertModel": BERT, "BertForMaskedLM": BERTMaskedLM, "BertForPreTraining": BERTMaskedLM,
        "BertForSequenceClassification": BERTClassifier, "BertForTokenClassification": BERTTokenClassifier,
        "BertForQuestionAnswering": BERTTokenClassifier,
    },
    inputs=lambda config: dict.fromkeys(("tokens", "token_types", "padding"), (0, 0)), options=_bert_options,
    arrange=_as_stored,
    ignored=re.compile(r"(cls|pooler|classifier|qa_outputs)\..*|embeddings\.position_ids"),
)  # fmt: skip
_GPT2 = Family(
    body="gpt2", prefix="transformer.",
    names={
        "words": "wte", "positions": "wpe", "decoder.norm": "ln_f",
        **{f"decoder.layers.N.attention.{each}": f"h.N.attn.{each}" for each in ("query", "key", "value")},
        "decoder.layers.N.attention.out": "h.N.attn.c_proj", "decoder.layers.N.widen": "h.N.mlp.c_fc",
        "decoder.layers.N.narrow": "h.N.mlp.c_proj", "decoder.layers.N.norms.0": "h.N.ln_1",
        "decoder.layers.N.norms.1": "h.N.ln_2",
    },
    heads={GPT2: {}, GPT2LM: {}},
    architectures={"GPT2Model": GPT2, "GPT2LMHeadModel": GPT2LM},
    inputs=lambda config: dict.fromkeys(("tokens", "padding"), (0, 0)), options=_gpt2_options, arrange=_arrange_gpt2,
    ignored=re.compile(r"lm_head\.weight|h\.\d+\.attn\.(bias|masked_bias)"),
)  # fmt: skip
_VIT = Family(
    body="vit", prefix="vit.",
    names={
        "patches": "embeddings.patch_embeddings.projection", "token": "embeddings.cls_token",
        "positions.weight": "embeddings.position_embeddings", "encoder.norm": "layernorm", "pooler": "pooler.dense",
        **_encoder("attention.attention", "attention.output.dense", ("layernorm_before", "layernorm_after")),
    },
    heads={ViT: {}, ViTClassifier: {"output": "classifier"}},
    architectures={"ViTModel": ViT, "ViTForImageClassification": ViTClassifier},
    inputs=_vit_inputs, options=_vit_options, arrange=_arrange_vit, ignored=re.compile(r"(pooler|classifier)\..*"),
)  # fmt: skip


def _llama_family(
    name: str, options: Callable[[Config], dict[str, Any]], arrange: Callable[[Arrays], None] = llama.arrange,
    norms: Names = llama.NORMS, architecture: str = "ForCausalLM", tied: bool = False,
) -> Family:  # fmt: skip
    """Return the family of a relative of Llama.

    Args:
        name: the beginning of the names of its architectures.
        options: returns the arguments of ``Llama``.
        arrange: see :class:`Family`.
        norms: the names of the normalizations.
        architecture: the end of the name of the architecture with a head.
        tied: whether the head has the weights of the embedding if the config does not specify it.
    """
    return Family(
        body="llama", prefix="model.", names={**llama.NAMES, **norms},
        heads={Llama: {}, LlamaLM: {"output": "lm_head"}},
        architectures={f"{name}{architecture}": LlamaLM, f"{name}Model": Llama},
        inputs=lambda config: dict.fromkeys(("tokens", "padding"), (0, 0)), options=options, arrange=arrange,
        ignored=llama.IGNORED, head_options=lambda config: llama.head_options(config, tied),
    )  # fmt: skip


FAMILIES = {
    "bert": _BERT, "gpt2": _GPT2, "vit": _VIT, "llama": _llama_family("Llama", llama.llama_options),
    "mistral": _llama_family("Mistral", llama.mistral_options), "qwen2": _llama_family("Qwen2", llama.qwen2_options),
    "qwen3": _llama_family("Qwen3", llama.qwen3_options),
    "gemma3_text": _llama_family("Gemma3", llama.gemma3_options, llama.arrange_gemma3, llama.GEMMA3_NORMS, tied=True),
    "gemma3": _llama_family(
        "Gemma3", llama.gemma3_options, llama.arrange_gemma3, llama.GEMMA3_NORMS, "ForConditionalGeneration", True,
    ),
}  # fmt: skip
"""The families by Hugging Face's ``model_type``."""
