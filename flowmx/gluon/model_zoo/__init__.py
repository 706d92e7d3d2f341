"""Predefined models: ``mx.gluon.model_zoo``."""

from flowmx.gluon.model_zoo import model_store, vision

__all__ = ["model_store", "vision"]
