"""Numbers of bytes, as people read them."""

from __future__ import annotations

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def in_words(nbytes: float) -> str:
    """A number of bytes with the unit that fits it, such as ``12.3 MiB``."""
    power = 0
    while abs(nbytes) >= 1024 and power < len(_UNITS) - 1:
        nbytes /= 1024
        power += 1
    return f"{nbytes:.0f} B" if power == 0 else f"{nbytes:.4g} {_UNITS[power]}"
