"""``python -m tests.world SEED``: run a seed; if it breaks a law, shrink its faults and tell the story."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.world.scenario import Scenario

__all__: list[str] = []


def main() -> int:
    """Run seeds; return 1 if one of them breaks a law."""
    parser = argparse.ArgumentParser(prog="python -m tests.world", description=__doc__)
    parser.add_argument("seeds", nargs="+", help="seeds, ranges such as 0:1000, and scenarios: Scenario(seed=1, ...)")
    parser.add_argument("--story", type=int, default=0, metavar="N", help="print the last N events of each run")
    parser.add_argument("--keep", action="store_true", help="do not shrink what breaks a law")
    parser.add_argument("--bug", default="", help="put back a planted bug whose description contains this")
    options = parser.parse_args()
    from tests.world.planted_bugs import planted

    with planted(options.bug):
        return _run(options)


def _run(options: argparse.Namespace) -> int:
    from tests.world.shrink import shrink
    from tests.world.story import diagram
    from tests.world.world import run

    gc.freeze()
    failed = 0
    for scenario in _scenarios(options.seeds):
        outcome = run(scenario)
        length = f"{outcome.steps} steps, {outcome.seconds:.1f} s"
        print(f"{scenario.seed}: {outcome.digest} {length} {outcome.violation}".strip())
        if outcome.violation and not options.keep:
            scenario = shrink(scenario, _breaks(outcome.violation.partition(":")[0]))
            outcome = run(scenario)
            print(f"shrunk to {scenario}: {outcome.violation}")
        failed += bool(outcome.violation)
        shown = options.story or (60 if outcome.violation else 0)
        if shown:
            print(*diagram(outcome.story, shown), sep="\n")
        sys.stdout.flush()
        if failed and options.bug:
            break
    return int(failed > 0)


def _breaks(law: str) -> Callable[[Scenario], bool]:
    from tests.world.world import run

    return lambda scenario: run(scenario).violation.startswith(law)


def _scenarios(texts: Sequence[str]) -> Iterator[Scenario]:
    from tests.world import scenario

    for text in texts:
        if text.startswith("Scenario("):
            yield eval(text, vars(scenario))  # as this program prints it
        else:
            first, _, last = text.partition(":")
            yield from map(scenario.draw, range(int(first), int(last or int(first) + 1)))


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # strings in sets have the same order in each run
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.world", *sys.argv[1:]])
    sys.exit(main())
