"""The layers, under MXNet's name of their module."""

from flowmx.gluon.rnn.layers import GRU, LSTM, RNN

__all__ = ["GRU", "LSTM", "RNN"]
