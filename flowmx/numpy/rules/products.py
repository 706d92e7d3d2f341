"""The gradients of products of arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowmx.numpy.rules.registry import (
    is_array,
    refuse,
    rule,
)

__all__: list[str] = []


@rule("matmul", "linalg.matmul")
def _matmul(np: Any, g: Any, r: Any, x: Any, y: Any) -> Any:
    a = np.expand_dims(x, 0) if x.ndim == 1 else x
    b = np.expand_dims(y, 1) if y.ndim == 1 else y
    if x.ndim == 1:
        g = np.expand_dims(g, -1 if y.ndim == 1 else -2)
    if y.ndim == 1:
        g = np.expand_dims(g, -1)
    of_x, of_y = np.matmul(g, np.swapaxes(b, -1, -2)), np.matmul(np.swapaxes(a, -1, -2), g)
    if x.ndim == 1:
        of_x = np.reshape(np.sum(of_x, axis=tuple(range(of_x.ndim - 2))), x.shape)
    if y.ndim == 1:
        of_y = np.reshape(np.sum(of_y, axis=tuple(range(of_y.ndim - 2))), y.shape)
    return of_x, of_y


@rule("dot")
def _dot(np: Any, g: Any, r: Any, x: Any, y: Any) -> Any:
    if not is_array(y):
        return (g * y,)
    if not is_array(x):
        return None, g * x
    if x.ndim == 0 or y.ndim == 0:
        return g * y, g * x
    return _tensordot(np, g, r, x, y, ((x.ndim - 1,), (max(0, y.ndim - 2),)))


@rule("inner")
def _inner(np: Any, g: Any, r: Any, x: Any, y: Any) -> Any:
    if x.ndim == 0 or y.ndim == 0:
        return g * y, g * x
    return _tensordot(np, g, r, x, y, ((x.ndim - 1,), (y.ndim - 1,)))


@rule("vdot")
def _vdot(np: Any, g: Any, r: Any, x: Any, y: Any) -> Any:
    return np.reshape(g * np.ravel(y), x.shape), np.reshape(g * np.ravel(x), y.shape)


@rule("outer", "linalg.outer")
def _outer(np: Any, g: Any, r: Any, x: Any, y: Any) -> Any:
    return (
        np.reshape(np.matmul(g, np.ravel(y)), x.shape),
        np.reshape(np.matmul(np.transpose(g), np.ravel(x)), y.shape),
    )


@rule("tensordot", "linalg.tensordot")
def _tensordot(np: Any, g: Any, r: Any, x: Any, y: Any, axes: Any = 2) -> Any:
    if isinstance(axes, int):
        left, right = tuple(range(x.ndim - axes, x.ndim)), tuple(range(axes))
    else:
        first, second = axes
        left = tuple(at % x.ndim for at in ((first,) if isinstance(first, int) else first))
        right = tuple(at % y.ndim for at in ((second,) if isinstance(second, int) else second))
    free_x = [at for at in range(x.ndim) if at not in left]
    free_y = [at for at in range(y.ndim) if at not in right]
    count = len(free_x)
    of_x = np.tensordot(g, y, (tuple(range(count, g.ndim)), tuple(free_y)))
    # Its axes are the free ones of x, then those that were summed, in the order of y's.
    places = [*free_x, *(left[right.index(at)] for at in sorted(right))]
    of_x = np.transpose(of_x, tuple(places.index(at) for at in range(x.ndim)))
    of_y = np.tensordot(x, g, (tuple(free_x), tuple(range(count))))
    places = [*(right[left.index(at)] for at in sorted(left)), *free_y]
    return of_x, np.transpose(of_y, tuple(places.index(at) for at in range(y.ndim)))


@rule("vecdot", "linalg.vecdot")
def _vecdot(np: Any, g: Any, r: Any, x: Any, y: Any, axis: int = -1) -> Any:
    g = np.expand_dims(g, axis)
    return g * y, g * x


@rule("kron")
def _kron(np: Any, g: Any, r: Any, x: Any, y: Any) -> Any:
    ndim = max(x.ndim, y.ndim)
    a, b = ((1,) * (ndim - each.ndim) + each.shape for each in (x, y))
    pairs = np.reshape(g, tuple(n for pair in zip(a, b, strict=True) for n in pair))
    odd, even = tuple(range(1, 2 * ndim, 2)), tuple(range(0, 2 * ndim, 2))
    whole_x = np.reshape(x, tuple(n for one in a for n in (one, 1)))
    whole_y = np.reshape(y, tuple(n for one in b for n in (1, one)))
    return np.reshape(np.sum(pairs * whole_y, axis=odd), x.shape), np.reshape(
        np.sum(pairs * whole_x, axis=even), y.shape
    )


@rule("cross", "linalg.cross")
def _cross(np: Any, g: Any, r: Any, x: Any, y: Any, **axes: Any) -> Any:
    if axes or x.shape[-1] != 3 or y.shape[-1] != 3:
        refuse("cross of vectors of two numbers, or along another axis")
    return np.cross(y, g), np.cross(g, x)


@rule("einsum")
def _einsum(np: Any, g: Any, r: Any, subscripts: Any, *operands: Any, **others: Any) -> Any:
    if not isinstance(subscripts, str):
        refuse("einsum without subscripts as text")
    text = _without_ellipses(subscripts.replace(" ", ""), [each.ndim for each in operands])
    left, arrow, result = text.partition("->")
    names = left.split(",")
    if not arrow:
        result = "".join(sorted(one for one in set(left) - {","} if left.count(one) == 1))
    found: list[Any] = []
    for index, name in enumerate(names):
        others_names = [one for at, one in enumerate(names) if at != index]
        rest = [one for at, one in enumerate(operands) if at != index]
        sizes = dict(zip(name, operands[index].shape, strict=True))
        lost = "".join(one for one in dict.fromkeys(name) if one not in result + "".join(others_names))
        # Of a letter twice the gradient is a diagonal: it is computed for one, and spread by unit matrices.
        once = "".join(dict.fromkeys(name))
        terms, arrays = [result, *others_names], [g, *rest]
        if lost:
            terms.append(lost)
            arrays.append(np.ones(tuple(sizes[one] for one in lost), dtype=g.dtype))
        spread, free = "", [one for one in _LETTERS if one not in left + result]
        for at, one in enumerate(name):
            if one in name[:at]:
                other = free.pop()
                terms.append(one + other)
                arrays.append(np.eye(sizes[one], dtype=g.dtype))
                spread += other
            else:
                spread += one
        made = np.einsum(f"{','.join(terms)}->{spread if spread != once else name}", *arrays)
        found.append(made)
    return None, *found


def _without_ellipses(text: str, ndims: Sequence[int]) -> str:
    """The subscripts of an einsum with letters in place of dots, the same for axes that are broadcast together."""
    if "." not in text:
        return text
    left, arrow, result = text.partition("->")
    names = left.split(",")
    counts = [ndim - len(name.replace(".", "")) if "." in name else 0 for name, ndim in zip(names, ndims, strict=True)]
    letters = [one for one in _LETTERS if one not in text][: max(counts)]
    spelled = [name.replace("...", "".join(letters[len(letters) - n :])) for name, n in zip(names, counts, strict=True)]
    if not arrow:
        once = sorted(one for one in set(left) - {",", "."} if left.count(one) == 1)
        result = "..." + "".join(once)
    return f"{','.join(spelled)}->{result.replace('...', ''.join(letters))}"


_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
