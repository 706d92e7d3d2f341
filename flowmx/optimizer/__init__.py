"""Optimizers (``mx.optimizer``): how weights follow their gradients.

Example:
    >>> optimizer = mx.optimizer.create("sgd", learning_rate=0.1, momentum=0.9)
    >>> update = mx.optimizer.get_updater(optimizer)
    >>> update(0, gradient, weight)
"""

from flowmx.optimizer import contrib
from flowmx.optimizer.adagrad import AdaDelta, AdaGrad, RMSProp
from flowmx.optimizer.adam import AdaBelief, Adam, Adamax, AdamW, Nadam
from flowmx.optimizer.base import Optimizer, Test, create, register
from flowmx.optimizer.convert import convert_states
from flowmx.optimizer.ftrl import FTML, Ftrl
from flowmx.optimizer.large_batch import LAMB, LARS, LBSGD
from flowmx.optimizer.sgd import DCASGD, NAG, SGD, SGLD, SignSGD, Signum, ccSGD
from flowmx.optimizer.states import StatesFormatError
from flowmx.optimizer.updater import Updater, get_updater

__all__ = [
    "DCASGD", "FTML", "LAMB", "LARS", "LBSGD", "NAG", "SGD", "SGLD", "AdaBelief", "AdaDelta", "AdaGrad", "Adam",
    "AdamW", "Adamax", "Ftrl", "Nadam", "Optimizer", "RMSProp", "SignSGD", "Signum", "StatesFormatError", "Test",
    "Updater", "ccSGD", "contrib", "convert_states", "create", "get_updater", "register",
]  # fmt: skip
