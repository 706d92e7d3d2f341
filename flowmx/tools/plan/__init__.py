"""``mx.plan``: what training would take on devices that are not here: memory, time a step, and what it is bound by.

A function, or a script (``python -m flowmx plan train.py --device h100x8``), runs as it is; ``mx.gpu(i)`` are simulated
devices without numerics meanwhile. docs/simulation.md says what is modelled, and how far to trust it.

Example:
    >>> found = mx.plan.run(train, device="a10", steps=3)
    >>> found.fits, found.seconds
    (True, 0.0802)
    >>> print(found.text())
"""

from flowmx.tools.plan.report import DevicePlan, Plan
from flowmx.tools.plan.running import run

__all__ = ["DevicePlan", "Plan", "run"]
