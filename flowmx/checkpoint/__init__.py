"""Checkpoints (``mx.checkpoint``): training that is killed at any batch resumes as if it had never stopped.

A checkpoint contains parameters, optimizer states, the position in the data, the states of all random generators, the
metric, and the epoch and batch. ``Module.fit(..., checkpoint="folder")`` writes and resumes checkpoints automatically.
A Gluon loop uses :class:`Run`.
"""

from flowmx.checkpoint.ambient import scope, using
from flowmx.checkpoint.content import Checkpoint, CheckpointError, Place
from flowmx.checkpoint.folder import Checkpoints
from flowmx.checkpoint.run import Run
from flowmx.lazy import lazy_attributes

__all__ = ["Checkpoint", "CheckpointError", "Checkpoints", "Place", "Run", "scope", "using"]

__getattr__, __dir__ = lazy_attributes(__name__)
