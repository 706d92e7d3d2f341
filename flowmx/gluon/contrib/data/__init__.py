"""Further samplers, and texts: ``mx.gluon.contrib.data``."""

from flowmx.gluon.contrib.data import sampler, text
from flowmx.gluon.contrib.data.sampler import IntervalSampler
from flowmx.gluon.contrib.data.text import WikiText2, WikiText103

__all__ = ["IntervalSampler", "WikiText2", "WikiText103", "sampler", "text"]
