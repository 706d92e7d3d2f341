"""Recurrent cells for symbols (``mx.rnn``): MXNet 1.x's older interface, which scripts with buckets use.

Gluon's cells (``mx.gluon.rnn``) are the newer ones.
"""

from flowmx.rnn.base import BaseRNNCell, RNNParams
from flowmx.rnn.cells import GRUCell, LSTMCell, RNNCell
from flowmx.rnn.checkpoints import do_rnn_checkpoint, load_rnn_checkpoint, rnn_unroll, save_rnn_checkpoint
from flowmx.rnn.convolutional import BaseConvRNNCell, ConvGRUCell, ConvLSTMCell, ConvRNNCell
from flowmx.rnn.fused import FusedRNNCell
from flowmx.rnn.modifiers import DropoutCell, ModifierCell, ResidualCell, ZoneoutCell
from flowmx.rnn.sentences import BucketSentenceIter, encode_sentences
from flowmx.rnn.stacks import BidirectionalCell, SequentialRNNCell

__all__ = [
    "BaseConvRNNCell", "BaseRNNCell", "BidirectionalCell", "BucketSentenceIter", "ConvGRUCell", "ConvLSTMCell",
    "ConvRNNCell", "DropoutCell", "FusedRNNCell", "GRUCell", "LSTMCell", "ModifierCell", "RNNCell", "RNNParams",
    "ResidualCell", "SequentialRNNCell", "ZoneoutCell", "do_rnn_checkpoint", "encode_sentences", "load_rnn_checkpoint",
    "rnn_unroll", "save_rnn_checkpoint",
]  # fmt: skip
