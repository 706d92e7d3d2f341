"""The thread that samples this process for all viewers.

It is independent of the engine and of all event loops, so it continues while those are blocked. Without viewers there
is no thread, and nothing is observed.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

from flowmx import process_hooks
from flowmx.engine import origin
from flowmx.observability.dashboard.memory_owners import MemoryOwners, layers
from flowmx.observability.dashboard.reader import Reader
from flowmx.observability.dashboard.series import Frame, Sampler
from flowmx.observability.dashboard.warning_history import WarningHistory
from flowmx.observability.doctor.rules import diagnose
from flowmx.observability.flight import watcher
from flowmx.observability.flight.event_loop_pings import Pings
from flowmx.observability.flight.observation import Observation

__all__ = ["INTERVAL", "SamplingThread", "sampling_thread"]

_log = logging.getLogger("flowmx.observability.dashboard")

INTERVAL = 0.5
"""Seconds between frames."""
_SAMPLES_PER_FRAME = 5
"""Samples of threads and event loops per frame."""
_FRAMES_PER_DIAGNOSIS = 4
"""Frames per diagnosis."""
_NAN_CHECK_SECONDS = 0.1
"""Seconds of a diagnosis during which values are checked for NaN."""
_COUNT_INTERVAL = 0.4
"""Seconds between counts of arrays by source line."""


class SamplingThread:
    """Produces the frames of this process for any number of viewers; see the module."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._wakes: set[Callable[[], None]] = set()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._sampler, self._pings = Sampler(), Pings()
        self._reader, self._warnings, self._owners = Reader(self._pings), WarningHistory(), MemoryOwners()
        self._delta = Frame(0, {})
        self._texts: dict[bool, tuple[int, bytes]] = {}
        self._slow: dict[str, Any] = {}
        self._logged: set[type[Exception]] = set()

    # -- for viewers -----------------------------------------------------------------------------------

    def join(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` on the thread for every frame; start the thread if necessary."""
        with self._lock:
            self._wakes.add(wake)
            if self._thread is None or not self._thread.is_alive() or self._stop.is_set():
                self._stop = threading.Event()
                self._thread = threading.Thread(
                    target=self._run, args=(self._stop, self._thread), name="flowmx-dashboard-sampling", daemon=True
                )
                self._thread.start()

    def leave(self, wake: Callable[[], None]) -> None:
        """Stop calling ``wake``; without viewers the thread stops."""
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
        """Number of the newest frame."""
        return self._delta.seq

    def newest(self, last_seq: int) -> tuple[int, bytes]:
        """Return the newest frame: the changes if the viewer has frame ``last_seq`` before it, else the whole state.

        Returns:
            its number, and its content as JSON.
        """
        with self._lock:
            is_whole = last_seq != self._delta.seq - 1
            seq, text = self._texts.get(is_whole, (-1, b""))
            if seq != self._delta.seq:
                frame = self._sampler.whole() if is_whole else self._delta
                seq, text = frame.seq, json.dumps(frame.content, separators=(",", ":"), default=str).encode()
                self._texts[is_whole] = (seq, text)
            return seq, text

    # -- the thread ------------------------------------------------------------------------------------

    def _run(self, stop: threading.Event, before: threading.Thread | None) -> None:
        if before is not None:
            before.join()
        watcher.start()
        self._owners.follow()
        origin.layer_name_users += 1
        try:
            number = 0
            while not stop.is_set():
                self._observe(stop, checks_values=number % 2 == 0)
                number += 1
        finally:
            origin.layer_name_users -= 1
            self._owners.leave()

    def _observe(self, stop: threading.Event, checks_values: bool) -> None:
        """Produce some frames and a diagnosis of the time that they cover.

        Checking values and counting arrays both slow operations down, so they alternate.
        """
        observation = Observation(self._pings, None if checks_values else _COUNT_INTERVAL)
        try:
            if checks_values:
                observation.check_values()
            for _ in range(_FRAMES_PER_DIAGNOSIS):
                for _ in range(_SAMPLES_PER_FRAME):
                    observation.look()
                    if checks_values and observation.seconds >= _NAN_CHECK_SECONDS:
                        observation.stop_checking_values()
                    if stop.wait(INTERVAL / _SAMPLES_PER_FRAME):
                        return
                self._frame()
        except Exception as error:  # reports call user code; the thread must survive
            self._log_once(error)
            stop.wait(INTERVAL)
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
            self._warnings.add(diagnose([observation.result()]), monotonic())
            self._slow = {"holders": self._owners.snapshot(), "layers": layers()}
        except Exception as error:  # reports call user code; the thread must survive
            self._log_once(error)

    def _log_once(self, error: Exception) -> None:
        """Log an internal error, once per type, because it may repeat with every frame."""
        if type(error) not in self._logged:
            self._logged.add(type(error))
            _log.error("this process could not be sampled", exc_info=error)


sampling_thread = SamplingThread()
"""The thread of this process."""


def _after_fork() -> None:
    """Reset the thread in the child of a fork, which has no viewers."""
    sampling_thread.__init__()  # type: ignore[misc]


process_hooks.at_fork(after_in_child=_after_fork)
