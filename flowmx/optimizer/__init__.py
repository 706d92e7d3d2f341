"""Optimizers (``mx.optimizer``): update rules of weights.

Example:
    >>> optimizer = mx.optimizer.create("sgd", learning_rate=0.1, momentum=0.9)
    >>> update = mx.optimizer.get_updater(optimizer)
    >>> update(0, gradient, weight)
"""

from flowmx.optimizer import adagrad, adam, contrib, ftrl, large_batch, sgd
from flowmx.optimizer.adagrad import *  # noqa: F403 - each optimizer is named once, in __all__ of its module
from flowmx.optimizer.adam import *  # noqa: F403
from flowmx.optimizer.base_optimizer import Optimizer, Test, create, register
from flowmx.optimizer.convert import convert_states
from flowmx.optimizer.ftrl import *  # noqa: F403
from flowmx.optimizer.large_batch import *  # noqa: F403
from flowmx.optimizer.sgd import *  # noqa: F403
from flowmx.optimizer.states_file import StatesFormatError
from flowmx.optimizer.updater import Updater, get_updater

__all__ = ["Optimizer", "StatesFormatError", "Test", "Updater", "contrib", "convert_states", "create", "get_updater",
           "register"]  # fmt: skip
__all__ += [*adagrad.__all__, *adam.__all__, *ftrl.__all__, *large_batch.__all__, *sgd.__all__]
