"""The flight recorder."""

from flowmx.flight import messages

__all__ = ["messages"]
