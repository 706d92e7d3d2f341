"""``mx.contrib.svrg_optimization``: gradients of less variance, from a full one every few epochs."""

from flowmx.contrib.svrg_optimization import svrg_module
from flowmx.contrib.svrg_optimization.svrg_module import SVRGModule

__all__ = ["SVRGModule", "svrg_module"]
