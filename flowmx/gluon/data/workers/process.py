"""The main program of a worker process.

Its first thread makes batches; a second one reads the loader's messages, so that the process ends immediately when the
loader ends, even in the middle of a batch.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import sys
import threading
from typing import Any

from flowmx.gluon.data import batch_maker, seeds
from flowmx.gluon.data.workers import failures, messages, shared_memory, startup_package
from flowmx.gluon.data.workers.blocks import WorkerBlocks
from flowmx.late_binding import late

BOOT = """\
import json, sys
start = json.loads(sys.argv[1])
sys.path[:], sys.argv[:] = start["path"], start["argv"]
from flowmx.gluon.data.workers import process
process.main(start)
"""
"""The source of ``python -c``: it sets ``sys.path`` before anything else is imported."""


def startup_data(content: startup_package.Package) -> dict[str, object]:
    """Return the start-up data of a worker, without its descriptors."""
    as_mxnet = getattr(sys.modules.get("mxnet"), "__file__", None) == sys.modules["flowmx"].__file__
    return {"path": sys.path, "argv": sys.argv, "size": content.size, "main": content.main, "as_mxnet": as_mxnet}


def command(connection: int, content: startup_package.Package) -> list[str]:
    """Return the interpreter's arguments for a worker with these descriptors."""
    start = {**startup_data(content), "connection": connection, "package": content.descriptor}
    return ["-c", BOOT, json.dumps(start)]


def main(start: dict[str, Any]) -> None:
    """Make batches until the loader ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the loader's process handles it, and ends this one
    connection = socket.socket(fileno=start["connection"])
    worker = _Worker(connection)
    threading.Thread(target=worker.listen, name="flowmx-listen", daemon=True).start()
    try:
        if start["as_mxnet"]:
            late("compat.package").install_as_mxnet()  # the pickled dataset may import mxnet
        content = startup_package.open_package(start["package"], start["size"], start["main"])
    except BaseException as error:  # unpickling runs user code; the parent process reports it
        error.add_note("while opening the data set")
        worker.respond(messages.REFUSED, 0, failures.report(error))
        return
    worker.respond(messages.READY, 0, None)
    worker.work(*content)


class _Worker:
    """The two threads of a worker."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._tasks: queue.SimpleQueue[messages.Task] = queue.SimpleQueue()
        self._abandoned: set[int] = set()
        self._blocks = WorkerBlocks()

    def listen(self) -> None:
        """Read the loader's messages."""
        try:
            while True:
                task = messages.receive_task(self._connection)
                if task.samples is None:
                    self._abandoned.add(task.task_id)
                else:
                    self._tasks.put(task)
        except (EOFError, OSError):
            os._exit(0)

    def work(self, dataset: object, batchify_fn: object) -> None:
        """Process the tasks."""
        while True:
            task = self._tasks.get()
            self._blocks.give_back(task.free, task.drop)
            self._do(task, dataset, batchify_fn)
            self._abandoned.discard(task.task_id)
            sys.stdout.flush()
            sys.stderr.flush()

    def _do(self, task: messages.Task, dataset: Any, batchify_fn: Any) -> None:
        assert task.samples is not None
        try:
            with seeds.seed_process(task.seed):
                batch = batch_maker.make(
                    dataset, batchify_fn, task.samples, task.number, lambda: task.task_id not in self._abandoned
                )
            self.respond(messages.BATCH, task.task_id, batch)
        except BaseException as error:  # any error of the user's data set is the result
            self.respond(messages.ERROR, task.task_id, failures.report(error))

    def respond(self, kind: int, task_id: int, value: object) -> None:
        """Send a value to the loader."""
        parts = shared_memory.split(value)
        block = self._blocks.take(parts.size)
        shared_memory.write(parts, block.memory)
        try:
            messages.send_result(
                self._connection,
                messages.Result(kind, task_id, block.number, len(block.memory), parts.size, block.descriptor),
            )
        except OSError:
            os._exit(0)
        finally:
            if block.descriptor >= 0:
                os.close(block.descriptor)
