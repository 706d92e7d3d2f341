"""The gradients of products of arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowmx.numpy.rules.registry import is_array, refuse, rule
from flowmx.ops.registry.tensors import Functions, Gradients, Tensor

__all__: list[str] = []


@rule("matmul", "linalg.matmul")
def _matmul(xp: Functions, g: Tensor, r: Tensor, x: Tensor, y: Tensor) -> Gradients:
    a = xp.expand_dims(x, 0) if x.ndim == 1 else x
    b = xp.expand_dims(y, 1) if y.ndim == 1 else y
    if x.ndim == 1:
        g = xp.expand_dims(g, -1 if y.ndim == 1 else -2)
    if y.ndim == 1:
        g = xp.expand_dims(g, -1)
    x_gradient, y_gradient = xp.matmul(g, xp.swapaxes(b, -1, -2)), xp.matmul(xp.swapaxes(a, -1, -2), g)
    if x.ndim == 1:
        x_gradient = xp.reshape(xp.sum(x_gradient, axis=tuple(range(x_gradient.ndim - 2))), x.shape)
    if y.ndim == 1:
        y_gradient = xp.reshape(xp.sum(y_gradient, axis=tuple(range(y_gradient.ndim - 2))), y.shape)
    return x_gradient, y_gradient


@rule("dot")
def _dot(xp: Functions, g: Tensor, r: Tensor, x: Tensor, y: Tensor) -> Gradients:
    if not is_array(y):
        return (g * y,)
    if not is_array(x):
        return None, g * x
    if x.ndim == 0 or y.ndim == 0:
        return g * y, g * x
    return _tensordot(xp, g, r, x, y, ((x.ndim - 1,), (max(0, y.ndim - 2),)))


@rule("inner")
def _inner(xp: Functions, g: Tensor, r: Tensor, x: Tensor, y: Tensor) -> Gradients:
    if x.ndim == 0 or y.ndim == 0:
        return g * y, g * x
    return _tensordot(xp, g, r, x, y, ((x.ndim - 1,), (y.ndim - 1,)))


@rule("vdot")
def _vdot(xp: Functions, g: Tensor, r: Tensor, x: Tensor, y: Tensor) -> Gradients:
    return xp.reshape(g * xp.ravel(y), x.shape), xp.reshape(g * xp.ravel(x), y.shape)


@rule("outer", "linalg.outer")
def _outer(xp: Functions, g: Tensor, r: Tensor, x: Tensor, y: Tensor) -> Gradients:
    return (
        xp.reshape(xp.matmul(g, xp.ravel(y)), x.shape),
        xp.reshape(xp.matmul(xp.transpose(g), xp.ravel(x)), y.shape),
    )


@rule("tensordot", "linalg.tensordot")
def _tensordot(xp: Functions, g: Tensor, r: Tensor, x: Tensor, y: Tensor, axes: Any = 2) -> Gradients:
    if isinstance(axes, int):
        left, right = tuple(range(x.ndim - axes, x.ndim)), tuple(range(axes))
    else:
        first, second = axes
        left = tuple(index % x.ndim for index in ((first,) if isinstance(first, int) else first))
        right = tuple(index % y.ndim for index in ((second,) if isinstance(second, int) else second))
    free_x = [index for index in range(x.ndim) if index not in left]
    free_y = [index for index in range(y.ndim) if index not in right]
    count = len(free_x)
    x_gradient = xp.tensordot(g, y, (tuple(range(count, g.ndim)), tuple(free_y)))
    # The axes of x_gradient are the free axes of x, then the summed axes in the order of y.
    places = [*free_x, *(left[right.index(index)] for index in sorted(right))]
    x_gradient = xp.transpose(x_gradient, tuple(places.index(index) for index in range(x.ndim)))
    y_gradient = xp.tensordot(x, g, (tuple(free_x), tuple(range(count))))
    places = [*(right[left.index(index)] for index in sorted(left)), *free_y]
    return x_gradient, xp.transpose(y_gradient, tuple(places.index(index) for index in range(y.ndim)))


@rule("vecdot", "linalg.vecdot")
def _vecdot(xp: Functions, g: Tensor, r: Tensor, x: Tensor, y: Tensor, axis: int = -1) -> Gradients:
    g = xp.expand_dims(g, axis)
    return g * y, g * x


@rule("kron")
def _kron(xp: Functions, g: Tensor, r: Tensor, x: Tensor, y: Tensor) -> Gradients:
    ndim = max(x.ndim, y.ndim)
    a, b = ((1,) * (ndim - array.ndim) + array.shape for array in (x, y))
    pairs = xp.reshape(g, tuple(n for pair in zip(a, b, strict=True) for n in pair))
    odd, even = tuple(range(1, 2 * ndim, 2)), tuple(range(0, 2 * ndim, 2))
    whole_x = xp.reshape(x, tuple(n for length in a for n in (length, 1)))
    whole_y = xp.reshape(y, tuple(n for length in b for n in (1, length)))
    return xp.reshape(xp.sum(pairs * whole_y, axis=odd), x.shape), xp.reshape(
        xp.sum(pairs * whole_x, axis=even), y.shape
    )


@rule("cross", "linalg.cross")
def _cross(xp: Functions, g: Tensor, r: Tensor, x: Tensor, y: Tensor, **axes: object) -> Gradients:
    if axes or x.shape[-1] != 3 or y.shape[-1] != 3:
        refuse("cross of 2-element vectors, or along another axis")
    return xp.cross(y, g), xp.cross(g, x)


@rule("einsum")
def _einsum(xp: Functions, g: Tensor, r: Tensor, subscripts: Any, *operands: Any, **others: object) -> Gradients:
    if not isinstance(subscripts, str):
        refuse("einsum without a subscripts string")
    text = _expand_ellipses(subscripts.replace(" ", ""), [operand.ndim for operand in operands])
    left, arrow, result = text.partition("->")
    names = left.split(",")
    if not arrow:
        result = "".join(sorted(letter for letter in set(left) - {","} if left.count(letter) == 1))
    gradients: list[Any] = []
    for index, name in enumerate(names):
        other_names = [other for position, other in enumerate(names) if position != index]
        rest = [operand for position, operand in enumerate(operands) if position != index]
        sizes = dict(zip(name, operands[index].shape, strict=True))
        summed = "".join(letter for letter in dict.fromkeys(name) if letter not in result + "".join(other_names))
        # The gradient of a repeated letter is a diagonal: compute it for one letter and expand with identity matrices.
        unique = "".join(dict.fromkeys(name))
        terms, arrays = [result, *other_names], [g, *rest]
        if summed:
            terms.append(summed)
            arrays.append(xp.ones(tuple(sizes[letter] for letter in summed), dtype=g.dtype))
        output, free = "", [letter for letter in _LETTERS if letter not in left + result]
        for position, letter in enumerate(name):
            if letter in name[:position]:
                other = free.pop()
                terms.append(letter + other)
                arrays.append(xp.eye(sizes[letter], dtype=g.dtype))
                output += other
            else:
                output += letter
        gradients.append(xp.einsum(f"{','.join(terms)}->{output if output != unique else name}", *arrays))
    return None, *gradients


def _expand_ellipses(text: str, ndims: Sequence[int]) -> str:
    """Replace the ellipses in einsum subscripts with letters; axes that are broadcast together get the same letter."""
    if "." not in text:
        return text
    left, arrow, result = text.partition("->")
    names = left.split(",")
    counts = [ndim - len(name.replace(".", "")) if "." in name else 0 for name, ndim in zip(names, ndims, strict=True)]
    letters = [letter for letter in _LETTERS if letter not in text][: max(counts)]
    terms = [name.replace("...", "".join(letters[len(letters) - n :])) for name, n in zip(names, counts, strict=True)]
    if not arrow:
        unique = sorted(letter for letter in set(left) - {",", "."} if left.count(letter) == 1)
        result = "..." + "".join(unique)
    return f"{','.join(terms)}->{result.replace('...', ''.join(letters))}"


_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


@rule("matvec")
def _matvec(xp: Functions, g: Tensor, r: Tensor, x: Tensor, y: Tensor) -> Gradients:
    return xp.expand_dims(g, -1) * xp.expand_dims(y, -2), xp.sum(x * xp.expand_dims(g, -1), axis=-2)


@rule("vecmat")
def _vecmat(xp: Functions, g: Tensor, r: Tensor, x: Tensor, y: Tensor) -> Gradients:
    return xp.sum(y * xp.expand_dims(g, -2), axis=-1), xp.expand_dims(x, -1) * xp.expand_dims(g, -2)
