"""Sums of bytes as oneDNN computes them on processors without VNNI, where tests/fixtures/quantized.zip was recorded.

There the products of two neighbors are added in 16 bits, which overflow. Int8 data is first made unsigned, and its
filters are halved. With these sums instead of exact ones, networks reproduce MXNet's numbers bit for bit.
"""

import numpy as np

from flowmx.ops.nn.linear import as_matrix
from flowmx.ops.quantization import int8_layers, subgraph_layers
from flowmx.ops.registry import kernels


def _saturated(data, weight):
    """Return sums of products, with each pair of products clipped to int16."""
    padding = data.shape[1] % 2
    data, weight = (np.pad(array, ((0, 0), (0, padding))) for array in (data, weight))
    total = np.zeros((len(data), len(weight)), np.int64)
    for index in range(0, data.shape[1], 2):
        pair = data[:, index, None] * weight[None, :, index] + data[:, index + 1, None] * weight[None, :, index + 1]
        total += np.clip(pair, -32768, 32767)
    return total


def _sums(data, weight, signed):
    data, weight = data.astype(np.int64), weight.astype(np.int64)
    return _saturated(data + 128, weight) - 128 * weight.sum(1) if signed else _saturated(data, weight)


def install(monkeypatch):
    """Make the fallbacks of quantized convolutions and products sum like this."""
    filters_by_weight = {}
    exact = subgraph_layers.quantize_filters

    def filters(xp, weight, bias, data_scale, by_channel):
        result = exact(xp, weight, bias, data_scale, by_channel)
        filters_by_weight[result.weight.tobytes()] = result, weight
        return result

    def convolve(self, run, data, weight, shape):
        signed = data.dtype == np.int8
        if signed:
            quantized, real = filters_by_weight[weight.tobytes()]
            halves = real.reshape(len(real), -1) * quantized.scales[:, None] * np.float32(0.5)
            weight = np.clip(np.rint(halves), -128, 127).reshape(real.shape)
        geometry, total = self.geometry, np.zeros(shape, np.int64)
        data = np.pad(data, ((0, 0), (0, 0), *((pad, pad) for pad in geometry.pad)))
        (batch, _, rows, columns), (down, right) = shape, geometry.stride
        for i in range(self.kernel[0]):
            for j in range(self.kernel[1]):
                part = data[:, :, i : i + (rows - 1) * down + 1 : down, j : j + (columns - 1) * right + 1 : right]
                flat = part.transpose(0, 2, 3, 1).reshape(-1, data.shape[1])
                part_sums = _sums(flat, weight[:, :, i, j], signed)
                total += part_sums.reshape(batch, rows, columns, -1).transpose(0, 3, 1, 2)
        return (total * (2 if signed else 1)).astype(np.float64)

    def multiply(self, run, data, weight, shape):
        return _sums(as_matrix(data, self.flatten), weight, data.dtype == np.int8).astype(np.float64).reshape(shape)

    monkeypatch.setattr(subgraph_layers, "quantize_filters", filters)
    for kind, sums in ((int8_layers.Int8Convolution, convolve), (int8_layers.Int8FullyConnected, multiply)):
        monkeypatch.setattr(kind, "sums", sums)
        monkeypatch.delitem(kernels._kernels, ("cpu", kind.name))
