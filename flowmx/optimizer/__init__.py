"""Optimizers (``mx.optimizer``): how weights follow their gradients.

Example:
    >>> optimizer = mx.optimizer.create("sgd", learning_rate=0.1, momentum=0.9)
    >>> update = mx.optimizer.get_updater(optimizer)
    >>> update(0, gradient, weight)
"""

from flowmx.optimizer.adagrad import AdaDelta, AdaGrad, RMSProp
from flowmx.optimizer.adam import Adam, Adamax, Nadam
from flowmx.optimizer.base import Optimizer, Test, create, register
from flowmx.optimizer.ftrl import Ftrl
from flowmx.optimizer.sgd import NAG, SGD, SGLD, SignSGD, Signum
from flowmx.optimizer.states import StatesFormatError
from flowmx.optimizer.updater import Updater, get_updater

__all__ = [
    "NAG", "SGD", "SGLD", "AdaDelta", "AdaGrad", "Adam", "Adamax", "Ftrl", "Nadam", "Optimizer", "RMSProp", "SignSGD",
    "Signum", "StatesFormatError", "Test", "Updater", "create", "get_updater", "register",
]  # fmt: skip
