"""Calls of tools in a text that comes in pieces. This module does no I/O."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import NamedTuple

from flowmx.serve.text.tool_formats import ToolFormat, new_id

__all__ = ["Call", "CallBegin", "CallPart", "Text", "ToolParser"]


class Text(NamedTuple):
    """Text outside calls."""

    text: str


class CallBegin(NamedTuple):
    """The beginning of a call; its place is among the calls of a text."""

    place: int
    id: str
    name: str


class CallPart(NamedTuple):
    """A part of the arguments of a call, which are JSON."""

    place: int
    text: str


class Call(NamedTuple):
    """A whole call; the arguments are JSON."""

    id: str
    name: str
    arguments: str


Event = Text | CallBegin | CallPart
_ARGUMENTS = ("arguments", "parameters")
_MAX_NAME = 256
"""The maximum length of the text before the arguments of a call that begins with its name."""
_MAX_SPACE = 64
"""The maximum length of white space before a call without a marker."""


class _Scanner:
    """The parts of a JSON object ``{"name": NAME, "arguments": {...}}`` as its text comes.

    Attributes:
        name: the value of ``name``, or None.
        has_text: whether there was more than white space.
        is_complete: whether the object has ended.
        is_wrong: whether the text is no such object.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self.has_text = self.is_complete = self.is_wrong = False
        self._depth, self._in_string, self._is_escaped = 0, False, False
        self._key: str | None = None
        self._value: list[str] = []
        self._arguments: list[str] = []
        self._taken = 0

    def push(self, letter: str) -> None:
        """Add a character."""
        self.has_text |= not letter.isspace()
        if self._in_string:
            self._add_to_string(letter)
        elif letter == '"':
            self._in_string = True
            self._add(letter)
        elif letter in "{[":
            self._open(letter)
        elif letter in "}]":
            self._close(letter)
        elif self._depth == 1 and letter in ":,":
            self._separate(letter)
        elif self._depth > 1 or not letter.isspace():
            self._add(letter)

    def take(self) -> str:
        """Return the new part of the arguments."""
        part = "".join(self._arguments[self._taken :])
        self._taken = len(self._arguments)
        return part

    @property
    def arguments(self) -> str:
        """The text of the arguments so far."""
        return "".join(self._arguments)

    def _add(self, letter: str) -> None:
        """Add a character to the present key or value."""
        self.is_wrong |= self._depth == 0
        is_object = self._value[:1] == ["{"] or (not self._value and letter == "{")
        if self._key in _ARGUMENTS and is_object:
            self._value = ["{"]
            self._arguments.append(letter)
        else:
            self._value.append(letter)

    def _add_to_string(self, letter: str) -> None:
        self._add(letter)
        if self._is_escaped:
            self._is_escaped = False
        elif letter == "\\":
            self._is_escaped = True
        elif letter == '"':
            self._in_string = False

    def _open(self, letter: str) -> None:
        if self._depth == 0:
            self.is_wrong |= letter != "{"
        else:
            self._add(letter)
        self._depth += 1

    def _close(self, letter: str) -> None:
        if self._depth > 1:
            self._add(letter)
            self._depth -= 1
            return
        self._depth = 0
        self._end_value()
        self.is_complete = True
        self.is_wrong |= self.name is None or not self._has_arguments()

    def _separate(self, letter: str) -> None:
        if letter == ",":
            self._end_value()
        else:
            self._key = _string("".join(self._value))
            self.is_wrong |= self._key is None
            self._value = []

    def _end_value(self) -> None:
        """Use the value of a key."""
        if self._key == "name":
            self.name = _string("".join(self._value))
            self.is_wrong |= self.name is None
        elif self._key in _ARGUMENTS and self._value[:1] == ['"']:
            self._arguments = [_string("".join(self._value)) or ""]  # some models write the JSON of the JSON
        self._key, self._value = None, []

    def _has_arguments(self) -> bool:
        try:
            return isinstance(json.loads(self.arguments), dict)
        except (ValueError, RecursionError):
            return False


def _string(text: str) -> str | None:
    """Return the value of a JSON string, or None."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, str) else None


class _NamedScanner(_Scanner):
    """The parts of a call ``NAME[ARGS]{...}`` as its text comes, as if it were a JSON object.

    Args:
        before_arguments: the separator before the arguments.
        before_id: the separator before an id after the name.
    """

    def __init__(self, before_arguments: str, before_id: str) -> None:
        super().__init__()
        self._before_arguments, self._before_id = before_arguments, before_id
        self._head: str | None = ""

    def push(self, letter: str) -> None:
        """Add a character."""
        if self._head is None:
            super().push(letter)
            if self._depth == 1 and self.arguments:
                super().push("}")
            return
        self._head += letter
        self.is_wrong = len(self._head) > _MAX_NAME
        if self._head.endswith(self._before_arguments):
            name = self._head.removesuffix(self._before_arguments).partition(self._before_id)[0].strip()
            self._head, self.is_wrong = None, not name
            for each in f'{{"name": {json.dumps(name)}, "arguments": ':
                super().push(each)


class ToolParser:
    """A parser of the text of one choice.

    A text that only seems to begin a call, and one of a function that does not exist if calls have no marker, remain
    text.

    Args:
        form: the format of calls.
        names: the names of the functions.
        is_forced: whether the text begins inside a call.

    Attributes:
        calls: the calls so far; the last one may be incomplete while it comes.
    """

    def __init__(self, form: ToolFormat, names: Collection[str], is_forced: bool = False) -> None:
        self._form, self._names = form, names
        self.calls: list[Call] = []
        self._pending = ""
        self._scanner: _Scanner | None = None
        self._raw: list[str] = []
        self._has_begun = False
        self._is_start = True
        """Whether there was only white space so far."""
        if is_forced:
            self._begin("")

    def push(self, text: str) -> list[Event]:
        """Add a piece of text; return what is certain."""
        events: list[Event] = []
        self._pending += text
        while self._pending:
            before = len(self._pending)
            events += self._scan() if self._scanner is not None else self._search()
            if len(self._pending) == before and self._scanner is None:
                break
        return events

    def flush(self) -> list[Event]:
        """Return the text that was held back, at the end."""
        events: list[Event] = []
        if self._scanner is not None and self._has_begun:
            self.calls[-1] = self.calls[-1]._replace(arguments=self._scanner.arguments)
        elif self._scanner is not None:
            events += self._texts("".join(self._raw))
        elif self._pending and not (self.calls and self._is_between()):
            events.append(Text(self._pending))
        self._pending, self._scanner = "", None
        return events

    # -- outside calls -----------------------------------------------------------------------------------

    def _search(self) -> list[Event]:
        """Search for the beginning of a call in the pending text."""
        form, text = self._form, self._pending
        if self.calls:
            text = self._skip_between()
            if not text:
                return []
        if (form.is_bare and self._is_start) or (self.calls and (form.is_bare or form.is_list)):
            stripped = text.lstrip()
            if not stripped and len(text) < _MAX_SPACE:
                return []
            if stripped.startswith("{"):
                self._begin(text[: len(text) - len(stripped)])
                self._pending = stripped
                return []
        places = [(place, marker) for marker in form.markers if (place := text.find(marker)) >= 0]
        if places:
            place, marker = min(places)
            self._pending = text[place + len(marker) :]
            events = self._texts(text[:place])
            self._begin(marker)
            return events
        count = len(text) - max(_held(text, marker) for marker in form.markers)
        self._pending = text[count:]
        return self._texts(text[:count])

    def _texts(self, text: str) -> list[Event]:
        if not text:
            return []
        self._is_start = self._is_start and not text.strip()
        return [Text(text)]

    def _skip_between(self) -> str:
        """Skip what separates calls: the end of a call, commas, brackets and white space."""
        text = self._pending.lstrip()
        if self._form.end and text.startswith(self._form.end):
            text = text[len(self._form.end) :].lstrip()
        elif self._form.end and self._form.end.startswith(text):
            return ""  # wait for the rest of the end
        text = text.lstrip(",]; \n\t") if not self._form.end else text
        self._pending = text
        return text

    def _is_between(self) -> bool:
        text = self._pending.strip()
        return not text or self._form.end.startswith(text)

    # -- inside a call -----------------------------------------------------------------------------------

    def _begin(self, raw: str) -> None:
        form = self._form
        self._scanner = _NamedScanner(*form.separators) if form.separators else _Scanner()
        self._raw, self._has_begun = [raw], False

    def _scan(self) -> list[Event]:
        """Add pending text to the call."""
        scanner = self._scanner
        assert scanner is not None
        for count, letter in enumerate(self._pending, 1):
            self._raw.append(letter)
            if self._form.is_list and not scanner.has_text and letter in "[ \n\t":
                continue
            scanner.push(letter)
            if scanner.is_complete or scanner.is_wrong:
                self._pending = self._pending[count:]
                return self._end(scanner)
        self._pending = ""
        return self._progress(scanner)

    def _progress(self, scanner: _Scanner) -> list[Event]:
        """Return the new parts of a call."""
        if scanner.name is None or (self._form.is_bare and scanner.name not in self._names):
            return []
        part = scanner.take()
        if not part:
            return []
        events: list[Event] = []
        place = len(self.calls) - self._has_begun
        if not self._has_begun:
            self._has_begun = True
            self.calls.append(Call(new_id(self._form), scanner.name, ""))
            events.append(CallBegin(place, self.calls[-1].id, scanner.name))
        events.append(CallPart(place, part))
        return events

    def _end(self, scanner: _Scanner) -> list[Event]:
        """End a call, or return its text if it is not one."""
        self._scanner = None
        is_unknown = self._form.is_bare and scanner.name not in self._names
        if not self._has_begun and (scanner.is_wrong or is_unknown):
            return self._texts("".join(self._raw))
        events = self._progress(scanner)
        if self._has_begun:
            self.calls[-1] = self.calls[-1]._replace(arguments=scanner.arguments)
        return events


def _held(text: str, marker: str) -> int:
    """Return the length of the longest end of a text that is the beginning of a marker."""
    return next((size for size in range(min(len(marker) - 1, len(text)), 0, -1) if marker.startswith(text[-size:])), 0)
