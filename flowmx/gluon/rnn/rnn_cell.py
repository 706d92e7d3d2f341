"""The cells, in a module with MXNet's name."""

from flowmx.gluon.rnn.bidirectional import BidirectionalCell
from flowmx.gluon.rnn.gated_cells import GRUCell, LSTMCell, RNNCell
from flowmx.gluon.rnn.modifiers import DropoutCell, ModifierCell, ResidualCell, ZoneoutCell
from flowmx.gluon.rnn.recurrent_cell import HybridRecurrentCell, RecurrentCell
from flowmx.gluon.rnn.stacks import HybridSequentialRNNCell, SequentialRNNCell

__all__ = [
    "BidirectionalCell", "DropoutCell", "GRUCell", "HybridRecurrentCell", "HybridSequentialRNNCell", "LSTMCell",
    "ModifierCell", "RNNCell", "RecurrentCell", "ResidualCell", "SequentialRNNCell", "ZoneoutCell",
]  # fmt: skip
