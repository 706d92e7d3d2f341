"""Sequences of the Open Inference Protocol: sessions that requests name by an id. This module does no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from flowmx.serve.errors import InvalidInput

__all__ = ["SequenceStep", "read_sequence"]

_MAX_ID = 128
"""Maximum number of characters of an id."""


class SequenceStep(NamedTuple):
    """The place of a request in a sequence.

    Attributes:
        id: the sequence's id.
        is_start: whether the request begins the sequence.
        is_end: whether it ends the sequence.
    """

    id: int | str
    is_start: bool = False
    is_end: bool = False

    @property
    def name(self) -> str:
        """The name of its session."""
        return f"sequence {self.id!r}"


def read_sequence(parameters: Mapping[str, object]) -> SequenceStep | None:
    """Return the sequence that the parameters of a request name; None without one, or with the id 0 or "".

    Raises:
        InvalidInput: a field has the wrong type.
    """
    number = parameters.get("sequence_id", 0)
    if isinstance(number, bool) or not isinstance(number, (int, str)):
        raise InvalidInput(f"sequence_id is {str(number)[:80]}, expected an integer or a string")
    if isinstance(number, str) and len(number) > _MAX_ID:
        raise InvalidInput(f"sequence_id has {len(number)} characters, expected at most {_MAX_ID}")
    flags = [parameters.get(name, False) for name in ("sequence_start", "sequence_end")]
    if not all(isinstance(flag, bool) for flag in flags):
        raise InvalidInput("sequence_start and sequence_end are true or false")
    if not number:
        if any(flags):
            raise InvalidInput("sequence_start and sequence_end need a sequence_id, a positive integer or a string")
        return None
    return SequenceStep(number, flags[0] is True, flags[1] is True)
