"""Checking what a symbol computes: forward, backward, and on several devices or in several dtypes."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flowmx import engine
from flowmx.devices import Context, current_context
from flowmx.executor import Executor
from flowmx.ndarray.array import NDArray, array
from flowmx.symbol.symbol import Symbol
from flowmx.test_utils.comparing import assert_almost_equal
from flowmx.test_utils.tolerance import Numbers, Tolerance, get_tols, on_host

__all__ = [
    "check_consistency", "check_speed", "check_symbolic_backward", "check_symbolic_forward", "simple_forward",
]  # fmt: skip

log = logging.getLogger("flowmx.test_utils")

Values = Sequence[Any] | Mapping[str, Any]


def simple_forward(sym: Symbol, ctx: Context | None = None, is_train: bool = False, **inputs: Any) -> Any:
    """Bind arrays to a symbol by name, compute, and return its output as a NumPy array, or a list of them."""
    executor = sym.bind(ctx or current_context(), {name: array(value, ctx) for name, value in inputs.items()})
    outputs = [each.asnumpy() for each in executor.forward(is_train=is_train)]
    return outputs[0] if len(outputs) == 1 else outputs


def check_symbolic_forward(
    sym: Symbol, location: Values, expected: Values, rtol: Tolerance = None, atol: Tolerance = None,
    aux_states: Values | None = None, ctx: Context | None = None, equal_nan: bool = False, dtype: Any = np.float32,
) -> list[NDArray]:  # fmt: skip
    """Compare a symbol's outputs with the expected ones.

    Args:
        sym: the symbol.
        location: values of its arguments, in order or by name.
        expected: the outputs, in order or by name.
        rtol: the relative tolerance, by default that of the dtype.
        atol: the absolute one.
        aux_states: values of its auxiliary states, in order or by name.
        ctx: the device.
        equal_nan: NaNs at the same place count as equal.
        dtype: the dtype of the computation; ``"asnumpy"`` is each value's own.

    Returns:
        the outputs.

    Raises:
        AssertionError: an output is another.
        ValueError: values do not fit the symbol.
    """
    executor = sym.bind(
        ctx or current_context(),
        _arrays("location", sym.list_arguments(), location, ctx, dtype),
        grad_req="null",
        aux_states=_states(sym, aux_states, ctx, dtype),
    )
    outputs = executor.forward(is_train=False)
    names = sym.list_outputs()
    wanted = _by_name("expected", names, expected)
    for name, output in zip(names, outputs, strict=True):
        if name in wanted:
            shown = (f"EXPECTED_{name}", f"FORWARD_{name}")
            assert_almost_equal(wanted[name], output, rtol, atol, shown, equal_nan)
    return outputs


def check_symbolic_backward(
    sym: Symbol, location: Values, out_grads: Values | None, expected: Values, rtol: Tolerance = None,
    atol: Tolerance = None, aux_states: Values | None = None,
    grad_req: str | Sequence[str] | Mapping[str, str] = "write", ctx: Context | None = None,
    grad_stypes: Mapping[str, str] | None = None, equal_nan: bool = False, dtype: Any = np.float32,
) -> dict[str, NDArray]:  # fmt: skip
    """Compare a symbol's gradients with the expected ones.

    The arrays of gradients hold something beforehand, so that ``"write"`` and ``"add"`` differ, and ``"null"`` must
    leave them.

    Args:
        sym: the symbol.
        location: values of its arguments, in order or by name.
        out_grads: gradients of its outputs, in order or by name; None for symbols that end in a loss.
        expected: the gradients of its arguments, in order or by name; those left out are not compared.
        rtol: the relative tolerance, by default that of the dtype.
        atol: the absolute one.
        aux_states: values of its auxiliary states, in order or by name.
        grad_req: ``"write"``, ``"add"`` or ``"null"``, for all, in order or by name.
        ctx: the device.
        grad_stypes: kept for MXNet's tests: gradients are dense.
        equal_nan: NaNs at the same place count as equal.
        dtype: the dtype of the computation; ``"asnumpy"`` is each value's own.

    Returns:
        the gradients' arrays by name.

    Raises:
        AssertionError: a gradient is another.
        ValueError: values do not fit the symbol, or a ``grad_req`` is none.
    """
    names = sym.list_arguments()
    wanted = {name: on_host(value) for name, value in _by_name("expected", names, expected, whole=False).items()}
    requests = dict.fromkeys(names, grad_req) if isinstance(grad_req, str) else _by_name("grad_req", names, grad_req)
    unknown = {name: request for name, request in requests.items() if request not in ("write", "add", "null")}
    if unknown:
        raise ValueError(f"check_symbolic_backward: grad_req is {unknown}, expected 'write', 'add' or 'null'")
    before = {name: np.random.normal(size=each.shape) for name, each in wanted.items()}
    grads = {name: array(value, ctx, _dtype(wanted[name], dtype)) for name, value in before.items()}
    executor = sym.bind(
        ctx or current_context(),
        _arrays("location", names, location, ctx, dtype),
        grads,
        requests,
        _states(sym, aux_states, ctx, dtype),
    )
    executor.forward(is_train=True)
    if any(requests.get(name, "null") != "null" for name in grads):
        executor.backward(None if out_grads is None else _heads(sym, out_grads, ctx, dtype))
    for name, value in wanted.items():
        found, request = grads[name].asnumpy(), requests.get(name, "null")
        start = before[name].astype(found.dtype)
        shown = (f"EXPECTED_{name}", f"BACKWARD_{name}")
        target = start if request == "null" else value
        assert_almost_equal(target, found - start if request == "add" else found, rtol, atol, shown, equal_nan)
    return grads


def check_consistency(
    sym: Symbol | Sequence[Symbol], ctx_list: Sequence[Mapping[str, Any]], scale: float = 1.0, grad_req: Any = "write",
    arg_params: dict[str, Any] | None = None, aux_params: dict[str, Any] | None = None, rtol: Tolerance = None,
    atol: Tolerance = None, raise_on_err: bool = True, ground_truth: Mapping[str, Any] | None = None,
    equal_nan: bool = False, use_uniform: bool = False, rand_type: Any = np.float64,
) -> dict[str, Any]:  # fmt: skip
    """Check that a symbol gives the same on several devices, in several dtypes, or that several symbols do.

    Args:
        sym: the symbol, or one for each entry of ``ctx_list``.
        ctx_list: arguments for ``simple_bind``: ``{"ctx": mx.cpu(), "data": (2, 3), "type_dict": {...}}``.
        scale: of the random values.
        grad_req: as for ``simple_bind``; ``"null"`` compares outputs alone.
        arg_params: values of arguments by name; random ones are made, and put there, for the others.
        aux_params: values of auxiliary states by name, by default zeros.
        rtol: the relative tolerance, by default that of the less precise of two.
        atol: the absolute one.
        raise_on_err: raise at the first difference; otherwise they go to the log.
        ground_truth: outputs and gradients by name to compare with, by default those of the most precise entry.
        equal_nan: NaNs at the same place count as equal.
        use_uniform: random values are evenly spread.
        rand_type: the dtype that random values are drawn in.

    Returns:
        what was compared with.

    Raises:
        AssertionError: an output or a gradient differs.
        ValueError: there are less than two entries, or symbols that have other arguments or outputs.
    """
    if len(ctx_list) < 2:
        raise ValueError(f"check_consistency: ctx_list has {len(ctx_list)} entries, expected at least 2")
    symbols = [sym] * len(ctx_list) if isinstance(sym, Symbol) else list(sym)
    signatures = {(tuple(each.list_arguments()), tuple(each.list_outputs())) for each in symbols}
    if len(signatures) != 1 or len(symbols) != len(ctx_list):
        raise ValueError("check_consistency: the symbols differ in number, arguments or outputs")
    executors = [each.simple_bind(grad_req=grad_req, **entry) for each, entry in zip(symbols, ctx_list, strict=True)]
    given = {} if arg_params is None else arg_params
    for name, each in executors[0].arg_dict.items():
        given.setdefault(name, _random(each.shape, scale, use_uniform).astype(rand_type))
    states = {} if aux_params is None else aux_params
    for executor in executors:
        executor.copy_params_from(given)
        for name, each in executor.aux_dict.items():
            each[:] = states.setdefault(name, 0)
        for gradient in executor.grad_arrays:
            if gradient is not None:
                gradient[:] = 0
    results = [[_results(executor, False) for executor in executors]]
    if grad_req != "null":
        results.append(_trained(executors))
    best = int(np.argmax([executor.outputs[0].asnumpy().dtype.itemsize for executor in executors]))
    truth = dict(ground_truth or results[-1][best])
    for found in results:
        target: Mapping[str, Any] = ground_truth or found[best]
        for i, made in enumerate(found):
            if i != best or ground_truth:
                _compare(made, target, f"entry {i} and entry {best}", rtol, atol, equal_nan, raise_on_err)
    return truth


def _random(shape: Sequence[int], scale: float, uniform: bool) -> Numbers:
    if uniform:
        return np.random.uniform(-0.92 * scale, 0.92 * scale, tuple(shape))
    return np.random.normal(size=tuple(shape), scale=scale)


def _results(executor: Executor, is_train: bool) -> dict[str, Numbers | None]:
    executor.forward(is_train=is_train)
    return {name: each.asnumpy() for name, each in executor.output_dict.items()}


def _trained(executors: Sequence[Executor]) -> list[dict[str, Numbers | None]]:
    """The outputs in training and the gradients, all from the first one's outputs as gradients of the outputs."""
    found = [_results(executor, True) for executor in executors]
    # Numbers that the least precise of all can hold.
    heads = [_narrowest(values) for values in zip(*(each.values() for each in found), strict=True)]
    for results, executor in zip(found, executors, strict=True):
        outputs = executor.outputs
        executor.backward([array(v, each.context, each.dtype) for v, each in zip(heads, outputs, strict=True)])
        results.update((name, None if g is None else g.asnumpy()) for name, g in executor.grad_dict.items())
    return found


def _narrowest(values: Sequence[Numbers | None]) -> Numbers:
    """The first of some arrays, in the dtype of the least precise."""
    known = [value for value in values if value is not None]
    return known[0].astype(min((value.dtype for value in known), key=lambda dtype: dtype.itemsize))


def _compare(
    found: Mapping[str, Any], target: Mapping[str, Any], what: str, rtol: Tolerance, atol: Tolerance, equal_nan: bool,
    raise_on_err: bool,
) -> None:  # fmt: skip
    outputs = [value for value in (*found.values(), *target.values()) if value is not None]
    least = min((on_host(value) for value in outputs), key=lambda value: value.dtype.itemsize)
    for name, value in found.items():
        if value is None or target.get(name) is None:
            continue
        try:
            # A gradient in float32 of what was computed in float16 is no more precise than that.
            tolerances = get_tols(least, on_host(value), rtol, atol)
            assert_almost_equal(value, target[name], *tolerances, (f"{name} ({what})", "expected"), equal_nan)
        except AssertionError as error:
            if raise_on_err:
                raise
            log.warning("%s", error)


def check_speed(
    sym: Symbol, location: Mapping[str, Any] | None = None, ctx: Context | None = None, N: int = 20,
    grad_req: Any = None, typ: str = "whole", **kwargs: Sequence[int],
) -> float:  # fmt: skip
    """The seconds that a symbol takes.

    Args:
        sym: the symbol.
        location: values of its arguments by name, by default random ones of the shapes given.
        ctx: the device.
        N: how often it is run.
        grad_req: as for ``simple_bind``, by default ``"write"``.
        typ: ``"whole"`` is forward and backward, ``"forward"`` is forward alone.
        **kwargs: shapes of arguments, where no values are given.

    Raises:
        ValueError: another ``typ``.
    """
    if typ not in ("whole", "forward"):
        raise ValueError(f"check_speed: typ is {typ!r}, expected 'whole' or 'forward'")
    shapes = kwargs if location is None else {name: np.shape(on_host(value)) for name, value in location.items()}
    executor = sym.simple_bind(ctx or current_context(), grad_req or "write", **shapes)
    if location is None:
        location = {name: np.random.normal(size=each.shape) for name, each in executor.arg_dict.items()}
    executor.copy_params_from(location)

    def run() -> None:
        executor.forward(is_train=typ == "whole")
        if typ == "whole":
            executor.backward(executor.outputs)

    run()
    engine.waitall()
    start = time.perf_counter()
    for _ in range(N):
        run()
    engine.waitall()
    return (time.perf_counter() - start) / N


# -- values for a symbol ---------------------------------------------------------------------------------------


def _by_name(what: str, names: Sequence[str], given: Values, whole: bool = True) -> dict[str, Any]:
    """Values by name, of values by name or in order; a shorter list leaves the last ones out unless all must be."""
    if not isinstance(given, Mapping):
        if len(given) > len(names) or (whole and len(given) < len(names)):
            raise ValueError(f"{what} has {len(given)} values, expected one for each of {list(names)}")
        return dict(zip(names, given, strict=False))
    unknown = set(given) - set(names)
    if unknown:
        raise ValueError(f"{what} has {sorted(unknown)}, expected names of {list(names)}")
    return dict(given)


def _dtype(value: Any, dtype: Any) -> Any:
    return value.dtype if isinstance(dtype, str) and dtype == "asnumpy" else dtype


def _arrays(what: str, names: Sequence[str], given: Values, ctx: Context | None, dtype: Any) -> dict[str, NDArray]:
    """Arrays for names; those given as arrays of flowmx are bound as they are."""
    found = _by_name(what, names, given)
    if len(found) < len(names):
        raise ValueError(f"{what} lacks {sorted(set(names) - set(found))}")
    return {name: _array(value, ctx, dtype) for name, value in found.items()}


def _array(value: Any, ctx: Context | None, dtype: Any) -> NDArray:
    if isinstance(value, NDArray):
        return value
    host = np.asarray(value)
    return array(host, ctx, _dtype(host, dtype))


def _states(sym: Symbol, given: Values | None, ctx: Context | None, dtype: Any) -> dict[str, NDArray] | None:
    names = sym.list_auxiliary_states()
    return None if given is None else _arrays("aux_states", names, given, ctx, dtype)


def _heads(sym: Symbol, given: Values, ctx: Context | None, dtype: Any) -> list[NDArray]:
    names = sym.list_outputs()
    found = _arrays("out_grads", names, given, ctx, dtype)
    return [found[name] for name in names]
