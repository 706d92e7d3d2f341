"""Every operator and its gradient on CuPy's arrays (of a stand-in): NumPy's results, with CuPy's functions only."""

import numpy as np
import pytest

from flowmx.ops.optimizers.updates import Update
from flowmx.ops.registry.operators import registered_operators
from tests.cupy_stand_in.arrays import waits, xp
from tests.graph_runs import operator_of, run_case
from tests.op_cases import every_case
from tests.op_cases.case import Case, positive
from tests.rows import label, operator, rows

CASES = every_case()


TABLED = {case.op for case in CASES}


def update_rules():
    """Return a row for each update rule without a table."""
    for name, cls in sorted(registered_operators().items()):
        if issubclass(cls, Update) and cls.name == name and name not in TABLED:
            states = len(cls.arguments) - 2
            dtypes = dict.fromkeys(range(2), "float16") if cls.mixed else {}
            params = {"lr": 0.1, "wd": 0.01, "clip_grad" if "clip_grad" in cls.parameters else "clip_gradient": 0.5}
            yield Case(name, [(3, 4), (3, 4), *[positive(3, 4)] * states], params, gradient=False, dtypes=dtypes)


def samplers():
    """Return a row for each random operator; with the host's generator both draw the same numbers."""
    shape = {"shape": (3, 4)}
    for name in ("uniform", "normal", "gamma", "exponential", "poisson", "negative_binomial",
                 "generalized_negative_binomial"):  # fmt: skip
        numbers = {"k": 3, "p": 0.4} if name == "negative_binomial" else {}
        inputs = registered_operators()[f"_sample_{name}"].arguments
        yield Case(f"_random_{name}", [], {**shape, **numbers}, gradient=False)
        yield Case(f"_random_{name}_like", [(3, 4)], numbers, gradient=False)
        yield Case(f"_sample_{name}", [_below_one] * len(inputs), {"shape": (2,)}, gradient=False)
    yield Case("_random_randint", [], {"low": 2, "high": 9, **shape}, gradient=False)
    yield Case("_sample_multinomial", [positive(2, 3)], {"shape": (4,), "get_prob": True}, wrt=(0,))
    yield Case("_sample_unique_zipfian", [], {"range_max": 20, "shape": (2, 3)}, gradient=False)
    yield Case("_shuffle", [(5, 2)], gradient=False)
    yield Case("_image_random_color_jitter", [positive(4, 5, 3)], _JITTER, gradient=False)
    yield Case("_image_random_flip_left_right", [(4, 5, 3)], gradient=False)


_JITTER = {"brightness": 0.3, "contrast": 0.2, "saturation": 0.2, "hue": 0.2}


def _below_one(rng):
    return rng.uniform(0.2, 0.9, (2, 3))


CASES += [*update_rules(), *samplers()]

WAITING = {
    "the rates and norms of a layer are numbers on the host": """
        _adamw_update _mp_adamw_update _multi_adamw_update _multi_mp_adamw_update _multi_lamb_update
        _multi_mp_lamb_update lamb_update_phase2 mp_lamb_update_phase2 preloaded_multi_sgd_update
        preloaded_multi_sgd_mom_update preloaded_multi_mp_sgd_update preloaded_multi_mp_sgd_mom_update
        _lars_sgd_update _lars_sgd_mom_update _mp_lars_sgd_update _mp_lars_sgd_mom_update _lbsgd_sgd_update
        _lbsgd_sgd_mom_update _mp_lbsgd_sgd_update _mp_lbsgd_sgd_mom_update""",
    "indices out of range are an error, so the host checks them": """
        take _backward_take gather_nd _backward_gather_nd scatter_nd _backward_scatter_nd _scatter_set_nd
        _contrib_index_copy _contrib_backward_index_copy fill_element_0index softmax_cross_entropy CTCLoss
        _backward_CTCLoss SequenceLast _backward_SequenceLast SequenceReverse _backward_SequenceReverse
        _contrib_count_sketch _backward__contrib_count_sketch""",
    "the numbers determine the amount of work": """
        ROIPooling _backward_ROIPooling _contrib_ROIAlign _backward_ROIAlign _contrib_PSROIPooling
        _backward_PSROIPooling _contrib_RROIAlign _backward_RROIAlign _contrib_DeformablePSROIPooling
        _backward_DeformablePSROIPooling _contrib_Proposal _contrib_MultiProposal _contrib_box_nms
        _backward_contrib_box_nms _contrib_bipartite_matching _contrib_hawkesll _contrib_backward_hawkesll _histogram
        _sample_unique_zipfian _contrib_BilinearResize2D _backward_contrib_BilinearResize2D""",
    "the ends of a range are numbers on the host": """
        _contrib_quantize _contrib_quantize_v2 _contrib_dequantize _contrib_requantize _contrib_quantized_concat
        _contrib_quantized_conv _contrib_quantized_fully_connected _contrib_quantized_elemwise_add
        _contrib_quantized_elemwise_mul _contrib_quantized_batch_norm _contrib_calibrate_entropy
        _contrib_quantize_asym _contrib_quantized_rnn""",
    "a matrix may be singular, which is an error": "_linalg_trsm _linalg_potri",
    "the host makes a table of positions": """
        _linalg_extractdiag _linalg_makediag _linalg_extracttrian _linalg_maketrian""",
    "the host draws numbers with these parameters": """
        _sample_uniform _sample_normal _sample_gamma _sample_exponential _sample_poisson _sample_negative_binomial
        _sample_generalized_negative_binomial _random_generalized_negative_binomial
        _random_generalized_negative_binomial_like _image_random_contrast _image_random_color_jitter""",
}
"""The operators that make the host wait for the GPU, and why; captured graphs cannot contain them."""


def close(ours, reference):
    # Relative to the array's largest element: some forwards sum in a different order for NumPy.
    assert ours.dtype == reference.dtype
    size = np.abs(reference[np.isfinite(reference)]).max(initial=1.0) if reference.dtype.kind == "f" else 1
    np.testing.assert_allclose(ours, reference, rtol=1e-5, atol=1e-5 * size)


@rows("case", CASES, of=operator, name=label)
def test_as_numpy(case):
    waiting = set()

    def call(op, run, inputs, outputs):
        waits.clear()
        op.forward(run, inputs, outputs)
        waiting.update({op.name} if waits else ())

    expected, actual = run_case(case, np), run_case(case, xp, call=call)
    for ours, reference in zip(actual, expected, strict=True):
        for first, second in zip(ours, reference, strict=True):
            close(first, second)
    assert waiting <= {name for names in WAITING.values() for name in names.split()}


def test_waiting_operators_exist():
    assert {name for names in WAITING.values() for name in names.split()} <= registered_operators().keys()


def test_a_forward_that_leaves_the_device_is_detected():
    case = next(case for case in CASES if case.op == "FullyConnected")

    def call(op, run, inputs, outputs):
        outputs[0][...] = np.zeros(outputs[0].shape, np.float32)

    with pytest.raises(TypeError, match="used for fill"):
        run_case(case, xp, call=call)
    assert operator_of(case).name == "FullyConnected"
