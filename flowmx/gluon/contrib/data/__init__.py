"""Further samplers: ``mx.gluon.contrib.data``."""

from flowmx.gluon.contrib.data import sampler
from flowmx.gluon.contrib.data.sampler import IntervalSampler

__all__ = ["IntervalSampler", "sampler"]
