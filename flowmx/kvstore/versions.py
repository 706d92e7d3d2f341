"""The versions that a node of any role reports at the start of a job."""

from __future__ import annotations

from importlib import metadata

from flowmx.comm.frames import MAGIC

__all__ = ["DIFFER", "version"]

DIFFER = "the nodes of the job differ: "
"""Prefix of the message that rejects a node because its facts differ."""


def version() -> dict[str, str]:
    """Return the versions that must be equal on all nodes, of flowmx and of the wire format, by name."""
    try:
        release = metadata.version("flowmx")
    except metadata.PackageNotFoundError:
        release = "unknown"
    return {"the version of flowmx": release, "the version of the wire": MAGIC.decode()}
