"""Shrinking a scenario that breaks a law to the fewest faults that still break it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.world.scenario import Scenario

__all__ = ["shrink"]


def shrink(scenario: Scenario, is_broken: Callable[[Scenario], bool]) -> Scenario:
    """Return the simplest scenario, of those that are tried, which still breaks a law.

    Args:
        scenario: a scenario that breaks it.
        is_broken: runs a scenario, and returns whether it breaks the law too.
    """
    for simpler in _simpler(scenario):
        if is_broken(simpler):
            return shrink(simpler, is_broken)
    return scenario


def _simpler(scenario: Scenario) -> Iterator[Scenario]:
    """Yield simpler scenarios, the simplest first."""
    faults = scenario.faults
    if len(faults) > 1:
        yield from (replace(scenario, faults=(fault,)) for fault in faults)
    for index in range(len(faults)):
        yield replace(scenario, faults=faults[:index] + faults[index + 1 :])
    plain = Scenario(scenario.seed)
    for simpler in (
        replace(scenario, keys=1),
        replace(scenario, split=plain.split),
        replace(scenario, bound=plain.bound),
        replace(scenario, delay=plain.delay),
    ):
        if simpler != scenario:
            yield simpler
    if scenario.steps > 3:
        yield replace(scenario, steps=scenario.steps // 2)
