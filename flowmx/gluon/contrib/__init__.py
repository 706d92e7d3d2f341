"""Layers, cells and the estimator of ``mx.gluon.contrib``."""

from flowmx.gluon.contrib import cnn, data, estimator, nn, rnn

__all__ = ["cnn", "data", "estimator", "nn", "rnn"]
