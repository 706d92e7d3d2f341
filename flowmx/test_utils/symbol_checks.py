"""Checks of symbols: forward, backward, and consistency between devices and dtypes."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flowmx import engine
from flowmx.devices import Context, current_context
from flowmx.executor import Executor
from flowmx.ndarray.array import NDArray
from flowmx.ndarray.creation import array
from flowmx.symbol.symbol import Symbol
from flowmx.test_utils.assertions import assert_almost_equal
from flowmx.test_utils.tolerance import Numbers, Tolerance, get_tols, on_host

__all__ = [
    "check_consistency", "check_speed", "check_symbolic_backward", "check_symbolic_forward", "simple_forward",
]  # fmt: skip

log = logging.getLogger("flowmx.test_utils")

Values = Sequence[Any] | Mapping[str, Any]
Requests = str | Sequence[str] | Mapping[str, str]


def simple_forward(sym: Symbol, ctx: Context | None = None, is_train: bool = False, **inputs: object) -> Any:
    """Bind arrays to a symbol by name, run it, and return its output as a NumPy array, or a list of arrays."""
    executor = sym.bind(ctx or current_context(), {name: array(value, ctx) for name, value in inputs.items()})
    outputs = [output.asnumpy() for output in executor.forward(is_train=is_train)]
    return outputs[0] if len(outputs) == 1 else outputs


def check_symbolic_forward(
    sym: Symbol, location: Values, expected: Values, rtol: Tolerance = None, atol: Tolerance = None,
    aux_states: Values | None = None, ctx: Context | None = None, equal_nan: bool = False, dtype: object = np.float32,
) -> list[NDArray]:  # fmt: skip
    """Compare a symbol's outputs with the expected ones.

    Args:
        sym: the symbol.
        location: values of its arguments, in order or by name.
        expected: the outputs, in order or by name.
        rtol: relative tolerance (default: that of the dtype).
        atol: absolute tolerance (default: that of the dtype).
        aux_states: values of its auxiliary states, in order or by name.
        ctx: the device.
        equal_nan: whether NaNs at the same place are equal.
        dtype: dtype of the computation; ``"asnumpy"`` uses the dtypes of the values.

    Returns:
        the outputs.

    Raises:
        AssertionError: an output differs.
        ValueError: the values do not match the symbol.
    """
    executor = sym.bind(
        ctx or current_context(),
        _arrays("location", sym.list_arguments(), location, ctx, dtype),
        grad_req="null",
        aux_states=_states(sym, aux_states, ctx, dtype),
    )
    outputs = executor.forward(is_train=False)
    names = sym.list_outputs()
    expected_by_name = _values_by_name("expected", names, expected)
    for name, output in zip(names, outputs, strict=True):
        if name in expected_by_name:
            labels = (f"EXPECTED_{name}", f"FORWARD_{name}")
            assert_almost_equal(expected_by_name[name], output, rtol, atol, labels, equal_nan)
    return outputs


def check_symbolic_backward(
    sym: Symbol, location: Values, out_grads: Values | None, expected: Values, rtol: Tolerance = None,
    atol: Tolerance = None, aux_states: Values | None = None, grad_req: Requests = "write", ctx: Context | None = None,
    grad_stypes: Mapping[str, str] | None = None, equal_nan: bool = False, dtype: object = np.float32,
) -> dict[str, NDArray]:  # fmt: skip
    """Compare a symbol's gradients with the expected ones.

    The gradient arrays have random initial values, so that the requests ``"write"``, ``"add"`` and ``"null"`` differ.

    Args:
        sym: the symbol.
        location: values of its arguments, in order or by name.
        out_grads: gradients of its outputs, in order or by name; None for symbols that end in a loss.
        expected: the gradients of its arguments, in order or by name; missing ones are not compared.
        rtol: relative tolerance (default: that of the dtype).
        atol: absolute tolerance (default: that of the dtype).
        aux_states: values of its auxiliary states, in order or by name.
        grad_req: ``"write"``, ``"add"`` or ``"null"``, for all, in order or by name.
        ctx: the device.
        grad_stypes: ignored; gradients are dense.
        equal_nan: whether NaNs at the same place are equal.
        dtype: dtype of the computation; ``"asnumpy"`` uses the dtypes of the values.

    Returns:
        the gradients' arrays by name.

    Raises:
        AssertionError: a gradient differs.
        ValueError: the values do not match the symbol, or a ``grad_req`` is invalid.
    """
    names = sym.list_arguments()
    targets = {
        name: on_host(value) for name, value in _values_by_name("expected", names, expected, whole=False).items()
    }
    requests = (
        dict.fromkeys(names, grad_req) if isinstance(grad_req, str) else _values_by_name("grad_req", names, grad_req)
    )
    unknown = {name: request for name, request in requests.items() if request not in ("write", "add", "null")}
    if unknown:
        raise ValueError(f"check_symbolic_backward: grad_req is {unknown}, expected 'write', 'add' or 'null'")
    initial = {name: np.random.normal(size=value.shape) for name, value in targets.items()}
    grads = {name: array(value, ctx, _dtype(targets[name], dtype)) for name, value in initial.items()}
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
    for name, value in targets.items():
        gradient, request = grads[name].asnumpy(), requests.get(name, "null")
        start = initial[name].astype(gradient.dtype)
        labels = (f"EXPECTED_{name}", f"BACKWARD_{name}")
        target = start if request == "null" else value
        actual = gradient - start if request == "add" else gradient
        assert_almost_equal(target, actual, rtol, atol, labels, equal_nan)
    return grads


def check_consistency(
    sym: Symbol | Sequence[Symbol], ctx_list: Sequence[Mapping[str, Any]], scale: float = 1.0, grad_req: Any = "write",
    arg_params: dict[str, Any] | None = None, aux_params: dict[str, Any] | None = None, rtol: Tolerance = None,
    atol: Tolerance = None, raise_on_err: bool = True, ground_truth: Mapping[str, object] | None = None,
    equal_nan: bool = False, use_uniform: bool = False, rand_type: Any = np.float64,
) -> dict[str, Any]:  # fmt: skip
    """Check that a symbol, or several symbols, compute the same on several devices and in several dtypes.

    Args:
        sym: the symbol, or a symbol per entry of ``ctx_list``.
        ctx_list: arguments for ``simple_bind``: ``{"ctx": mx.cpu(), "data": (2, 3), "type_dict": {...}}``.
        scale: scale of the random values.
        grad_req: as for ``simple_bind``; ``"null"`` compares only outputs.
        arg_params: values of arguments by name; random values for missing ones are added to it.
        aux_params: values of auxiliary states by name (default: zeros).
        rtol: relative tolerance (default: that of the less precise of two dtypes).
        atol: absolute tolerance (default: that of the less precise of two dtypes).
        raise_on_err: whether to raise at the first difference instead of logging it.
        ground_truth: outputs and gradients by name to compare with (default: those of the most precise entry).
        equal_nan: whether NaNs at the same place are equal.
        use_uniform: whether random values are uniformly distributed.
        rand_type: dtype of the random values.

    Returns:
        the values that were compared with.

    Raises:
        AssertionError: an output or a gradient differs.
        ValueError: there are fewer than two entries, or the symbols differ in arguments or outputs.
    """
    if len(ctx_list) < 2:
        raise ValueError(f"check_consistency: ctx_list has {len(ctx_list)} entries, expected at least 2")
    symbols = [sym] * len(ctx_list) if isinstance(sym, Symbol) else list(sym)
    signatures = {(tuple(symbol.list_arguments()), tuple(symbol.list_outputs())) for symbol in symbols}
    if len(signatures) != 1 or len(symbols) != len(ctx_list):
        raise ValueError("check_consistency: the symbols differ in number, arguments or outputs")
    pairs = zip(symbols, ctx_list, strict=True)
    executors = [symbol.simple_bind(grad_req=grad_req, **entry) for symbol, entry in pairs]
    arguments = {} if arg_params is None else arg_params
    for name, argument in executors[0].arg_dict.items():
        arguments.setdefault(name, _random(argument.shape, scale, use_uniform).astype(rand_type))
    states = {} if aux_params is None else aux_params
    for executor in executors:
        executor.copy_params_from(arguments)
        for name, state in executor.aux_dict.items():
            state[:] = states.setdefault(name, 0)
        for gradient in executor.grad_arrays:
            if gradient is not None:
                gradient[:] = 0
    results = [[_results(executor, False) for executor in executors]]
    if grad_req != "null":
        results.append(_training_results(executors))
    best = int(np.argmax([executor.outputs[0].asnumpy().dtype.itemsize for executor in executors]))
    truth = dict(ground_truth or results[-1][best])
    for by_entry in results:
        target: Mapping[str, Any] = ground_truth or by_entry[best]
        for i, values in enumerate(by_entry):
            if i != best or ground_truth:
                _compare(values, target, f"entry {i} and entry {best}", rtol, atol, equal_nan, raise_on_err)
    return truth


def _random(shape: Sequence[int], scale: float, uniform: bool) -> Numbers:
    if uniform:
        return np.random.uniform(-0.92 * scale, 0.92 * scale, tuple(shape))
    return np.random.normal(size=tuple(shape), scale=scale)


def _results(executor: Executor, is_train: bool) -> dict[str, Numbers | None]:
    executor.forward(is_train=is_train)
    return {name: output.asnumpy() for name, output in executor.output_dict.items()}


def _training_results(executors: Sequence[Executor]) -> list[dict[str, Numbers | None]]:
    """Return the outputs in training mode and the gradients. The first executor's outputs are the output gradients."""
    by_entry = [_results(executor, True) for executor in executors]
    # Values that the least precise dtype can represent.
    heads = [_narrowest(values) for values in zip(*(values.values() for values in by_entry), strict=True)]
    for results, executor in zip(by_entry, executors, strict=True):
        outputs = executor.outputs
        executor.backward([array(v, out.context, out.dtype) for v, out in zip(heads, outputs, strict=True)])
        results.update((name, None if g is None else g.asnumpy()) for name, g in executor.grad_dict.items())
    return by_entry


def _narrowest(values: Sequence[Numbers | None]) -> Numbers:
    """Return the first array, cast to the least precise dtype of all."""
    arrays = [value for value in values if value is not None]
    return arrays[0].astype(min((value.dtype for value in arrays), key=lambda dtype: dtype.itemsize))


def _compare(
    values: Mapping[str, object], target: Mapping[str, object], label: str, rtol: Tolerance, atol: Tolerance,
    equal_nan: bool, raise_on_err: bool,
) -> None:  # fmt: skip
    outputs = [value for value in (*values.values(), *target.values()) if value is not None]
    least = min((on_host(value) for value in outputs), key=lambda value: value.dtype.itemsize)
    for name, value in values.items():
        if value is None or target.get(name) is None:
            continue
        try:
            # A float32 gradient of a float16 computation is only as precise as float16.
            tolerances = get_tols(least, on_host(value), rtol, atol)
            assert_almost_equal(value, target[name], *tolerances, (f"{name} ({label})", "expected"), equal_nan)
        except AssertionError as error:
            if raise_on_err:
                raise
            log.warning("%s", error)


def check_speed(
    sym: Symbol, location: Mapping[str, object] | None = None, ctx: Context | None = None, N: int = 20,
    grad_req: object = None, typ: str = "whole", **kwargs: Sequence[int],
) -> float:  # fmt: skip
    """Return the seconds that a run of a symbol takes.

    Args:
        sym: the symbol.
        location: values of its arguments by name (default: random values of the shapes ``kwargs``).
        ctx: the device.
        N: number of runs.
        grad_req: as for ``simple_bind`` (default ``"write"``).
        typ: ``"whole"`` for forward and backward, ``"forward"`` for forward only.
        **kwargs: shapes of arguments, if there is no ``location``.

    Raises:
        ValueError: ``typ`` is invalid.
    """
    if typ not in ("whole", "forward"):
        raise ValueError(f"check_speed: typ is {typ!r}, expected 'whole' or 'forward'")
    shapes = kwargs if location is None else {name: np.shape(on_host(value)) for name, value in location.items()}
    executor = sym.simple_bind(ctx or current_context(), grad_req or "write", **shapes)
    if location is None:
        location = {name: np.random.normal(size=value.shape) for name, value in executor.arg_dict.items()}
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


def _values_by_name(argument: str, names: Sequence[str], values: Values, whole: bool = True) -> dict[str, Any]:
    """Return values by name, from values by name or in order. If ``whole`` is false, a list may be shorter."""
    if not isinstance(values, Mapping):
        if len(values) > len(names) or (whole and len(values) < len(names)):
            raise ValueError(f"{argument} has {len(values)} values, expected one for each of {list(names)}")
        return dict(zip(names, values, strict=False))
    unknown = set(values) - set(names)
    if unknown:
        raise ValueError(f"{argument} has {sorted(unknown)}, expected names of {list(names)}")
    return dict(values)


def _dtype(value: Any, dtype: Any) -> Any:
    return value.dtype if isinstance(dtype, str) and dtype == "asnumpy" else dtype


def _arrays(
    argument: str, names: Sequence[str], values: Values, ctx: Context | None, dtype: object
) -> dict[str, NDArray]:
    """Return arrays by name; arrays of flowmx are not copied."""
    by_name = _values_by_name(argument, names, values)
    if len(by_name) < len(names):
        raise ValueError(f"{argument} lacks {sorted(set(names) - set(by_name))}")
    return {name: _array(value, ctx, dtype) for name, value in by_name.items()}


def _array(value: object, ctx: Context | None, dtype: object) -> NDArray:
    if isinstance(value, NDArray):
        return value
    host = np.asarray(value)
    return array(host, ctx, _dtype(host, dtype))


def _states(sym: Symbol, values: Values | None, ctx: Context | None, dtype: object) -> dict[str, NDArray] | None:
    names = sym.list_auxiliary_states()
    return None if values is None else _arrays("aux_states", names, values, ctx, dtype)


def _heads(sym: Symbol, values: Values, ctx: Context | None, dtype: object) -> list[NDArray]:
    names = sym.list_outputs()
    gradients = _arrays("out_grads", names, values, ctx, dtype)
    return [gradients[name] for name in names]
