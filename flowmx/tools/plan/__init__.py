"""``mx.plan``: predicts memory, step time and bottlenecks of a training on devices that are not present.

A function, or a script (``python -m flowmx plan train.py --device h100x8``), runs unchanged while ``mx.gpu(i)`` are
simulated devices without numerics. docs/simulation.md describes the model and its accuracy.

Example:
    >>> plan = mx.plan.run(train, device="a10", steps=3)
    >>> plan.fits, plan.seconds
    (True, 0.0802)
    >>> print(plan.text())
"""

from flowmx.tools.plan.report import DevicePlan, Plan
from flowmx.tools.plan.simulation import run

__all__ = ["DevicePlan", "Plan", "run"]
