"""Distribution of the tests among processes: file by file, one of those at a time that wait for other processes."""

import re
from functools import cache
from pathlib import Path

from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

WAITING = re.compile(r"os\.(fork|kill)|/proc/self|ru_maxrss|tracemalloc|\b(Launcher|LocalCluster|HostedJob|Popen)\(")
"""Text that marks a file which starts jobs, forks, sends signals or measures memory."""


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
        node.send_runtest_some([numbers[test] for test, is_done in unit.items() if not is_done])

    def _next_file(self) -> str:
        """The file of most tests, of those that wait if no process runs one, else of the others."""
        given = [file for work in self.assigned_work.values() for file, unit in work.items() if not all(unit.values())]
        is_waiting = any(map(self._waits, given))
        files: list[str] = list(self.workqueue)
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
