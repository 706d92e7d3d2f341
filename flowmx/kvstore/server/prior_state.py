"""The optimizer's state before a push, on the wire: ``num_update``, then the attributes that weights share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowmx.comm.errors import Refused

__all__ = ["MAX_NUMBERS", "read_prior_state"]

MAX_NUMBERS = 8
"""Maximum length of such a state."""


def read_prior_state(state: Any) -> Sequence[Any]:
    """Check the optimizer's state before a push: ``num_update``, and a few other numbers; return () for None.

    Raises:
        Refused: the value has another form.
    """
    if state is None:
        return ()
    is_list = isinstance(state, list) and 0 < len(state) <= MAX_NUMBERS
    if not is_list or type(state[0]) is not int or not 0 <= state[0] < 1 << 62:
        raise Refused(
            f"'before' is {state!r}, expected [num_update, ...], at most {MAX_NUMBERS} numbers"[:500], "invalid"
        )
    if not {type(number) for number in state} <= {int, float, type(None)}:
        raise Refused(f"'before' is {state!r}, expected only numbers and nil"[:500], "invalid")
    return tuple(state)
