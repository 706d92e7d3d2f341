"""Images: deterministic operators, and random operators whose range is one number."""

from typing import Any, Mapping  # noqa: UP035  (Python 3.8's)

from tests.op_cases.case import Case, Maker

BYTES: Mapping[int, str] = {0: "uint8"}


def pixels(*shape: int) -> Maker:
    """Return integers from 0 to 255."""
    return lambda rng: rng.integers(0, 256, shape)


SIZES: list[Any] = [(3, 4), (9, 10), (7, 3), (4, 4)]

CASES = [
    Case("_image_to_tensor", [pixels(4, 3, 3)], dtypes=BYTES, gradient=False),
    Case("_image_to_tensor", [pixels(2, 4, 3, 2)], gradient=False, note="batch"),
    # The output is always float32, too coarse for finite differences; see tests/ops/test_image_ops.py.
    Case("_image_to_tensor", [(4, 3, 3)], numeric=False, recorded=False, note="gradient"),
    Case("_image_normalize", [(3, 4, 2)], {"mean": (0.5, 1, 2), "std": (3, 2, 1)}, second=True),
    Case("_image_normalize", [(2, 2, 4, 2)], {"mean": (0.5,), "std": (2,)}, recorded=False),
    Case("_image_crop", [(5, 4, 3)], {"x": 1, "y": 2, "width": 3, "height": 2}, second=True),
    Case("_image_crop", [(2, 5, 4, 1)], {"x": 0, "y": 0, "width": 4, "height": 3}),
    Case("_image_flip_left_right", [(4, 4, 3)], same_gradient=False, second=True),
    Case("_image_flip_top_bottom", [(4, 5, 1)], same_gradient=False, second=True),
    Case("_image_adjust_lighting", [pixels(4, 3, 3)], {"alpha": (0.1, -0.2, 0.3)}, dtypes=BYTES, gradient=False),
    Case("_image_adjust_lighting", [(4, 3, 3)], {"alpha": (0.1, -0.2, 0.3)}, note="float"),
    Case("_image_random_lighting", [(4, 3, 3)], {"alpha_std": 0.0}, gradient=False),
] + [
    Case("_image_resize", [pixels(8, 6, 3)], {"size": size, "interp": interp}, dtypes={0: dtype}, gradient=False,
         note=dtype)
    for dtype in ("uint8", "float32") for interp in range(5) for size in SIZES
] + [
    Case("_image_resize", [pixels(2, 8, 6, 1)], {"size": (5,), "keep_ratio": keep}, gradient=False, note="batch")
    for keep in (False, True)
] + [
    Case(f"_image_random_{name}", [pixels(5, 4, channels)], {"min_factor": factor, "max_factor": factor},
         dtypes={0: dtype}, gradient=False, note=f"{dtype} {channels}")
    for name, factor in (("brightness", 1.4), ("contrast", 0.6), ("contrast", 1.7), ("saturation", 0.5), ("hue", 0.2),
                         ("hue", 0.7))
    for dtype in ("uint8", "float32") for channels in ((1, 3) if name != "hue" else (3,))
]  # fmt: skip
