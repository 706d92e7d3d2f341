"""Traces of a service, where ``FLOWMX_TRACES`` asks for them; their spans are made in :mod:`flowmx.serve.spans`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowmx import settings

if TYPE_CHECKING:
    from flowmx.serve.spans import Tracing

__all__ = ["tracing"]


def tracing() -> Tracing | None:
    """The maker of spans that the settings ask for; None where they ask for none.

    Raises:
        ImportError: OpenTelemetry is not installed.
    """
    what = settings.get().traces
    if what == "off":
        return None
    try:
        from flowmx.serve.spans import Tracing
    except ImportError as error:
        raise ImportError(
            f"FLOWMX_TRACES is {what!r}, which needs OpenTelemetry ({error}): pip install 'flowmx[otel]'"
        ) from error
    return Tracing(operators=what == "operators")
