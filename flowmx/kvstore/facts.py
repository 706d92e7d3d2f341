"""What nodes of every role say of themselves at the start of a job."""

from __future__ import annotations

from importlib import metadata

from flowmx.comm.frames import MAGIC

__all__ = ["DIFFER", "version"]

DIFFER = "the nodes of the job differ: "
"""How a refusal begins because of what nodes say."""


def version() -> dict[str, str]:
    """What all nodes must have in common."""
    try:
        found = metadata.version("flowmx")
    except metadata.PackageNotFoundError:
        found = "unknown"
    return {"the version of flowmx": found, "the version of the wire": MAGIC.decode()}
