"""Distribution of the tests among processes: file by file, the longest first, so that all processes end together.

One file that mostly waits for other processes runs in addition to one file per core.
"""

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePosixPath

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

ADDITIONAL = 1
"""Processes in addition to one per core, for tests that mostly wait for other processes."""
WAITING = re.compile(r"os\.(fork|kill)|/proc/self|ru_maxrss|tracemalloc|\b(Launcher|LocalCluster|HostedJob|Popen)\(")
"""Text that marks a file which starts jobs, forks, sends signals or measures memory."""

# fmt: off
SECONDS = {
    "kvstore/distributed_training": 22, "gluon/data_loader": 21, "graph/mode_fuzzer": 20, "comm/node_failures": 18,
    "engine/notebook_cells": 16, "repository/examples": 15, "comm/wire_fuzz": 13, "ops/gradients": 12,
    "engine/exit_and_fork": 11, "gluon/model_zoo": 11, "kvstore/distributed": 11, "module/checkpoint": 10,
    "repository/editor_types": 10, "repository/examples_training": 10, "comm/launch_dask": 10,
    "files/mxnet_networks": 10, "ndarray/tape_programs": 10, "files/onnx_operators": 9, "compat/sklearn": 9,
    "kvstore/chaos": 8, "kvstore/server_model": 8, "kvstore/worker_failures": 8, "comm/launch_slots": 8,
    "ops/compiled_loops": 8, "kvstore/snapshot_folder": 8, "devices/simulated_programs": 8, "devices/cuda_kernels": 7,
    "repository/tutorials": 7, "engine/concurrent_attributes": 6, "devices/cuda_rows": 6, "engine/forks": 6,
    "comm/heartbeat_process": 12, "engine/scheduler": 6, "engine/serial_equivalence": 6, "devices/cuda_device": 5,
    "comm/launch_ssh": 5, "engine/engine": 4, "comm/simulated_hosts": 4, "ops/int8": 4, "kvstore/simulation": 4,
    "comm/launch": 4, "comm/launch_roles": 4, "files/mxnet_training_resumed": 4, "compat/mxnet_peer": 4,
    "files/optimizer_states": 4, "files/onnx_zoo": 4, "ops/cupy_namespace": 4, "serve/runner": 4,
    "devices/several_devices": 4, "repository/stubs": 4, "repository/docstring_style": 4, "data/dataset_archives": 3,
    "compat/as_mxnet": 3, "ops/bfloat16": 3, "repository/running_from_a_checkout": 3, "engine/download": 3,
    "ops/dtypes": 3, "gluon/mxnet_values": 3, "data/im2rec": 3, "kvstore/engine_order": 3, "compat/migration": 3,
    "devices/memory_pool": 3, "graph/recompute": 3, "serve/command": 3, "devices/simulation_without_numerics": 3,
    "graph/simplify": 3, "comm/wire_javascript_job": 3, "kvstore/request_order": 9, "kvstore/key_spaces": 3,
    "kvstore/refusals": 3, "kvstore/timeouts": 3, "kvstore/empty_keys": 3, "kvstore/import_order": 2,
    "kvstore/replay_windows": 9, "comm/parser_time": 5, "ops/mode_matrix": 15, "comm/stream": 8,
    "ops/degenerate_gradients": 9, "engine/cancelled_waits": 3, "graph/race_check": 5, "graph/micro_batches": 8,
    "devices/slices_devices": 8, "repository/example_onnxruntime": 6, "ops/quantized_rnn": 4,
    "files/onnx_quantized": 3, "graph/plan_cache": 3, "engine/thread_counts": 3, "observability/dashboard": 2,
    "engine/lazy_imports": 2, "numpy/numpy_libraries": 2, "files/onnx_models": 2, "graph/step_order": 2,
    "repository/pytest_plugin": 2, "kvstore/random_job": 2, "engine/scanning": 2, "devices/simulated_training": 2,
    "module/bucketing": 1, "repository/import_rules": 1, "graph/memory_planning": 1, "repository/mutation_checks": 1,
    "devices/rtc": 1, "ops/suppression": 1, "engine/user_code": 5, "graph/simultaneous_calls": 2,
}
"""About how long the longest files take, by their paths below tests/, without ``test_`` and ``.py``."""
# fmt: on
_SECONDS_PER_TEST = 0.02  # of the other files


def name_of(file: str) -> str:
    """Return a file's name in `SECONDS`: ``engine/forks`` for ``tests/engine/test_forks.py``."""
    path = PurePosixPath(file.removeprefix("tests/"))
    return str(path.with_name(path.stem.removeprefix("test_")))


def seconds(file: str, tests: int) -> float:
    """Estimate how long a file with so many tests takes."""
    return SECONDS.get(name_of(file), tests * _SECONDS_PER_TEST)


@cache
def waits(path: Path) -> bool:
    """Return whether the tests of a file mostly wait for other processes, or need an idle machine."""
    return WAITING.search(path.read_text()) is not None


def is_new(folder: Path) -> bool:
    """Return whether pytest has compiled no tests of this folder yet, and will cache them."""
    tag = f"{sys.implementation.cache_tag}-pytest-{pytest.__version__}"
    return not sys.dont_write_bytecode and not any(folder.glob(f"*/__pycache__/test_*.{tag}.pyc"))


@contextlib.contextmanager
def one_first(folder: Path) -> Iterator[None]:
    """Serialize the first collection of a new folder: one process collects alone, then all others in parallel.

    The others read the files that the first one compiled.
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
        """Give a process its next file, and more until it has two tests: it starts a test when it knows the next."""
        numbers, work = self._numbers(node), self.assigned_work[node]
        while self.workqueue:
            file = self._next_file(int(node.gateway.id.removeprefix("gw")) >= self.numnodes - ADDITIONAL)
            work[file] = self.workqueue.pop(file)
            with contextlib.suppress(OSError):  # it has just died: the session will notice and remove it
                node.send_runtest_some([numbers[test] for test in work[file]])
            if self._pending_of(work) > 1:
                break

    def remove_node(self, node: WorkerController) -> str | None:
        """Give the remaining tests of a dead process to others, and return the test in which it died."""
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
        """Return the longest file of the files that wait, or of those that do not; if none is left, of the others."""
        files: list[str] = sorted(self.workqueue, key=lambda file: -seconds(file, len(self.workqueue[file])))
        return next((file for file in files if self._waits(file) == waits), files[0])

    def _waits(self, file: str) -> bool:
        return waits(self.config.rootpath / file)

    @cache  # noqa: B019 - it lives as long as the run
    def _numbers(self, node: WorkerController) -> dict[str, int]:
        """Return the index of each test in the collection of a process."""
        return {test: number for number, test in enumerate(self.registered_collections[node])}

    def _split_scope(self, nodeid: str) -> str:
        file: str = nodeid.partition("::")[0]
        return file
