"""The counter of training steps; ``Trainer`` and ``Module`` increment it with every update."""

from __future__ import annotations

from collections.abc import Callable

_steps = 0
_samples = 0
_callbacks: list[Callable[[], None]] = []
observers: list[Callable[[object], None]] = []
"""Callbacks at the end of a step, called with the object that updated the weights: ``Trainer``, ``Module`` or None."""


def current_step() -> int:
    """Return the number of the current step, from 1: the number of updates in this process plus one."""
    return _steps + 1


def step_counts() -> tuple[int, int]:
    """Return the number of completed training steps, and of their samples; steps of unknown size count no samples."""
    return _steps, _samples


def next_step(owner: object = None, samples: int = 0) -> None:
    """Count a completed step. Custom training loops that update weights call it after every update.

    Args:
        owner: the object that updated the weights.
        samples: size of the batch; 0 if unknown.

    Raises:
        NonFiniteError: the NaN watch of ``stop_at_nan`` has found a value that is not finite.
    """
    global _steps, _samples
    _steps += 1
    _samples += samples
    for callback in _callbacks:
        callback()
    for observe in observers:
        observe(owner)


def on_step_end(function: Callable[[], None]) -> None:
    """Call a function at the end of every step."""
    _callbacks.append(function)
