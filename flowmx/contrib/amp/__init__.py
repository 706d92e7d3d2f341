"""Mixed precision, under the name that MXNet 1.x has for it; see :mod:`flowmx.amp`."""

from flowmx.amp import *  # noqa: F403
from flowmx.amp import __all__ as __all__
