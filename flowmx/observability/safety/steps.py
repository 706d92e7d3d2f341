"""The number of the training step: ``Trainer`` and ``Module`` count it up with each update."""

from __future__ import annotations

from collections.abc import Callable

_done = 0
_samples = 0
_callbacks: list[Callable[[], None]] = []
observers: list[Callable[[object], None]] = []
"""Callbacks at the end of each step, called with what has updated its weights: a ``Trainer``, a ``Module``, or None."""


def current_step() -> int:
    """The number of the step that is being computed, from 1: one more than there were updates in this process."""
    return _done + 1


def counted() -> tuple[int, int]:
    """Numbers of completed training steps, and of the samples in them, as far as known."""
    return _done, _samples


def next_step(owner: object = None, samples: int = 0) -> None:
    """Count a step as done; a training loop that updates weights by itself calls it after each update.

    Args:
        owner: what has updated the weights.
        samples: the size of the batch; 0 where it is not known.

    Raises:
        NonFiniteError: a watch that stops has found something.
    """
    global _done, _samples
    _done += 1
    _samples += samples
    for tell in _callbacks:
        tell()
    for observe in observers:
        observe(owner)


def tell(function: Callable[[], None]) -> None:
    """Have a function called at the end of each step."""
    _callbacks.append(function)
