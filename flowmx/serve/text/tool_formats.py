"""The formats in which models write calls of tools: markers around JSON, which differ between families of models."""

from __future__ import annotations

import random
import string
from typing import NamedTuple

__all__ = ["ToolFormat", "find_format", "new_id"]


class ToolFormat(NamedTuple):
    """A format of calls of tools.

    Attributes:
        markers: the texts that begin calls; a control token counts as its text.
        end: the text after a call, or an empty one.
        opening: the text that begins a call, after which a call is forced.
        is_list: whether the calls are a JSON list.
        arguments: the name of the arguments in a call.
        is_bare: whether a text that begins with a JSON object is a call.
        id_length: the length of the id of a call, which chat templates check.
        separators: if calls are a name, a separator and the arguments: that before the arguments, and that before an id
            after the name.
    """

    markers: tuple[str, ...]
    end: str
    opening: str
    is_list: bool = False
    arguments: str = "arguments"
    is_bare: bool = False
    id_length: int = 24
    separators: tuple[str, ...] = ()

    @property
    def forced(self) -> ToolFormat:
        """The format of calls that are forced, which are JSON: a JSON schema describes them."""
        return MISTRAL if self.separators else self


HERMES = ToolFormat(("<tool_call>",), "</tool_call>", "<tool_call>\n")
"""Hermes, Qwen: ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``."""
MISTRAL = ToolFormat(("[TOOL_CALLS]",), "", "[TOOL_CALLS]", is_list=True, id_length=9)
"""Mistral: ``[TOOL_CALLS][{"name": ..., "arguments": {...}}]``."""
MISTRAL_NAMES = ToolFormat(
    ("[TOOL_CALLS]",), "", "[TOOL_CALLS]", id_length=9, separators=("[ARGS]", "[CALL_ID]")
)  # fmt: skip
"""Mistral since 2025: ``[TOOL_CALLS]NAME[ARGS]{...}``, or ``[TOOL_CALLS]NAME[CALL_ID]ID[ARGS]{...}``."""
LLAMA = ToolFormat(("<|python_tag|>",), "", "", arguments="parameters", is_bare=True)
"""Llama 3: ``{"name": ..., "parameters": {...}}``."""


def find_format(template: object) -> ToolFormat:
    """Return the format of a model by its chat template; that of Hermes if the template has no known markers.

    Args:
        template: a chat template; only its attribute ``source`` is read.
    """
    source = getattr(template, "source", "")
    if not isinstance(source, str) or HERMES.markers[0] in source:
        return HERMES
    if MISTRAL.markers[0] in source:
        return MISTRAL_NAMES if MISTRAL_NAMES.separators[0] in source else MISTRAL
    return LLAMA if "<|python_tag|>" in source or '"parameters":' in source else HERMES


def new_id(form: ToolFormat) -> str:
    """Return the id of a new call."""
    letters = string.ascii_letters + string.digits
    text = "".join(random.SystemRandom().choices(letters, k=form.id_length))
    return text if form.id_length < 24 else f"call_{text}"
