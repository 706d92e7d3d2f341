"""Recurrent cells for symbols (``mx.rnn``): MXNet 1.x's older interface, used by scripts with buckets.

Gluon's cells (``mx.gluon.rnn``) are the newer interface.
"""

from flowmx.rnn.base_cell import BaseRNNCell, RNNParams
from flowmx.rnn.checkpoints import do_rnn_checkpoint, load_rnn_checkpoint, rnn_unroll, save_rnn_checkpoint
from flowmx.rnn.convolutional_cells import BaseConvRNNCell, ConvGRUCell, ConvLSTMCell, ConvRNNCell
from flowmx.rnn.fused_cell import FusedRNNCell
from flowmx.rnn.modifiers import DropoutCell, ModifierCell, ResidualCell, ZoneoutCell
from flowmx.rnn.sentences import BucketSentenceIter, encode_sentences
from flowmx.rnn.stacks import BidirectionalCell, SequentialRNNCell
from flowmx.rnn.standard_cells import GRUCell, LSTMCell, RNNCell

__all__ = [
    "BaseConvRNNCell", "BaseRNNCell", "BidirectionalCell", "BucketSentenceIter", "ConvGRUCell", "ConvLSTMCell",
    "ConvRNNCell", "DropoutCell", "FusedRNNCell", "GRUCell", "LSTMCell", "ModifierCell", "RNNCell", "RNNParams",
    "ResidualCell", "SequentialRNNCell", "ZoneoutCell", "do_rnn_checkpoint", "encode_sentences", "load_rnn_checkpoint",
    "rnn_unroll", "save_rnn_checkpoint",
]  # fmt: skip
