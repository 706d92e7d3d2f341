"""``python -m flowmx doctor``: what running processes do, what waits for what, and who is to blame.

Example:
    $ python -m flowmx doctor 4711
    $ python -m flowmx doctor http://10.0.0.2:8000 4711 report.json

Processes are asked (:mod:`.asking`), what they say is put together (:mod:`.chains`, :mod:`.rules`; both pure) and
shown (:mod:`.picture`). A service answers at
``/flowmx/doctor`` where :func:`add_to` has added that.
"""

from flowmx.observability.doctor.rules import Finding, diagnose
from flowmx.observability.flight.web import add_to

__all__ = ["Finding", "add_to", "diagnose"]
