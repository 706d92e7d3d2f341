"""Assertions about arrays: exact and approximate equality, with the largest differences."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from flowmx.ndarray.array import NDArray
from flowmx.symbol.symbol import Symbol
from flowmx.test_utils.tolerance import Numbers, Tolerance, get_etol, get_tols, on_host

__all__ = [
    "almost_equal", "assert_allclose", "assert_almost_equal", "assert_almost_equal_ignore_nan",
    "assert_almost_equal_with_err", "checkShapes", "compare_ndarray_tuple", "locationError", "same", "same_array",
    "same_symbol_structure",
]  # fmt: skip


def same(a: object, b: object) -> bool:
    """Return whether two arrays have the same shape and exactly the same elements."""
    return bool(np.array_equal(on_host(a), on_host(b)))


def almost_equal(
    a: object, b: object, rtol: Tolerance = None, atol: Tolerance = None, equal_nan: bool = False,
    use_broadcast: bool = False,
) -> bool:  # fmt: skip
    """Return whether two arrays are equal within ``rtol·|b| + atol`` everywhere.

    Args:
        a: an array, a list or a number.
        b: an array, a list or a number.
        rtol: relative tolerance: a number or a dict by dtype (default: that of the dtype).
        atol: absolute tolerance: a number or a dict by dtype (default: that of the dtype).
        equal_nan: whether NaNs at the same place are equal.
        use_broadcast: whether to broadcast different shapes.
    """
    one, other = on_host(a), on_host(b)
    if one.shape != other.shape and not (use_broadcast and _can_broadcast(one, other)):
        return False
    return bool(np.allclose(one, other, *get_tols(one, other, rtol, atol), equal_nan))


def assert_almost_equal(
    a: object, b: object, rtol: Tolerance = None, atol: Tolerance = None, names: tuple[str, str] = ("a", "b"),
    equal_nan: bool = False, use_broadcast: bool = True, mismatches: tuple[int, int] = (10, 10),
) -> None:  # fmt: skip
    """Check that two arrays are equal within ``rtol·|b| + atol`` everywhere.

    Args:
        a: an array, a list or a number.
        b: an array, a list or a number.
        rtol: relative tolerance: a number or a dict by dtype (default: that of the dtype).
        atol: absolute tolerance: a number or a dict by dtype (default: that of the dtype).
        names: their names in the message.
        equal_nan: whether NaNs at the same place are equal.
        use_broadcast: whether to broadcast different shapes.
        mismatches: number of differences in the message; the second number is ignored.

    Raises:
        AssertionError: the arrays differ; the message has the largest differences.
    """
    one, other = on_host(a), on_host(b)
    rtol, atol = get_tols(one, other, rtol, atol)
    if one.shape != other.shape:
        if not (use_broadcast and _can_broadcast(one, other)):
            raise AssertionError(f"{names[0]} has shape {one.shape}, {names[1]} has {other.shape}")
        one, other = np.broadcast_arrays(one, other)
    if not np.allclose(one, other, rtol, atol, equal_nan):
        raise AssertionError(_difference(one, other, rtol, atol, names, equal_nan, mismatches[0]))


def _difference(
    one: Numbers, other: Numbers, rtol: float, atol: float, names: tuple[str, str], equal_nan: bool, limit: int
) -> str:
    """Return the message about two different arrays: the number of wrong elements, and the worst of them."""
    excess = _excess(one, other, rtol, atol, equal_nan)
    wrong = int((excess > 1).sum())
    order = np.argsort(excess, axis=None)[::-1][: max(min(limit, wrong), 1)]
    places = [np.unravel_index(at, one.shape) for at in order]
    worst = places[0]
    rows = [f"\n  {locationError(one, other, tuple(map(int, at)), names)}" for at in places]
    return (
        f"{names[0]} and {names[1]} differ in {wrong} of {one.size} elements; the largest difference is at "
        f"{tuple(map(int, worst))}: {one[worst]} and {other[worst]} (rtol {rtol}, atol {atol})" + "".join(rows)
    )


def _excess(one: Numbers, other: Numbers, rtol: float, atol: float, equal_nan: bool) -> Numbers:
    """Return the errors of elements relative to the tolerance (above 1 is wrong); infinity if the difference is NaN."""
    first, second = one.astype(np.float64), other.astype(np.float64)
    with np.errstate(all="ignore"):
        excess = np.abs(first - second) / (atol + rtol * np.abs(second) + 1e-300)
    equal = (first == second) | (equal_nan & np.isnan(first) & np.isnan(second))
    return np.where(equal, 0.0, np.where(np.isnan(excess), np.inf, excess))


def _can_broadcast(one: Numbers, other: Numbers) -> bool:
    try:
        np.broadcast_shapes(one.shape, other.shape)
    except ValueError:
        return False
    return True


def assert_allclose(
    a: object, b: object, rtol: Tolerance = 1e-07, atol: Tolerance = 0, equal_nan: bool = True,
    names: tuple[str, str] = ("a", "b"),
) -> None:  # fmt: skip
    """Check as ``np.testing.assert_allclose`` does, also for flowmx's arrays.

    Raises:
        AssertionError: the arrays differ.
    """
    assert_almost_equal(a, b, rtol, atol, names, equal_nan)


def assert_almost_equal_ignore_nan(
    a: object, b: object, rtol: Tolerance = None, atol: Tolerance = None, names: tuple[str, str] = ("a", "b")
) -> None:
    """Check as :func:`assert_almost_equal`, except where one of the arrays is NaN.

    Raises:
        AssertionError: the arrays differ elsewhere.
    """
    one, other = np.array(on_host(a)), np.array(on_host(b))
    ignored = np.isnan(one) | np.isnan(other)
    one[ignored] = other[ignored] = 0
    assert_almost_equal(one, other, rtol, atol, names)


def assert_almost_equal_with_err(
    a: object, b: object, rtol: Tolerance = None, atol: Tolerance = None, etol: float | None = None,
    names: tuple[str, str] = ("a", "b"), equal_nan: bool = False, mismatches: tuple[int, int] = (10, 10),
) -> None:  # fmt: skip
    """Check as :func:`assert_almost_equal`, but allow a fraction ``etol`` of wrong elements.

    Raises:
        AssertionError: more elements are wrong.
    """
    one, other = on_host(a), on_host(b)
    relative, absolute = get_tols(one, other, rtol, atol)
    if one.shape != other.shape or not get_etol(etol):
        assert_almost_equal(one, other, relative, absolute, names, equal_nan, mismatches=mismatches)
        return
    share = float((_excess(one, other, relative, absolute, equal_nan) > 1).mean())
    if share > get_etol(etol):
        text = _difference(one, other, relative, absolute, names, equal_nan, mismatches[0])
        raise AssertionError(f"{share:.2%} of the elements are wrong, expected at most {get_etol(etol):.2%}: {text}")


def checkShapes(a: Any, b: Any) -> None:  # noqa: N802  (MXNet's name)
    """Check that two arrays have the same shape.

    Raises:
        AssertionError: the shapes differ.
    """
    if a.shape != b.shape:
        raise AssertionError(f"a.shape = {a.shape} and b.shape = {b.shape} are not equal")


def locationError(  # noqa: N802  (MXNet's name)
    a: Numbers,
    b: Numbers,
    index: tuple[int, ...],
    names: tuple[str, str],
    maxError: bool = False,
) -> str:
    """Describe the elements of two arrays at one place."""
    return (
        f"Location of {'maximum ' if maxError else ''}error: {index}, {names[0]}={a[index]:.8f}, "
        f"{names[1]}={b[index]:.8f}"
    )


def compare_ndarray_tuple(t1: Any, t2: Any, rtol: Tolerance = None, atol: Tolerance = None) -> None:
    """Compare nested tuples of arrays; None matches everything.

    Raises:
        AssertionError: two arrays differ.
    """
    if t1 is None or t2 is None:
        return
    if isinstance(t1, tuple | list):
        for one, other in zip(t1, t2, strict=True):
            compare_ndarray_tuple(one, other, rtol, atol)
    else:
        assert_almost_equal(t1, t2, rtol, atol)


def same_array(array1: NDArray, array2: NDArray) -> bool:
    """Return whether two arrays share memory, by writing to one and reading the other."""
    before = array1.asnumpy()
    array1[:] = before + 1
    shared = same(array1, array2)
    array1[:] = before
    return shared and same(array1, array2)


def same_symbol_structure(sym1: Symbol, sym2: Symbol) -> bool:
    """Return whether two symbols have the same operators in the same order."""
    one, other = ([node["op"] for node in json.loads(sym.tojson())["nodes"]] for sym in (sym1, sym2))
    return one == other
