"""Modules (``mx.mod``): a symbol with parameters, an optimizer, and the loops that train and evaluate it.

Functions that take long are coroutines: ``await mod.fit(...)``, ``await mod.score(...)``, ``await mod.predict(...)``.
"""

from flowmx.module.base_module import BaseModule
from flowmx.module.bucketing import BucketingModule
from flowmx.module.module import Module
from flowmx.module.python_module import PythonLossModule, PythonModule
from flowmx.module.sequential import SequentialModule

__all__ = ["BaseModule", "BucketingModule", "Module", "PythonLossModule", "PythonModule", "SequentialModule"]
