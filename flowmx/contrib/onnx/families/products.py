"""Matrix products and attention."""

from __future__ import annotations

import math
from collections.abc import Sequence

from flowmx.contrib.onnx.converters import Unsupported, exports, imports
from flowmx.contrib.onnx.dynamic_lengths import Lengths
from flowmx.contrib.onnx.node_export import NodeExport
from flowmx.contrib.onnx.node_import import NodeImport
from flowmx.symbol import Symbol


def _maybe_transpose(n: NodeExport, index: int, transpose: bool) -> str:
    """Return an input, with its last two axes swapped if requested."""
    return _swap(n, n.inputs[index], -1, n.rank(index)) if transpose else n.inputs[index]


def _swap(n: NodeExport, value: str, axis: int, rank: int) -> str:
    """Swap an axis and the second to last axis of a value."""
    order = list(range(rank))
    order[axis], order[-2] = order[-2], order[axis]
    return n.transpose(value, order)


@exports("batch_dot")
def _batch_dot(n: NodeExport) -> str:
    return n.add("MatMul", _maybe_transpose(n, 0, n.op.transpose_a), _maybe_transpose(n, 1, n.op.transpose_b))


@exports("_linalg_gemm2", "_linalg_gemm")
def _gemm(n: NodeExport) -> str:
    op = n.op
    rank, rows = n.rank(), op.axis % n.rank()
    sides = []
    for index, transpose in enumerate((op.transpose_a, op.transpose_b)):
        side = _swap(n, n.inputs[index], rows, rank)
        sides.append(_swap(n, side, -1, rank) if transpose else side)
    product = n.add("MatMul", *sides)
    product = _swap(n, product if op.alpha == 1 else n.add("Mul", product, n.number(op.alpha)), rows, rank)
    if op.name == "_linalg_gemm2":
        return product
    return n.add("Add", product, n.inputs[2] if op.beta == 1 else n.add("Mul", n.inputs[2], n.number(op.beta)))


@exports("_linalg_syrk")
def _syrk(n: NodeExport) -> str:
    other = _maybe_transpose(n, 0, True)
    pair = (other, n.inputs[0]) if n.op.transpose else (n.inputs[0], other)
    product = n.add("MatMul", *pair)
    return product if n.op.alpha == 1 else n.add("Mul", product, n.number(n.op.alpha))


@exports("_linalg_det")
def _det(n: NodeExport) -> str:
    result = n.add("Det", n.inputs[0])
    return n.add("Reshape", result, [1]) if n.rank() == 2 else result


@exports("dot")
def _dot(n: NodeExport) -> str:
    """Sum over the last axis of one input and the first of the other; if transposed, over the first and the last."""
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
        return n.make("FullyConnected", n.symbol(0), n.transposed(1, "weight"),
                      num_hidden=weight.shape[1], no_bias=True, flatten=False)  # fmt: skip
    return product(n, n.symbol(0), n.symbol(1))


def product(n: NodeImport, left: Symbol, right: Symbol) -> Symbol:
    """Create a product of matrices, batched if there are more axes."""
    ranks = n.rank(left), n.rank(right)
    if max(ranks) <= 2 or (ranks[1] <= 2 and ranks[0] >= 1):
        return n.make("dot", left, right)
    heads = n.dims(left)[:-2], n.dims(right)[:-2]
    if min(ranks) > 2 and heads[0] != heads[1]:
        left, right = _broadcast_batch_axes(n, left, right, heads)
        ranks, heads = (n.rank(left), n.rank(right)), (n.dims(left)[:-2], n.dims(right)[:-2])
    if ranks == (3, 3) and heads[0] == heads[1]:
        return n.make("batch_dot", left, right)
    if len(heads[0]) < len(heads[1]):
        if heads[0]:
            raise Unsupported(f"it multiplies matrices of {heads[0]} and {heads[1]}, expected the same number of axes")
        # (A·B)ᵀ = Bᵀ·Aᵀ, where A is a single matrix
        transposed = n.make("SwapAxis", right, dim1=ranks[1] - 2, dim2=ranks[1] - 1)
        result = n.make("dot", transposed, left, transpose_b=True)
        return n.make("SwapAxis", result, dim1=ranks[1] - 2, dim2=ranks[1] - 1)
    if heads[0] != heads[1]:
        raise Unsupported(f"it multiplies matrices of {heads[0]} and {heads[1]}, expected the same")
    return n.make("_linalg_gemm2", left, right)


def _broadcast_batch_axes(
    n: NodeImport, left: Symbol, right: Symbol, heads: tuple[Lengths, Lengths]
) -> tuple[Symbol, Symbol]:
    """Broadcast the batch axes of two factors, whose lengths are ``heads``."""
    rank = max(map(len, heads))
    padded = [(1,) * (rank - len(lengths)) + lengths for lengths in heads]
    symbols = []
    for symbol, own, other in zip((left, right), padded, reversed(padded), strict=True):
        for _ in range(rank + 2 - n.rank(symbol)):
            symbol = n.make("expand_dims", symbol, axis=0)
        size = [
            n.fixed(length, "a batch axis that is broadcast") if count == 1 != length else 0
            for count, length in zip(own, other, strict=True)
        ]
        symbols.append(n.make("broadcast_to", symbol, shape=(*size, 0, 0)) if any(size) else symbol)
    return symbols[0], symbols[1]


@imports("Einsum")
def _einsum(n: NodeImport) -> Symbol:
    """Convert sums over one or two arrays: order their axes (shared, own, summed) and multiply them as matrices."""
    equation, arrow, output = n.attr("equation").replace(" ", "").partition("->")
    terms = equation.split(",")
    if not 1 <= len(terms) <= 2 or "." in equation or any(len(set(term)) < len(term) for term in terms):
        raise Unsupported(f"its equation is {n.attr('equation')!r}, expected one or two terms of different letters")
    if not arrow:
        output = "".join(sorted(letter for letter in set(equation) - {","} if equation.count(letter) == 1))
    symbols = n.symbols()
    for index, term in enumerate(terms):  # sum over letters of a single term that are not in the output
        others = output + "".join(terms[:index] + terms[index + 1 :])
        own_axes = [axis for axis, letter in enumerate(term) if letter not in others]
        if own_axes:
            symbols[index] = n.make("sum", symbols[index], axis=tuple(own_axes))
            terms[index] = "".join(letter for axis, letter in enumerate(term) if axis not in own_axes)
    if len(terms) == 1:
        order = tuple(terms[0].index(letter) for letter in output)
        return n.make("transpose", symbols[0], axes=order) if len(order) > 1 else symbols[0]
    left, right = terms
    shared = [letter for letter in output if letter in left and letter in right]
    summed = [letter for letter in left if letter in right and letter not in shared]
    own = [[letter for letter in term if letter not in shared and letter not in summed] for term in terms]
    lengths = {letter: length for term, symbol in zip(terms, symbols, strict=True)
               for letter, length in zip(term, n.dims(symbol), strict=True)}  # fmt: skip
    sides = []
    for term, symbol, letters in (
        (left, symbols[0], shared + own[0] + summed),
        (right, symbols[1], shared + summed + own[1]),
    ):
        axes = tuple(term.index(letter) for letter in letters)
        sides.append(n.make("transpose", symbol, axes=axes) if len(axes) > 1 else symbol)

    def size(letter: str) -> int:
        return n.fixed(lengths[letter], "a length of its inputs")

    def merge(symbol: Symbol, *groups: Sequence[str]) -> Symbol:
        return n.make("Reshape", symbol, shape=tuple(math.prod(map(size, group)) for group in groups))

    result = n.make("batch_dot", merge(sides[0], shared, own[0], summed), merge(sides[1], shared, summed, own[1]))
    remaining = shared + own[0] + own[1]
    if not remaining:
        return n.make("Reshape", result, shape=(1,))
    result = n.make("Reshape", result, shape=tuple(map(size, remaining)))
    order = tuple(remaining.index(letter) for letter in output)
    return n.make("transpose", result, axes=order) if len(order) > 1 else result


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


def _heads(n: NodeExport, index: int, parts: int, part_index: int) -> tuple[str, int]:
    """Split an interleaved (length, batch, heads·parts·size) to (batch, heads, length, size); also return the size."""
    heads = n.op.heads
    size = n.fixed(n.dims(index)[2], "the length of the last axis") // (heads * parts)
    split = n.add("Reshape", n.inputs[index], [0, 0, heads, parts * size])
    part = n.slice(split, 3, part_index * size, (part_index + 1) * size) if parts > 1 else split
    return n.transpose(part, [1, 2, 0, 3]), size


def _scores(n: NodeExport, queries: tuple[str, int], keys: tuple[str, int]) -> str:
    scaled = n.add("Div", queries[0], n.number(math.sqrt(queries[1])))
    result = n.add("MatMul", scaled, n.transpose(keys[0], [0, 1, 3, 2]))
    return _merge_heads(n, result, n.out_dims())


def _merge_heads(n: NodeExport, value: str, dims: Lengths) -> str:
    """Reshape (batch, heads, a, b) to (batch·heads, a, b)."""
    _, first, second = dims
    if isinstance(first, int) and isinstance(second, int):
        return n.add("Reshape", value, [-1, first, second])
    return n.add("Reshape", value, n.shape(dims))


def _sums(n: NodeExport, values: tuple[str, int]) -> str:
    """Compute the weighted sums of values: (query length, batch, heads·size)."""
    heads, (_, batch, width) = n.op.heads, n.out_dims()
    rows, columns = n.dims(1)[1:]
    attention = n.reshape(n.inputs[1], (), (batch, heads, rows, columns))
    result = n.transpose(n.add("MatMul", attention, values[0]), [2, 0, 1, 3])
    return n.add("Reshape", result, [0, 0, n.fixed(width, "the length of the last axis")])


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
