"""``mx.dashboard``: what this process does, live in a browser.

Example:
    >>> mx.dashboard.start(port=8080)          # or FLOWMX_DASHBOARD=8080 for any script
    >>> mx.dashboard.log("loss", 0.25)         # curves; Module.fit and Estimator log theirs

Readings of the engine (:mod:`.reader`) become series (:mod:`.series`, pure), which one thread takes for all viewers
(:mod:`.sampler_thread`) and an aiohttp application sends to the page (:mod:`.feed`, :mod:`.application`). What is
wrong is what the doctor finds (:mod:`flowmx.observability.doctor.rules`). While nobody looks, nothing is done.
"""

from flowmx.observability.dashboard.application import application
from flowmx.observability.dashboard.running import Dashboard, start
from flowmx.observability.flight.curves import log

__all__ = ["Dashboard", "application", "log", "start"]
