"""Operators of Transformers, which ONNX has since opset 23: rotary positions and attention."""

from __future__ import annotations

import math

from flowmx.contrib.onnx.converters import Unsupported, imports
from flowmx.contrib.onnx.node_import import NodeImport
from flowmx.symbol import Symbol

_HIDDEN = -1e30
"""Added to the scores of keys that a query does not see."""


@imports("RotaryEmbedding")
def _rotary_embedding(n: NodeImport) -> Symbol:
    x, is_flat = n.symbol(0), n.rank() == 3
    if is_flat:
        x = _split_heads(n, x, int(n.attr("num_heads", 0)))
    size = n.fixed(n.dims(x)[3], "the size of a head")
    turning = int(n.attr("rotary_embedding_dim", 0)) or size
    cosine, sine = (_waves(n, index) for index in (1, 2))
    part = _slice(n, x, 3, 0, turning)
    if n.attr("interleaved", 0):
        pairs = n.make("Reshape", part, shape=(0, 0, 0, turning // 2, 2))
        one, other = (n.make("squeeze", _slice(n, pairs, 4, index, index + 1), axis=4) for index in (0, 1))
    else:
        one, other = _slice(n, part, 3, 0, turning // 2), _slice(n, part, 3, turning // 2, turning)
    turned = [
        n.make("broadcast_sub", _times(n, one, cosine), _times(n, other, sine)),
        n.make("broadcast_add", _times(n, one, sine), _times(n, other, cosine)),
    ]
    if n.attr("interleaved", 0):
        result = n.make("Reshape", n.make("stack", *turned, axis=4), shape=(0, 0, 0, -3))
    else:
        result = n.make("Concat", *turned, dim=3)
    if turning < size:
        result = n.make("Concat", result, _slice(n, x, 3, turning, size), dim=3)
    return _join_heads(n, result) if is_flat else result


def _waves(n: NodeImport, index: int) -> Symbol:
    """Return the cosines or sines as (batch, 1, length, size / 2)."""
    waves = n.symbol(index)
    if n.has(3):
        waves = n.make("take", waves, n.symbol(3), axis=0, mode="raise")
    return n.make("expand_dims", waves, axis=1)


@imports("Attention")
def _attention(n: NodeImport) -> Symbol | list[Symbol]:
    """Convert to products and a softmax, which :mod:`flowmx.graph.passes.attention` fuses."""
    _refuse_options(n)
    is_flat = n.rank() == 3
    query, key, value = (n.symbol(index) for index in range(3))
    if is_flat:
        heads = [int(n.attr(name, 0)) for name in ("q_num_heads", "kv_num_heads", "kv_num_heads")]
        query, key, value = (_split_heads(n, *each) for each in zip((query, key, value), heads, strict=True))
    past = 0
    if n.has(4):
        past = n.fixed(n.dims(4)[2], "the length of past_key")
        key = n.make("Concat", n.symbol(4), key, dim=2)
        value = n.make("Concat", n.symbol(5), value, dim=2)
    present = [key, value]
    count, shared = (n.fixed(n.dims(each)[1], "the number of heads") for each in (query, key))
    if count != shared:
        key, value = (n.make("repeat", each, repeats=count // shared, axis=1) for each in present)
    scale = n.attr("scale")
    scale = 1 / math.sqrt(n.fixed(n.dims(query)[3], "the size of a head")) if scale is None else float(scale)
    flat = [n.make("Reshape", each, shape=(-3, 0, 0)) for each in (query, key, value)]
    scores = n.make("batch_dot", n.make("_mul_scalar", flat[0], scalar=scale), flat[1], transpose_b=True)
    scores = n.make("Reshape", scores, shape=(-4, -1, count, 0, 0))
    softcap = float(n.attr("softcap", 0.0))
    if softcap:
        scores = n.make("tanh", n.make("_div_scalar", scores, scalar=softcap))
        scores = n.make("_mul_scalar", scores, scalar=softcap)
    for bias in _biases(n, scores, past):
        scores = n.make("broadcast_add", scores, bias)
    weights = n.make("Reshape", n.make("softmax", scores, axis=-1), shape=(-3, 0, 0))
    out = n.make("Reshape", n.make("batch_dot", weights, flat[2]), shape=(-4, -1, count, 0, 0))
    out = _join_heads(n, out) if is_flat else out
    return [out, *present][: n.outputs] if n.outputs > 1 else out


def _refuse_options(n: NodeImport) -> None:
    """Check that a node has no unsupported option.

    Raises:
        Unsupported: it has one.
    """
    for name in ("left_window_size", "right_window_size"):
        n.expect(name, -1)
    if n.has(6):
        raise Unsupported("it has nonpad_kv_seqlen, expected attn_mask")
    if n.outputs > 3:
        raise Unsupported("its output qk_matmul_output is unsupported")


def _biases(n: NodeImport, scores: Symbol, past: int) -> list[Symbol]:
    """Return what the masks add to the scores (batch, heads, query length, key length)."""
    biases = []
    if n.has(3):
        mask = n.symbol(3)
        for _ in range(4 - n.rank(3)):
            mask = n.make("expand_dims", mask, axis=0)
        biases.append(_hidden(n, mask) if n.is_condition(3) else mask)
    if n.attr("is_causal", 0):
        rows, columns = (n.make("_contrib_arange_like", scores, axis=axis) for axis in (2, 3))
        rows = n.make("_plus_scalar", n.make("Reshape", rows, shape=(1, 1, -1, 1)), scalar=past)
        columns = n.make("Reshape", columns, shape=(1, 1, 1, -1))
        biases.append(_hidden(n, n.make("broadcast_greater_equal", rows, columns)))
    return biases


def _hidden(n: NodeImport, visible: Symbol) -> Symbol:
    """Return 0 where a mask is 1, and a large negative number where it is 0."""
    return n.make("_mul_scalar", n.make("_rminus_scalar", n.as_number(visible), scalar=1), scalar=_HIDDEN)


def _split_heads(n: NodeImport, x: Symbol, heads: int) -> Symbol:
    """Return (batch, heads, length, size) of (batch, length, heads · size)."""
    return n.make("transpose", n.make("Reshape", x, shape=(0, 0, heads, -1)), axes=(0, 2, 1, 3))


def _join_heads(n: NodeImport, x: Symbol) -> Symbol:
    """Return (batch, length, heads · size) of (batch, heads, length, size)."""
    return n.make("Reshape", n.make("transpose", x, axes=(0, 2, 1, 3)), shape=(0, 0, -3))


def _slice(n: NodeImport, x: Symbol, axis: int, begin: int, end: int) -> Symbol:
    return n.make("slice_axis", x, axis=axis, begin=begin, end=end)


def _times(n: NodeImport, x: Symbol, waves: Symbol) -> Symbol:
    return n.make("broadcast_mul", x, waves)
