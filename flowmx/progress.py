"""Progress bars of plain text (``mx.progress``): a live line on terminals and in notebooks, occasional lines elsewhere.

They are written to stderr, so that the output of commands remains data.

Example:
    >>> for epoch in range(10):
    ...     for data, label in (bar := mx.progress.track(loader, f"epoch {epoch}")):
    ...         loss = train_step(data, label)
    ...         bar.show(loss=loss)                     # never waits: the bar has the latest computed loss
    epoch 0  [######              ] 31/100  52 batches/s  0:01 left  loss 0.3172
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Sized
from types import TracebackType
from typing import Any, Generic, TextIO, TypeAlias, TypeVar

from flowmx.late_binding import late
from flowmx.lazy import lazy_attributes

__all__ = ["Bar", "Line", "Track", "is_live", "track"]

__getattr__, __dir__ = lazy_attributes(__name__)

Item = TypeVar("Item")
Items: TypeAlias = Iterable[Item] | AsyncIterable[Item]

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
        self._colored = self._display is None and not os.environ.get("NO_COLOR")

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
        colored = re.sub(r"\[(#+)", "[\x1b[32m\\1\x1b[0m", text, count=1) if self._colored else text
        self._stream.write(f"\r{colored}{' ' * (self._width - len(text))}{end}")
        self._stream.flush()


def _display() -> Callable[..., Any] | None:
    """Return the function that displays an output in a notebook, or None outside notebooks."""
    display: Callable[..., Any] | None = getattr(sys.modules.get("IPython.display"), "display", None)
    return display


class _Value:
    """A number behind a bar. A number that is not computed yet is read by an operation of the engine."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self._latest: list[Any] | None = None
        self._read: Any = None

    def set(self, name: str, value: Any) -> None:
        """Set the value: a number, a metric, an array or several arrays, of which the mean is shown.

        Raises:
            TypeError: it is something else.
        """
        arrays = list(value) if isinstance(value, (list, tuple)) else [value]
        if arrays and all(hasattr(array, "wait_to_read") for array in arrays):
            self._latest = arrays
            if self._read is None or self._read.done():
                self._push(name)
        elif hasattr(value, "get_name_value"):
            self.texts = {key: f"{float(number):.4g}" for key, number in value.get_name_value()}
        else:
            try:
                self.texts = {name: f"{float(value):.4g}"}
            except (TypeError, ValueError):
                raise TypeError(
                    f"show: {name} is {type(value).__name__}, expected a number, an array or a metric"
                ) from None

    def _push(self, name: str) -> None:
        arrays, self._latest = self._latest or [], None

        def read() -> None:
            means = [float(array.asnumpy().astype("float64").mean()) for array in arrays]
            self.texts = {name: f"{sum(means) / len(means):.4g}"}

        self._read = late("engine").push(read, reads=arrays, name="progress bar")

    def finish(self, name: str) -> Any:
        """Read the latest value; return the operation that does so, or None if it has been read."""
        if self._latest is not None:
            self._push(name)
        return None if self._read is None or self._read.done() else self._read


class Bar:
    """A progress bar.

    Args:
        total: number of steps; None if unknown.
        what: label in front of the bar.
        stream: the output stream (default: stderr).
        unit: unit of the steps, in the plural; ``"bytes"`` are displayed as MB.

    Example:
        >>> with mx.progress.Bar(len(items), "packing", unit="images") as bar:
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
        self._values: dict[str, _Value] = {}
        self._started = self._drawn = time.monotonic()

    def step(self, count: int = 1, note: str | None = None) -> None:
        """Advance by ``count`` steps; ``note`` replaces the text after the bar."""
        self.done += count
        self.note = self.note if note is None else note
        if time.monotonic() - self._drawn >= (_LINE_INTERVAL if self._line is None else _REDRAW_INTERVAL):
            self._draw()

    def show(self, **values: Any) -> None:
        """Show values after the bar, by name. This never waits.

        Args:
            **values: numbers; metrics, whose names and values are shown; arrays, or lists of them, whose mean is shown
                as soon as it is computed.

        Raises:
            TypeError: a value is something else.
        """
        for name, value in values.items():
            self._values.setdefault(name, _Value()).set(name, value)

    def say(self, text: str) -> None:
        """Write a permanent line above the bar."""
        if self._line is not None:
            self._line.say(text)
        else:
            self._write(text)

    def line(self, width: int | None = None) -> str:
        """Return the bar as text, without colors.

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
        shown = [f"{name} {text}" for value in self._values.values() for name, text in value.texts.items()]
        return "  ".join(part for part in [*parts, self.note, *shown] if part)

    def close(self) -> None:
        """Draw the final state. In ordinary code, wait for the arrays that it shows; in a coroutine, do not."""
        for name, value in self._values.items():
            read = value.finish(name)
            if read is not None and late("engine.loops").in_ordinary_code():
                read.wait()
        self._close()

    async def close_async(self) -> None:
        """Await the arrays that the bar shows, then draw the final state."""
        for name, value in self._values.items():
            read = value.finish(name)
            if read is not None:
                await read
        self._close()

    def _close(self) -> None:
        self._draw()
        if self._line is not None:
            self._line.end()

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self._close()

    async def __aenter__(self) -> Bar:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.close_async()
        else:
            self._close()

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


class Track(Bar, Generic[Item]):
    """A progress bar over the items of a loop; see :func:`track`."""

    def __init__(
        self, items: Items[Item], what: str = "", total: int | None = None, unit: str = "batches",
        stream: TextIO | None = None,
    ) -> None:  # fmt: skip
        if not hasattr(items, "__iter__") and not hasattr(items, "__aiter__"):
            raise TypeError(
                f"track: items is {type(items).__name__}, expected something to loop over, such as a loader"
            )
        if total is None and isinstance(items, Sized):
            total = len(items)
        super().__init__(total, what, stream, unit)
        self._items = items

    def _restart(self) -> None:
        self.done = 0
        self._values = {}
        self._started = self._drawn = time.monotonic()

    def __iter__(self) -> Iterator[Item]:
        self._restart()
        with self:
            for item in self._items:
                yield item
                self.step()

    async def __aiter__(self) -> AsyncIterator[Item]:
        self._restart()
        async with self:
            if hasattr(self._items, "__aiter__"):
                async for item in self._items:
                    yield item
                    self.step()
            else:
                for item in self._items:
                    yield item
                    self.step()


def track(
    items: Items[Item], what: str = "", total: int | None = None, unit: str = "batches", stream: TextIO | None = None
) -> Track[Item]:
    """Return a progress bar over the items of a loop, ``for`` or ``async for``. Each loop over it starts again.

    Args:
        items: a loader, a list, or another iterable.
        what: label in front of the bar.
        total: the number of items (default: ``len(items)``, if it has one).
        unit: unit of the items, in the plural.
        stream: the output stream (default: stderr).

    Raises:
        TypeError: ``items`` cannot be iterated.

    Example:
        >>> for data, label in (bar := mx.progress.track(loader, "epoch 1")):
        ...     loss = train_step(data, label)
        ...     bar.show(loss=loss, rate=trainer.learning_rate)
    """
    return Track(items, what, total, unit, stream)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
