"""Distribution of the tests among processes: file by file, and one lane for those that others would disturb."""

import re
from functools import cache
from pathlib import Path

from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

ALONE = re.compile(r"os\.(fork|kill)|/proc/self|ru_maxrss|tracemalloc|\b(Launcher|LocalCluster|HostedJob|Popen)\(")
"""Text that marks a file which measures memory, forks, sends signals or starts jobs."""

ALL = "alone"


@cache
def lane(path: Path) -> str:
    """The tests of one lane run in one process, one after the other: those of a file, or of all that need quiet."""
    return ALL if ALONE.search(path.read_text()) else str(path)


class Lanes(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
    """A lane goes to the first process that is idle: the one of all that need quiet, then those of many tests."""

    def _assign_work_unit(self, node: WorkerController) -> None:
        if ALL in self.workqueue:
            self.workqueue.move_to_end(ALL, last=False)
        super()._assign_work_unit(node)

    def _split_scope(self, nodeid: str) -> str:
        return lane(self.config.rootpath / nodeid.partition("::")[0])
