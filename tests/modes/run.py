"""The fuzzer itself: random networks in many modes, each fault made as small as it goes, and a program that shows it.

``python -m tests.modes.run [networks] [first seed] [mode ...]`` tries so many networks, in these modes or in all.
"""

import argparse
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields, is_dataclass

from tests.modes.drawing import draw
from tests.modes.modes import MODES
from tests.modes.network import Input, Network, Step
from tests.modes.shrinking import shrunk
from tests.modes.trial import Fault, Trial

__all__ = ["Found", "Input", "Network", "Step", "faults", "fuzz", "quiet", "show"]


@dataclass(frozen=True)
class Found:
    """A fault, and the smallest network that shows it."""

    network: Network
    fault: Fault

    def __str__(self):
        text = self.fault.text.strip().splitlines()[-8:]
        lines = [f"{self.fault.mode}: {self.fault.kind}", *text, "", "Run this at the root of the repository:", ""]
        return "\n".join(lines) + program(self.network, self.fault.mode)


def fuzz(seeds, modes_of=lambda seed: MODES) -> Iterator[Found]:
    """Try random networks, and give what is found.

    Args:
        seeds: of the networks.
        modes_of: says for a seed in which modes its network is tried.
    """
    for seed in seeds:
        yield from faults(draw(seed), modes_of(seed))


def faults(network, modes) -> Iterator[Found]:
    """Find what is wrong with a network, made as small as it goes; the same in several modes once."""
    trial, seen = Trial(network), set()
    for name in modes:
        fault = trial.fault(name)
        if fault is not None and fault.signature not in seen:
            seen.add(fault.signature)
            small = shrunk(network, lambda each, fault=fault: _shows(each, fault))
            yield Found(small, Trial(small).fault(name) or fault)


def _shows(network, fault):
    """Tell whether a network shows a fault of this kind, in the mode of this one."""
    try:
        again = Trial(network).fault(fault.mode)
    except Exception:
        return False  # the reference does not compute it: it is no network any more
    return again is not None and (again.kind, again.error) == (fault.kind, fault.error)


@contextmanager
def quiet():
    """Leave out warnings that random networks give rise to."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="hybridize: all children of the Sequential")
        warnings.filterwarnings("ignore", message=".* accumulates in b?float16")
        yield


def program(network, mode):
    """A program that shows a fault of a network in a mode."""
    made = network.layer.text(8) if hasattr(network.layer, "text") else str(network.layer)
    lines = ["from tests.modes.run import Input, Network, Step, show", "", "show(", f"    {mode!r},", "    Network("]
    lines.append(f'        """{made}""",')
    for each in fields(network):
        value = getattr(network, each.name)
        if each.name != "layer" and value != _default(each):
            lines.append(f"        {each.name}={_brief(value)},")
    return "\n".join([*lines, "    ),", ")", ""])


def _brief(value):
    """A value as a program has it, without what is the default."""
    if isinstance(value, tuple):
        return f"({', '.join(map(_brief, value))}{',' if len(value) == 1 else ''})"
    if not is_dataclass(value):
        return repr(value)
    parts = [(each, getattr(value, each.name)) for each in fields(value)]
    given = [f"{each.name}={_brief(item)}" for each, item in parts if item != _default(each)]
    return f"{type(value).__name__}({', '.join(given)})"


def _default(field):
    return field.default if field.default is not MISSING else MISSING


def show(mode, network):
    """Print what is wrong with a network in a mode."""
    with quiet():
        fault = Trial(network).fault(mode)
    print("nothing is wrong" if fault is None else f"{fault.kind}\n{fault.text}")
    return fault


def main():
    """Run the fuzzer as the arguments say; the status is 1 where something was found."""
    parser = argparse.ArgumentParser("python -m tests.modes.run", description="Try random networks in many modes.")
    parser.add_argument("networks", type=int, nargs="?", default=100, help="how many (default: 100)")
    parser.add_argument("seed", type=int, nargs="?", default=0, help="of the first; the others follow (default: 0)")
    parser.add_argument("modes", nargs="*", choices=[[], *MODES], metavar="mode", help="in which (default: all)")
    given = parser.parse_args()
    found = 0
    with quiet():
        for each in fuzz(range(given.seed, given.seed + given.networks), lambda seed: given.modes or MODES):
            found += 1
            print(each, "-" * 100, sep="\n", flush=True)
    print(f"{given.networks} networks from seed {given.seed}: {found} faults")
    return min(found, 1)


if __name__ == "__main__":
    sys.exit(main())
