"""Recurrent cells and layers: ``mx.gluon.rnn``."""

from flowmx.gluon.rnn import rnn_cell, rnn_layer
from flowmx.gluon.rnn.bidirectional import BidirectionalCell
from flowmx.gluon.rnn.gated_cells import GRUCell, LSTMCell, RNNCell
from flowmx.gluon.rnn.modifiers import DropoutCell, ModifierCell, ResidualCell, ZoneoutCell
from flowmx.gluon.rnn.recurrent_cell import HybridRecurrentCell, RecurrentCell
from flowmx.gluon.rnn.rnn_layer import GRU, LSTM, RNN
from flowmx.gluon.rnn.stacks import HybridSequentialRNNCell, SequentialRNNCell

__all__ = [
    "GRU", "LSTM", "RNN", "BidirectionalCell", "DropoutCell", "GRUCell", "HybridRecurrentCell",
    "HybridSequentialRNNCell", "LSTMCell", "ModifierCell", "RNNCell", "RecurrentCell", "ResidualCell",
    "SequentialRNNCell", "ZoneoutCell", "rnn_cell", "rnn_layer",
]  # fmt: skip
