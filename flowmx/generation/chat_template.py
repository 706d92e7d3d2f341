"""Chat templates: Jinja programs that come with a model, and turn a chat into a prompt.

A template is untrusted code. It runs in Jinja's sandbox, with bounds on its steps and on the length of its texts.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from jinja2 import Template
    from jinja2.sandbox import ImmutableSandboxedEnvironment

__all__ = ["ChatTemplate", "ChatTemplateError"]

_MAX_STEPS = 200_000
"""The maximum number of lines of compiled code that one rendering executes."""
_MAX_TEXT = 1 << 24
"""The maximum length of a text."""
_PADDING = ("center", "expandtabs", "ljust", "rjust", "zfill")
"""Methods of texts whose result may be much longer than their arguments."""
_LONG_FILTERS = ("center", "indent", "wordwrap", "xmlattr", "urlize", "format", "pprint")
"""Filters that no known chat template needs."""


class ChatTemplateError(ValueError):
    """A chat template is invalid, refuses a chat, or does not end."""


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
            return _bounded(lambda: _join(self._template.generate(values)))
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
    environment = _environment()
    try:
        return environment.from_string(source)
    except (jinja2.TemplateError, RecursionError) as error:
        raise ChatTemplateError(f"the chat template is invalid: {error}") from None


def _environment() -> ImmutableSandboxedEnvironment:
    """Return a sandbox with the functions that chat templates use."""
    from jinja2.compiler import CodeGenerator
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Compiler(CodeGenerator):
        """A compiler whose ``~`` is a method of the environment."""

        def visit_Concat(self, node: Any, frame: Any) -> None:  # noqa: N802 (the name of the base class)
            self.write("environment.concatenate((")
            for part in node.nodes:
                self.visit(part, frame)
                self.write(", ")
            self.write("))")

    class Environment(ImmutableSandboxedEnvironment):
        """A sandbox that bounds the lengths of texts."""

        code_generator_class = Compiler
        intercepted_binops = frozenset(["*", "**", "+"])

        def concatenate(self, parts: Sequence[object]) -> str:
            return _join(map(str, parts))

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            _check_product(operator, left, right)
            return super().call_binop(context, operator, left, right)

        def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
            _check_call(__obj, args, kwargs)
            return super().call(__context, __obj, *args, **kwargs)

    environment = Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"], cache_size=0
    )
    for name in _LONG_FILTERS:
        environment.filters.pop(name, None)

    def join(values: Iterable[object], separator: object = "", attribute: str | None = None) -> str:
        items = values if attribute is None else (environment.getattr(each, attribute) for each in values)
        parts = list(map(str, items))
        _check_length(sum(map(len, parts)) + len(str(separator)) * len(parts))
        return str(separator).join(parts)

    def replace(text: object, old: object, new: object) -> str:
        _check_length(len(str(text)) + str(text).count(str(old)) * len(str(new)))
        return str(text).replace(str(old), str(new))

    environment.filters.update(join=join, replace=replace)
    environment.filters["tojson"] = _to_json
    environment.globals.update(raise_exception=_refuse, strftime_now=_strftime_now)
    environment.globals.pop("lipsum", None)
    return environment


def _check_product(operator: str, left: Any, right: Any) -> None:
    """Refuse products that would be huge texts, lists or numbers."""
    if operator == "**" and isinstance(right, int) and (right > 64 or abs(left) > 1 << 64):
        raise ChatTemplateError(f"the chat template computes {left} ** {right}, expected an exponent of at most 64")
    for text, other in ((left, right), (right, left)):
        if isinstance(text, (str, list, tuple)):
            if operator == "*" and isinstance(other, int):
                _check_length(len(text) * other)
            elif isinstance(other, (str, list, tuple)):
                _check_length(len(text) + len(other))


def _join(texts: Iterable[str]) -> str:
    """Return the texts, one after the other."""
    parts, length = [], 0
    for text in texts:
        length += len(text)
        _check_length(length)
        parts.append(text)
    return "".join(parts)


def _check_length(length: int) -> None:
    if length > _MAX_TEXT:
        raise ChatTemplateError(f"the chat template makes a text of {length} characters, expected at most {_MAX_TEXT}")


def _check_call(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuse calls of methods whose results would be huge texts."""
    owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
    if not isinstance(owner, str):
        return
    values = [*args, *kwargs.values()]
    if name in _PADDING:
        _check_length(max([value for value in values if isinstance(value, int)], default=0))
    elif name == "replace":
        sizes = [len(value) for value in values if isinstance(value, (str, list, tuple))]
        _check_length((len(owner) + 1) * max(sizes, default=0))


def _bounded(render: Callable[[], str]) -> str:
    """Return a rendering; end it after too many steps."""
    steps = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal steps
        if frame.f_code.co_filename != "<template>":
            return None  # Jinja's own code is not traced
        steps += 1
        if steps > _MAX_STEPS:
            raise ChatTemplateError(f"the chat template takes more than {_MAX_STEPS} steps")
        return trace

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        return render()
    finally:
        sys.settrace(previous)


def _to_json(value: object, indent: int | None = None, **options: Any) -> str:
    """Return JSON without the escapes for HTML, as Hugging Face's templates expect."""
    if isinstance(indent, int) and not 0 <= indent <= 16:
        raise ChatTemplateError(f"tojson: indent is {indent}, expected 0 to 16")
    return json.dumps(value, ensure_ascii=False, indent=indent, **options)


def _refuse(message: str) -> NoReturn:
    raise ChatTemplateError(f"the chat template refuses the chat: {message}")


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
