"""Low-rank adapters (``mx.gluon.lora``): training few weights of a large model, and Hugging Face PEFT's folders."""

from flowmx.gluon.lora.adapter import LoRA, attach, load
from flowmx.gluon.lora.layers import LoRADense
from flowmx.gluon.lora.weights import AdapterWeights, LayerWeights, read

__all__ = ["AdapterWeights", "LayerWeights", "LoRA", "LoRADense", "attach", "load", "read"]
