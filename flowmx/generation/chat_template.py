"""Chat templates: Jinja programs that come with a model, and turn a chat into a prompt.

A template is untrusted code. It runs in Jinja's sandbox, with bounds on its steps and on the length of its texts.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import wraps
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from jinja2 import Template, nodes
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

__all__ = ["ChatTemplate", "ChatTemplateError"]

_MAX_STEPS = 200_000
"""The maximum number of lines of compiled code that one rendering executes."""
_MAX_SECONDS = 5.0
"""The maximum processor time of one rendering."""
_MAX_TEXT = 1 << 21
"""The maximum length of a text."""
_MAX_TOTAL = 1 << 26
"""The maximum length of all texts that one rendering creates."""
_MAX_INDENT = 256
_PADDING = ("center", "expandtabs", "ljust", "rjust", "zfill")
"""Methods of texts whose result may be much longer than their arguments."""
_LONG_FILTERS = ("center", "wordwrap", "xmlattr", "urlize", "format", "pprint")
"""Filters that no known chat template needs."""


_created = threading.local()
"""The number of characters that the rendering of this thread has created."""


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
    from jinja2.ext import Extension
    from jinja2.filters import do_indent
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """The tag ``generation``, with which templates mark the assistant's words for training."""

        tags = frozenset(["generation"])  # type: ignore[assignment]  # a set in the base class

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

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
            return _counted(super().call(__context, __obj, *args, **kwargs))

    environment = Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation], cache_size=0
    )
    for name in _LONG_FILTERS:
        environment.filters.pop(name, None)

    def join(value: Iterable[object], d: object = "", attribute: str | None = None) -> str:
        items = value if attribute is None else (environment.getattr(each, attribute) for each in value)
        parts = list(map(str, items))
        _check_length(sum(map(len, parts)) + len(str(d)) * len(parts))
        return str(d).join(parts)

    def replace(s: object, old: object, new: object, count: int | None = None) -> str:
        _check_length(len(str(s)) + str(s).count(str(old)) * len(str(new)))
        return str(s).replace(str(old), str(new), -1 if count is None else count)

    def indent(s: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
        if (width if isinstance(width, int) else len(width)) > _MAX_INDENT:
            raise ChatTemplateError(f"the chat template indents by more than {_MAX_INDENT} characters")
        return do_indent(s, width, first, blank)

    environment.filters.update(join=join, replace=replace, indent=indent, tojson=_to_json)
    environment.filters.update({name: _counting(each) for name, each in environment.filters.items()})
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
    """Count the characters of a new text, and refuse one that is too long."""
    if length > _MAX_TEXT:
        raise ChatTemplateError(f"the chat template makes a text of {length} characters, expected at most {_MAX_TEXT}")
    _created.characters = total = getattr(_created, "characters", 0) + max(length, 0)
    if total > _MAX_TOTAL:
        raise ChatTemplateError(f"the chat template makes texts of more than {_MAX_TOTAL} characters")


def _counted(result: Any) -> Any:
    """Count the characters of a result that is a text; return it."""
    if isinstance(result, str):
        _check_length(len(result))
    return result


def _counting(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter whose results are counted."""

    @wraps(function)
    def counting(*args: Any, **kwargs: Any) -> Any:
        return _counted(function(*args, **kwargs))

    return counting


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
    steps, end = 0, time.thread_time() + _MAX_SECONDS
    _created.characters = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal steps
        if frame.f_code.co_filename != "<template>":
            return None  # Jinja's own code is not traced
        steps += 1
        if steps > _MAX_STEPS:
            raise ChatTemplateError(f"the chat template takes more than {_MAX_STEPS} steps")
        if time.thread_time() > end:
            raise ChatTemplateError(f"the chat template takes more than {_MAX_SECONDS:g} s")
        return trace

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        return render()
    finally:
        sys.settrace(previous)


def _to_json(
    value: object, ensure_ascii: bool = False, indent: int | None = None,
    separators: tuple[str, str] | None = None, sort_keys: bool = False,
) -> str:  # fmt: skip
    """Return JSON without the escapes for HTML, with the arguments that Hugging Face's templates use."""
    if isinstance(indent, int) and not 0 <= indent <= 16:
        raise ChatTemplateError(f"tojson: indent is {indent}, expected 0 to 16")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> NoReturn:
    raise ChatTemplateError(f"the chat template refuses the chat: {message}")


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
