"""Progress bars of plain text: a live line on a terminal, a line now and then elsewhere.

They are written to the error output, so that what a command prints stays data.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from types import TracebackType
from typing import TextIO

__all__ = ["Bar", "is_live"]

_REDRAW, _LINE_EVERY = 0.1, 10.0
"""Seconds between two drawings on a terminal, and between two lines elsewhere."""


def is_live(stream: TextIO) -> bool:
    """True where a written line can be overwritten: on terminals, and in notebooks."""
    if type(stream).__module__.startswith("ipykernel"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


class Bar:
    """A progress bar.

    Args:
        total: the number of steps; None where it is unknown.
        what: stands before the bar.
        stream: where it is written (default: the error output).

    Example:
        >>> with Bar(len(items), "packing") as bar:
        ...     for item in items:
        ...         bar.step(note=f"{item.name}")
    """

    def __init__(self, total: int | None, what: str = "", stream: TextIO | None = None) -> None:
        self.total, self.what = total, what
        self.done, self.note = 0, ""
        self._stream = sys.stderr if stream is None else stream
        self._live = is_live(self._stream)
        self._coloured = self._live and not os.environ.get("NO_COLOR")
        self._started = self._drawn = time.monotonic()
        self._width = 0

    def step(self, count: int = 1, note: str | None = None) -> None:
        """Advance by so many steps; ``note`` replaces the text behind the bar."""
        self.done += count
        self.note = self.note if note is None else note
        if time.monotonic() - self._drawn >= (_REDRAW if self._live else _LINE_EVERY):
            self._draw()

    def say(self, text: str) -> None:
        """Write a line that stays, above the bar."""
        self._stream.write(self._over(text) + "\n")
        self._stream.flush()
        self._width = 0

    def line(self) -> str:
        """The bar as text, without colours."""
        seconds = time.monotonic() - self._started
        rate = self.done / seconds if seconds else 0.0
        parts = [self.what, self._amount(), f"{rate:.{0 if rate >= 10 else 1}f}/s" if self.done else ""]
        if self.total and self.done and self.done < self.total:
            parts.append(f"{_clock((self.total - self.done) / rate)} left")
        return "  ".join(part for part in [*parts, self.note] if part)

    def close(self) -> None:
        """Draw it for the last time."""
        self._draw()
        if self._live:
            self._stream.write("\n")
            self._stream.flush()
            self._width = 0

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _amount(self) -> str:
        if not self.total:
            return str(self.done)
        part = min(1.0, self.done / self.total)
        filled = "#" * int(20 * part)
        bar = f"[{filled:20}] " if self._live else ""
        return f"{bar}{self.done}/{self.total}"

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        text = self.line()
        if self._live:
            text = text[: max(20, shutil.get_terminal_size().columns - 1)]
            self._stream.write(self._over(text))
            self._width = len(text)
        else:
            self._stream.write(text + "\n")
        self._stream.flush()

    def _over(self, text: str) -> str:
        """A text over the live line that is there."""
        if not self._live:
            return text
        shown = re.sub(r"\[(#+)", "[\x1b[32m\\1\x1b[0m", text, count=1) if self._coloured else text
        return f"\r{shown}{' ' * (self._width - len(text))}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
