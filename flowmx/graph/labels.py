"""Names of the inputs of operators for those who look at values: monitors, and hooks of blocks."""

from __future__ import annotations

from flowmx.ops.registry.operators import Operator

__all__ = ["input_labels"]

_NAMED = frozenset({
    "Crop", "Dropout", "GridGenerator", "IdentityAttachKLSparseReg", "L2Normalization", "LRN", "MakeLoss", "Pad",
    "Pooling", "SliceChannel", "SwapAxis", "_contrib_fft", "_contrib_ifft", "_contrib_index_array",
    "_contrib_quadratic", "_image_normalize", "_image_to_tensor", "_ravel_multi_index", "_shuffle", "_split_v2",
    "_unravel_index", "col2im", "depth_to_space", "diag", "im2col", "log_softmax", "moments", "repeat", "reverse",
    "space_to_depth", "squeeze", "tile",
})  # fmt: skip
"""Operators that have no input but data, which MXNet shows as that; that of all others is called input0."""


def input_labels(op: Operator) -> tuple[str, ...]:
    """Names of the inputs of an operator, as monitors and hooks of MXNet see them."""
    has_data_alone = op.arguments == ("data",) and not op.auxiliary and not op.variadic
    if has_data_alone and op.name not in _NAMED:
        return ("input0",)
    return (*op.inputs(), *op.auxiliary)
