"""Progress bars of plain text: a live line on terminals and in notebooks, occasional lines elsewhere.

They are written to stderr, so that the output of commands remains data.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, TextIO

__all__ = ["Bar", "Line", "is_live"]

_REDRAW_INTERVAL, _LINE_INTERVAL = 0.1, 10.0
"""Minimum seconds between updates on a terminal, and between lines elsewhere."""


def is_live(stream: TextIO) -> bool:
    """Return whether a written line can be overwritten, on terminals and in notebooks."""
    if type(stream).__module__.startswith("ipykernel"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


class Line:
    """A live line. On terminals it is overwritten; in notebooks it is one output, whose last content is saved.

    Args:
        stream: the output stream, for which :func:`is_live` is true.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._width = 0
        self._display = _display() if type(stream).__module__.startswith("ipykernel") else None
        self._output: Any = None
        self._coloured = self._display is None and not os.environ.get("NO_COLOR")

    def draw(self, text: str) -> None:
        """Replace the text of the line."""
        if self._display is not None:
            content = {"text/plain": text}
            if self._output is None:
                self._output = self._display(content, raw=True, display_id=True)
            else:
                self._output.update(content, raw=True)
            return
        text = text[: max(20, shutil.get_terminal_size().columns - 1)]
        self._overwrite(text)
        self._width = len(text)

    def say(self, text: str) -> None:
        """Write a permanent line."""
        if self._display is not None:
            self._stream.write(f"{text}\n")
            self._stream.flush()
        else:
            self._overwrite(text, "\n")
            self._width = 0

    def end(self) -> None:
        """Finish the line; the next one starts below it."""
        self._output = None
        if self._display is None:
            self._stream.write("\n")
            self._stream.flush()
            self._width = 0

    def _overwrite(self, text: str, end: str = "") -> None:
        coloured = re.sub(r"\[(#+)", "[\x1b[32m\\1\x1b[0m", text, count=1) if self._coloured else text
        self._stream.write(f"\r{coloured}{' ' * (self._width - len(text))}{end}")
        self._stream.flush()


def _display() -> Callable[..., Any] | None:
    """Return the function that displays an output in a notebook, or None outside of notebooks."""
    display: Callable[..., Any] | None = getattr(sys.modules.get("IPython.display"), "display", None)
    return display


class Bar:
    """A progress bar.

    Args:
        total: number of steps; None if unknown.
        what: label in front of the bar.
        stream: the output stream (default: stderr).
        unit: unit of the steps, in the plural; ``"bytes"`` are displayed as MB.

    Example:
        >>> with Bar(len(items), "packing", unit="images") as bar:
        ...     for item in items:
        ...         bar.step(note=f"{item.name}")
    """

    def __init__(self, total: int | None, what: str = "", stream: TextIO | None = None, unit: str = "steps") -> None:
        self.total, self.what = total, what
        self.done, self.note = 0, ""
        self._scale = 1e6 if unit == "bytes" else 1.0
        self._unit = "MB" if unit == "bytes" else unit
        self._stream = sys.stderr if stream is None else stream
        self._line = Line(self._stream) if is_live(self._stream) else None
        self._started = self._drawn = time.monotonic()

    def step(self, count: int = 1, note: str | None = None) -> None:
        """Advance by ``count`` steps; ``note`` replaces the text after the bar."""
        self.done += count
        self.note = self.note if note is None else note
        if time.monotonic() - self._drawn >= (_LINE_INTERVAL if self._line is None else _REDRAW_INTERVAL):
            self._draw()

    def say(self, text: str) -> None:
        """Write a permanent line above the bar."""
        if self._line is not None:
            self._line.say(text)
        else:
            self._write(text)

    def line(self, width: int | None = None) -> str:
        """Return the bar as text, without colours.

        Args:
            width: maximum number of characters; the bar is shortened before the numbers.
        """
        text = ""
        for length in (20, 10, 0):
            text = self._with_bar(length)
            if width is None or len(text) <= width:
                break
        return text

    def _with_bar(self, length: int) -> str:
        seconds = time.monotonic() - self._started
        rate = self.done / seconds if seconds else 0.0
        scaled = rate / self._scale
        parts = [self.what, self._amount(length)]
        if self.done:
            parts.append(f"{scaled:.{0 if scaled >= 10 else 1}f} {self._unit}/s")
        if self.total and 0 < self.done < self.total and rate:
            parts.append(f"{_clock((self.total - self.done) / rate)} left")
        return "  ".join(part for part in [*parts, self.note] if part)

    def close(self) -> None:
        """Draw the final state."""
        self._draw()
        if self._line is not None:
            self._line.end()

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _amount(self, length: int) -> str:
        if not self.total:
            return self._number(self.done)
        filled = "#" * int(length * min(1.0, self.done / self.total))
        bar = f"[{filled:{length}}] " if self._line is not None and length else ""
        return f"{bar}{self._number(self.done)}/{self._number(self.total)}"

    def _number(self, count: int) -> str:
        return str(count) if self._scale == 1 else f"{count / self._scale:.1f}"

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        if self._line is not None:
            self._line.draw(self.line(max(20, shutil.get_terminal_size().columns - 1)))
        else:
            self._write(self.line())

    def _write(self, text: str) -> None:
        self._stream.write(f"{text}\n")
        self._stream.flush()


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
