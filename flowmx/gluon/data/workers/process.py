"""The main program of a worker process.

Its first thread makes batches, one after the other; a second one reads what the loader says, so that the process ends
at once when the loader has ended, whatever it is doing.
"""

from __future__ import annotations

import importlib
import json
import os
import queue
import signal
import socket
import sys
import threading
from typing import Any

from flowmx.gluon.data import batch_maker, seeds
from flowmx.gluon.data.workers import failures, messages, package, shared
from flowmx.gluon.data.workers.blocks import Made

BOOT = """\
import json, sys
given = json.loads(sys.argv[1])
sys.path[:], sys.argv[:] = given["path"], given["argv"]
from flowmx.gluon.data.workers import process
process.main(given)
"""
"""The source given to ``python -c``: it sets ``sys.path`` before anything is imported."""


def start_of(given: package.Package) -> dict[str, Any]:
    """The start-up data of a worker, but for its descriptors."""
    as_mxnet = getattr(sys.modules.get("mxnet"), "__file__", None) == sys.modules["flowmx"].__file__
    return {"path": sys.path, "argv": sys.argv, "size": given.size, "main": given.main, "as_mxnet": as_mxnet}


def command(connection: int, given: package.Package) -> list[str]:
    """The arguments of the interpreter of a worker that has these descriptors."""
    start = {**start_of(given), "connection": connection, "package": given.descriptor}
    return ["-c", BOOT, json.dumps(start)]


def main(given: dict[str, Any]) -> None:
    """Make batches until the loader ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the loader's process is interrupted, and ends this one
    connection = socket.socket(fileno=given["connection"])
    worker = _Worker(connection)
    threading.Thread(target=worker.listen, name="flowmx-listen", daemon=True).start()
    try:
        if given["as_mxnet"]:
            importlib.import_module("flowmx").install_as_mxnet()  # a higher floor: what is to be opened may import it
        content = package.opened(given["package"], given["size"], given["main"])
    except BaseException as error:
        error.add_note("when it opened the data set")
        worker.answer(messages.REFUSED, 0, failures.report(error))
        return
    worker.answer(messages.READY, 0, None)
    worker.work(*content)


class _Worker:
    """The two threads of a worker."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._tasks: queue.SimpleQueue[messages.Task] = queue.SimpleQueue()
        self._unwanted: set[int] = set()
        self._blocks = Made()

    def listen(self) -> None:
        """Read what the loader says."""
        try:
            while True:
                task = messages.receive_task(self._connection)
                if task.samples is None:
                    self._unwanted.add(task.ticket)
                else:
                    self._tasks.put(task)
        except (EOFError, OSError):
            os._exit(0)

    def work(self, dataset: Any, batchify_fn: Any) -> None:
        """Do one task after the other."""
        while True:
            task = self._tasks.get()
            self._blocks.give_back(task.free, task.drop)
            self._do(task, dataset, batchify_fn)
            self._unwanted.discard(task.ticket)
            sys.stdout.flush()
            sys.stderr.flush()

    def _do(self, task: messages.Task, dataset: Any, batchify_fn: Any) -> None:
        assert task.samples is not None
        try:
            with seeds.seeded_process(task.seed):
                batch = batch_maker.make(
                    dataset, batchify_fn, task.samples, task.number, lambda: task.ticket not in self._unwanted
                )
            self.answer(messages.BATCH, task.ticket, batch)
        except BaseException as error:
            self.answer(messages.ERROR, task.ticket, failures.report(error))

    def answer(self, kind: int, ticket: int, value: Any) -> None:
        """Send something home."""
        parts = shared.apart(value)
        block = self._blocks.take(parts.size)
        shared.write(parts, block.memory)
        try:
            messages.send_result(
                self._connection,
                messages.Result(kind, ticket, block.number, len(block.memory), parts.size, block.descriptor),
            )
        except OSError:
            os._exit(0)
        finally:
            if block.descriptor >= 0:
                os.close(block.descriptor)
