"""Helpers of ``mxnet.test_utils`` that `flowmx.test_utils` lacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flowmx import autograd
from flowmx.ndarray import NDArray
from flowmx.test_utils import assert_almost_equal

__all__ = ["check_gluon_hybridize_consistency", "has_tvm_ops", "is_aarch64_run", "is_cd_run"]


def has_tvm_ops() -> bool:
    """Return False: flowmx has no TVM operators."""
    return False


def is_cd_run() -> bool:
    """Return False: this is not MXNet's delivery pipeline."""
    return False


def is_aarch64_run() -> bool:
    """Return False: this is not MXNet's test run on ARM."""
    return False


def check_gluon_hybridize_consistency(
    net_builder: Callable[..., Any], data_l: Sequence[NDArray], numpy_func: Callable[..., Any] | None = None,
    test_grad: bool = True, rtol: float = 1e-4, atol: float = 1e-4,
) -> None:  # fmt: skip
    """Check that a block computes the same values hybridized and not hybridized.

    Args:
        net_builder: creates the block, called with ``prefix``.
        data_l: its inputs.
        numpy_func: a reference implementation on NumPy arrays, or None.
        test_grad: whether to compare gradients of inputs and parameters too.
        rtol: relative tolerance.
        atol: absolute tolerance.

    Raises:
        AssertionError: the values differ.
    """
    results = []
    values: dict[str, object] = {}
    for hybrid in (False, True):
        net = net_builder(prefix="net_")
        net.initialize()
        inputs = [array.copy() for array in data_l]
        net(*inputs)  # infers the shapes of parameters
        for name, param in net.collect_params().items():
            param.set_data(values.setdefault(name, param.data().copy()))
        net.hybridize(hybrid)
        for array in inputs:
            array.attach_grad()
        with autograd.record(train_mode=test_grad):
            out = net(*inputs)
        if test_grad:
            out.backward(out)
        trained = [param for param in net.collect_params().values() if param.grad_req != "null"]
        grads = [*(array.grad for array in inputs), *(param.grad() for param in trained)] if test_grad else []
        results.append([out, *grads])
    for plain, hybrid_value in zip(*results, strict=True):
        assert_almost_equal(plain.asnumpy(), hybrid_value.asnumpy(), rtol, atol)
    if numpy_func is not None:
        assert_almost_equal(results[0][0].asnumpy(), numpy_func(*(array.asnumpy() for array in data_l)), rtol, atol)
