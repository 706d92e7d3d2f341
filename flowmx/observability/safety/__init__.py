"""Detection of silent faults in training, such as NaN, at the operation where they begin.

Example:
    >>> with mx.safety.stop_at_nan():
    ...     train(net, batches)        # raises mx.safety.NonFiniteError at the first NaN or infinity

or ``FLOWMX_STOP_AT_NAN=1`` for the whole program.
"""

from flowmx.observability.safety.finding import Finding, NonFiniteError
from flowmx.observability.safety.steps import current_step, next_step
from flowmx.observability.safety.watch import Watch, stop_at_nan

__all__ = ["Finding", "NonFiniteError", "Watch", "current_step", "next_step", "stop_at_nan"]
