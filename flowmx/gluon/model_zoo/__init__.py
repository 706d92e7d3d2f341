"""Predefined models: ``mx.gluon.model_zoo``."""

from flowmx.gluon.model_zoo import model_store, text, vision
from flowmx.gluon.model_zoo.huggingface import from_pretrained

__all__ = ["from_pretrained", "model_store", "text", "vision"]
