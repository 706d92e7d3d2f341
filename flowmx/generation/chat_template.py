"""Chat templates: Jinja programs that come with a model, and turn a chat into a prompt.

A template is untrusted code. It runs in Jinja's sandbox, with bounds on its steps and on the length of its texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from flowmx.generation.template_budget import ChatTemplateError, bounded, join

if TYPE_CHECKING:
    from jinja2 import Template

__all__ = ["ChatTemplate", "ChatTemplateError"]


class ChatTemplate:
    """A chat template. It needs the package ``jinja2``.

    Args:
        source: the text of the template, as in a ``tokenizer_config.json`` or a GGUF file.
        bos: the text of the token that begins a sequence.
        eos: the text of the token that ends it.

    Raises:
        ChatTemplateError: the source is not a valid template.
        ImportError: ``jinja2`` is not installed.

    Example:
        >>> template = ChatTemplate("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}")
        >>> template.render([{"role": "user", "content": "Hello"}])
        '[user]Hello'
    """

    def __init__(self, source: str, bos: str = "", eos: str = "") -> None:
        self.source, self._tokens = source, {"bos_token": bos, "eos_token": eos}
        self._template = _compile(source)

    def render(
        self, messages: Sequence[Mapping[str, object]], add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, object]] | None = None, **variables: object,
    ) -> str:  # fmt: skip
        """Return the prompt of a chat.

        Args:
            messages: each with ``role`` and ``content``.
            add_generation_prompt: end with the beginning of the assistant's reply.
            tools: descriptions of functions that the assistant may call.
            **variables: more variables of the template.

        Raises:
            ChatTemplateError: the template refuses the chat, fails, or takes too many steps.
        """
        values = {
            **self._tokens, "messages": messages, "add_generation_prompt": add_generation_prompt, "tools": tools,
            **variables,
        }  # fmt: skip
        try:
            return bounded(lambda: join(self._template.generate(values)))
        except ChatTemplateError:
            raise
        except (RecursionError, MemoryError, OverflowError) as error:
            raise ChatTemplateError(f"the chat template takes too much: {type(error).__name__}") from None
        except Exception as error:  # untrusted code may raise anything
            raise ChatTemplateError(f"the chat template fails: {type(error).__name__}: {error}") from error


def _compile(source: str) -> Template:
    """Return a compiled template."""
    try:
        import jinja2
    except ImportError:
        raise ImportError("chat templates need the package jinja2: pip install jinja2") from None
    from flowmx.generation.template_sandbox import environment

    try:
        return environment().from_string(source)
    except (jinja2.TemplateError, RecursionError) as error:
        raise ChatTemplateError(f"the chat template is invalid: {error}") from None
