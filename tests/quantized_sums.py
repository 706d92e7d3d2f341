"""Sums of bytes as oneDNN makes them on processors without VNNI, on which tests/fixtures/quantized.zip was recorded.

There the products of two neighbours are added in 16 bits, which overflow; int8 data is made unsigned first, and filters
for it are halved. With these sums in the place of exact ones, networks give MXNet's numbers to the bit.
"""

import numpy as np

from flowmx.ops.nn.linear import as_matrix
from flowmx.ops.quantization import fused, sums
from flowmx.ops.registry import operators


def _saturated(data, weight):
    """The sums of products, each pair of them cut off at the ends of int16."""
    more = data.shape[1] % 2
    data, weight = (np.pad(each, ((0, 0), (0, more))) for each in (data, weight))
    total = np.zeros((len(data), len(weight)), np.int64)
    for at in range(0, data.shape[1], 2):
        pair = data[:, at, None] * weight[None, :, at] + data[:, at + 1, None] * weight[None, :, at + 1]
        total += np.clip(pair, -32768, 32767)
    return total


def _sums(data, weight, signed):
    data, weight = data.astype(np.int64), weight.astype(np.int64)
    return _saturated(data + 128, weight) - 128 * weight.sum(1) if signed else _saturated(data, weight)


def install(monkeypatch):
    """Let quantized convolutions and products sum so, in their plain forwards."""
    made = {}
    exact = fused._whole_filters

    def filters(xp, weight, bias, data_scale, by_channel):
        found = exact(xp, weight, bias, data_scale, by_channel)
        made[found.whole.tobytes()] = found, weight
        return found

    def convolved(self, run, data, weight, shape):
        signed = data.dtype == np.int8
        if signed:
            found, real = made[weight.tobytes()]
            halves = real.reshape(len(real), -1) * found.scales[:, None] * np.float32(0.5)
            weight = np.clip(np.rint(halves), -128, 127).reshape(real.shape)
        geometry, total = self.geometry, np.zeros(shape, np.int64)
        data = np.pad(data, ((0, 0), (0, 0), *((pad, pad) for pad in geometry.pad)))
        (batch, _, rows, columns), (down, right) = shape, geometry.stride
        for i in range(self.kernel[0]):
            for j in range(self.kernel[1]):
                part = data[:, :, i : i + (rows - 1) * down + 1 : down, j : j + (columns - 1) * right + 1 : right]
                flat = part.transpose(0, 2, 3, 1).reshape(-1, data.shape[1])
                found = _sums(flat, weight[:, :, i, j], signed)
                total += found.reshape(batch, rows, columns, -1).transpose(0, 3, 1, 2)
        return (total * (2 if signed else 1)).astype(np.float64)

    def multiplied(self, run, data, weight, shape):
        return _sums(as_matrix(data, self.flatten), weight, data.dtype == np.int8).astype(np.float64).reshape(shape)

    monkeypatch.setattr(fused, "_whole_filters", filters)
    for kind, made_by in ((sums.Int8Convolution, convolved), (sums.Int8FullyConnected, multiplied)):
        monkeypatch.setattr(kind, "sums", made_by)
        monkeypatch.delitem(operators._kernels, ("cpu", kind.name))
