"""Modules (``mx.mod``): a symbol with parameters, an optimizer, and the loops that train and evaluate it.

What takes long is a coroutine: ``await mod.fit(...)``, ``await mod.score(...)``, ``await mod.predict(...)``.
"""

from flowmx.module.base import BaseModule
from flowmx.module.module import Module

__all__ = ["BaseModule", "Module"]
