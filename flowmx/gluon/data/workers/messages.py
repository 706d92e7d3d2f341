"""The wire format of the socket between a loader and a worker process.

To the worker: pickled tasks, each preceded by its length. From the worker: records of a fixed size with the number of
the shared memory block that holds a result, and with the block's file descriptor if it is new.
"""

from __future__ import annotations

import array
import os
import pickle
import socket
import struct
from typing import Any, NamedTuple

_LENGTH = struct.Struct("<I")
_RESULT = struct.Struct("<BQQQQ")

BATCH, ERROR, READY, REFUSED = range(4)
"""Kinds of results: a batch, a batch's error, a message that the worker is ready, or that it cannot start."""


class Task(NamedTuple):
    """A message to a worker: a batch to make, or a task to abandon.

    Attributes:
        task_id: identifies the task; its result has the same id.
        samples: the indices of the samples; None abandons the task with this id.
        seed: the seed of its random numbers.
        number: the index of the batch, for messages.
        free: blocks to reuse.
        drop: blocks to drop.
    """

    task_id: int
    samples: list[Any] | None
    seed: int = 0
    number: int = 0
    free: tuple[int, ...] = ()
    drop: tuple[int, ...] = ()


class Result(NamedTuple):
    """A worker's reply: the memory block that holds a result.

    Attributes:
        kind: the kind of the block's content.
        task_id: the task's id.
        block: the block's id.
        capacity: the block's size in bytes.
        size: the size of its content in bytes.
        descriptor: the descriptor of a new block; else -1.
    """

    kind: int
    task_id: int
    block: int
    capacity: int
    size: int
    descriptor: int = -1


def send_task(connection: socket.socket, task: Task) -> None:
    """Send a task to a worker.

    Raises:
        OSError: the worker has ended.
    """
    raw = pickle.dumps(tuple(task))
    connection.sendall(_LENGTH.pack(len(raw)) + raw)


def receive_task(connection: socket.socket) -> Task:
    """Receive the next task.

    Raises:
        EOFError: the loader has ended.
    """
    (length,) = _LENGTH.unpack(_receive_exactly(connection, _LENGTH.size))
    return Task(*pickle.loads(_receive_exactly(connection, length)))


def _receive_exactly(connection: socket.socket, size: int) -> bytes:
    raw = bytearray()
    while len(raw) < size:
        part = connection.recv(min(size - len(raw), 1 << 20))
        if not part:
            raise EOFError("the connection was closed")
        raw += part
    return bytes(raw)


def send_result(connection: socket.socket, result: Result) -> None:
    """Send a result to the loader.

    Raises:
        OSError: the loader has ended.
    """
    raw = _RESULT.pack(*result[:-1])
    if result.descriptor < 0:
        connection.sendall(raw)
    else:
        sent = socket.send_fds(connection, [raw], [result.descriptor])
        connection.sendall(raw[sent:])


def receive_result(connection: socket.socket) -> Result:
    """Receive a worker's next result.

    Raises:
        EOFError: the worker has ended.
        TimeoutError: the connection timed out.
    """
    descriptors = array.array("i")
    raw = b""
    try:
        while len(raw) < _RESULT.size:
            part, new, _, _ = socket.recv_fds(connection, _RESULT.size - len(raw), 1)
            descriptors.extend(new)
            if not part:
                raise EOFError("the connection was closed")
            raw += part
    except BaseException:  # cleanup, also when interrupted
        for descriptor in descriptors:
            os.close(descriptor)
        raise
    kind, task_id, block, capacity, size = _RESULT.unpack(raw)
    return Result(kind, task_id, block, capacity, size, descriptors[0] if descriptors else -1)
