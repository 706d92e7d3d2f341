"""A checker of Chrome's trace-event format, by its description: what Perfetto's importer relies on.

https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

NEEDED = {
    "X": {"name", "ts", "dur", "pid", "tid"},
    "C": {"name", "ts", "pid", "args"},
    "i": {"name", "ts", "pid", "tid", "s"},
    "M": {"name", "pid", "args"},
    "s": {"name", "cat", "id", "ts", "pid", "tid"},
    "f": {"name", "cat", "id", "ts", "pid", "tid", "bp"},
}
METADATA = {"process_name", "thread_name"}
SLACK = 0.002  # microseconds: times are rounded to nanoseconds


def problems(document: Any) -> list[str]:
    """Return the faults of a trace, or an empty list."""
    if not isinstance(document, dict) or not isinstance(document.get("traceEvents"), list):
        return ["a trace is an object with a list of traceEvents"]
    events = document["traceEvents"]
    faults = [problem for index, event in enumerate(events) for problem in _event(index, event)]
    return faults or [*_nesting(events), *_flows(events), *_tracks(events)]


def _event(index: int, event: Any) -> Iterator[str]:
    kind = event.get("ph") if isinstance(event, dict) else None
    if kind not in NEEDED:
        yield f"event {index} is of no known phase: {event!r}"
        return
    missing = sorted(NEEDED[kind] - event.keys())
    if missing:
        yield f"event {index} ({kind}) has no {missing[0]}"
        return
    for key in ("ts", "dur"):
        if key in event and not (isinstance(event[key], int | float) and 0 <= event[key] < float("inf")):
            yield f"event {index} has {key} {event[key]!r}, expected microseconds of at least 0"
    for key in ("pid", "tid"):
        if key in event and not (isinstance(event[key], int) and 0 <= event[key] < 2**31):
            yield f"event {index} has {key} {event[key]!r}, expected a small int"
    if not isinstance(event["name"], str) or not event["name"]:
        yield f"event {index} has the name {event['name']!r}, expected text"
    if kind == "i" and event["s"] not in "gpt":
        yield f"event {index} has the scope {event['s']!r}"
    if kind == "C" and not all(isinstance(value, int | float) for value in event["args"].values()):
        yield f"event {index}: a counter's values are numbers"
    if kind == "M" and (event["name"] not in METADATA or not isinstance(event["args"].get("name"), str)):
        yield f"event {index}: metadata names a process or a thread"


def _nesting(events: list[Any]) -> Iterator[str]:
    """Find slices of one thread that overlap without one containing the other."""
    threads = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            threads[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"], event["name"]))
    for slices in threads.values():
        open_: list[tuple[float, float, str]] = []
        for start, end, name in sorted(slices, key=lambda each: (each[0], -each[1])):
            while open_ and open_[-1][1] <= start + SLACK:
                open_.pop()
            if open_ and end > open_[-1][1] + SLACK:
                yield f"{name!r} overlaps {open_[-1][2]!r} on one thread"
            open_.append((start, end, name))


def _flows(events: list[Any]) -> Iterator[str]:
    """Each arrow begins once, ends once and later, and both ends lie in a slice."""
    starts, ends = defaultdict[Any, list[Any]](list), defaultdict[Any, list[Any]](list)
    slices = defaultdict(list)
    for event in events:
        if event["ph"] in "sf":
            (starts if event["ph"] == "s" else ends)[event["cat"], event["id"]].append(event)
        elif event["ph"] == "X":
            slices[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for key in starts.keys() | ends.keys():
        if len(starts[key]) != 1 or len(ends[key]) != 1:
            yield f"arrow {key} begins {len(starts[key])} times and ends {len(ends[key])} times"
            continue
        if starts[key][0]["ts"] > ends[key][0]["ts"]:
            yield f"arrow {key} ends before it begins"
        for event in (starts[key][0], ends[key][0]):
            held = slices[event["pid"], event["tid"]]
            if not any(start - SLACK <= event["ts"] <= end + SLACK for start, end in held):
                yield f"arrow {key} has an end in no slice"


def _tracks(events: list[Any]) -> Iterator[str]:
    named = [(event["pid"], event["tid"]) for event in events if event["ph"] == "M" and event["name"] == "thread_name"]
    if len(named) != len(set(named)):
        yield "a thread has two names"
    for event in events:
        if event["ph"] == "X" and (event["pid"], event["tid"]) not in named:
            yield f"{event['name']!r} is on a thread without a name"
            return
