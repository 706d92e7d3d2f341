"""Text (``mx.contrib.text``): vocabularies and embeddings of their tokens."""

from __future__ import annotations

from flowmx.contrib.text import embedding, utils, vocab

__all__ = ["embedding", "utils", "vocab"]
