"""The switch for traces of a service, ``FLOWMX_TRACES``. :mod:`flowmx.serve.spans` creates their spans."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowmx import settings

if TYPE_CHECKING:
    from flowmx.serve.spans import Tracing

__all__ = ["tracing"]


def tracing() -> Tracing | None:
    """Return the tracing that the settings enable, or None.

    Raises:
        ImportError: OpenTelemetry is not installed.
    """
    mode = settings.get().traces
    if mode == "off":
        return None
    try:
        from flowmx.serve.spans import Tracing
    except ImportError as error:
        raise ImportError(
            f"FLOWMX_TRACES is {mode!r}, which needs OpenTelemetry ({error}): pip install opentelemetry-sdk"
        ) from error
    return Tracing(operators=mode == "operators")
