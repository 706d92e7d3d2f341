"""``mx.contrib.svrg_optimization``: stochastic variance reduced gradients."""

from flowmx.contrib.svrg_optimization import svrg_module
from flowmx.contrib.svrg_optimization.svrg_module import SVRGModule

__all__ = ["SVRGModule", "svrg_module"]
