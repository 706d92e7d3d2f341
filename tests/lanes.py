"""Distribution of the tests among processes: file by file, the longest first, so that all processes end together.

Of the files that wait for other processes, one runs at a time if there are others.
"""

import re
from functools import cache
from pathlib import Path

from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

WAITING = re.compile(r"os\.(fork|kill)|/proc/self|ru_maxrss|tracemalloc|\b(Launcher|LocalCluster|HostedJob|Popen)\(")
"""Text that marks a file which starts jobs, forks, sends signals or measures memory."""

# fmt: off
SECONDS = {
    "modes": 48, "kvstore_distributed_training": 39, "sim_programs": 22, "gluon_data_loader": 22, "launch_ssh": 20,
    "serial_equivalence": 18, "endings": 17, "examples": 17, "tape_programs": 16, "prompts": 16, "launch_dask": 16,
    "sklearn": 15, "node_endings": 15, "checkpoint": 14, "chains": 14, "chaos": 13, "race": 13,
    "examples_training": 13, "gluon_zoo": 13, "hosts": 12, "scheduler": 12, "onnx_operators": 12,
    "mxnet_files_networks": 11, "mxnet_states": 10, "wire_fuzz": 9, "gradients": 9, "launch_slots": 9,
    "cuda_rows": 8, "editor": 8, "kvserver_model": 8, "recompute": 8, "micro_batches": 8, "kvstore_endings": 8,
    "kvstore_distributed": 8, "several_devices": 8, "loops": 8, "gluon_mxnet_blocks": 7,
    "mxnet_files_continuing": 7, "numpy_libraries": 6, "actors": 6, "cuda_kernels": 6, "cuda_device": 6, "tutorials": 6,
    "pulse": 6,
    "onnx_zoo": 5, "as_mxnet": 5, "launch": 5, "simplify": 5, "lazy": 5, "words": 5, "kvstore_engine": 4,
    "attributes": 4, "engine": 4, "members": 4, "migration": 4, "comm_service": 4, "mxnet_peer": 4, "dtypes": 4,
    "stubs": 4, "launch_roles": 4, "slices": 4, "batch_wise": 4, "amp": 3, "order": 3, "checkout": 3, "buckets": 3,
    "sim_training": 3, "example_onnxruntime": 6, "quantized_rnn": 4, "onnx_bytes": 3,
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


class Lanes(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
    """A file goes to the first process that is idle; beside one that waits, the cores compute the others."""

    def _assign_work_unit(self, node: WorkerController) -> None:
        file = self._next_file()
        unit = self.assigned_work.setdefault(node, {})[file] = self.workqueue.pop(file)
        numbers = self._numbers(node)
        node.send_runtest_some([numbers[test] for test in unit])

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        """Forget a test that is done: those that are left are counted after each, and would take ever longer."""
        test = self.registered_collections[node][item_index]
        file, work = self._split_scope(test), self.assigned_work[node]
        del work[file][test]
        if not work[file]:
            del work[file]
        self._reschedule(node)

    def _next_file(self) -> str:
        """The longest file, of those that wait if no process runs one, else of the others."""
        is_waiting = any(self._waits(file) for work in self.assigned_work.values() for file in work)
        files: list[str] = sorted(self.workqueue, key=lambda file: -seconds(file, len(self.workqueue[file])))
        return next((file for file in files if self._waits(file) != is_waiting), files[0])

    def _waits(self, file: str) -> bool:
        return waits(self.config.rootpath / file)

    @cache  # noqa: B019 - it lives as long as the run
    def _numbers(self, node: WorkerController) -> dict[str, int]:
        """The number of each test in what a process has collected."""
        return {test: number for number, test in enumerate(self.registered_collections[node])}

    def _split_scope(self, nodeid: str) -> str:
        file: str = nodeid.partition("::")[0]
        return file
