"""A network in several modes, compared with the reference, and modes with the same kernels compared with each other."""

import traceback
from dataclasses import dataclass

import numpy as np

from flowmx import settings
from tests.modes.bounds import Reference
from tests.modes.modes import MODES

_LIKE = {mode.like for mode in MODES.values()}
"""Modes that others are compared with bitwise; their records are cached."""
HALF_LIMIT = 1e3
"""The magnitude from which float16 may overflow in between, so that such networks are skipped there."""


@dataclass(frozen=True)
class Fault:
    """A network with a fault in a mode.

    Attributes:
        mode: which.
        kind: ``raises``, ``differs`` (from the reference), ``bits`` (not those of the mode with the same kernels), or
            ``names`` (it has other results than these).
        text: what is wrong, in words.
        error: the type of what was raised.
    """

    mode: str
    kind: str
    text: str
    error: str = ""

    @property
    def signature(self):
        """The part that several modes with the same fault have in common."""
        return self.kind, self.error


class Trial:
    """A network with its references and records, which are computed on demand."""

    def __init__(self, network):
        self.network = network
        self._references = {}
        self._records = {}

    def reference(self, mode):
        """Return the expected results of a mode."""
        right = mode.reference(self.network)
        key = mode.dtype, len(right.devices), right.is_compiled, right.turns, right.children, right.partitioned
        if key not in self._references:
            self._references[key] = Reference(self.network, mode.dtype, right)
        return self._references[key]

    def fault(self, name):
        """Return the fault in a mode; None if there is no fault, or the network cannot run in it."""
        mode = MODES[name]
        if not mode.fits(self.network):
            return None
        like = mode.like_of(self.network)
        if mode.dtype == "float16" and not like and self.reference(mode).greatest() > HALF_LIMIT:
            return None
        try:
            record = self.record(name)
            expected = self.record(like) if like else self.reference(mode).record
        except Exception as error:
            return Fault(name, "raises", "".join(traceback.format_exception(error)), type(error).__name__)
        other = {key for key in expected if key.split(":")[0].split(" ")[-1] not in mode.leaves_out} ^ set(record)
        if other:
            return Fault(name, "names", f"one alone of the mode and what it is compared with has {sorted(other)}")
        return self._other_bits(name, expected, record) if like else self._too_far(name, record)

    def record(self, name):
        """Return all results of a mode."""
        if name in self._records:
            return self._records[name]
        mode = MODES[name]
        record = mode.run(self.network, mode.dtype)
        if name in _LIKE:
            self._records[name] = record
        return record

    def _too_far(self, name, record):
        wrong = self.reference(MODES[name]).differences(record)
        text = [f"{key}: off by {error:.3g}, {bound:.3g} is allowed" for key, error, bound in wrong]
        return Fault(name, "differs", "\n".join(text)) if wrong else None

    def _other_bits(self, name, expected, record):
        """Find bitwise differences between a mode and the one that it should equal.

        Kernels may add up in a different order on another number of threads: where bits differ, both must have the same
            on
        one thread, and be right as they are.
        """
        if not _differing(expected, record):
            return None
        mode, like = MODES[name], MODES[name].like_of(self.network)
        with settings.override(cpu_kernel_nthreads=1):
            records = [each.run(self.network, mode.dtype) for each in (MODES[like], mode)]
        other = _differing(*records)
        if other:
            return Fault(name, "bits", f"not those of {like!r}: {', '.join(other)}")
        return self._too_far(name, record)


def _differing(expected, record):
    return [key for key in record if not np.array_equal(record[key], expected[key], equal_nan=True)]
