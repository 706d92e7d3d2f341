"""The flight recorder: current and past operations of this process, for diagnosing hangs; always on.

It costs operations of microseconds nothing, and queued ones a note when they end. Who is asked is a thread of its own,
which starts with the engine's: it answers ``python -m flowmx doctor`` through a socket, keeps samples of what was going
on, and writes a report where nothing ends for ``FLOWMX_STALL_SECONDS``, where a device is out of memory, and where the
program dies of an exception. ``FLOWMX_FLIGHT_RECORDER=0`` turns it off.

Example:
    >>> mx.flight.write("report.json")       # for python -m flowmx doctor report.json
    >>> mx.flight.describe("serving", lambda: {"warnings": ["the queue is full"]})
"""

from flowmx.observability.flight import messages
from flowmx.observability.flight.facts import describe, forget
from flowmx.observability.flight.watcher import start, stop, write

__all__ = ["describe", "forget", "messages", "start", "stop", "write"]
