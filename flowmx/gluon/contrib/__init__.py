"""Layers, cells and the estimator of ``mx.gluon.contrib``."""

from flowmx.gluon.contrib import cnn, estimator, nn, rnn

__all__ = ["cnn", "estimator", "nn", "rnn"]
