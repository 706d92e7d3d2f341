"""Bilinear sampling of images at any positions, and its gradients by the image and by the positions.

Images are seen as rows of channels, one for each pixel of the batch, so that a corner of a position is one row.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from flowmx.ops.arrays.indexing import add_rows
from flowmx.ops.registry.operators import Array


class Corners(NamedTuple):
    """The four pixels around each of ``count`` positions.

    Attributes:
        rows: their rows (4, count); some row where the pixel lies outside.
        weights: what they count for (4, count); 0 where the pixel lies outside.
        by_y: the weights' derivatives by y (4, count).
        by_x: likewise by x.
    """

    rows: Array
    weights: Array
    by_y: Array
    by_x: Array

    def sample(self, pixels: Array) -> Array:
        """The values at the positions (count, channels)."""
        total = self.weights[0, :, None] * pixels[self.rows[0]]
        for rows, weights in zip(self.rows[1:], self.weights[1:], strict=True):
            total += weights[:, None] * pixels[rows]
        return total

    def spread(self, xp: Any, head: Array, pixels: Array) -> None:
        """Add the gradient of the values (count, channels) up by pixels, into ``pixels``, which are zeros."""
        values = self.weights[..., None] * head
        add_rows(xp, pixels, self.rows.reshape(-1), values.reshape(-1, head.shape[1]))

    def slopes(self, xp: Any, head: Array, pixels: Array) -> tuple[Array, Array]:
        """The gradients by y and x (count,), from that of the values (count, channels)."""
        shares = xp.stack([xp.einsum("mc,mc->m", head, pixels[rows]) for rows in self.rows])
        return (self.by_y * shares).sum(axis=0), (self.by_x * shares).sum(axis=0)


def corners(xp: Any, y: Array, x: Array, image: Array, height: int, width: int) -> Corners:
    """The corners around positions.

    Args:
        xp: the array namespace.
        y: positions in pixels (count,); pixels outside the image count as 0.
        x: likewise.
        image: which image each position is in (count,), or a number.
        height: of each image.
        width: likewise.
    """
    low_y, low_x = xp.floor(y), xp.floor(x)
    down, right = y - low_y, x - low_x
    made: list[list[Array]] = [[], [], [], []]
    for part_y, slope_y, at_y in ((1 - down, -1, low_y), (down, 1, low_y + 1)):
        for part_x, slope_x, at_x in ((1 - right, -1, low_x), (right, 1, low_x + 1)):
            inside = (at_y >= 0) & (at_y < height) & (at_x >= 0) & (at_x < width)
            row = xp.where(inside, at_y * width + at_x, 0).astype(xp.int64)
            made[0].append(row + image * (height * width))
            for values, into in ((part_y * part_x, 1), (slope_y * part_x, 2), (slope_x * part_y, 3)):
                made[into].append(xp.where(inside, values, 0))
    return Corners(*(xp.stack(each) for each in made))


def pixels_of(images: Array) -> Array:
    """Images (count, channels, height, width) as rows of channels (count·height·width, channels)."""
    rows: Array = images.transpose(0, 2, 3, 1).reshape(-1, images.shape[1])
    return rows


def images_of(pixels: Array, shape: tuple[int, ...]) -> Array:
    """Rows of channels as images of a shape (count, channels, height, width); a view."""
    count, channels, height, width = shape
    images: Array = pixels.reshape(count, height, width, channels).transpose(0, 3, 1, 2)
    return images
