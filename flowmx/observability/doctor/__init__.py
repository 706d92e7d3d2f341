"""``python -m flowmx doctor``: diagnoses running processes: their state, wait chains, and the cause of a hang.

Example:
    $ python -m flowmx doctor 4711
    $ python -m flowmx doctor http://10.0.0.2:8000 4711 report.json

It fetches snapshots of the processes (:mod:`.fetch`), analyses them (:mod:`.wait_chains`, :mod:`.rules`; both pure) and
prints a report (:mod:`.report`). A web service responds at ``/flowmx/doctor`` after :func:`add_to`.
"""

from flowmx.observability.doctor.rules import Finding, diagnose
from flowmx.observability.flight.web import add_to

__all__ = ["Finding", "add_to", "diagnose"]
