"""The fuzzer: random networks in many modes. Each fault is shrunk, and printed as a program that shows it.

``python -m tests.modes.run [networks] [first seed] [mode ...]`` tests this many networks, in these modes or in all.
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
    """A fault, and the smallest network with it."""

    network: Network
    fault: Fault

    def __str__(self):
        text = self.fault.text.strip().splitlines()[-8:]
        lines = [f"{self.fault.mode}: {self.fault.kind}", *text, "", "Run this at the root of the repository:", ""]
        return "\n".join(lines) + program(self.network, self.fault.mode)


def fuzz(seeds, modes_of=lambda seed: MODES) -> Iterator[Found]:
    """Test random networks, and yield the faults.

    Args:
        seeds: of the networks.
        modes_of: says for a seed in which modes its network is tried.
    """
    for seed in seeds:
        yield from faults(draw(seed), modes_of(seed))


def faults(network, modes) -> Iterator[Found]:
    """Yield the shrunk faults of a network; a fault of several modes is yielded once."""
    trial, signatures = Trial(network), set()
    for name in modes:
        fault = trial.fault(name)
        if fault is not None and fault.signature not in signatures:
            signatures.add(fault.signature)
            small = shrunk(network, lambda each, fault=fault: _shows(each, fault))
            yield Found(small, Trial(small).fault(name) or fault)


def _shows(network, fault):
    """Return whether a network has a fault of this kind, in the same mode."""
    try:
        again = Trial(network).fault(fault.mode)
    except Exception:
        return False  # the reference does not compute it: the network is invalid
    return again is not None and (again.kind, again.error) == (fault.kind, fault.error)


@contextmanager
def quiet():
    """Suppress warnings that random networks cause."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="hybridize: all children of the Sequential")
        warnings.filterwarnings("ignore", message=".* accumulates in b?float16")
        yield


def program(network, mode):
    """Return a program that shows a fault of a network in a mode."""
    text = network.layer.text(8) if hasattr(network.layer, "text") else str(network.layer)
    lines = ["from tests.modes.run import Input, Network, Step, show", "", "show(", f"    {mode!r},", "    Network("]
    lines.append(f'        """{text}""",')
    for each in fields(network):
        value = getattr(network, each.name)
        if each.name != "layer" and value != _default(each):
            lines.append(f"        {each.name}={_brief(value)},")
    return "\n".join([*lines, "    ),", ")", ""])


def _brief(value):
    """Return a value's text in a program, without defaults."""
    if isinstance(value, tuple):
        return f"({', '.join(map(_brief, value))}{',' if len(value) == 1 else ''})"
    if not is_dataclass(value):
        return repr(value)
    parts = [(each, getattr(value, each.name)) for each in fields(value)]
    arguments = [f"{each.name}={_brief(item)}" for each, item in parts if item != _default(each)]
    return f"{type(value).__name__}({', '.join(arguments)})"


def _default(field):
    return field.default if field.default is not MISSING else MISSING


def show(mode, network):
    """Print the fault of a network in a mode."""
    with quiet():
        fault = Trial(network).fault(mode)
    print("nothing is wrong" if fault is None else f"{fault.kind}\n{fault.text}")
    return fault


def main():
    """Run the fuzzer with these arguments; the exit status is 1 if it found a fault."""
    parser = argparse.ArgumentParser("python -m tests.modes.run", description="Try random networks in many modes.")
    parser.add_argument("networks", type=int, nargs="?", default=100, help="how many (default: 100)")
    parser.add_argument("seed", type=int, nargs="?", default=0, help="of the first; the others follow (default: 0)")
    parser.add_argument("modes", nargs="*", choices=[[], *MODES], metavar="mode", help="in which (default: all)")
    options = parser.parse_args()
    faults = 0
    with quiet():
        for each in fuzz(range(options.seed, options.seed + options.networks), lambda seed: options.modes or MODES):
            faults += 1
            print(each, "-" * 100, sep="\n", flush=True)
    print(f"{options.networks} networks from seed {options.seed}: {faults} faults")
    return min(faults, 1)


if __name__ == "__main__":
    sys.exit(main())
