"""The names of layers in Hugging Face's models, which the files of adapters use."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from flowmx.gluon.base_block import Block
from flowmx.gluon.model_zoo.huggingface.families import FAMILIES, Family

__all__ = ["Source", "bare_name", "sources"]


class Source(NamedTuple):
    """Rows of a layer of Hugging Face's.

    Attributes:
        module: the name of the layer.
        place: the index of the rows among equal parts of its outputs.
        parts: the number of these parts.
    """

    module: str
    place: int = 0
    parts: int = 1


_PREFIX = re.compile(
    r"(base_model\.model\.)?(model\.language_model\.|language_model\.model\.|model\.|transformer\.|bert\.|vit\.)?"
)
_JOINED = {"mlp.widen": ("mlp.up_proj", "mlp.gate_proj")}
"""Layers that are several ones in Hugging Face's models."""
_SPLIT = {f"attn.{name}": ("attn.c_attn", place) for place, name in enumerate(("query", "key", "value"))}
"""Layers that are a third of one in Hugging Face's models."""


def bare_name(module: str) -> str:
    """Return the name of a layer without that of the model around the body."""
    return _PREFIX.sub("", module, count=1)


def sources(net: Block, path: str) -> list[Source]:
    """Return the layers of Hugging Face's whose outputs, one after the other, are those of a layer.

    Args:
        net: a network; the layers of one that is not in the model zoo have their paths as names.
        path: the path of the layer.
    """
    family = _family(net)
    model: Any = type(net)
    if family is None or (family.is_head(path, model) and path not in family.heads[model]):
        return [Source(path)]
    name = family.name_of(f"{path}.weight", model, {}).removesuffix(".weight")
    if not family.is_head(path, model) and model is not family.body_class:
        name = family.prefix + name
    for end, modules in _JOINED.items():
        if name.endswith(end):
            return [Source(name.removesuffix(end) + module) for module in modules]
    for end, (module, place) in _SPLIT.items():
        if name.endswith(end):
            return [Source(name.removesuffix(end) + module, place, len(_SPLIT))]
    return [Source(name)]


def _family(net: Block) -> Family | None:
    return next((family for family in FAMILIES.values() if type(net) in family.heads), None)
