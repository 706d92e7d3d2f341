"""Gluon (``mx.gluon``): models as blocks, computed step by step, or compiled by ``hybridize()``.

Example:
    >>> net = mx.gluon.nn.HybridSequential()
    >>> net.add(mx.gluon.nn.Dense(128, activation="relu"), mx.gluon.nn.Dense(10))
    >>> net.initialize(mx.init.Xavier())
    >>> net.hybridize()
    >>> trainer = mx.gluon.Trainer(net.collect_params(), "adam")
    >>> with mx.autograd.record():
    ...     loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()(net(data), label)
    >>> loss.backward()
    >>> trainer.step(batch_size=len(data))
"""

from typing import TYPE_CHECKING

from flowmx.gluon import averaging, block, loss, nn, parameter, rnn, trainer, utils
from flowmx.gluon.averaging import ExponentialMovingAverage
from flowmx.gluon.block import Block, HybridBlock, SymbolBlock
from flowmx.gluon.hybrid import Operators
from flowmx.gluon.lr_finder import LRFinder
from flowmx.gluon.parameter import Constant, DeferredInitializationError, Parameter
from flowmx.gluon.parameter_dict import ParameterDict
from flowmx.gluon.trainer import Trainer
from flowmx.lazy import lazy_attributes

if TYPE_CHECKING:
    from flowmx.gluon import contrib, data, lora, model_zoo

__all__ = [
    "Block", "Constant", "DeferredInitializationError", "ExponentialMovingAverage", "HybridBlock", "LRFinder",
    "Operators", "Parameter", "ParameterDict", "SymbolBlock", "Trainer", "averaging", "block", "contrib", "data",
    "lora", "loss", "model_zoo", "nn", "parameter", "rnn", "trainer", "utils",
]  # fmt: skip

__getattr__, __dir__ = lazy_attributes(
    __name__, {module: f"flowmx.gluon.{module}" for module in ("contrib", "data", "lora", "model_zoo")}
)
