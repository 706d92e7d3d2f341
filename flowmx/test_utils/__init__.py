"""``mx.test_utils``: helpers for tests of networks and operators: assertions, random arrays, gradient checks."""

from flowmx.test_utils import (
    archives,
    assertions,
    datasets,
    fixtures,
    gradient_checks,
    random_data,
    statistics,
    symbol_checks,
    tolerance,
)
from flowmx.test_utils.archives import *  # noqa: F403
from flowmx.test_utils.assertions import *  # noqa: F403
from flowmx.test_utils.datasets import *  # noqa: F403
from flowmx.test_utils.fixtures import *  # noqa: F403
from flowmx.test_utils.gradient_checks import *  # noqa: F403
from flowmx.test_utils.random_data import *  # noqa: F403
from flowmx.test_utils.statistics import *  # noqa: F403
from flowmx.test_utils.symbol_checks import *  # noqa: F403
from flowmx.test_utils.tolerance import *  # noqa: F403

__all__ = [
    *archives.__all__, *assertions.__all__, *datasets.__all__, *fixtures.__all__, *gradient_checks.__all__,
    *random_data.__all__, *statistics.__all__, *symbol_checks.__all__, *tolerance.__all__,
]  # fmt: skip
