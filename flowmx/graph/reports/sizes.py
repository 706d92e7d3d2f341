"""Formatting of byte counts."""

from __future__ import annotations

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def format_bytes(nbytes: float) -> str:
    """Return a number of bytes with a suitable unit, such as ``12.3 MiB``."""
    power = 0
    while abs(nbytes) >= 1024 and power < len(_UNITS) - 1:
        nbytes /= 1024
        power += 1
    return f"{nbytes:.0f} B" if power == 0 else f"{nbytes:.4g} {_UNITS[power]}"
