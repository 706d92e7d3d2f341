"""Models in the folders of Hugging Face's Transformers."""

from flowmx.gluon.model_zoo.huggingface.pretrained import from_pretrained

__all__ = ["from_pretrained"]
