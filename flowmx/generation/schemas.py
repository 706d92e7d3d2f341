"""Texts that fit a JSON schema: which tokens may follow a text, by the package ``llguidance``.

A schema comes from a client, and may be hostile. Its size is limited, and so is the library's work to compile it and to
find the tokens that may follow. A schema with a keyword that the library does not enforce is refused.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray as HostArray

from flowmx.errors import MXNetError

if TYPE_CHECKING:
    import llguidance

__all__ = ["Schema", "SchemaCompiler", "SchemaError", "SchemaState", "TokenBytes", "requested_schema"]

_MAX_SCHEMA = 1 << 15
"""The maximum length of a schema in characters."""
_MAX_SCHEMAS = 32
"""The maximum number of compiled schemas that a compiler keeps."""
_OPTIONS = {"whitespace_pattern": r"[ ]|\n[ ]{0,32}", "lenient": False, "coerce_one_of": False}
"""White space is bounded, because a model may otherwise repeat it until the text is full."""
_LIMITS = {
    "initial_lexer_fuel": 300_000, "step_lexer_fuel": 30_000, "step_max_items": 20_000, "max_lexer_states": 20_000,
    "max_grammar_size": 100_000, "verbose_errors": False,
}  # fmt: skip
"""Limits of the library, at which a token takes about 0.1 seconds and a schema a few megabytes."""


class SchemaError(MXNetError, ValueError):
    """A JSON schema is malformed, not supported, or takes too much work; or no text fits it."""


class TokenBytes(Protocol):
    """The part of a tokenizer that schemas need."""

    @property
    def size(self) -> int:
        """The number of tokens."""

    @property
    def end_tokens(self) -> frozenset[int]: ...

    def token_bytes(self, number: int) -> bytes:
        """Return what a token adds to a text in UTF-8; empty for control tokens."""

    def encode(self, text: str, special: bool = True) -> list[int]: ...


class SchemaState:
    """The tokens that may follow the text of one request.

    Args:
        matcher: the library's state at the beginning of the text.
        size: the number of tokens of the vocabulary.
        has_ends: whether some of them end a text.
    """

    def __init__(self, matcher: llguidance.LLMatcher, size: int, has_ends: bool) -> None:
        self._matcher, self._size, self._has_ends, self._count = matcher, size, has_ends, 0

    def allowed(self, text: Sequence[int], count: int) -> HostArray[np.bool_]:
        """Return whether each token may follow a text.

        Args:
            text: the tokens generated so far, which begin with those of the last call.
            count: the number of logits; logits after the vocabulary's are never allowed.

        Raises:
            SchemaError: the text does not fit the schema, no token may follow, or it takes too much work to find them.
        """
        if self._count > len(text):
            self._matcher.rollback(self._count - len(text))
        elif self._count < len(text):
            self._matcher.consume_tokens(list(text[self._count :]))
        self._count = len(text)
        allowed = np.zeros(count, np.bool_)
        size = min(self._size, count)
        allowed[:size] = self._next()[:size]
        if self._matcher.is_error() or not allowed.any():
            reason = _reason(self._matcher) or "no token of the vocabulary may follow"
            raise SchemaError(f"the text cannot be continued within the schema: {reason}")
        return allowed

    def completes(self, number: int) -> bool:
        """Add a token to the text of the last call of :meth:`allowed`; return whether nothing may follow."""
        self._count += 1
        matcher = self._matcher
        if not matcher.consume_token(number):
            return False  # the next call of allowed() raises the error
        # Without a token that ends a text, a text ends as soon as no other token may follow.
        return matcher.is_stopped() or (not self._has_ends and matcher.is_accepting() and not self._next().any())

    def _next(self) -> HostArray[np.uint8]:
        """Return 1 for each token of the vocabulary that may follow, and 0 for the others."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        return np.unpackbits(bits, count=self._size, bitorder="little")


class Schema:
    """A JSON schema, compiled for a vocabulary.

    Args:
        source: the JSON of the schema.
        matcher: the library's state at the beginning of a text.
        size: the number of tokens of the vocabulary.
        has_ends: whether some of them end a text.

    Attributes:
        source: as passed.
    """

    def __init__(self, source: str, matcher: llguidance.LLMatcher, size: int, has_ends: bool) -> None:
        self.source, self._matcher, self._size, self._has_ends = source, matcher, size, has_ends

    def begin(self) -> SchemaState:
        """Return the state of a new text."""
        return SchemaState(self._matcher.deep_copy(), self._size, self._has_ends)


class SchemaCompiler:
    """A compiler of JSON schemas, which keeps the last ones. It needs the package ``llguidance``.

    Args:
        vocabulary: the tokenizer.

    Raises:
        TypeError: the tokenizer has no ``token_bytes`` or ``size``.
    """

    def __init__(self, vocabulary: object) -> None:
        if not hasattr(vocabulary, "token_bytes") or not hasattr(vocabulary, "size"):
            kind = "no tokenizer" if vocabulary is None else f"a tokenizer of the type {type(vocabulary).__name__}"
            raise TypeError(
                f"the generator has {kind}, but a schema needs a tokenizer with size and token_bytes(number): pass a "
                "mx.generation.Tokenizer"
            )
        self._vocabulary: TokenBytes = vocabulary  # type: ignore[assignment]
        self._library: llguidance.LLTokenizer | None = None
        self._schemas: OrderedDict[str, Schema] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, source: str) -> Schema | None:
        """Return a schema that has been compiled already, or None."""
        return self._schemas.get(source)

    def compile(self, source: str) -> Schema:
        """Compile a schema; this takes up to a second, and may be called by any thread.

        Raises:
            SchemaError: the schema is malformed, not supported, or too large.
            ImportError: ``llguidance`` is not installed.
        """
        with self._lock:
            schema = self._schemas.get(source)
            if schema is None:
                schema = self._schemas[source] = self._compile(source)
            self._schemas.move_to_end(source)
            while len(self._schemas) > _MAX_SCHEMAS:
                self._schemas.popitem(last=False)
            return schema

    def _compile(self, source: str) -> Schema:
        package = _package()
        if self._library is None:
            self._library = _library_tokenizer(package, self._vocabulary)
        limits = package.LLParserLimits(**_LIMITS)
        try:
            grammar = package.LLMatcher.grammar_from_json_schema(source, overrides=_OPTIONS)
            matcher = package.LLMatcher(self._library, grammar, log_level=0, limits=limits)
            if not matcher.is_error():
                matcher.compute_bitmask()  # finds schemas that no text fits, or whose texts take too much work
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # the library is in Rust: a panic is not an Exception
            raise SchemaError(f"the schema is not supported: {error}") from None
        if matcher.is_error() or matcher.is_stopped():
            raise SchemaError(f"the schema is not supported: {_reason(matcher)}")
        return Schema(source, matcher, self._vocabulary.size, bool(self._vocabulary.end_tokens))


def requested_schema(schema: object, response_format: Mapping[str, object] | None) -> str | Schema | None:
    """Return the JSON of the schema that a request asks for, or None.

    Args:
        schema: a JSON schema as a mapping or JSON text, or a compiled one, or None.
        response_format: a format of OpenAI's API: ``{"type": "text"}``, ``{"type": "json_object"}`` or ``{"type":
            "json_schema", "json_schema": {"schema": SCHEMA}}``.

    Raises:
        ValueError: the format is unknown, both are given, or the schema is not JSON or too long.
        TypeError: the schema has a different type.
    """
    if response_format is not None and response_format.get("type") != "text":
        if schema is not None:
            raise ValueError("schema and response_format are both passed: leave one of them out")
        schema = _schema_of_format(response_format)
    if schema is None or isinstance(schema, Schema):
        return schema
    if not isinstance(schema, (Mapping, str)):
        raise TypeError(f"schema is a {type(schema).__name__}, expected a JSON schema: a mapping, or JSON as a string")
    try:
        source = schema if isinstance(schema, str) else json.dumps(schema, allow_nan=False)
        is_object = isinstance(schema, Mapping) or isinstance(json.loads(source[: _MAX_SCHEMA + 1]), dict)
    except (TypeError, ValueError, RecursionError) as error:
        raise SchemaError(f"the schema is not JSON: {error}") from None
    if not is_object:
        raise SchemaError(f"the schema is {source[:80]}, expected a JSON object")
    if len(source) > _MAX_SCHEMA:
        raise SchemaError(f"the schema has {len(source)} characters of JSON, expected at most {_MAX_SCHEMA}")
    return source


def _schema_of_format(response_format: Mapping[str, object]) -> object:
    kind = response_format.get("type")
    if kind == "json_object":
        return {"type": "object"}
    value = response_format.get("json_schema")
    schema = value.get("schema") if isinstance(value, Mapping) else None
    if kind != "json_schema" or not isinstance(schema, Mapping):
        raise ValueError(
            f"response_format is {str(response_format)[:200]}, expected the type text, json_object, or json_schema "
            "with json_schema: {schema: SCHEMA}"
        )
    return schema


def _package() -> Any:
    try:
        import llguidance
    except ImportError:
        raise ImportError("schemas need the package llguidance: pip install llguidance") from None
    return llguidance


def _library_tokenizer(package: Any, vocabulary: TokenBytes) -> llguidance.LLTokenizer:
    """Return the library's form of a vocabulary, with one more token, which ends a text and is never generated."""
    size, ends = vocabulary.size, vocabulary.end_tokens

    class Words:
        eos_token_id, bos_token_id = size, None
        tokens = (*(b"" if number in ends else vocabulary.token_bytes(number) for number in range(size)), b"")
        special_token_ids = (*ends, size)

        def __call__(self, text: str) -> list[int]:
            return vocabulary.encode(text, special=False)

    return package.LLTokenizer(package.TokenizerWrapper(Words()), n_vocab=size + 1, eos_token=[*sorted(ends), size])  # type: ignore[no-any-return]


def _reason(matcher: llguidance.LLMatcher) -> str:
    """Return the first line of the library's error."""
    text = str(matcher.get_error()).partition("\n<")[0].strip()[:500]
    return "no text fits it" if matcher.is_stopped() and text in ("", "NoExtension", "NoExtensionBias") else text
