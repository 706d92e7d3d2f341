"""Warnings about images whose axes look exchanged: (height, width, channels) and (channels, height, width)."""

from __future__ import annotations

from typing import Any

from flowmx.engine.origin import warn_user

__all__ = ["expect_channels_first", "expect_channels_last"]

_CHANNELS = (1, 3, 4)
"""The usual numbers of channels."""
_warned_lines: set[tuple[str, int]] = set()
"""The user's lines with a warning."""


def expect_channels_first(function: str, image: Any) -> None:
    """Warn if an image of a function for (channels, height, width), or a batch, looks like one with channels last."""
    shape = image.shape
    if len(shape) in (3, 4) and shape[-1] in _CHANNELS and shape[-3] > max(_CHANNELS):
        warn_user(
            f"{function}: the image has shape {shape}, which looks like (height, width, channels), expected (channels, "
            f"height, width): apply {function} after ToTensor()", _warned_lines,
        )  # fmt: skip


def expect_channels_last(function: str, image: Any) -> None:
    """Warn if an image of a function for (height, width, channels), or a batch, looks like one with channels first."""
    shape = image.shape
    if len(shape) in (3, 4) and shape[-3] in _CHANNELS and shape[-1] > max(_CHANNELS):
        warn_user(
            f"{function}: the image has shape {shape}, which looks like (channels, height, width), expected (height, "
            f"width, channels): "
            + (
                "ToTensor() has been applied already, or the image must be transposed"
                if function == "ToTensor()"
                else f"apply {function} before ToTensor()"
            ),
            _warned_lines,
        )  # fmt: skip
