"""MXNet 1.9.1's public names (tests/fixtures/mxnet_names.json), and those that flowmx lacks, with reasons."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent / "fixtures" / "mxnet_names.json"

_RECORDED: dict[str, Any] = json.loads(FILE.read_text())

ARGUMENTS: dict[str, list[str]] = {name: text.split() for name, text in _RECORDED.pop("arguments").items()}
"""The arguments of the public operators' functions, in their order."""

OPERATORS: dict[str, str] = {
    name: real or name for name, _, real in (word.partition("=") for word in _RECORDED.pop("operators").split())
}
"""Every registered operator, with its canonical name (itself unless it is an alias)."""

NAMES: dict[str, list[str]] = {key: text.split() for key, text in _RECORDED.items()}
"""The callables of each namespace (``nd``, ``nd.linalg``, ..., ``sym``, ...) and the methods of NDArray and Symbol."""

_REASONS: dict[str, str] = {
    "decodes image files: a matter of mx.image": """
        imdecode _imdecode _cvcopyMakeBorder _cvimdecode _cvimread _cvimresize
    """,
    "a fused operator of MXNet's oneDNN backend, which only its graph passes make": """
        _sg_mkldnn_conv _sg_mkldnn_fully_connected _sg_mkldnn_selfatt_qk _sg_mkldnn_selfatt_valatt
    """,
    "part of how MXNet's executor is built": """
        _CachedOp _CachedOpThreadSafe _CrossDeviceCopy _CustomFunction _NDArray _Native _NoGradient
    """,
    "no operator: an import or helper that MXNet's module happens to show": """
        AttrScope CachedOp SymbolHandle check_call current_context get_indexing_dispatch_code
        get_oshape_of_gather_nd_op indexing_key_expand_implicit_axes contrib.uniform
    """,
}

EXCLUDED: dict[str, str] = {name: reason for reason, names in _REASONS.items() for name in names.split()}
"""Names that flowmx does not offer, each with its reason."""

GRADIENTS = "_backward", "_contrib_backward", "_broadcast_backward", "_split_v2_backward"
"""Prefixes of operators that only MXNet's gradients use; flowmx composes gradients of other operators."""

NUMPY = "_np_", "_npi_", "_npx_"
"""Prefixes of operators that only MXNet's ``mx.np`` and ``mx.npx`` use."""

SPARSE = ("_sparse_",)
"""Prefixes of operators in ``mx.nd.sparse``."""

FUNCTIONS: dict[str, str] = {
    "_cond": "`contrib.cond`",
    "_contrib_boolean_mask": "`contrib.boolean_mask`, whose shape depends on its input's content",
    "_foreach": "`contrib.foreach`",
    "_set_value": "`x[:] = number`",
    "_while_loop": "`contrib.while_loop`",
    "_zeros_without_dtype": "`zeros`",
}
"""Operators of MXNet that are functions or methods in flowmx."""

PREFIXES = {"linalg": "_linalg_", "image": "_image_", "contrib": "_contrib_"}
"""Namespaces whose functions are operators with these prefixes."""


def excluded(namespace: str, name: str) -> str | None:
    """Return the reason why a public name is not provided, or None."""
    _, _, inner = namespace.partition(".")
    prefixed = PREFIXES.get(inner, "") + name
    if prefixed.startswith(GRADIENTS):
        return "gradient"
    return next(
        (EXCLUDED[item] for item in (prefixed, f"{inner}.{name}", f"{namespace}.{name}", name) if item in EXCLUDED),
        None,
    )
