"""Matrix products, and the attention that is made of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from flowmx.contrib.onnx.converters import Unsupported, exports, imports
from flowmx.contrib.onnx.lengths import Lengths
from flowmx.contrib.onnx.node_export import NodeExport
from flowmx.contrib.onnx.node_import import NodeImport
from flowmx.symbol import Symbol


def _turned(n: NodeExport, at: int, transpose: bool) -> str:
    """An input with its last two axes swapped, if asked for."""
    return _swapped(n, n.inputs[at], -1, n.rank(at)) if transpose else n.inputs[at]


def _swapped(n: NodeExport, value: str, axis: int, rank: int) -> str:
    """A value with an axis and the last but one swapped."""
    order = list(range(rank))
    order[axis], order[-2] = order[-2], order[axis]
    return n.transpose(value, order)


@exports("batch_dot")
def _batch_dot(n: NodeExport) -> str:
    return n.add("MatMul", _turned(n, 0, n.op.transpose_a), _turned(n, 1, n.op.transpose_b))


@exports("_linalg_gemm2", "_linalg_gemm")
def _gemm(n: NodeExport) -> str:
    op = n.op
    rank, rows = n.rank(), op.axis % n.rank()
    sides = []
    for at, transpose in enumerate((op.transpose_a, op.transpose_b)):
        side = _swapped(n, n.inputs[at], rows, rank)
        sides.append(_swapped(n, side, -1, rank) if transpose else side)
    product = n.add("MatMul", *sides)
    product = _swapped(n, product if op.alpha == 1 else n.add("Mul", product, n.number(op.alpha)), rows, rank)
    if op.name == "_linalg_gemm2":
        return product
    return n.add("Add", product, n.inputs[2] if op.beta == 1 else n.add("Mul", n.inputs[2], n.number(op.beta)))


@exports("_linalg_syrk")
def _syrk(n: NodeExport) -> str:
    other = _turned(n, 0, True)
    pair = (other, n.inputs[0]) if n.op.transpose else (n.inputs[0], other)
    product = n.add("MatMul", *pair)
    return product if n.op.alpha == 1 else n.add("Mul", product, n.number(n.op.alpha))


@exports("_linalg_det")
def _det(n: NodeExport) -> str:
    made = n.add("Det", n.inputs[0])
    return n.add("Reshape", made, [1]) if n.rank() == 2 else made


@exports("dot")
def _dot(n: NodeExport) -> str:
    """Sums over the last axis of one and the first of the other; transposed, over the first and the last."""
    (left, right), ranks = n.inputs, (n.rank(0), n.rank(1))
    if n.op.transpose_a:
        left = n.transpose(left, [*range(1, ranks[0]), 0])
    if n.op.transpose_b:
        right = n.transpose(right, [ranks[1] - 1, *range(ranks[1] - 1)])
    if ranks == (1, 1):
        return n.add("Reshape", n.add("MatMul", left, right), [1])
    if ranks[1] <= 2:
        return n.add("MatMul", left, right)
    inner = n.fixed(n.dims(1)[-1 if n.op.transpose_b else 0], "the length that is summed over")
    flat = n.add("MatMul", left, n.add("Reshape", right, [inner, -1]))
    return n.reshape(flat, (), n.out_dims())


@imports("MatMul")
def _matmul(n: NodeImport) -> Symbol:
    ranks = n.rank(0), n.rank(1)
    if ranks[1] == 2 and n.is_known(1) and ranks[0] > 1:
        weight = n.array(1)
        return n.make("FullyConnected", n.symbol(0), n.turned(1, "weight"),
                      num_hidden=weight.shape[1], no_bias=True, flatten=False)  # fmt: skip
    return product(n, n.symbol(0), n.symbol(1))


def product(n: NodeImport, left: Symbol, right: Symbol) -> Symbol:
    """The product of matrices, in batches where there are more axes."""
    ranks = n.rank(left), n.rank(right)
    if max(ranks) <= 2 or (ranks[1] <= 2 and ranks[0] >= 1):
        return n.make("dot", left, right)
    heads = n.dims(left)[:-2], n.dims(right)[:-2]
    if ranks == (3, 3) and heads[0] == heads[1]:
        return n.make("batch_dot", left, right)
    if len(heads[0]) < len(heads[1]):
        if heads[0]:
            raise Unsupported(f"it multiplies matrices of {heads[0]} and {heads[1]}, expected as many axes")
        # (A·B)ᵀ = Bᵀ·Aᵀ, where A is one matrix
        swapped = n.make("SwapAxis", right, dim1=ranks[1] - 2, dim2=ranks[1] - 1)
        made = n.make("dot", swapped, left, transpose_b=True)
        return n.make("SwapAxis", made, dim1=ranks[1] - 2, dim2=ranks[1] - 1)
    if heads[0] != heads[1]:
        raise Unsupported(f"it multiplies matrices of {heads[0]} and {heads[1]}, expected the same")
    return n.make("_linalg_gemm2", left, right)


@imports("Einsum")
def _einsum(n: NodeImport) -> Symbol:
    """Sums over one or two arrays: each with its axes in order (kept by both, own, summed over), then a product."""
    terms, _, wanted = n.attr("equation").replace(" ", "").partition("->")
    letters = terms.split(",")
    if not 1 <= len(letters) <= 2 or "." in terms or any(len(set(each)) < len(each) for each in letters):
        raise Unsupported(f"its equation is {n.attr('equation')!r}, expected one or two terms of different letters")
    if "->" not in n.attr("equation"):
        wanted = "".join(sorted(each for each in set(terms) - {","} if terms.count(each) == 1))
    symbols = n.symbols()
    for at, each in enumerate(letters):  # what only one has, and the result has not
        alone = [
            axis for axis, letter in enumerate(each) if letter not in wanted + "".join(letters[:at] + letters[at + 1 :])
        ]
        if alone:
            symbols[at] = n.make("sum", symbols[at], axis=tuple(alone))
            letters[at] = "".join(letter for axis, letter in enumerate(each) if axis not in alone)
    if len(letters) == 1:
        order = tuple(letters[0].index(each) for each in wanted)
        return n.make("transpose", symbols[0], axes=order) if len(order) > 1 else symbols[0]
    left, right = letters
    both = [each for each in wanted if each in left and each in right]
    summed = [each for each in left if each in right and each not in both]
    own = [[each for each in side if each not in both and each not in summed] for side in letters]
    lengths = {each: length for side, symbol in zip(letters, symbols, strict=True)
               for each, length in zip(side, n.dims(symbol), strict=True)}  # fmt: skip
    sides = []
    for side, symbol, placed in (
        (left, symbols[0], both + own[0] + summed),
        (right, symbols[1], both + summed + own[1]),
    ):
        axes = tuple(side.index(each) for each in placed)
        sides.append(n.make("transpose", symbol, axes=axes) if len(axes) > 1 else symbol)

    def merged(symbol: Symbol, *groups: Sequence[str]) -> Symbol:
        sizes = [math.prod(n.fixed(lengths[each], "a length of its inputs") for each in group) for group in groups]
        return n.make("Reshape", symbol, shape=tuple(sizes))

    made = n.make("batch_dot", merged(sides[0], both, own[0], summed), merged(sides[1], both, summed, own[1]))
    have = both + own[0] + own[1]
    if have:
        made = n.make("Reshape", made, shape=tuple(n.fixed(lengths[each], "a length of its inputs") for each in have))
    else:
        return n.make("Reshape", made, shape=(1,))
    order = tuple(have.index(each) for each in wanted)
    return n.make("transpose", made, axes=order) if len(order) > 1 else made


@imports("Det")
def _import_det(n: NodeImport) -> Symbol:
    return n.make("_linalg_det", n.symbol(0))


# -- attention ---------------------------------------------------------------------------------------------


@exports("_contrib_div_sqrt_dim")
def _div_sqrt_dim(n: NodeExport) -> str:
    length = n.dims()[-1]
    if isinstance(length, int):
        return n.add("Div", n.inputs[0], n.number(math.sqrt(length)))
    return n.add("Div", n.inputs[0], n.add("Sqrt", n.cast(n.shape((length,)), n.dtype())))


def _heads(n: NodeExport, at: int, parts: int, which: int) -> tuple[str, int]:
    """One of the interleaved arrays (length, batch, heads·parts·size) as (batch, heads, length, size), and the size."""
    heads = n.op.heads
    size = n.fixed(n.dims(at)[2], "the length of the last axis") // (heads * parts)
    split = n.add("Reshape", n.inputs[at], [0, 0, heads, parts * size])
    one = n.slice(split, 3, which * size, (which + 1) * size) if parts > 1 else split
    return n.transpose(one, [1, 2, 0, 3]), size


def _scores(n: NodeExport, queries: tuple[str, int], keys: tuple[str, int]) -> str:
    scaled = n.add("Div", queries[0], n.number(math.sqrt(queries[1])))
    made = n.add("MatMul", scaled, n.transpose(keys[0], [0, 1, 3, 2]))
    return _merged(n, made, n.out_dims())


def _merged(n: NodeExport, value: str, dims: Lengths) -> str:
    """(batch, heads, a, b) as (batch·heads, a, b)."""
    _, first, second = dims
    if isinstance(first, int) and isinstance(second, int):
        return n.add("Reshape", value, [-1, first, second])
    return n.add("Reshape", value, n.shape(dims))


def _sums(n: NodeExport, values: tuple[str, int]) -> str:
    """The values, weighted: (query length, batch, heads·size)."""
    heads, (_, batch, width) = n.op.heads, n.out_dims()
    rows, columns = n.dims(1)[1:]
    attention = n.reshape(n.inputs[1], (), (batch, heads, rows, columns))
    made = n.transpose(n.add("MatMul", attention, values[0]), [2, 0, 1, 3])
    return n.add("Reshape", made, [0, 0, n.fixed(width, "the length of the last axis")])


@exports("_contrib_interleaved_matmul_selfatt_qk")
def _self_scores(n: NodeExport) -> str:
    return _scores(n, _heads(n, 0, 3, 0), _heads(n, 0, 3, 1))


@exports("_contrib_interleaved_matmul_selfatt_valatt")
def _self_sums(n: NodeExport) -> str:
    return _sums(n, _heads(n, 0, 3, 2))


@exports("_contrib_interleaved_matmul_encdec_qk")
def _encoder_scores(n: NodeExport) -> str:
    return _scores(n, _heads(n, 0, 1, 0), _heads(n, 1, 2, 0))


@exports("_contrib_interleaved_matmul_encdec_valatt")
def _encoder_sums(n: NodeExport) -> str:
    return _sums(n, _heads(n, 0, 2, 1))
