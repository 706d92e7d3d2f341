"""Durations of the test files, and their distribution among processes: the longest first, so that all end together.

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
    "graph/mode_fuzzer": 38, "repository/vocabulary": 32, "engine/exit_and_fork": 28, "kvstore/chaos": 24,
    "kvstore/server_model": 21, "kvstore/launch_dask": 20, "kvstore/distributed_training": 20,
    "serve/pool": 20,
    "comm/launch_slots": 16, "generation/schemas": 7, "generation/adapters": 7, "repository/examples_generation": 18,
    "serve/text/tools": 3, "world/world": 8, "generation/live_weights": 3, "gluon/lora": 4,
    "compat/sklearn": 16, "repository/examples": 15, "comm/wire_fuzz": 15, "engine/scheduler": 15,
    "gluon/data_loader": 15, "kvstore/worker_failures": 14, "comm/simulated_hosts": 12,
    "repository/examples_training": 12, "graph/micro_batches": 12, "ops/gradients": 12, "comm/heartbeat_process": 11,
    "engine/notebook_cells": 11, "repository/tutorials": 10, "compat/as_mxnet": 10, "module/checkpoint": 9,
    "graph/recompute": 9, "files/onnx_operators": 9, "engine/serial_equivalence": 9, "repository/import": 8,
    "engine/lazy_imports": 8, "devices/cuda_rows": 8, "devices/slices_devices": 8, "engine/actors": 7,
    "comm/launch_ssh": 7, "ndarray/tape_programs": 7, "devices/simulated_programs": 7, "kvstore/shared_windows": 7,
    "gluon/pretrained_models": 12, "files/onnx_transformers": 2,
    "gluon/model_zoo": 7, "repository/stubs": 6, "repository/editor_types": 30, "repository/editable_installation": 12,
    "engine/download": 6,
    "repository/docstring_style": 6, "engine/concurrent_attributes": 6, "devices/cuda_kernels": 6,
    "comm/node_failures": 6, "engine/forks": 6, "kvstore/simulation": 5, "engine/engine": 5, "files/onnx_zoo": 5,
    "engine/thread_counts": 5, "compat/migration": 5, "files/onnx_models": 5, "graph/race_check": 5,
    "engine/user_code": 5, "ops/int8": 4, "serve/command": 4, "files/optimizer_states": 4, "comm/launch_roles": 4,
    "data/im2rec": 4, "kvstore/engine_order": 4, "repository/running_from_a_checkout": 4, "files/mxnet_networks": 4,
    "comm/service": 4, "comm/launch": 4, "files/mxnet_training_resumed": 4, "compat/mxnet_peer": 4,
    "ops/cupy_namespace": 4, "serve/runner": 4, "serve/sessions/session": 3, "serve/sessions/silero": 4,
    "serve/sessions/session_soak": 3, "serve/budget": 4,
    "serve/mms": 6, "compat/wrong_programs": 12, "devices/several_devices": 4, "repository/privacy": 3,
    "repository/example_onnxruntime": 3, "gluon/vision_datasets": 3, "repository/import_rules": 3,
    "devices/simulation_without_numerics": 3, "comm/members": 3, "engine/scanning": 3, "graph/step_order": 3,
    "comm/connections": 3, "devices/cpu_pool": 3, "observability/dashboard": 3, "ops/bfloat16": 3,
    "comm/parser_time": 3, "ops/degenerate_gradients": 3, "devices/cuda_device": 3, "data/dataset_archives": 3,
    "ops/dtypes": 3, "gluon/mxnet_values": 3, "gluon/transformer_layers": 3,
    "kvstore/key_spaces": 3, "kvstore/empty_keys": 3,
    "engine/cancelled_waits": 3, "files/onnx_quantized": 3, "graph/memory_estimate": 2, "observability/flight": 2,
    "repository/pytest_plugin": 2, "ops/quantized_rnn": 2, "comm/wire_javascript_job": 2, "kvstore/distributed": 2,
    "graph/simplify": 2, "graph/plan_cache": 2, "ops/mode_matrix": 2, "kvstore/random_job": 2, "serve/http": 2,
    "kvstore/snapshot_folder": 2, "comm/stream": 2, "devices/simulated_training": 2, "graph/simultaneous_calls": 2,
    "ops/compiled_loops": 1, "symbol/visualization": 1, "numpy/numpy_libraries": 1, "numpy/numpy_symbols": 1,
    "repository/mutation_checks": 1, "kvstore/shards": 1, "kvstore/fit_synchronization": 1, "module/bucketing": 1,
    "devices/rtc": 1, "ops/suppression": 1,
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


class LongestFirst(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
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
