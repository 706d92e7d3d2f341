"""Arguments of PyTorch's, Keras' and PEFT's functions, and their equivalents."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping

__all__ = ["ARGUMENTS", "argument_advice", "call_advice"]

_RATE = ("learning_rate", "optimizer_params={'learning_rate': ...}")

ARGUMENTS: Mapping[str, str | tuple[str, ...]] = {
    "batch_first": "layout='NTC'",
    "batch_size": ("batch_size", "max_batch"),
    "bias": ("use_bias", "center"),
    "bs": ("batch_size", "max_batch"),
    "callbacks": ("event_handlers", "epoch_end_callback and batch_end_callback"),
    "collate_fn": "batchify_fn",
    "d_model": "units",
    "data_dir": "root",
    "decay": ("wd", "factor"),
    "device": ("ctx", "context"),
    "dim": ("axis", "dim"),
    "dim_feedforward": "hidden_units",
    "download": "has no equivalent: missing files are downloaded",
    "drop_last": "last_batch='discard'",
    "dropout_rate": ("rate", "dropout"),
    "elementwise_affine": "center and scale",
    "embed_dim": "units",
    "embedding_dim": "output_dim",
    "epochs": ("num_epoch", "epochs"),
    "eps": "epsilon",
    "filters": "channels",
    "gamma": ("factor", "gamma"),
    "hidden_dim": ("hidden_size", "hidden_units", "units"),
    "hidden_size": ("units", "hidden_units"),
    "in_features": ("in_units", "in_channels"),
    "input_dim": ("in_units", "in_channels", "input_size"),
    "input_shape": ("in_units or in_channels (they may be left out)", "in_channels", "shape"),
    "input_size": ("in_units", "shape", "in_channels"),
    "intermediate_size": "hidden_units",
    "k": "top_k",
    "kernel_size": "pool_size",
    "keepdim": "keepdims",
    "kernel_initializer": "weight_initializer",
    "learning_rate": _RATE[1],
    "lora_alpha": "alpha",
    "loss_fn": "loss",
    "lr": _RATE,
    "max_batch_size": "max_batch",
    "max_lr": ("base_lr", "max_lr"),
    "max_new_tokens": "max_tokens",
    "max_seq_len": "max_length",
    "metrics": ("train_metrics", "eval_metric"),
    "milestones": "step",
    "model_path": "model",
    "n_epochs": ("num_epoch", "epochs"),
    "negative_slope": ("alpha", "slope"),
    "nhead": "num_heads",
    "normalized_shape": "in_channels (it may be left out); axis selects the axis",
    "num_classes": "classes",
    "num_embeddings": "input_dim",
    "num_epochs": ("num_epoch", "epochs"),
    "num_features": "in_channels",
    "num_filters": "channels",
    "out_channels": "channels",
    "out_features": "units",
    "output_size": ("units", "size"),
    "p": "rate",
    "path": ("model", "root", "file", "folder"),
    "r": "rank",
    "recurrent_dropout": "dropout",
    "reduction": "has no equivalent: losses are one number for each sample; use .mean() or .sum()",
    "requires_grad": ("grad_req='null', or 'write'", "x.attach_grad()"),
    "return_sequences": "the first output, which has all steps",
    "size_average": "has no equivalent: losses are one number for each sample; use .mean() or .sum()",
    "start_dim": "has no equivalent: all axes but the first are flattened",
    "step_size": "step",
    "stride": "strides",
    "target_modules": "targets",
    "total_steps": "max_update",
    "track_running_stats": "use_global_stats",
    "trainable": "grad_req='null', or 'write'",
    "val_data": ("val_data", "eval_data"),
    "validation_data": ("val_data", "eval_data"),
    "weight_decay": ("wd", "optimizer_params={'wd': ...}"),
    "worker_init_fn": "has no equivalent: worker processes have separate seeds",
}
"""flowmx's arguments by those of other libraries. Of several, those are meant that the called function takes."""

_UNEXPECTED = re.compile(r"got an unexpected keyword argument '(\w+)'")


def argument_advice(names: Iterable[str], accepted: Container[str] | None = None) -> str:
    """Return a hint for the arguments of another library, such as ``"nhead is num_heads here"``, or "".

    Args:
        names: the arguments of the call that flowmx does not have.
        accepted: the arguments that the called function has, if they are known.
    """
    texts = {name: _equivalent(name, accepted) for name in names}
    return "; ".join(
        f"{name} {text}" if text.startswith("has no ") else f"{name} is {text} here"
        for name, text in texts.items() if text
    )  # fmt: skip


def call_advice(message: str) -> str:
    """Return a hint for a function call with an argument of another library, or "".

    Args:
        message: the message of the TypeError.
    """
    match = _UNEXPECTED.search(message)
    return argument_advice([match[1]]) if match is not None else ""


def _equivalent(name: str, accepted: Container[str] | None) -> str:
    texts = ARGUMENTS.get(name, ())
    texts = (texts,) if isinstance(texts, str) else texts
    if accepted is None:
        return " or ".join(text for text in texts if text != name)
    return next((text for text in texts if text.startswith("has no ") or re.split(r"\W", text)[0] in accepted), "")
