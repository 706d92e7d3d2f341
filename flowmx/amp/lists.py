"""The precision that each operator computes in; the lists are MXNet's for float16, with the operators that it forgot.

They hold for bfloat16 too, where MXNet has longer lists of what stays float32: its kernels were fewer, not the bits.
An operator that is on no list computes in whatever it is given (:func:`lp16_fp32`).
"""

from __future__ import annotations

from flowmx.ops.registry.operators import registered

LP16 = ("Convolution", "Deconvolution", "FullyConnected", "RNN")
"""Most of the work, sums of many products, which kernels accumulate in float32."""

FP32 = (
    "exp", "expm1", "log", "log10", "log1p", "log2", "_power", "_power_scalar", "_rpower_scalar", "broadcast_power",
    "square", "reciprocal", "rsqrt", "rcbrt", "_rdiv_scalar", "_hypot", "_hypot_scalar", "broadcast_hypot", "cosh",
    "sinh", "tan", "arccos", "arcsin", "arctanh", "erfinv", "gamma", "gammaln", "sum", "nansum", "prod", "nanprod",
    "mean", "norm", "moments", "_square_sum", "_np_cumsum", "multi_sum_sq", "softmax", "softmin", "log_softmax",
    "SoftmaxActivation", "softmax_cross_entropy", "smooth_l1", "CTCLoss", "SoftmaxOutput", "LinearRegressionOutput",
    "LogisticRegressionOutput", "MAERegressionOutput", "SVMOutput", "MakeLoss", "make_loss",
    "IdentityAttachKLSparseReg", "InstanceNorm", "LayerNorm", "GroupNorm", "L2Normalization", "LRN",
    "_contrib_SyncBatchNorm", "argsort", "topk", "khatri_rao", "_linalg_det", "_linalg_extractdiag",
    "_linalg_extracttrian", "_linalg_gelqf", "_linalg_gemm", "_linalg_gemm2", "_linalg_inverse", "_linalg_makediag",
    "_linalg_maketrian", "_linalg_potrf", "_linalg_potri", "_linalg_slogdet", "_linalg_sumlogdiag", "_linalg_syevd",
    "_linalg_syrk", "_linalg_trmm", "_linalg_trsm", "_contrib_MultiBoxDetection", "_contrib_MultiBoxPrior",
    "_contrib_MultiBoxTarget", "_contrib_DeformableConvolution", "_contrib_DeformablePSROIPooling",
    "_contrib_ModulatedDeformableConvolution", "_contrib_count_sketch", "_contrib_fft", "_contrib_hawkesll", "Custom",
)  # fmt: skip
"""Operators that easily overflow float16, or that sum many numbers: they compute in float32."""

CONDITIONAL_FP32 = (("Activation", "act_type", ("softrelu",)), ("LeakyReLU", "act_type", ("elu", "selu")))
"""Operators that stay float32 where a parameter has one of these values."""

WIDEST = (
    "elemwise_add", "elemwise_sub", "elemwise_mul", "elemwise_div", "_mod", "_maximum", "_minimum", "add_n",
    "_scatter_elemwise_div", "broadcast_add", "broadcast_sub", "broadcast_mul", "broadcast_div", "broadcast_mod",
    "broadcast_maximum", "broadcast_minimum", "_equal", "_not_equal", "_greater", "_greater_equal", "_lesser",
    "_lesser_equal", "_logical_and", "_logical_or", "_logical_xor", "broadcast_equal", "broadcast_not_equal",
    "broadcast_greater", "broadcast_greater_equal", "broadcast_lesser", "broadcast_lesser_equal",
    "broadcast_logical_and", "broadcast_logical_or", "broadcast_logical_xor", "Concat", "stack", "where", "dot",
    "batch_dot", "Correlation", "_contrib_interleaved_matmul_encdec_qk", "_contrib_interleaved_matmul_encdec_valatt",
    "_contrib_interleaved_matmul_selfatt_qk", "_contrib_interleaved_matmul_selfatt_valatt", "_contrib_ROIAlign",
    "_contrib_PSROIPooling", "_contrib_Proposal", "_contrib_MultiProposal", "_contrib_box_iou", "_contrib_box_nms",
    "_contrib_allclose", "_random_pdf_dirichlet", "_random_pdf_exponential", "_random_pdf_gamma",
    "_random_pdf_generalized_negative_binomial", "_random_pdf_negative_binomial", "_random_pdf_normal",
    "_random_pdf_poisson", "_random_pdf_uniform",
)  # fmt: skip
"""Operators that compute in the widest dtype among their inputs."""

LOSS_OUTPUTS = ("SoftmaxOutput", "LinearRegressionOutput", "LogisticRegressionOutput", "MAERegressionOutput")
"""Output layers that make their gradient themselves, whatever the gradient of the loss."""

KEEP = frozenset({"sequence_length", "lengths", "label_lengths", "data_lengths"})
"""Inputs that count something, and so are never cast."""


def known(names: tuple[str, ...]) -> list[str]:
    """Those of some names that are operators here."""
    operators = registered()
    return [name for name in names if name in operators]


def lp16_fp32() -> list[str]:
    """The operators that compute in whatever they are given."""
    others = {*LP16, *FP32, *WIDEST, *(name for name, _, _ in CONDITIONAL_FP32)}
    return sorted({cls.name for cls in registered().values() if not cls.traits.hidden} - others)
