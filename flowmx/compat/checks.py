"""Helpers of ``mxnet.test_utils`` that `flowmx.test_utils` does not have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flowmx import autograd
from flowmx.ndarray import NDArray
from flowmx.test_utils import assert_almost_equal

__all__ = ["check_gluon_hybridize_consistency", "has_tvm_ops", "is_aarch64_run", "is_cd_run"]


def has_tvm_ops() -> bool:
    """Return False: no operator is compiled by TVM."""
    return False


def is_cd_run() -> bool:
    """Return False: this is no run of MXNet's own delivery pipeline."""
    return False


def is_aarch64_run() -> bool:
    """Return False: this is no run of MXNet's own tests on ARM."""
    return False


def check_gluon_hybridize_consistency(
    net_builder: Callable[..., Any], data_l: Sequence[NDArray], numpy_func: Callable[..., Any] | None = None,
    test_grad: bool = True, rtol: float = 1e-4, atol: float = 1e-4,
) -> None:  # fmt: skip
    """Check that a block computes the same hybridized and not.

    Args:
        net_builder: makes the block, from a ``prefix``.
        data_l: its inputs.
        numpy_func: computes the same from NumPy's arrays, where given.
        test_grad: compare the gradients of inputs and parameters too.
        rtol: the relative difference that is allowed.
        atol: the absolute difference that is allowed.

    Raises:
        AssertionError: it does not.
    """
    found = []
    values: dict[str, Any] = {}
    for hybrid in (False, True):
        net = net_builder(prefix="net_")
        net.initialize()
        inputs = [each.copy() for each in data_l]
        net(*inputs)  # shapes are known from here on
        for name, param in net.collect_params().items():
            param.set_data(values.setdefault(name, param.data().copy()))
        net.hybridize(hybrid)
        for each in inputs:
            each.attach_grad()
        with autograd.record(train_mode=test_grad):
            out = net(*inputs)
        if test_grad:
            out.backward(out)
        trained = [param for param in net.collect_params().values() if param.grad_req != "null"]
        grads = [*(each.grad for each in inputs), *(param.grad() for param in trained)] if test_grad else []
        found.append([out, *grads])
    for plain, hybrid_value in zip(*found, strict=True):
        assert_almost_equal(plain.asnumpy(), hybrid_value.asnumpy(), rtol, atol)
    if numpy_func is not None:
        assert_almost_equal(found[0][0].asnumpy(), numpy_func(*(each.asnumpy() for each in data_l)), rtol, atol)
