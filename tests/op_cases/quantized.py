"""Calls of the operators on int8 and uint8.

Sums are small enough for MXNet to be right on processors without VNNI.
"""

from typing import Any

import numpy as np

from flowmx.ops.quantization.block_formats import FORMATS
from flowmx.ops.quantization.interleaved_weights import interleave
from tests.op_cases.case import Case, Maker, fixed, positive

Dtypes = dict[int, str]


def whole(low: int, high: int, *shape: int) -> Maker:
    """Return integers from low to high."""
    return lambda rng: rng.integers(low, high + 1, shape)


def end(value: float) -> Maker:
    """Return one end of a range."""
    return fixed([value])


def _case(name: str, inputs: list[Any], params: dict[str, Any] | None = None, **more: Any) -> Case:
    dtypes: Dtypes = more.pop("dtypes", {0: "int8"})
    return Case(name, inputs, params or {}, numeric=False, gradient=False, dtypes=dtypes, **more)


_RANGE = [end(-2.0), end(3.0)]
_TWO = [*_RANGE, end(-1.5), end(1.0)]
_REAL = fixed([[-3.0, -2.5, -1.0, -0.1, 0.0], [0.05, 0.5, 1.2, 2.5, 2.9]])
_IMAGES = whole(-100, 100, 2, 3, 5, 5)
_CALIBRATED = {"min_calib_range": -2.0, "max_calib_range": 4.0}
_BYTES: list[tuple[str, int]] = [("int8", -30), ("uint8", 0)]

CONVERSIONS = [
    *(_case("_contrib_quantize", [_REAL, end(-2.5), end(2.5)], {"out_type": t}, dtypes={}) for t in ("int8", "uint8")),
    *(_case("_contrib_quantize_v2", [_REAL], {"out_type": t}, dtypes={}) for t in ("int8", "uint8", "auto")),
    *(
        _case("_contrib_quantize_v2", [_REAL], {"out_type": "auto", "min_calib_range": low, "max_calib_range": 2.5},
              dtypes={})
        for low in (0.0, -1.0)
    ),
    _case("_contrib_quantize_v2", [whole(0, 255, 4)], {"out_type": "uint8"}, dtypes={0: "uint8"}, note="bytes"),
    *(_case("_contrib_dequantize", [whole(low, 127, 6), *_RANGE], dtypes={0: t}, note=t) for t, low in _BYTES),
    _case("_contrib_requantize", [whole(-1000, 1000, 3, 4), end(-1010.0), end(1020.0)], dtypes={0: "int32"}),
    *(
        _case("_contrib_requantize", [whole(-(10**9), 10**9, 3, 4), end(-1010.0), end(1020.0)],
              {"out_type": "auto", "min_calib_range": low, "max_calib_range": 400.0}, dtypes={0: "int32"})
        for low in (0.0, -300.0)
    ),
    *(
        _case("_contrib_quantize_asym", [_REAL], ranges, dtypes={}, recorded=False)
        for ranges in ({}, {"min_calib_range": -2.0, "max_calib_range": 2.5})
    ),
    _case("_contrib_calibrate_entropy", [whole(0, 50, 41), fixed(np.linspace(-2, 2, 42))], {"num_quantized_bins": 7},
          dtypes={}, recorded=True),
]  # fmt: skip

_PRODUCT_RANGES = [end(-2.0), end(2.0), end(-1.0), end(1.0)]

PRODUCTS = [
    *(
        _case("_contrib_quantized_fully_connected",
              [whole(low, 30, 2, 6), whole(-30, 30, 3, 6), whole(-127, 127, 3), *_PRODUCT_RANGES, end(-3.0), end(3.0)],
              {"num_hidden": 3}, dtypes={0: t, 1: "int8", 2: "int8"}, note=t)
        for t, low in _BYTES
    ),
    _case("_contrib_quantized_fully_connected", [whole(-30, 30, 2, 2, 4), whole(-30, 30, 3, 4), *_PRODUCT_RANGES],
          {"num_hidden": 3, "no_bias": True, "flatten": False}, dtypes={0: "int8", 1: "int8"}),
    _case("_contrib_quantized_conv",
          [_IMAGES, whole(-100, 100, 4, 3, 3, 3), whole(-127, 127, 4), *_PRODUCT_RANGES, end(-3.0), end(3.0)],
          {"num_filter": 4, "kernel": (3, 3), "pad": (1, 1)}, dtypes={0: "int8", 1: "int8", 2: "int8"},
          recorded=False),
    _case("_contrib_quantized_conv", [whole(0, 255, 1, 4, 5, 5), whole(-9, 9, 2, 2, 2, 2), *_PRODUCT_RANGES],
          {"num_filter": 2, "kernel": (2, 2), "num_group": 2, "no_bias": True}, dtypes={0: "uint8", 1: "int8"},
          recorded=False),
]  # fmt: skip

LAYERS = [
    *(
        _case("_contrib_quantized_pooling", [_IMAGES, *_RANGE],
              {"kernel": (2, 2), "stride": (2, 2), "pool_type": kind, "pooling_convention": rounding}, recorded=False)
        for kind, rounding in (("max", "valid"), ("avg", "full"))
    ),
    _case("_contrib_quantized_pooling", [whole(0, 255, 2, 3, 4, 4), *_RANGE],
          {"kernel": (1, 1), "global_pool": True, "pool_type": "avg"}, dtypes={0: "uint8"}),
    _case("_contrib_quantized_act", [_IMAGES, *_RANGE], {"act_type": "relu"}),
    _case("_contrib_quantized_flatten", [_IMAGES, *_RANGE]),
    _case("_contrib_quantized_concat", [whole(-100, 100, 2, 3), whole(0, 255, 2, 2), *_TWO],
          {"num_args": 2, "dim": 1}, dtypes={0: "int8", 1: "uint8"}),
    *(
        _case("_contrib_quantized_elemwise_add", [whole(low, 100, 3, 4), whole(0, 100, 3, 4), *_TWO], _CALIBRATED,
              dtypes={0: t, 1: "uint8"}, note=t)
        for t, low in _BYTES
    ),
    _case("_contrib_quantized_elemwise_add", [whole(-100, 100, 3, 4), whole(-9, 9, 3, 4), *_TWO],
          dtypes={0: "int8", 1: "int8"}, recorded=False),
    *(
        _case("_contrib_quantized_elemwise_mul", [whole(-100, 100, 3, 4), whole(-9, 9, 3, 4), *_TWO], params,
              dtypes={0: "int8", 1: "int8"}, recorded=False)
        for params in ({}, _CALIBRATED, {"enable_float_output": True})
    ),
    *(
        _case("_contrib_quantized_batch_norm",
              [whole(low, 100, 2, 3, 4), positive(3), (3,), (3,), positive(3), *_RANGE],
              {**_CALIBRATED, "fix_gamma": False}, dtypes={0: t}, note=t)
        for t, low in _BYTES
    ),
    *(
        _case("_contrib_quantized_rnn",
              [whole(0, 255, 3, 2, 4), (220 * sides,), (sides, 2, 5), (sides, 2, 5), end(60.0), end(120.0)],
              {"state_size": 5, "num_layers": 1, "mode": "lstm", "state_outputs": True, "bidirectional": sides == 2},
              dtypes={0: "uint8"}, recorded=False)
        for sides in (1, 2)
    ),
    _case("_contrib_quantized_embedding", [fixed([[1, 0], [2, 9]]), whole(-127, 127, 3, 4), *_RANGE],
          {"input_dim": 3, "output_dim": 4}, dtypes={1: "int8"}),
]  # fmt: skip


def _weight(form: str, rows: int, columns: int, tiles: bool = False) -> Maker:
    """Return a quantized weight, which may be interleaved."""

    def make(rng: np.random.Generator) -> Any:
        weight = FORMATS[form].quantize(rng.standard_normal((rows, columns)))
        return interleave(form, weight) if tiles else weight

    return make


_ODD = {"num_hidden": 19, "in_units": 64}
PACKED = [
    *(
        _case("_contrib_packed_dense", [(2, 3, 64), _weight(form, 19, 64, tiles)],
              {**_ODD, "format": form, "interleaved": tiles}, dtypes={1: "uint8"}, recorded=False)
        for form in ("Q8_0", "Q4_0", "Q4_1", "F16", "BF16", "F32")
        for tiles in (False, True)
    ),
    *(
        _case("_contrib_packed_dense", [(2, 256), _weight(form, 3, 256, tiles), (3,)],
              {"num_hidden": 3, "in_units": 256, "format": form, "interleaved": tiles, "no_bias": False},
              dtypes={1: "uint8"}, recorded=False)
        for form in ("Q4_K", "Q6_K")
        for tiles in (False, True)
    ),
    *(
        _case("_contrib_packed_embedding", [fixed([[0, 18], [99, -1]]), _weight("Q4_1", 19, 64, tiles)],
              {"input_dim": 19, "output_dim": 64, "format": "Q4_1", "interleaved": tiles}, dtypes={1: "uint8"},
              recorded=False)
        for tiles in (False, True)
    ),
    _case("_contrib_interleave_weight", [_weight("Q4_0", 19, 64)], {"format": "Q4_0"}, dtypes={0: "uint8"},
          recorded=False),
]  # fmt: skip

CASES = CONVERSIONS + PRODUCTS + LAYERS + PACKED
