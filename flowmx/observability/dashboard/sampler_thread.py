"""The thread that samples this process for all viewers, while there are any.

It is no part of the engine and of no event loop, so that it goes on where those are blocked. While nobody looks there
is no thread, and nothing is observed.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

from flowmx.engine import origin
from flowmx.observability.dashboard.holders import Holders, layers
from flowmx.observability.dashboard.reader import Reader
from flowmx.observability.dashboard.series import Frame, Sampler
from flowmx.observability.dashboard.warnings import Warnings
from flowmx.observability.doctor.rules import diagnose
from flowmx.observability.flight import watcher
from flowmx.observability.flight.loops import Pings
from flowmx.observability.flight.observing import Observation

__all__ = ["EVERY", "SamplingThread", "sampling_thread"]

_log = logging.getLogger("flowmx.observability.dashboard")

EVERY = 0.5
"""Seconds between frames."""
_LOOKS = 5
"""Samples of threads and loops for each frame."""
_FRAMES = 4
"""Frames for each diagnosis."""
_VALUES = 0.1
"""Seconds of a diagnosis in which values are looked through for NaN."""
_COUNTS_EVERY = 0.4
"""Seconds between counts of the arrays that lines have made."""


class SamplingThread:
    """Frames of this process, for any number of viewers; see the module."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._wakes: set[Callable[[], None]] = set()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._sampler, self._pings = Sampler(), Pings()
        self._reader, self._warnings, self._holders = Reader(self._pings), Warnings(), Holders()
        self._delta = Frame(0, {})
        self._texts: dict[bool, tuple[int, bytes]] = {}
        self._slow: dict[str, Any] = {}
        self._complaints: set[type[Exception]] = set()

    # -- for viewers -----------------------------------------------------------------------------------

    def join(self, wake: Callable[[], None]) -> None:
        """Have a function called, on the thread, whenever there is another frame; begins to look."""
        with self._lock:
            self._wakes.add(wake)
            if self._thread is None or not self._thread.is_alive() or self._stop.is_set():
                self._stop = threading.Event()
                self._thread = threading.Thread(
                    target=self._run, args=(self._stop, self._thread), name="flowmx-dashboard-sampling", daemon=True
                )
                self._thread.start()

    def leave(self, wake: Callable[[], None]) -> None:
        """Stop calling it; the last viewer's end stops the thread."""
        with self._lock:
            self._wakes.discard(wake)
            if not self._wakes:
                self._stop.set()

    @property
    def viewers(self) -> int:
        """Number of viewers."""
        return len(self._wakes)

    @property
    def seq(self) -> int:
        """The number of the newest frame."""
        return self._delta.seq

    def newest(self, seen: int) -> tuple[int, bytes]:
        """The newest frame, for somebody who has seen another: what is new, or all where that was not the last one.

        Returns:
            its number, and its content as JSON.
        """
        with self._lock:
            is_whole = seen != self._delta.seq - 1
            seq, text = self._texts.get(is_whole, (-1, b""))
            if seq != self._delta.seq:
                frame = self._sampler.whole() if is_whole else self._delta
                seq, text = frame.seq, json.dumps(frame.content, separators=(",", ":"), default=str).encode()
                self._texts[is_whole] = (seq, text)
            return seq, text

    # -- its thread ------------------------------------------------------------------------------------

    def _run(self, stop: threading.Event, before: threading.Thread | None) -> None:
        if before is not None:
            before.join()
        watcher.start()
        self._holders.follow()
        origin.names_layers += 1
        try:
            number = 0
            while not stop.is_set():
                self._observe(stop, looks_at_values=number % 2 == 0)
                number += 1
        finally:
            origin.names_layers -= 1
            self._holders.leave()

    def _observe(self, stop: threading.Event, looks_at_values: bool) -> None:
        """Some frames, and a diagnosis of what was seen in their time.

        Both looking at values and counting arrays make operations cost more: they take turns.
        """
        observation = Observation(self._pings, None if looks_at_values else _COUNTS_EVERY)
        try:
            if looks_at_values:
                observation.look_at_values()
            for _ in range(_FRAMES):
                for _ in range(_LOOKS):
                    observation.look()
                    if looks_at_values and observation.seconds >= _VALUES:
                        observation.leave_values()
                    if stop.wait(EVERY / _LOOKS):
                        return
                self._frame()
        except Exception as error:
            self._complain(error)
            stop.wait(EVERY)
        finally:
            observation.close()
        self._diagnose(observation)

    def _frame(self) -> None:
        now = monotonic()
        reading = self._reader.read({**self._slow, "warnings": self._warnings.rows(now)})
        with self._lock:
            self._delta = self._sampler.add(reading)
            wakes = list(self._wakes)
        for wake in wakes:
            wake()

    def _diagnose(self, observation: Observation) -> None:
        try:
            self._warnings.add(diagnose([observation.found()]), monotonic())
            self._slow = {"holders": self._holders.found(), "layers": layers()}
        except Exception as error:
            self._complain(error)

    def _complain(self, error: Exception) -> None:
        """Log an error of ours, each kind once: it comes again with every frame."""
        if type(error) not in self._complaints:
            self._complaints.add(type(error))
            _log.error("this process could not be looked at", exc_info=error)


sampling_thread = SamplingThread()
"""That of this process."""


def _after_fork() -> None:
    """In the child of a fork nobody looks, and there is no thread."""
    sampling_thread.__init__()  # type: ignore[misc]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
