"""``mx.contrib.amp``: the path of :mod:`flowmx.amp` (mixed precision) in MXNet 1.x."""

from flowmx.amp import *  # noqa: F403
from flowmx.amp import __all__ as __all__
