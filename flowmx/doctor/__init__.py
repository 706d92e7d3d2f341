"""``python -m flowmx doctor``: what running processes do, what waits for what, and who is to blame.

Example:
    $ python -m flowmx doctor 4711
    $ python -m flowmx doctor http://10.0.0.2:8000 4711 report.json

Processes are asked (:mod:`flowmx.doctor.asking`), what they say is put together (:mod:`flowmx.doctor.chains`,
:mod:`flowmx.doctor.diagnosis`; both pure) and shown (:mod:`flowmx.doctor.picture`). A service answers at
``/flowmx/doctor`` where :func:`add_to` has added that.
"""

from flowmx.doctor.diagnosis import Finding, diagnose
from flowmx.flight.web import add_to

__all__ = ["Finding", "add_to", "diagnose"]
