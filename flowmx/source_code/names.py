"""Names of attributes and classes, from the names of a symbol's nodes."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Sequence

from flowmx.source_code.description import Step

__all__ = ["class_name", "common_prefix", "identifier", "unused"]

_LONGEST = 32
_RESERVED = {
    "add", "apply", "bfloat16", "buffers", "cast", "children", "compile", "cpu", "cuda", "double", "eval", "export",
    "float", "forward", "half", "hook", "modules", "name", "np", "parameters", "params", "prefix", "summary", "to",
    "torch", "train", "training", "type", "nn", "F",
}  # fmt: skip
"""Names that modules and blocks use themselves."""


def identifier(text: str) -> str:
    """Return a text as an identifier in lower case, or "" if it has no letters or is too long to read."""
    name = re.sub(r"[^0-9a-zA-Z]+", "_", text).strip("_")
    name = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower().removesuffix("_fwd")
    if not re.search("[a-z]", name) or len(name) > _LONGEST:
        return ""
    name = name if not name[0].isdigit() else f"layer{name}"
    return f"{name}_" if keyword.iskeyword(name) or name in _RESERVED else name


def common_prefix(names: Sequence[str]) -> str:
    """Return the longest prefix of all names that ends with a separator."""
    if not names:
        return ""
    first, last = min(names), max(names)
    length = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    prefix = first[:length]
    return prefix[: max(map(prefix.rfind, "_./:")) + 1]


def unused(name: str, taken: Iterable[str]) -> str:
    """Return a name, with a number if it is taken."""
    taken, number, result = set(taken), 1, name
    while result in taken:
        number += 1
        result = f"{name}_{number}" if name[-1:].isdigit() else f"{name}{number}"
    return result


def class_name(steps: Sequence[Step]) -> str:
    """Return a name for a block, by what it computes."""
    layers = [layer for step in steps for layer in step.layers.values() if layer.state]
    kinds = [layer.kind.rpartition(".")[2].rstrip("123dD") for layer in layers]
    code = [step.code for step in steps]
    is_sum = any(re.fullmatch(r"\{0\} \+ \{1\}", text) for text in code)
    joins = [text for text in code if text.startswith(("torch.cat", "F.concat"))]
    products = kinds.count("Linear") + kinds.count("Dense")
    if any("softmax" in text for text in code) and products > 1:
        return "TransformerLayer" if is_sum else "Attention"
    if is_sum and "Conv" in kinds:
        return _residual_name(steps)
    if joins:
        return "DenseUnit" if len(kinds) < _FEW_LAYERS else "Branches"
    if is_sum:
        return "ResidualLayer"
    titles = [_SHORT.get(kind, kind) for kind in kinds]
    titles += [name for name in ("ReLU6", "ReLU") if any(f"{name.lower()}(" in text for text in code)][:1]
    is_depthwise = any(layer.pattern[3] for layer in layers if isinstance(layer.pattern, tuple))
    name = "".join(dict.fromkeys(titles)) if 0 < len(titles) < _FEW_LAYERS else "Block"
    return f"Grouped{name}" if is_depthwise else name


_FEW_LAYERS = 5
_SHORT = {"BatchNorm": "BN", "LayerNorm": "LN", "InstanceNorm": "IN"}


def _residual_name(steps: Sequence[Step]) -> str:
    convolutions = [
        (step, layer) for step in steps for layer in step.layers.values() if layer.title == "conv"
    ]  # fmt: skip
    sizes = [layer.arguments.get("kernel_size") for _, layer in convolutions]
    is_bottleneck = len(sizes) > 2 and 1 in sizes and any(size != 1 for size in sizes)
    is_projected = len({step.inputs[0] for step, _ in convolutions}) < len(convolutions)
    return f"{'Projected' if is_projected else ''}{'Bottleneck' if is_bottleneck else 'ResidualUnit'}"
