"""Encoding of the state machine's messages as headers and tensors, for other servers and for snapshots."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from flowmx.comm.errors import WireError
from flowmx.comm.frames import Tensor
from flowmx.kvstore import row_sparse_wire
from flowmx.kvstore.server import modes
from flowmx.kvstore.server import protocol as p
from flowmx.kvstore.server.missing_push import MissingPush
from flowmx.kvstore.server.optimizers import check_optimizer, configs_of
from flowmx.kvstore.server.prior_state import read_prior_state
from flowmx.kvstore.server.store import OrderedGradient, States, Value, as_array, join, name_of, shape_of
from flowmx.ops.registry.dtypes import as_dtype
from flowmx.shape_limits import read_shape

__all__ = ["Packed", "count_of", "pack", "pack_record", "part_of", "unpack", "unpack_record"]

MAX_KEY = 1024
"""Maximum number of characters of a key: keys are in every request, message and refusal."""

Packed: TypeAlias = tuple[dict[str, Any], list[Tensor]]
"""An encoded message: its header and its tensors."""

Tensors: TypeAlias = list[Tensor]


def pack(message: p.Message) -> Packed:
    """Encode a message. Later changes of the values do not affect its tensors."""
    tensors: Tensors = []
    kind, write, _ = _KINDS[type(message)]
    return {"kind": kind, "epoch": message.epoch, **write(message, tensors)}, tensors


def unpack(header: Any, tensors: Sequence[Tensor]) -> p.Message:
    """Decode a message that :func:`pack` encoded.

    Raises:
        WireError: the message is invalid.
    """
    kind_field = header.get("kind") if isinstance(header, dict) else None
    for kind, _, read in _KINDS.values():
        if kind_field == kind:
            try:
                count_of(header["epoch"])
                return read(header, list(tensors))
            except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
                raise WireError(f"a message of kind {kind!r} is damaged ({type(error).__name__}: {error})") from error
    raise WireError(f"unknown kind of message between servers: {kind_field!r:.80}")


def part_of(fields: Sequence[Any]) -> p.Part:
    """Decode a part from its key, piece and home.

    Raises:
        WireError: one of them is invalid.
    """
    if len(fields) == 3:
        key, piece, home = fields
        is_valid_key = len(key) <= MAX_KEY if type(key) is str else type(key) is int
        if is_valid_key and type(piece) is int and type(home) is int and piece >= 0 and home >= 0:
            return p.Part(key, piece, home)
    text = f"a part is a key (an int, or a string of at most {MAX_KEY} characters), its piece and its home"
    raise WireError(f"{text}, not {list(fields)!r}"[:500])


def pack_record(record: p.Record, tensors: Tensors) -> dict[str, object]:
    """Encode a record; append its tensors to `tensors`."""
    return {
        "part": list(record.part),
        "term": record.term,
        "number": record.number,
        "round": record.round,
        "marks": dict(record.marks),
        "counted": {worker: list(member) for worker, member in record.counted.items()},
        "turns": dict(record.turns),
        "value": _pack_value(record.value, tensors),
        **({"void": record.value.failure} if record.value.failure else {}),
    }


def unpack_record(header: dict[str, Any], tensors: Tensors) -> p.Record:
    """Decode a record that :func:`pack_record` encoded; remove its tensors from the front of `tensors`."""
    return p.Record(
        part=part_of(header["part"]),
        term=count_of(header["term"]),
        number=count_of(header["number"]),
        round=count_of(header["round"]),
        marks={str(worker): count_of(mark) for worker, mark in header["marks"].items()},
        counted={str(worker): p.Member(*map(count_of, member)) for worker, member in header["counted"].items()},
        turns={str(worker): count_of(turn) for worker, turn in header["turns"].items()},
        value=_unpack_value(header["value"], tensors, str(header.get("void", ""))),
    )


def _pack_value(value: Value, tensors: Tensors) -> int:
    """Append the value's array, and its optimizer's states, if any; return the number of tensors."""
    tensors.append(value.lease())
    states = value.get_states()
    if not states:
        return 1
    tensors.append(Tensor.of(np.frombuffer(states, np.uint8)))
    return 2


def _unpack_value(count: int, tensors: Tensors, failure: str = "") -> Value:
    value = Value(tensors.pop(0).array(), failure=failure)
    if count == 2:
        value.states = States(tensors.pop(0).bytes())
    return value


def _pack_step(message: p.StepSent, tensors: Tensors) -> dict[str, object]:
    step = message.step
    before: Sequence[Any] = ()
    if isinstance(step.merged, OrderedGradient):
        before = step.merged.before
        step = step._replace(merged=step.merged.gradient)
    header: dict[str, object] = {
        "part": list(message.part),
        "term": message.term,
        "step": [step.kind, step.number, step.worker, step.turn, list(step.member or ()), step.start],
        "marks": [list(mark) for mark in step.marks],
        **({"before": list(before)} if before else {}),
    }
    if step.kind == "create":
        _pack_value(step.value, tensors)
    elif isinstance(step.merged, MissingPush):
        header["void"] = step.merged.why
    elif isinstance(step.merged, row_sparse_wire.RowSparseGradient):
        header["rows"] = [list(step.merged.shape), name_of(step.merged.rows.dtype)]
        tensors.append(Tensor.of(row_sparse_wire.encode(step.merged.numbers, step.merged.rows)))
    elif step.computes:
        states = isinstance(step.merged, bytes)
        tensors.append(Tensor.of(np.frombuffer(step.merged, np.uint8) if states else as_array(step.merged)))
    return header


def _unpack_step(header: dict[str, Any], tensors: Tensors) -> p.StepSent:
    kind, number, worker, turn, member, start = header["step"]
    value: Value | None = None
    merged: Any = None
    if kind == "create":
        value = _unpack_value(1, tensors)
    elif kind == "load":
        merged = States(tensors.pop(0).bytes())
    elif "void" in header:
        merged = MissingPush(str(header["void"]))
    elif kind == "update":
        merged = tensors.pop(0).array()
        if "rows" in header:
            shape, dtype = header["rows"]
            merged = row_sparse_wire.decode(merged, tuple(map(count_of, shape)), as_dtype(dtype))
    elif kind not in ("enrol", "rest"):
        raise ValueError(f"unknown step {kind!r}")
    if "before" in header:
        merged = OrderedGradient(merged, read_prior_state(header["before"]))
    step = p.PartStep(
        kind=kind,
        number=count_of(number),
        worker=str(worker),
        turn=count_of(turn),
        member=p.Member(*map(count_of, member)) if member else None,
        start=count_of(start),
        value=value,
        merged=merged,
        marks=tuple((str(worker), count_of(mark)) for worker, mark in header["marks"]),
    )
    return p.StepSent(header["epoch"], part_of(header["part"]), count_of(header["term"]), step)


def _pack_steps(message: p.StepsSent, tensors: Tensors) -> dict[str, object]:
    """Encode many updates: their sums as one tensor, and common marks only once."""
    marks: dict[tuple[tuple[str, int], ...], int] = {}
    parts = [
        [*part, term, step.number, marks.setdefault(step.marks, len(marks)), list(shape_of(step.merged))]
        for part, term, step in zip(message.parts, message.terms, message.steps, strict=True)
    ]
    tensors.append(Tensor.of(join([step.merged for step in message.steps])))
    return {"parts": parts, "marks": [list(map(list, pushes)) for pushes in marks]}


def _unpack_steps(header: dict[str, Any], tensors: Tensors) -> p.StepsSent:
    marks = [tuple((str(worker), count_of(mark)) for worker, mark in pushes) for pushes in header["marks"]]
    base, start = tensors.pop(0).array(), 0
    message = p.StepsSent(header["epoch"], [], [], [])
    for key, piece, home, term, number, mark_index, shape in header["parts"]:
        sizes = read_shape(shape)
        stop = start + math.prod(sizes)
        merged = (base, start, stop, sizes)
        step = p.PartStep("update", count_of(number), merged=merged, marks=marks[count_of(mark_index)])
        message.parts.append(part_of((key, piece, home)))
        message.terms.append(count_of(term))
        message.steps.append(step)
        start = stop
    if (start,) != base.shape:
        raise ValueError(f"sums of {start} elements in a tensor of {base.shape}")
    return message


def _pack_tell(message: p.Tell, tensors: Tensors) -> dict[str, object]:
    parts = [[*part, *version] for part, version in message.parts.items()]
    return {"home": message.home, "parts": parts, "common": list(message.common)}


def _unpack_tell(header: dict[str, Any], tensors: Tensors) -> p.Tell:
    parts = {part_of(entry[:3]): (count_of(entry[3]), count_of(entry[4])) for entry in header["parts"]}
    version, config = header["common"]
    if config is not None:
        if config.get("mode") is not None:
            name, bound = config["mode"]
            modes.create(name, bound)
        for optimizer, _ in configs_of(config).values():
            if optimizer is not None:
                check_optimizer(optimizer)
    return p.Tell(header["epoch"], count_of(header["home"]), parts, (count_of(version), config))


def count_of(value: object) -> int:
    """Return a decoded count; raise ValueError if it is not an int from 0 to 2**62 - 1."""
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise ValueError(f"{value!r:.80} is not an int from 0 to 2**62 - 1")
    return value


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
        lambda header, tensors: p.Have(header["epoch"], part_of(header["part"]), count_of(header["number"])),
    ),
    p.Haves: (
        "haves",
        lambda message, tensors: {"parts": [[*part] for part in message.parts], "numbers": message.numbers},
        lambda header, tensors: p.Haves(
            header["epoch"], list(map(part_of, header["parts"])), list(map(count_of, header["numbers"]))
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
        lambda header, tensors: p.Ask(header["epoch"], count_of(header["home"])),
    ),
    p.Tell: ("tell", _pack_tell, _unpack_tell),
    p.Fetch: (
        "fetch",
        lambda message, tensors: {"part": list(message.part)},
        lambda header, tensors: p.Fetch(header["epoch"], part_of(header["part"])),
    ),
}
