"""``mx.test_utils``: what tests of networks and operators use: comparing, random arrays, gradients checked."""

from flowmx.test_utils import archives, comparing, files, gradients, making, running, statistics, symbols, tolerance
from flowmx.test_utils.archives import *  # noqa: F403
from flowmx.test_utils.comparing import *  # noqa: F403
from flowmx.test_utils.files import *  # noqa: F403
from flowmx.test_utils.gradients import *  # noqa: F403
from flowmx.test_utils.making import *  # noqa: F403
from flowmx.test_utils.running import *  # noqa: F403
from flowmx.test_utils.statistics import *  # noqa: F403
from flowmx.test_utils.symbols import *  # noqa: F403
from flowmx.test_utils.tolerance import *  # noqa: F403

__all__ = [
    *archives.__all__, *comparing.__all__, *files.__all__, *gradients.__all__, *making.__all__, *running.__all__,
    *statistics.__all__, *symbols.__all__, *tolerance.__all__,
]  # fmt: skip
