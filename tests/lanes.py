"""Distribution of the tests among processes: file by file, the longest first, so that all processes end together.

Beside as many files as there are cores, one that mostly waits for other processes runs.
"""

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

BESIDE = 1
"""Processes beside those that keep the cores busy, for tests that mostly wait for others."""
WAITING = re.compile(r"os\.(fork|kill)|/proc/self|ru_maxrss|tracemalloc|\b(Launcher|LocalCluster|HostedJob|Popen)\(")
"""Text that marks a file which starts jobs, forks, sends signals or measures memory."""

# fmt: off
SECONDS = {
    "kvstore_distributed_training": 22, "gluon_data_loader": 21, "modes": 20, "node_endings": 18, "prompts": 16,
    "examples": 15, "wire_fuzz": 13, "gradients": 12, "endings": 11, "gluon_zoo": 11, "kvstore_distributed": 11,
    "checkpoint": 10, "editor": 10, "examples_training": 10, "launch_dask": 10, "mxnet_files_networks": 10,
    "tape_programs": 10, "onnx_operators": 9, "sklearn": 9, "chaos": 8, "kvserver_model": 8, "kvstore_endings": 8,
    "launch_slots": 8, "loops": 8, "sim_programs": 8, "cuda_kernels": 7, "tutorials": 7, "attributes": 6,
    "cuda_rows": 6, "pulse": 12, "scheduler": 6, "serial_equivalence": 6, "cuda_device": 5, "launch_ssh": 5, "race": 5,
    "engine": 4, "hosts": 4, "int8": 4, "kvstore_simulation": 4, "launch": 4, "launch_roles": 4,
    "mxnet_files_continuing": 4, "mxnet_peer": 4, "mxnet_states": 4, "onnx_zoo": 4, "ops_namespace": 4,
    "serve_runner": 4, "several_devices": 4, "stubs": 4, "words": 4, "archives": 3, "as_mxnet": 3, "bfloat16": 3,
    "checkout": 3, "download": 3, "dtypes": 3, "gluon_mxnet": 3, "im2rec": 3, "kvstore_engine": 3, "migration": 3,
    "pool": 3, "recompute": 3, "serve_command": 3, "sim_blank": 3, "simplify": 3, "wire_javascript_job": 3,
    "kvstore_windows": 9, "comm_stream": 8,
    "micro_batches": 8, "slices_devices": 8, "example_onnxruntime": 6, "quantized_rnn": 4, "onnx_bytes": 3,
    "plan_cache": 3, "threads": 3, "dashboard": 2, "lazy": 2, "numpy_libraries": 2, "onnx_models": 2, "order": 2,
    "pytest_plugin": 2, "random_job": 2, "scanning": 2, "sim_training": 2, "buckets": 1, "floors": 1, "memory": 1,
    "mutants": 1, "rtc": 1, "suppression": 1,
}
"""About how long the longest files take, by the part of their names between ``test_`` and ``.py``."""
# fmt: on
_SECONDS_OF_A_TEST = 0.02  # of the other files


def seconds(file: str, tests: int) -> float:
    """Estimate how long a file with so many tests takes."""
    name = file.rpartition("/")[2].removeprefix("test_").removesuffix(".py")
    return SECONDS.get(name, tests * _SECONDS_OF_A_TEST)


@cache
def waits(path: Path) -> bool:
    """Tell whether the tests of a file wait for other processes most of the time, or want quiet."""
    return WAITING.search(path.read_text()) is not None


def is_new(folder: Path) -> bool:
    """Tell whether pytest has compiled no tests of this folder yet, and will keep what it compiles."""
    tag = f"{sys.implementation.cache_tag}-pytest-{pytest.__version__}"
    return not sys.dont_write_bytecode and not any((folder / "__pycache__").glob(f"test_*.{tag}.pyc"))


@contextlib.contextmanager
def one_first(folder: Path) -> Iterator[None]:
    """Let one process collect the tests of a new folder alone, and all others together once it has.

    What the first has compiled, and read of the sources, the others find in files.
    """
    import fcntl

    opened = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB if is_new(folder) else fcntl.LOCK_SH)
        except BlockingIOError:
            fcntl.flock(opened, fcntl.LOCK_SH)
        yield
    finally:
        os.close(opened)


class Lanes(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
    """The first processes begin with files that compute, one on each core, the last ones with those that wait."""

    def _assign_work_unit(self, node: WorkerController) -> None:
        """Give a process its next file, and others until it has two tests: it begins one when it knows the next."""
        numbers, work = self._numbers(node), self.assigned_work[node]
        while self.workqueue:
            file = self._next_file(int(node.gateway.id.removeprefix("gw")) >= self.numnodes - BESIDE)
            work[file] = self.workqueue.pop(file)
            with contextlib.suppress(OSError):  # it has died just now: the session will hear of it, and remove it
                node.send_runtest_some([numbers[test] for test in work[file]])
            if self._pending_of(work) > 1:
                break

    def remove_node(self, node: WorkerController) -> str | None:
        """Give what a process has left undone to others, without the test in which it died, and return that test."""
        work = self.assigned_work.pop(node)
        if not work:
            return None
        first = next(iter(work.values()))
        died_in: str = next(iter(first))
        del first[died_in]
        self.workqueue.update({file: tests for file, tests in work.items() if tests})
        for each in self.nodes:
            self._reschedule(each)
        return died_in

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        """Forget a test that is done: those that are left are counted after each, and would take ever longer."""
        test = self.registered_collections[node][item_index]
        file, work = self._split_scope(test), self.assigned_work[node]
        del work[file][test]
        if not work[file]:
            del work[file]
        self._reschedule(node)

    def _next_file(self, waits: bool) -> str:
        """The longest file of those that wait or that do not; of the others, where none is left."""
        files: list[str] = sorted(self.workqueue, key=lambda file: -seconds(file, len(self.workqueue[file])))
        return next((file for file in files if self._waits(file) == waits), files[0])

    def _waits(self, file: str) -> bool:
        return waits(self.config.rootpath / file)

    @cache  # noqa: B019 - it lives as long as the run
    def _numbers(self, node: WorkerController) -> dict[str, int]:
        """The number of each test in what a process has collected."""
        return {test: number for number, test in enumerate(self.registered_collections[node])}

    def _split_scope(self, nodeid: str) -> str:
        file: str = nodeid.partition("::")[0]
        return file
