"""Models in the folders of Hugging Face's Transformers."""

from flowmx.gluon.model_zoo.huggingface.folder import is_model
from flowmx.gluon.model_zoo.huggingface.pretrained import as_symbol, from_pretrained

__all__ = ["as_symbol", "from_pretrained", "is_model"]
