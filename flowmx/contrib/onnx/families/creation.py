"""Operators that create arrays: constants and random numbers."""

from __future__ import annotations

import numpy as np

from flowmx.contrib.onnx.converters import Unsupported, exports, imports, need_onnx
from flowmx.contrib.onnx.graph_builder import tensor_type
from flowmx.contrib.onnx.node_export import NodeExport
from flowmx.contrib.onnx.node_import import NodeImport
from flowmx.ops.registry.dtypes import name_of
from flowmx.symbol import Symbol

VALUES = {"_zeros": 0.0, "_ones": 1.0}
RANDOM = {"_random_normal": "RandomNormal", "_random_uniform": "RandomUniform"}
ARGUMENTS = {"RandomNormal": {"mean": "loc", "scale": "scale"}, "RandomUniform": {"low": "low", "high": "high"}}


@exports("_zeros", "_ones", "_full")
def _fill(n: NodeExport) -> str:
    value = np.array([VALUES.get(n.op.name, getattr(n.op, "value", 0.0))], n.out_dtype())
    dims = n.out_dims()
    if all(isinstance(length, int) for length in dims):
        return n.value(np.full(dims, value[0]))
    return n.add("ConstantOfShape", n.shape(dims), value=need_onnx().numpy_helper.from_array(value))


@exports("_eye", "_linspace", "_arange")
def _constant(n: NodeExport) -> str:
    op = n.op
    (count, *_), dtype = [n.fixed(dim, "its length") for dim in n.out_dims()], n.out_dtype()
    if op.name == "_eye":
        result = np.eye(op.N, op.M or op.N, op.k)
    elif op.name == "_linspace":
        result = np.linspace(op.start, op.stop, op.num, op.endpoint)
    else:
        start = op.start if op.infer_range else op.bounds()[0]
        result = start + op.step * (np.arange(count) // op.repeat)
    return n.value(result.astype(dtype))


@exports("_contrib_arange_like")
def _arange_like(n: NodeExport) -> str:
    op, dims = n.op, n.out_dims()
    if all(isinstance(length, int) for length in dims):
        count = int(np.prod(dims))
        result = op.start + op.step * (np.arange(count) // op.repeat)
        return n.value(result.reshape(dims).astype(n.out_dtype()))
    if op.axis is None or op.repeat != 1:
        raise Unsupported("its length varies, which needs an axis and repeat 1")
    end = n.cast(n.add("Squeeze", n.shape(dims), [0]), n.out_dtype())
    positions = n.add("Range", n.number(0), end, n.number(1))
    return n.add("Add", n.add("Mul", positions, n.number(op.step)), n.number(op.start))


# -- random numbers ----------------------------------------------------------------------------------------


@exports(*RANDOM)
def _random(n: NodeExport) -> str:
    kind = RANDOM[n.op.name]
    arguments = {onnx_name: getattr(n.op, name) for onnx_name, name in ARGUMENTS[kind].items()}
    shape = [n.fixed(dim, "its shape") for dim in n.out_dims()]
    return n.add(kind, shape=shape, dtype=tensor_type(n.out_dtype()), **arguments)


@exports("_random_normal_like", "_random_uniform_like")
def _random_like(n: NodeExport) -> str:
    kind = RANDOM[n.op.name.removesuffix("_like")]
    arguments = {onnx_name: getattr(n.op, name) for onnx_name, name in ARGUMENTS[kind].items()}
    return n.add(f"{kind}Like", n.inputs[0], **arguments)


@imports("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike")
def _import_random(n: NodeImport) -> Symbol:
    kind = n.kind.removesuffix("Like")
    defaults = {"mean": 0.0, "scale": 1.0, "low": 0.0, "high": 1.0}
    arguments = {name: n.attr(onnx_name, defaults[onnx_name]) for onnx_name, name in ARGUMENTS[kind].items()}
    name = {"RandomNormal": "_random_normal", "RandomUniform": "_random_uniform"}[kind]
    if n.kind.endswith("Like"):
        return n.make(f"{name}_like", n.symbol(0), **arguments)
    dtype = np.dtype(need_onnx().helper.tensor_dtype_to_np_dtype(n.attr("dtype", 1)))
    return n.make(name, shape=tuple(n.attr("shape")), dtype=name_of(dtype), **arguments)


@exports("_sample_multinomial")
def _multinomial(n: NodeExport) -> str:
    op = n.op
    if op.get_prob:
        raise Unsupported("its get_prob is True, expected False")
    if len(op.shape) > 1 or n.rank() > 2:
        raise Unsupported(f"its shape is {op.shape} for {n.rank()} axes, expected one number and a matrix at most")
    rows = n.inputs[0] if n.rank() == 2 else n.add("Unsqueeze", n.inputs[0], [0])
    samples = n.add("Multinomial", n.add("Log", rows), sample_size=op.shape[0] if op.shape else 1,
                   dtype=tensor_type(np.dtype("int64")))  # fmt: skip
    return n.cast(n.reshape(samples, (), n.out_dims()), n.out_dtype())


@imports("Multinomial")
def _import_multinomial(n: NodeImport) -> Symbol:
    dtype = np.dtype(need_onnx().helper.tensor_dtype_to_np_dtype(n.attr("dtype", 6)))
    probabilities = n.make("softmax", n.symbol(0), axis=-1)
    return n.make("_sample_multinomial", probabilities, shape=(n.attr("sample_size", 1),), dtype=name_of(dtype))
