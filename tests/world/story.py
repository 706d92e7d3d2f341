"""The story of a run, as a sequence diagram in Mermaid's language."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

__all__ = ["Event", "diagram"]


class Event(NamedTuple):
    """An event in a process.

    Attributes:
        at: the time, in seconds.
        process: the process.
        text: what happened.
        target: the process that it called, or with which its link has a fault.
    """

    at: float
    process: str
    text: str
    target: str = ""


def diagram(story: Sequence[Event], last: int) -> Iterator[str]:
    """Yield the lines of a sequence diagram of the last events."""
    shown = story[-last:]
    yield "sequenceDiagram"
    for name in dict.fromkeys(name for event in shown for name in (event.process, event.target) if name):
        yield f"    participant {name}"
    for event in shown:
        text = event.text.replace(";", ",").replace("#", "no. ")[:160]
        if event.target:
            yield f"    {event.process}->>{event.target}: {event.at:.4f} s: {text}"
        else:
            yield f"    Note over {event.process}: {event.at:.4f} s: {text}"
