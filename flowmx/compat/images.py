"""What packages take from ``mxnet.image.image`` beside its functions."""

from __future__ import annotations

from flowmx.image.functions import interpolation as _get_interp_method

__all__ = ["_get_interp_method"]
