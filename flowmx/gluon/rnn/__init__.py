"""Recurrent cells: ``mx.gluon.rnn``."""

from flowmx.gluon.rnn.cells import GRUCell, LSTMCell, RNNCell
from flowmx.gluon.rnn.recurrent import HybridRecurrentCell, RecurrentCell
from flowmx.gluon.rnn.stacks import HybridSequentialRNNCell, SequentialRNNCell

__all__ = [
    "GRUCell", "HybridRecurrentCell", "HybridSequentialRNNCell", "LSTMCell", "RNNCell", "RecurrentCell",
    "SequentialRNNCell",
]  # fmt: skip
