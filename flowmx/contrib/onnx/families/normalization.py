"""Normalization layers."""

from __future__ import annotations

import numpy as np

from flowmx.contrib.onnx.converters import Unsupported, exports, imports
from flowmx.contrib.onnx.node_export import NodeExport
from flowmx.contrib.onnx.node_import import NodeImport
from flowmx.symbol import Symbol


@exports("BatchNorm", "_contrib_SyncBatchNorm", "_contrib_BatchNormWithReLU")
def _batch_norm(n: NodeExport) -> list[str]:
    op, (x, gamma, *rest) = n.op, n.inputs
    axis, rank = getattr(op, "axis", 1) % n.rank(), n.rank()
    if op.fix_gamma:
        gamma = n.own_constant(
            f"{gamma}_fixed", np.ones([n.fixed(dim, "gamma's length") for dim in n.dims(1)], n.dtype(1))
        )
    order = [0, axis, *(index for index in range(1, rank) if index != axis)] if axis else [*range(1, rank), 0]
    is_moved = axis != 1
    if not axis:
        raise Unsupported("its axis is 0, expected an axis other than that of the batch")
    result = n.add(
        "BatchNormalization", n.transpose(x, order), gamma, *rest, epsilon=op.eps, momentum=op.momentum
    )  # fmt: skip
    result = n.transpose(result, [order.index(index) for index in range(rank)]) if is_moved else result
    result = n.add("Relu", result) if op.name == "_contrib_BatchNormWithReLU" else result
    if not (n.uses(1) or n.uses(2)):
        return [result]
    deviation = n.add("Identity", rest[2])
    if op.name != "_contrib_SyncBatchNorm":  # SyncBatchNorm returns the variance
        deviation = n.add("Reciprocal", n.add("Sqrt", n.add("Add", rest[2], n.number(op.eps, 4))))
    return [result, n.add("Identity", rest[1]), deviation]


@imports("BatchNormalization")
def _import_batch_norm(n: NodeImport) -> Symbol:
    n.expect("training_mode", 0)
    return n.make(
        "BatchNorm", n.symbol(0), n.symbol(1), n.symbol(2), n.auxiliary(3), n.auxiliary(4),
        eps=n.attr("epsilon", 1e-5), momentum=n.attr("momentum", 0.9), fix_gamma=False,
    )  # fmt: skip


@exports("LayerNorm")
def _layer_norm(n: NodeExport) -> list[str]:
    op, (x, gamma, beta), rank = n.op, n.inputs, n.rank()
    axis = op.axis % rank
    if n.opset >= 17 and axis == rank - 1 and not n.uses(1) and not n.uses(2):
        return [n.add("LayerNormalization", x, gamma, beta, axis=-1, epsilon=op.eps)]
    mean = n.reduce("ReduceMean", x, [axis])
    centered = n.add("Sub", x, mean)
    variance = n.reduce("ReduceMean", n.add("Mul", centered, centered), [axis])
    std = n.add("Sqrt", n.add("Add", variance, n.number(op.eps)))
    result = n.add("Div", centered, std)
    dims = n.dims(1)
    if axis != rank - 1:
        wide = (*dims, *(1,) * (rank - 1 - axis))
        gamma, beta = n.reshape(gamma, dims, wide), n.reshape(beta, dims, wide)
    return [n.add("Add", n.add("Mul", result, gamma), beta), mean, std]


@imports("LayerNormalization")
def _import_layer_norm(n: NodeImport) -> Symbol:
    axis = n.axis(-1)
    if axis != n.rank() - 1:
        raise Unsupported(f"it normalizes over axes {axis} to {n.rank() - 1}, expected only the last")
    (count,) = n.dims(1)
    beta = n.symbol(2) if n.has(2) else n.parameter(np.zeros([n.fixed(count, "the axis")], n.dtype(1)), "beta")
    return n.make("LayerNorm", n.symbol(0), n.symbol(1), beta, axis=-1, eps=n.attr("epsilon", 1e-5))


@exports("RMSNorm")
def _rms_norm(n: NodeExport) -> str:
    op, (x, gamma), rank = n.op, n.inputs, n.rank()
    axis = op.axis % rank
    mean = n.reduce("ReduceMean", n.add("Mul", x, x), [axis])
    if axis != rank - 1:
        gamma = n.reshape(gamma, n.dims(1), (*n.dims(1), *(1,) * (rank - 1 - axis)))
    return n.add("Mul", n.add("Div", x, n.add("Sqrt", n.add("Add", mean, n.number(op.eps)))), gamma)


@imports("RMSNormalization")
def _import_rms_norm(n: NodeImport) -> Symbol:
    axis = n.axis(-1)
    if axis != n.rank() - 1:
        raise Unsupported(f"it normalizes over axes {axis} to {n.rank() - 1}, expected only the last")
    return n.make("RMSNorm", n.symbol(0), n.symbol(1), axis=-1, eps=n.attr("epsilon", 1e-5))


@exports("GroupNorm")
def _group_norm(n: NodeExport) -> str:
    """Convert to an instance normalization of data with its groups reshaped to channels."""
    x, gamma, beta = n.inputs
    grouped = n.add("Reshape", x, [0, n.op.num_groups, -1])
    result = n.add("InstanceNormalization", grouped, gamma, beta, epsilon=n.op.eps)
    return n.add("Reshape", result, n.add("Shape", x))


@exports("L2Normalization")
def _l2_normalization(n: NodeExport) -> str:
    x, rank = n.inputs[0], n.rank()
    axes = {"channel": [1], "instance": range(1, rank), "spatial": range(2, rank)}[n.op.mode]
    squares = n.add("Mul", x, x)
    total = n.reduce("ReduceSum", squares, list(axes)) if len(axes) else squares
    return n.add("Div", x, n.add("Sqrt", n.add("Add", total, n.number(n.op.eps))))


@imports("LpNormalization")
def _lp_normalization(n: NodeImport) -> Symbol:
    norm = n.make("norm", n.symbol(0), ord=n.attr("p", 2), axis=n.axis(-1), keepdims=True)
    return n.make("broadcast_div", n.symbol(0), norm)


@exports("Dropout")
def _dropout(n: NodeExport) -> str:
    if n.op.mode == "always":
        raise Unsupported("its mode is 'always', expected 'training': the file is for prediction")
    return n.add("Dropout", n.inputs[0], np.asarray(n.op.p, np.float32))


@imports("Dropout")
def _import_dropout(n: NodeImport) -> Symbol:
    if n.has(2) and n.array(2):
        raise Unsupported("its training_mode is true, expected false")
    return n.make("Dropout", n.symbol(0), p=n.number(1, n.attr("ratio", 0.5)))


@imports("MeanVarianceNormalization")
def _mean_variance(n: NodeImport) -> Symbol:
    axes, x = tuple(n.attr("axes", [0, 2, 3])), n.symbol(0)
    centered = n.make("broadcast_sub", x, n.make("mean", x, axis=axes, keepdims=True))
    deviation = n.make("sqrt", n.make("mean", n.make("square", centered), axis=axes, keepdims=True))
    return n.make("broadcast_div", centered, n.make("_plus_scalar", deviation, scalar=1e-9))
