"""The flight recorder: current and past operations of this process, for diagnosing hangs; always on.

Operations that run when pushed cost nothing extra; queued ones add an entry to a journal when they end. A separate
thread, which starts with the engine's, answers ``python -m flowmx doctor`` through a socket. It writes a report when no
operation ends for ``FLOWMX_STALL_SECONDS``, when a device is out of memory, and when an exception ends the program.
``FLOWMX_FLIGHT_RECORDER=0`` turns the recorder off.

Example:
    >>> mx.flight_recorder.write("report.json")       # for python -m flowmx doctor report.json
    >>> mx.flight_recorder.describe("serving", lambda: {"warnings": ["the queue is full"]})
"""

from flowmx.observability.flight import messages
from flowmx.observability.flight.report_registry import describe, forget
from flowmx.observability.flight.watcher import start, stop, write

__all__ = ["describe", "forget", "messages", "start", "stop", "write"]
