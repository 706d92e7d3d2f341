"""Resuming (``mx.checkpoint``): training that is killed at any batch goes on as if it had never stopped.

A checkpoint holds parameters, the optimizer's states, where the data stands, the states of all random generators, the
metric, epoch and batch. ``Module.fit(..., checkpoint="folder")`` writes and resumes them by itself; a Gluon loop uses
:class:`Run`.
"""

from flowmx.checkpoint.ambient import using
from flowmx.checkpoint.content import Checkpoint, CheckpointError, Place
from flowmx.checkpoint.folder import Checkpoints
from flowmx.checkpoint.run import Run

__all__ = ["Checkpoint", "CheckpointError", "Checkpoints", "Place", "Run", "using"]
