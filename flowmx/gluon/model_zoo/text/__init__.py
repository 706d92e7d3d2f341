"""Text models: ``mx.gluon.model_zoo.text``. Each is a block whose arguments are its sizes.

:func:`mx.gluon.model_zoo.from_pretrained` makes one from a folder of Hugging Face's Transformers, with its weights.

Example:
    >>> net = mx.gluon.model_zoo.text.BERTClassifier(3, vocab_size=100, units=8, num_layers=2, num_heads=2)
"""

from flowmx.gluon.model_zoo.text.bert import BERT, BERTClassifier, BERTMaskedLM, BERTTokenClassifier
from flowmx.gluon.model_zoo.text.gpt2 import GPT2, GPT2LM
from flowmx.gluon.model_zoo.text.llama import Llama, LlamaLM

__all__ = ["BERT", "GPT2", "GPT2LM", "BERTClassifier", "BERTMaskedLM", "BERTTokenClassifier", "Llama", "LlamaLM"]
