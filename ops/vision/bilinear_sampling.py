"""Bilinear sampling of images at arbitrary positions, with gradients for the image and the positions.

Images are rows of channels, one row per pixel of the batch, so that each corner of a position is one row.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from flowmx.ops.arrays.scatter import add_rows
from flowmx.ops.registry.operators import Array
from flowmx.ops.registry.tensors import ArrayNamespace


class Corners(NamedTuple):
    """The four pixels around each of ``count`` positions.

    Attributes:
        rows: the rows of the pixels (4, count); an arbitrary row for a pixel outside the image.
        weights: the weights of the pixels (4, count); 0 for a pixel outside the image.
        y_derivatives: the derivatives of the weights with respect to y (4, count).
        x_derivatives: the derivatives of the weights with respect to x (4, count).
    """

    rows: Array
    weights: Array
    y_derivatives: Array
    x_derivatives: Array

    def sample(self, pixels: Array) -> Array:
        """Return the values at the positions (count, channels)."""
        total: Array = self.weights[0, :, None] * pixels[self.rows[0]]
        for rows, weights in zip(self.rows[1:], self.weights[1:], strict=True):
            total += weights[:, None] * pixels[rows]
        return total

    def scatter_gradient(self, xp: ArrayNamespace, head: Array, pixels: Array) -> None:
        """Add the gradient of the values (count, channels) to the gradient ``pixels`` of the pixels."""
        values = self.weights[..., None] * head
        add_rows(xp, pixels, self.rows.reshape(-1), values.reshape(-1, head.shape[1]))

    def position_gradients(self, xp: ArrayNamespace, head: Array, pixels: Array) -> tuple[Array, Array]:
        """Return the gradients of y and x (count,), from the gradient of the values (count, channels)."""
        products = xp.stack([xp.einsum("mc,mc->m", head, pixels[rows]) for rows in self.rows])
        return (self.y_derivatives * products).sum(axis=0), (self.x_derivatives * products).sum(axis=0)


def corners(xp: ArrayNamespace, y: Array, x: Array, image: Array, height: int, width: int) -> Corners:
    """Return the four pixels around each position.

    Args:
        xp: the array namespace.
        y: vertical positions in pixels (count,); pixels outside the image are 0.
        x: horizontal positions in pixels (count,).
        image: the index of each position's image (count,), or one index for all.
        height: the height of each image.
        width: the width of each image.
    """
    low_y, low_x = xp.floor(y), xp.floor(x)
    down, right = y - low_y, x - low_x
    parts: list[list[Array]] = [[], [], [], []]
    for part_y, slope_y, at_y in ((1 - down, -1, low_y), (down, 1, low_y + 1)):
        for part_x, slope_x, at_x in ((1 - right, -1, low_x), (right, 1, low_x + 1)):
            inside = (at_y >= 0) & (at_y < height) & (at_x >= 0) & (at_x < width)
            row = xp.where(inside, at_y * width + at_x, 0).astype(np.int64)
            parts[0].append(row + image * (height * width))
            for values, index in ((part_y * part_x, 1), (slope_y * part_x, 2), (slope_x * part_y, 3)):
                parts[index].append(xp.where(inside, values, 0))
    return Corners(*(xp.stack(arrays) for arrays in parts))


def pixels_of(images: Array) -> Array:
    """Return images (count, channels, height, width) as rows of channels (count·height·width, channels)."""
    rows: Array = images.transpose(0, 2, 3, 1).reshape(-1, images.shape[1])
    return rows


def images_of(pixels: Array, shape: tuple[int, ...]) -> Array:
    """Return rows of channels as a view of images (count, channels, height, width)."""
    count, channels, height, width = shape
    images: Array = pixels.reshape(count, height, width, channels).transpose(0, 3, 1, 2)
    return images
