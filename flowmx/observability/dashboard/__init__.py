"""``mx.dashboard``: a live view of this process in a browser.

Example:
    >>> mx.dashboard.start(port=8080)          # or FLOWMX_DASHBOARD=8080 for any script
    >>> mx.dashboard.log("loss", 0.25)         # curves; Module.fit and Estimator log theirs

One thread (:mod:`.sampler_thread`) samples the process for all viewers (:mod:`.reader`) and computes time series
(:mod:`.series`, pure). An aiohttp application (:mod:`.web_app`) sends them to the page (:mod:`.feed`). Warnings are the
findings of :mod:`flowmx.observability.doctor.rules`. Without viewers the dashboard does no work.
"""

from flowmx.observability.dashboard.server import Dashboard, start
from flowmx.observability.dashboard.web_app import application
from flowmx.observability.flight.curves import log

__all__ = ["Dashboard", "application", "log", "start"]
