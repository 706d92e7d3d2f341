"""Replays of backward passes that are learned in the first pass, for tests that run a program twice."""

import contextlib

from flowmx.ndarray import backward_replay


@contextlib.contextmanager
def eager_replays():
    """A ``with`` block that learns each form of a tape in its first pass, and then drops the replays."""
    before, backward_replay.forms = backward_replay.forms, backward_replay.Forms()
    backward_replay.forms.look_up = lambda key, forms=backward_replay.forms: (
        forms.replays.get(key),
        key not in forms.replays,
    )
    try:
        yield backward_replay.forms
    finally:
        backward_replay.forms = before
