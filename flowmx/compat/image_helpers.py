"""Private helpers of ``mxnet.image.image`` that packages import."""

from __future__ import annotations

from flowmx.image.functions import interpolation as _get_interp_method

__all__ = ["_get_interp_method"]
