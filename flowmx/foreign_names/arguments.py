"""Arguments of PyTorch's, Keras' and PEFT's functions, and their equivalents."""

from __future__ import annotations

import re

__all__ = ["ARGUMENTS", "argument_advice"]

ARGUMENTS = {
    "batch_first": "layout='NTC'",
    "bias": "use_bias",
    "d_model": "units",
    "device": "ctx",
    "dim": "axis",
    "dim_feedforward": "hidden_units",
    "drop_last": "last_batch='discard'",
    "elementwise_affine": "center and scale",
    "embed_dim": "units",
    "embedding_dim": "output_dim",
    "eps": "epsilon",
    "filters": "channels",
    "in_features": "in_units",
    "input_shape": "in_units or in_channels (they may be left out)",
    "keepdim": "keepdims",
    "kernel_initializer": "weight_initializer",
    "learning_rate": "optimizer_params={'learning_rate': ...}",
    "lora_alpha": "alpha",
    "lr": "optimizer_params={'learning_rate': ...}",
    "max_lr": "base_lr",
    "nhead": "num_heads",
    "num_embeddings": "input_dim",
    "num_features": "in_channels",
    "out_channels": "channels",
    "out_features": "units",
    "p": "rate",
    "r": "rank",
    "recurrent_dropout": "dropout",
    "return_sequences": "the first output, which has all steps",
    "stride": "strides",
    "target_modules": "targets",
    "total_steps": "max_update",
    "track_running_stats": "use_global_stats",
    "weight_decay": "optimizer_params={'wd': ...}",
}
"""flowmx's arguments by those of other libraries."""

_UNEXPECTED = re.compile(r"got an unexpected keyword argument '(\w+)'|missing \d+ required positional argument")


def argument_advice(message: str, call: str) -> str:
    """Return a hint for a call with arguments of another library, or "".

    Args:
        message: the message of the TypeError.
        call: the source of the call; the names of its arguments are looked up.
    """
    match = _UNEXPECTED.search(message)
    if match is None:
        return ""
    names = [name for name in re.findall(r"(\w+)\s*=(?!=)", call) if name in ARGUMENTS] or (
        [match[1]] if match[1] in ARGUMENTS else []
    )
    return "; ".join(f"{name} is {ARGUMENTS[name]} here" for name in dict.fromkeys(names))
