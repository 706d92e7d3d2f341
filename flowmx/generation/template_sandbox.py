"""Jinja's sandbox for chat templates, with the functions that they use. It needs the package ``jinja2``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Environment, nodes, pass_environment
from jinja2.compiler import CodeGenerator
from jinja2.ext import Extension
from jinja2.filters import do_indent
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from flowmx.generation import template_budget
from flowmx.generation.template_budget import ChatTemplateError, check_length, counted, counting

__all__ = ["environment"]

_MAX_INDENT = 256
_PADDING = ("center", "expandtabs", "ljust", "rjust", "zfill")
"""Methods of texts whose result may be much longer than their arguments."""
_LONG_FILTERS = ("center", "wordwrap", "xmlattr", "urlize", "format", "pprint")
"""Filters that no known chat template needs."""


def environment() -> ImmutableSandboxedEnvironment:
    """Return a sandbox for one template."""
    sandbox = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation], cache_size=0
    )
    filters = {name: each for name, each in sandbox.filters.items() if name not in _LONG_FILTERS}
    filters |= {"join": _join, "replace": _replace, "indent": _indent, "tojson": _to_json}
    sandbox.filters = {name: counting(each) for name, each in filters.items()}
    sandbox.globals.update(raise_exception=_refuse, strftime_now=_strftime_now)
    sandbox.globals.pop("lipsum", None)
    return sandbox


class _Generation(Extension):
    """The tag ``generation``, with which templates mark the assistant's words for training."""

    tags = frozenset(["generation"])  # type: ignore[assignment]  # a set in the base class

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Compiler(CodeGenerator):
    """A compiler whose ``~`` is a method of the environment."""

    def visit_Concat(self, node: Any, frame: Any) -> None:  # noqa: N802 (the name of the base class)
        self.write("environment.concatenate((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


class _Environment(ImmutableSandboxedEnvironment):
    """A sandbox that bounds the lengths of texts."""

    code_generator_class = _Compiler
    intercepted_binops = frozenset(["*", "**", "+"])

    def concatenate(self, parts: Sequence[object]) -> str:
        return template_budget.join(map(str, parts))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        _check_product(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        _check_call(__obj, args, kwargs)
        return counted(super().call(__context, __obj, *args, **kwargs))


@pass_environment
def _join(environment: Environment, value: Iterable[object], d: object = "", attribute: str | None = None) -> str:
    items = value if attribute is None else (environment.getattr(each, attribute) for each in value)
    parts = list(map(str, items))
    check_length(sum(map(len, parts)) + len(str(d)) * len(parts))
    return str(d).join(parts)


def _replace(s: object, old: object, new: object, count: int | None = None) -> str:
    check_length(len(str(s)) + str(s).count(str(old)) * len(str(new)))
    return str(s).replace(str(old), str(new), -1 if count is None else count)


def _indent(s: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    if (width if isinstance(width, int) else len(width)) > _MAX_INDENT:
        raise ChatTemplateError(f"the chat template indents by more than {_MAX_INDENT} characters")
    return do_indent(s, width, first, blank)


def _check_product(operator: str, left: Any, right: Any) -> None:
    """Refuse products that would be huge texts, lists or numbers."""
    if operator == "**" and isinstance(right, int) and (right > 64 or abs(left) > 1 << 64):
        raise ChatTemplateError(f"the chat template computes {left} ** {right}, expected an exponent of at most 64")
    for text, other in ((left, right), (right, left)):
        if isinstance(text, (str, list, tuple)):
            if operator == "*" and isinstance(other, int):
                check_length(len(text) * other)
            elif isinstance(other, (str, list, tuple)):
                check_length(len(text) + len(other))


def _check_call(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuse calls of methods whose results would be huge texts."""
    owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
    if not isinstance(owner, str):
        return
    values = [*args, *kwargs.values()]
    if name in _PADDING:
        check_length(max([value for value in values if isinstance(value, int)], default=0))
    elif name == "replace":
        sizes = [len(value) for value in values if isinstance(value, (str, list, tuple))]
        check_length((len(owner) + 1) * max(sizes, default=0))


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
