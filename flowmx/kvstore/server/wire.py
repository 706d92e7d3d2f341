"""The messages of the state machine as headers and tensors, for other servers and for snapshots."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from flowmx.comm.errors import WireError
from flowmx.comm.frames import Tensor
from flowmx.kvstore import rows
from flowmx.kvstore.server import modes
from flowmx.kvstore.server import protocol as p
from flowmx.kvstore.server.store import States, Value, as_array, check_optimizer, join, name_of, shape_of
from flowmx.ops.registry.dtypes import as_dtype

__all__ = ["Packed", "pack", "pack_record", "part_of", "unpack", "unpack_record"]

LONGEST = 1024
"""Characters of a key: each stands in every request, message and refusal."""

Packed: TypeAlias = tuple[dict[str, Any], list[Tensor]]
"""An encoded message: its part of the header, and its tensors."""

Tensors: TypeAlias = list[Tensor]


def pack(message: p.Message) -> Packed:
    """Encode a message. The tensors keep their content, whatever happens to the values."""
    tensors: Tensors = []
    kind, write, _ = _KINDS[type(message)]
    return {"kind": kind, "epoch": message.epoch, **write(message, tensors)}, tensors


def unpack(header: Any, tensors: Sequence[Tensor]) -> p.Message:
    """The message that :func:`pack` packed.

    Raises:
        WireError: it is none.
    """
    given = header.get("kind") if isinstance(header, dict) else None
    for kind, _, read in _KINDS.values():
        if given == kind:
            try:
                _whole(header["epoch"])
                return read(header, list(tensors))
            except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
                raise WireError(f"a message of kind {kind!r} is damaged ({type(error).__name__}: {error})") from error
    raise WireError(f"there is no message between servers of kind {given!r:.80}")


def part_of(found: Sequence[Any]) -> p.Part:
    """The part of an encoded key, piece and home.

    Raises:
        WireError: they are none.
    """
    if len(found) == 3:
        key, piece, home = found
        fits = len(key) <= LONGEST if type(key) is str else type(key) is int
        if fits and type(piece) is int and type(home) is int and piece >= 0 and home >= 0:
            return p.Part(key, piece, home)
    text = f"a part is a key (an int, or text of at most {LONGEST} characters), its piece and its home"
    raise WireError(f"{text}, not {list(found)!r}"[:500])


def pack_record(record: p.Record, tensors: Tensors) -> dict[str, Any]:
    """A record; its tensors are appended."""
    return {
        "part": list(record.part),
        "term": record.term,
        "number": record.number,
        "round": record.round,
        "marks": dict(record.marks),
        "counted": {worker: list(member) for worker, member in record.counted.items()},
        "turns": dict(record.turns),
        "value": _pack_value(record.value, tensors),
    }


def unpack_record(header: dict[str, Any], tensors: Tensors) -> p.Record:
    """The record that :func:`pack_record` packed; its tensors are taken from the front."""
    return p.Record(
        part=part_of(header["part"]),
        term=_whole(header["term"]),
        number=_whole(header["number"]),
        round=_whole(header["round"]),
        marks={str(worker): _whole(mark) for worker, mark in header["marks"].items()},
        counted={str(worker): p.Member(*map(_whole, member)) for worker, member in header["counted"].items()},
        turns={str(worker): _whole(turn) for worker, turn in header["turns"].items()},
        value=_unpack_value(header["value"], tensors),
    )


def _pack_value(value: Value, tensors: Tensors) -> int:
    """The number of tensors that the value takes: its array, and its optimizer's states where there are any."""
    tensors.append(value.lease())
    states = value.get_states()
    if not states:
        return 1
    tensors.append(Tensor.of(np.frombuffer(states, np.uint8)))
    return 2


def _unpack_value(count: int, tensors: Tensors) -> Value:
    value = Value(tensors.pop(0).array())
    if count == 2:
        value.states = States(tensors.pop(0).bytes())
    return value


def _pack_step(message: p.StepSent, tensors: Tensors) -> dict[str, Any]:
    step = message.step
    found: dict[str, Any] = {
        "part": list(message.part),
        "term": message.term,
        "step": [step.kind, step.number, step.worker, step.turn, list(step.member or ()), step.start],
        "marks": [list(mark) for mark in step.marks],
    }
    if step.kind == "create":
        _pack_value(step.value, tensors)
    elif isinstance(step.merged, rows.ByRows):
        found["rows"] = [list(step.merged.shape), name_of(step.merged.rows.dtype)]
        tensors.append(Tensor.of(rows.encode(step.merged.numbers, step.merged.rows)))
    elif step.computes:
        states = isinstance(step.merged, bytes)
        tensors.append(Tensor.of(np.frombuffer(step.merged, np.uint8) if states else as_array(step.merged)))
    return found


def _unpack_step(header: dict[str, Any], tensors: Tensors) -> p.StepSent:
    kind, number, worker, turn, member, start = header["step"]
    value: Value | None = None
    merged: Any = None
    if kind == "create":
        value = _unpack_value(1, tensors)
    elif kind == "load":
        merged = States(tensors.pop(0).bytes())
    elif kind == "update":
        merged = tensors.pop(0).array()
        if "rows" in header:
            shape, dtype = header["rows"]
            merged = rows.decode(merged, tuple(map(_whole, shape)), as_dtype(dtype))
    elif kind not in ("enrol", "rest"):
        raise ValueError(f"no step is called {kind!r}")
    step = p.PartStep(
        kind=kind,
        number=_whole(number),
        worker=str(worker),
        turn=_whole(turn),
        member=p.Member(*map(_whole, member)) if member else None,
        start=_whole(start),
        value=value,
        merged=merged,
        marks=tuple((str(who), _whole(mark)) for who, mark in header["marks"]),
    )
    return p.StepSent(header["epoch"], part_of(header["part"]), _whole(header["term"]), step)


def _pack_steps(message: p.StepsSent, tensors: Tensors) -> dict[str, Any]:
    """Many updates: their sums as one tensor, and what is the same for all of them but once."""
    marks: dict[tuple[tuple[str, int], ...], int] = {}
    parts = [
        [*part, term, step.number, marks.setdefault(step.marks, len(marks)), list(shape_of(step.merged))]
        for part, term, step in zip(message.parts, message.terms, message.steps, strict=True)
    ]
    tensors.append(Tensor.of(join([step.merged for step in message.steps])))
    return {"parts": parts, "marks": [list(map(list, each)) for each in marks]}


def _unpack_steps(header: dict[str, Any], tensors: Tensors) -> p.StepsSent:
    marks = [tuple((str(who), _whole(mark)) for who, mark in each) for each in header["marks"]]
    base, start = tensors.pop(0).array(), 0
    found = p.StepsSent(header["epoch"], [], [], [])
    for key, piece, home, term, number, which, shape in header["parts"]:
        stop = start + math.prod(map(_whole, shape))
        merged = (base, start, stop, tuple(shape))
        step = p.PartStep("update", _whole(number), merged=merged, marks=marks[_whole(which)])
        found.parts.append(part_of((key, piece, home)))
        found.terms.append(_whole(term))
        found.steps.append(step)
        start = stop
    if (start,) != base.shape:
        raise ValueError(f"sums of {start} elements in a tensor of {base.shape}")
    return found


def _pack_tell(message: p.Tell, tensors: Tensors) -> dict[str, Any]:
    parts = [[*part, *version] for part, version in message.parts.items()]
    return {"home": message.home, "parts": parts, "common": list(message.common)}


def _unpack_tell(header: dict[str, Any], tensors: Tensors) -> p.Tell:
    parts = {part_of(found[:3]): (_whole(found[3]), _whole(found[4])) for found in header["parts"]}
    version, config = header["common"]
    if config is not None:
        if config.get("mode") is not None:
            name, bound = config["mode"]
            modes.create(name, bound)
        if config.get("optimizer") is not None:
            check_optimizer(config["optimizer"])
    return p.Tell(header["epoch"], _whole(header["home"]), parts, (_whole(version), config))


def _whole(found: Any) -> int:
    if type(found) is not int or not 0 <= found < 1 << 62:
        raise ValueError(f"{found!r:.80} is no int from 0 to 2**62 - 1")
    return found


Write = Callable[[Any, Tensors], dict[str, Any]]
Read = Callable[[dict[str, Any], Tensors], p.Message]

_KINDS: dict[type[p.Message], tuple[str, Write, Read]] = {
    p.StepSent: ("step", _pack_step, _unpack_step),
    p.StepsSent: ("steps", _pack_steps, _unpack_steps),
    p.Copy: (
        "copy",
        lambda message, tensors: {"record": pack_record(message.record, tensors)},
        lambda header, tensors: p.Copy(header["epoch"], unpack_record(header["record"], tensors)),
    ),
    p.Have: (
        "have",
        lambda message, tensors: {"part": list(message.part), "number": message.number},
        lambda header, tensors: p.Have(header["epoch"], part_of(header["part"]), _whole(header["number"])),
    ),
    p.Haves: (
        "haves",
        lambda message, tensors: {"parts": [[*each] for each in message.parts], "numbers": message.numbers},
        lambda header, tensors: p.Haves(
            header["epoch"], list(map(part_of, header["parts"])), list(map(_whole, header["numbers"]))
        ),
    ),
    p.Behind: (
        "behind",
        lambda message, tensors: {"part": list(message.part)},
        lambda header, tensors: p.Behind(header["epoch"], part_of(header["part"])),
    ),
    p.Ask: (
        "ask",
        lambda message, tensors: {"home": message.home},
        lambda header, tensors: p.Ask(header["epoch"], _whole(header["home"])),
    ),
    p.Tell: ("tell", _pack_tell, _unpack_tell),
    p.Fetch: (
        "fetch",
        lambda message, tensors: {"part": list(message.part)},
        lambda header, tensors: p.Fetch(header["epoch"], part_of(header["part"])),
    ),
}
