"""Input of the fuzzer: valid conversations with a scheduler, servers and a service of an application, and damage.

Everything follows from a seed. Damage is done where it gets deepest: to a value inside a header, to the description of
a tensor, to the bytes of a frame, to the HTTP around it, to the signature, and to the order of requests.
"""

import math
import random
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import msgpack
import numpy as np

from flowmx.comm.frames import Message, Tensor, encode
from flowmx.kvstore.server import protocol as p
from flowmx.kvstore.server.missing_push import MissingPush
from flowmx.kvstore.server.store import Value
from flowmx.kvstore.server.wire import pack
from flowmx.optimizer import SGD, Adam, Test
from tests.fuzz.target import SERVERS, WORKERS

__all__ = ["WAITING", "Action", "Block"]

WAITING = {
    "init", "rest", "push", "give_up", "pull", "pushpull", "row_sparse_pull", "save_states", "load_states", "heartbeat",
    "barrier", "view", "messages",
}  # fmt: skip
"""Operations whose answer may take as long as it likes: it depends on what others do."""

DEEP = 300
ODD: list[Any] = [
    None, True, False, -1, 0, 1, 2, 7, 255, 2**31, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1, -(2**63), 1.5,
    -0.0, math.nan, math.inf, -math.inf, 1e308, "", "x", "0", "x" * 400, "x" * 5000, "ü\0\U0001f600", "../../x",
    "worker", b"", b"\xff" * 9, [], [[]], [None] * 3, [0] * 3000, {}, {"type": "2bit"}, {"a": {"b": [1, {"c": None}]}},
]  # fmt: skip
ODD_BYTES = [
    b"\xd6\xff\0\0\0\0", b"\xc7\x02\x05ab", b"\xc1", b"\xd9\x02\xff\xfe", b"\x91" * DEEP + b"\xc0", b"\x81\x01\x02",
    b"\x82\xa1a\x01\xa1a\x02", b"\xdd\xff\xff\xff\xff", b"\xdf\x7f\xff\xff\xff", b"\xc6\xff\xff\xff\xff",
    b"\xdb\0\0\1\0",     b"\x81\xa1\xff\x01", b"\x81" * 40 + b"\xc0", b"\x81\xc0\xc0", b"\x92\xc0",
]  # fmt: skip
"""msgpack that stands for nothing good: extensions, truncations, keys twice, keys that are no text, nesting."""

ODD_TENSORS = [
    [["float32", [1 << 40]]], [["float32", [1 << 32, 1 << 32]]], [["float32", [4], 0]], [["x", [4]]], [["uint8", [-1]]],
    [["bool", [1] * 40]], [["uint8", [0]]] * 100,
]  # fmt: skip
KEYS = ["w", "v", 3, "long" * 30, "ü\n", 2**40, ""]
DTYPES = ["float32", "float32", "float32", "float64", "int64", "bool", "uint8", "bfloat16", "uint32", "float16"]
SHAPES = [(4,), (4,), (4,), (0,), (), (2, 3), (1, 0, 5), (3000,)]
OPTIMIZERS = [SGD(momentum=0.9), Adam(), Test()]

HTTP = [
    "chunked", "short", "long", "none", "twice", "encoding", "type", "method", "abort", "garbage", "slow", "split",
    "expect", "old", "pipeline", "target", "header", "host", "fields",
]  # fmt: skip
SIGNATURES = ["none", "wrong", "tampered", "replayed", "old", "future", "path", "node", "garbled", "header"]


@dataclass(frozen=True)
class Action:
    """One request.

    Attributes:
        endpoint: the name of the endpoint.
        operation: the name of the operation.
        body: the frame.
        node: the node that signs it.
        signature: "right", or the kind of a planted fault.
        http: "plain", or the kind of a planted fault.
        local: whether it is sent to the unix socket.
        shared: the header's description of shared memory, or None; the body is then an incomplete header.
        number: a random number for choices.
    """

    endpoint: str
    operation: str
    body: bytes
    node: str = ""
    signature: str = "right"
    http: str = "plain"
    local: bool = False
    shared: tuple[Any, ...] | None = None
    number: int = 0

    @property
    def may_wait(self):
        """Return whether the answer may be missing."""
        return self.operation in WAITING or self.http not in ("plain", "chunked", "split", "type", "method", "encoding")


class Block:
    """The conversations between two restarts of the endpoints.

    Args:
        seed: the seed of the run.
        number: the number of the block.
        kind: "client without the secret", "outsider" (with the secret, but no node of the job) or "member".
        size: the number of conversations.
    """

    def __init__(self, seed, number, kind, size=60):
        self.source = random.Random(f"{seed}/{number}")
        self.kind = kind
        self.turns, self.numbers, self.beats, self.incarnation = Counter(), Counter(), Counter(), 0
        self.conversations = [self._conversation() for _ in range(size)]

    # -- conversations ---------------------------------------------------------------------------------

    def _conversation(self):
        source = self.source
        where = source.choice(["scheduler", "app", "server0", "server1", "server0", "server1"])
        signed = self.kind != "member" or source.random() < 0.6
        if self.kind == "outsider":
            where = source.choice(SERVERS)
        actions = [self._action(where, signed) for _ in range(source.randrange(1, 8))]
        if source.random() < 0.1:
            source.shuffle(actions)
        if source.random() < 0.1:
            actions += actions[:2]  # repeats an earlier request
        return actions

    def _action(self, where, signed):
        source = self.source
        node, operation, header, tensors = self._valid(where)
        if self.kind == "outsider":
            node = source.choice(["outsider", "worker0", "server9", "a" * 128, "-"])
        said = node if source.random() < 0.9 else self._any_node()
        # Its incarnation alone distinguishes an outsider with a member's name.
        incarnation = 1 if node != "worker0" or self.kind != "outsider" else 2
        header = {"node": said, "incarnation": incarnation, **header}
        local = source.random() < 0.25
        action = Action(f"{'signed' if signed else 'open'} {where}", operation, b"", node, local=local)
        action = self._framed(action, header, tensors)
        if source.random() < 0.15:
            action = replace(action, http=source.choice(HTTP), number=source.randrange(1 << 16))
        if self.kind == "client without the secret" or (signed and source.random() < 0.05):
            action = replace(action, signature=source.choice(SIGNATURES), number=source.randrange(1 << 16))
        return action

    def _framed(self, action, header, tensors):
        source = self.source
        # A member's name with another incarnation must stay that: damage could make it the member's own.
        damaged = source.random() < 0.4 and not (self.kind == "outsider" and action.node in WORKERS)
        if damaged:
            header = self._damaged(header)
        if action.local and source.random() < 0.6:
            return self._shared(action, header, tensors)
        head, *data = encode(Message(header, tensors))
        raw = damaged and source.random() < 0.3
        return replace(action, body=self._raw(head[8:], data) if raw else b"".join([head, *data]))

    def _shared(self, action, header, tensors):
        """A request whose tensors lie in shared memory, in most cases with some number wrong."""
        source = self.source
        offsets = [64 * source.randrange(200) for _ in tensors]
        described = [[t.dtype, list(t.shape), at] for t, at in zip(tensors, offsets, strict=True)]
        shared = ["descriptor", "inode", "size", 0, 8192]
        if source.random() < 0.5:
            shared[source.randrange(5)] = source.choice([0, 1, 8, 8191, 1 << 40, 1 << 62, -1, 1.5, "1", None, True])
        if described and source.random() < 0.3:
            described[0][source.randrange(3)] = source.choice([*ODD[:20], "float32", [4], [1 << 40], [1 << 32] * 2, 63])
        shared = shared[: source.choice([5, 5, 5, 3, 4, 0])]
        content = {**header, "tensors": described}
        return replace(action, body=msgpack.packb(content), shared=tuple(shared))

    # -- valid requests --------------------------------------------------------------------------------

    def _valid(self, where):
        """Draw a valid request: node, operation, header and tensors."""
        if where == "app":
            return (
                self._any_node(),
                self.source.choice(["add", "echo", "echo", "local"]),
                self._echo(),
                self._tensors(2),
            )
        if where == "scheduler":
            return self._scheduler()
        if self.source.random() < 0.2:
            sender = SERVERS[where == SERVERS[0]]
            return sender, "messages", *self._messages()
        worker = self.source.choice(WORKERS)
        operation = self.source.choice([*WORKER_OPERATIONS, "push", "push", "pushpull", "init"])
        return worker, operation, *self._worker(worker, operation, SERVERS.index(where))

    def _any_node(self):
        return self.source.choice([*WORKERS, *SERVERS, "", "x", "launcher", "a.b:c-d"])

    def _echo(self):
        return {"number": self.source.choice([1, 2**40, -5]), "host": "", "id": "7", "list": [1, {"a": "b"}]}

    def _scheduler(self):
        source, node = self.source, self.source.choice([*WORKERS, *SERVERS, "late", "launcher"])
        role = "server" if node in SERVERS else "worker"
        self.beats[node] += 1
        member = {
            "id": source.choice([*WORKERS, "x"]), "role": "worker", "rank": source.randrange(3), "address": "a:1",
            "host": "h", "incarnation": 1, "state": source.choice(["alive", "gone", "left"]), "epoch": 1, "doing": "",
            "why": "",
        }  # fmt: skip
        view = {
            "job": "another", "term": source.choice([1, 2**61, 2**63 - 1]), "epoch": source.randrange(5),
            "phase": source.choice(["forming", "running", "finished", "failed"]), "members": [member], "gone": [member],
            "failure": "",
        }  # fmt: skip
        common = {"term": 0, "epoch": source.randrange(3)}
        header = {
            "join": {
                "role": role, "address": "127.0.0.1:1", "host": "h", "beat": self.beats[node], "rounds": {"b": 1},
                "view": source.choice([None, None, view]), **source.choice([{}, {"rank": 0}]),
            },
            "heartbeat": {**common, "beat": self.beats[node], "doing": "push key 'w'"},
            "leave": source.choice([{}, {"who": "late"}]),
            "fail": {"why": "ValueError: x", **source.choice([{}, {"who": "late"}])},
            "barrier": {
                "name": source.choice(["a", "b"]), "after": source.randrange(3), "first": source.random() < 0.5,
                **common, **source.choice([{}, {}, {"withdraw": True}]),
            },
            "view": source.choice([{}, common]),
        }  # fmt: skip
        operation = source.choice([*header, "join", "heartbeat"])
        return node, operation, header[operation], []

    def _worker(self, worker, operation, home):
        source = self.source
        parts = [[key, source.choice([0, 0, 0, 1]), home] for key in source.sample(KEYS, source.choice([1, 1, 2, 3]))]
        if operation in ("push", "pull", "pushpull", "row_sparse_pull", "save_states", "give_up"):
            parts = [[*part, *self._number(worker, part, operation)] for part in parts]
        more, tensors = {}, []
        if operation in ("init", "rest", "load_states"):
            self.turns[worker] += 1
            more = {"turn": self.turns[worker]}
        if operation == "init":
            more |= {"rank": WORKERS.index(worker), "joined": 1}
            tensors = [self._tensor() for _ in parts] if source.random() < 0.8 else []
        elif operation in ("push", "pushpull"):
            tensors = [self._gradient(part) for part in parts]
        elif operation == "row_sparse_pull":
            tensors = [Tensor.of(np.array(source.choice([[0], [3, 1], [9], [-1]]))) for _ in parts]
        elif operation == "give_up":
            more = {"why": "it failed"}
        elif operation == "load_states":
            tensors = [Tensor.of(np.frombuffer(source.randbytes(source.randrange(50)), np.uint8)) for _ in parts]
        elif operation == "set_optimizer":
            return {"optimizer": source.choice([*(result.get_config() for result in OPTIMIZERS), None])}, []
        elif operation == "open":
            return {"mode": source.choice(["sync", "async"]), **source.choice([{}, {"max_staleness": 3}])}, []
        elif operation == "stats":
            return {}, []
        elif operation == "position":
            return source.choice([{}, {"position": [1, source.randrange(9), 0]}]), []
        return {"parts": parts, **more}, tensors

    def _number(self, worker, part, operation):
        where = worker, part[0]
        if operation in ("push", "pushpull") and self.source.random() < 0.8:
            self.numbers[where] += 1
        number = self.numbers[where]
        return self.source.choice(
            [[number], [number, 0], [number, max(number - 1, 0)], [self.source.choice([0, 2**40])]]
        )

    def _gradient(self, part):
        if self.source.random() < 0.2:
            kinds = [{"type": "2bit", "threshold": 0.5}, {"type": "fp16"}, {"type": "bf16"}, {"type": "rows"}]
            packing = self.source.choice(kinds)
            part += [0] * (5 - len(part)) + [packing]
            kind = packing["type"]
            dtype = {"2bit": np.uint32, "fp16": np.float16, "bf16": ml_dtypes.bfloat16, "rows": np.uint8}[kind]
            return Tensor.of(np.zeros({"2bit": 1, "rows": 12}.get(kind, 4), dtype))
        return self._tensor()

    def _tensor(self):
        dtype = self.source.choice(DTYPES)
        array = np.ones(self.source.choice(SHAPES), ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
        return Tensor.of(array)

    def _tensors(self, most):
        return [self._tensor() for _ in range(self.source.randrange(most + 1))]

    def _messages(self):
        source = self.source
        part, epoch = p.Part(source.choice(KEYS), 0, source.randrange(2)), source.choice([1, 1, 0, 2])
        value = Value(np.ones(4, np.float32))
        record = p.Record(
            part, epoch, source.randrange(4), 1, {"worker0:1": 1}, {"worker0:1": p.Member(0, 1)}, {}, value
        )
        step = source.choice(
            [
                p.PartStep("create", 1, value=value),
                p.PartStep("enrol", 2, "worker0:1", 1, p.Member(0, 1), 0),
                p.PartStep("rest", 3, "worker0:1", 2),
                p.PartStep("update", source.randrange(5), merged=MissingPush("it failed"), marks=(("worker0:1", 1),)),
                p.PartStep("update", source.randrange(5), merged=np.ones(4, np.float32), marks=(("worker0:1", 1),)),
            ]
        )
        messages = [
            p.StepSent(epoch, part, 1, step), p.Copy(epoch, record), p.Have(epoch, part, source.randrange(4)),
            p.Behind(epoch, part), p.Ask(epoch, source.randrange(2)), p.Fetch(epoch, part),
            p.Tell(epoch, source.randrange(2), {part: (1, 1)}, (source.randrange(3), {"mode": ["sync", None]})),
        ]  # fmt: skip
        packed = [pack(message) for message in source.sample(messages, source.randrange(1, 3))]
        header = {"messages": [[message, len(tensors)] for message, tensors in packed]}
        return header, [tensor for _, tensors in packed for tensor in tensors]

    # -- damage ----------------------------------------------------------------------------------------

    def _damaged(self, header):
        """Return a header in which one value, at any depth, is replaced."""
        source = self.source
        copy = msgpack.unpackb(msgpack.packb(header), strict_map_key=False)
        places = list(_places(copy))
        inside, key = source.choice(places)
        what = source.random()
        if what < 0.6:
            inside[key] = source.choice(ODD)
        elif what < 0.75:
            del inside[key]
        elif what < 0.85:
            other, at = source.choice(places)
            inside[key] = other[at] if not _holds(other[at], inside) else None
        elif isinstance(inside, dict):
            inside[source.choice(["more", "", "ü", "id", "node", "tensors2", "x" * 1000])] = source.choice(ODD)
        else:
            inside.insert(source.randrange(len(inside) + 1), source.choice(ODD))
        return {key: value for key, value in copy.items() if key not in ("tensors", "shared")}

    def _raw(self, packed, data):
        """A frame whose bytes are damaged: its start, its header's msgpack, or its tensors."""
        source = self.source
        packed, rest = bytearray(packed), b"".join(data)
        length, magic = len(packed), b"FMX1"
        what = source.randrange(8)
        if what == 0:
            magic = source.choice([b"FMX2", b"GET ", b"\0\0\0\0", b"FM"])
        elif what == 1:
            length = source.choice([0, 1, length - 1, length + 1, 2**32 - 1, 2**31, 40_000])
        elif what == 2:
            rest = rest[: source.randrange(len(rest) + 1)]
        elif what == 3:
            rest += source.randbytes(source.choice([1, 7, 5000]))
        elif what == 4:
            at = source.randrange(len(packed))
            packed[at] = source.randrange(256)
        elif what == 5:
            at = source.randrange(1, len(packed))
            packed[at : at + source.randrange(9)] = source.choice(ODD_BYTES)
            length = len(packed)
        elif what == 6:  # another description of the tensors
            header = msgpack.unpackb(bytes(packed), strict_map_key=False)
            header["tensors"] = source.choice([*ODD, *ODD_TENSORS])
            packed = msgpack.packb(header)
            length = len(packed)
        else:  # one entry of the map occurs twice, or a raw one is inserted
            entry = source.choice([packed[1:], b"\xa1z" + source.choice(ODD_BYTES)])
            if packed[0] & 0xF0 == 0x80 and packed[0] < 0x8F:
                packed = bytes([packed[0] + 1]) + packed[1:] + entry
            length = len(packed)
        return magic + length.to_bytes(4, "little") + bytes(packed) + rest


def _places(value):
    """Yield every place inside a value, as a container and a key or index."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, content in inner:
        yield value, key
        yield from _places(content)


def _holds(value, inner):
    return value is inner or any(_holds(container[key], inner) for container, key in _places(value))


WORKER_OPERATIONS = [
    "position",
    "open", "set_optimizer", "init", "rest", "push", "pull", "pushpull", "row_sparse_pull", "save_states", "give_up",
    "load_states", "stats",
]  # fmt: skip
