"""The NaN watch: reports the operation that first computes a NaN or an infinity.

Example:
    >>> with mx.anomaly.stop_at_nan():
    ...     train(net, batches)        # raises mx.anomaly.NonFiniteError at the first NaN or infinity

or ``FLOWMX_STOP_AT_NAN=1`` for the whole program.
"""

from flowmx.lazy import lazy_attributes
from flowmx.observability.safety.finding import Finding, NonFiniteError
from flowmx.observability.safety.nan_watch import Watch, stop_at_nan
from flowmx.observability.safety.step_counter import current_step, next_step

__all__ = ["Finding", "NonFiniteError", "Watch", "current_step", "next_step", "stop_at_nan"]

__getattr__, __dir__ = lazy_attributes(__name__)
