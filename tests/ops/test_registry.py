"""The registry as a whole: every operator is in a table of tests/op_cases, and documented."""

import flowmx.numpy.operator  # noqa: F401 (it is imported late)
from flowmx.ops.compiled.recomputed import RECOMPUTED
from flowmx.ops.optimizers.internal_rules import RULES
from flowmx.ops.registry.operators import Operator, lookup, registered_operators
from tests.op_cases import every_case
from tests.rows import family, rows

SGD = ("sgd_update", "sgd_mom_update")

# Operators without a row in the tables, and why.
ELSEWHERE: dict[str, str] = {
    "_summed": "only within slices, where it copies or adds: tests/graph/test_micro_batches.py",
    "_staged": "only within slices, where it copies: tests/devices/test_slices_devices.py",
    "_sliced": "created by the planner: tests/graph/test_slices.py",
    **dict.fromkeys(
        [
            *("_channel_window_sum", "_gather_channel", "_spread_bias", "_spread_channel"),
            *("_Pooling_at_maxima", "_ROIPooling_at_maxima", "_kept_by_box_nms"),
            *("_products_of_others", "_linalg_cofactors", "_linalg_cofactors_along", "_linalg_inverse_or_zero"),
        ],
        "part of layers' gradients, checked with their second gradients",
    ),
    **dict.fromkeys(
        ["mp_sgd_update", "mp_sgd_mom_update", "mp_nag_mom_update"],
        "half precision, where differences are too coarse: tests/module/test_optimizer.py",
    ),
    **dict.fromkeys(
        ["_fused_Convolution", "_fused_FullyConnected", "_relu_BatchNorm"],
        "made by the fusion pass: tests/graph/test_fusion.py",
    ),
    **dict.fromkeys(
        [f"_wide_backward_{layer}_weight" for layer in ("Convolution", "Deconvolution", "FullyConnected")],
        "made by the fusion pass for 16 bits: tests/ops/test_bfloat16.py",
    ),
    "_joined_normalization": "made by the pass of that name: tests/graph/test_joined_normalization.py",
    "_kept_rnn_param_concat": "a join, made by the packing pass: tests/ops/test_bfloat16.py",
    **dict.fromkeys(["_packed_RNN", "_pack_RNN"], "made by the packing pass: tests/ops/test_packed_rnn.py"),
    **dict.fromkeys(
        ["_packed_quantized_RNN", "_pack_quantized_RNN", "_quantize_for_states"],
        "made of quantized layers: tests/ops/test_quantized_rnn.py",
    ),
    "_widened": "Cast, made by a pass: tests/graph/test_widened_prediction.py",
    **dict.fromkeys(
        ["_sg_mkldnn_conv", "_sg_mkldnn_fully_connected"], "they have bodies: tests/graph/test_quantization.py"
    ),
    **dict.fromkeys(
        [
            *("_contrib_MultiBoxPrior", "_contrib_MultiBoxTarget", "_contrib_MultiBoxDetection"),
            *("_contrib_box_encode", "_contrib_box_decode"),
        ],
        "their gradients are 0; their values are compared with MXNet's: tests/ops/test_vision_anchors.py",
    ),
    **dict.fromkeys(
        ["_np_call", "_np_places", "_np_refused", "_np_waiting", "_npx_constraint_check", "_npx_reshape"],
        "NumPy's functions by name: tests/numpy/test_numpy.py, tests/numpy/test_numpy_symbols.py",
    ),
    **dict.fromkeys(
        [
            *("_contrib_dgl_adjacency", "_contrib_dgl_csr_neighbor_non_uniform_sample", "_contrib_dgl_graph_compact"),
            *("_contrib_dgl_csr_neighbor_uniform_sample", "_contrib_dgl_subgraph", "_contrib_edge_id"),
        ],
        "on csr matrices alone: tests/ops/test_graph_operators.py",
    ),
    "_contrib_paged_attention": "on a cache: tests/ops/test_paged_attention.py",
    "_contrib_boolean_mask": "its shape is unknown before the call: tests/gluon/test_like_mxnet_gluon.py",
    **dict.fromkeys(
        ["_pack_Convolution", "_pack_FullyConnected"], "made by the packing pass: tests/graph/test_weight_packing.py"
    ),
    "_order_Convolution": "made for slices: tests/graph/test_slices.py",
    **dict.fromkeys(
        ["_quantize_linear", "_dequantize_linear", "_dequantize_constant", "_linear_ends"],
        "made of ONNX's conversions: tests/files/test_onnx_quantized.py",
    ),
    **dict.fromkeys(
        ["_to_bytes", "_from_bytes", "_pool_bytes"], "made of operators with ranges: tests/ops/test_int8.py"
    ),
    **dict.fromkeys(
        [
            "_settled_filters",
            "_whole_filters",
            "_convolution_by_filters",
            "_product_by_packed",
            *(f"_{label}int8_{layer}" for label in ("", "pack_") for layer in ("Convolution", "FullyConnected")),
        ],
        "made of quantized layers: tests/ops/test_int8.py",
    ),
    **dict.fromkeys(
        [
            *(rule.name for rule in RULES),
            *(f"_{mixed}{kind}_{name}" for mixed in ("", "mp_") for kind in ("lars", "lbsgd") for name in SGD),
        ],
        "made by optimizers: tests/module/test_optimizer.py",
    ),
    "_scale_and_shift": "made by the folding pass: tests/graph/test_batch_norm_folding.py",
    "_chain": "made by the pass over chains: tests/graph/test_elementwise_chains.py",
    "_noted_Pooling": "made if the gradient is needed: tests/ops/test_pooling_indices.py",
    **dict.fromkeys(
        [f"_again_{name}" for name in RECOMPUTED],
        "made by the recomputation pass: tests/graph/test_recompute.py",
    ),
    "_copy_to_device": "made by the placement pass: tests/devices/test_model_parallelism.py",
    "_constant": "made by constant folding: tests/graph/test_simplify.py",
    **dict.fromkeys(["_foreach", "_while_loop", "_cond"], "with subgraphs: tests/ops/test_control_flow.py"),
    "_CachedOp": "made by partitioners: tests/graph/test_partition.py",
    "Custom": "the user's own: tests/ops/test_custom_operators.py",
    "_sum_like": "the gradient of broadcasting, checked with every broadcast_*",
    "_cast_like": "the gradient of Cast",
    "_contrib_packed_dense": "the gradient is checked for quantized weights: tests/ops/test_packed_dense.py",
    "_take_along": "the gradient of sort and topk, checked with their second gradients",
}


# Traits that refer to inputs by position: they hold only for the order of inputs of the class that sets them.
BY_POSITION = (
    "casts", "cost", "in_place", "infer_back", "infer_shape", "infer_type", "shape_only_inputs", "passing", "repeats",
    "updates", "view",
)  # fmt: skip
INPUTS = ("arguments", "auxiliary", "inputs")

# Operators whose inherited rules hold for any order, and why.
ANY_ORDER: dict[str, str] = {
    "_backward_LRN": "all inputs have one shape",
    **dict.fromkeys(
        ["_fused_Convolution", "_fused_FullyConnected", "_int8_Convolution", "_int8_FullyConnected"],
        "the addend comes after the layer's own inputs",
    ),
}


def operators():
    return sorted({cls.name: cls for cls in registered_operators().values()}.items())


CHECKED = {lookup(case.op).name for case in every_case()}
DIFFERENTIATED = {lookup(case.op).name for case in every_case() if case.gradient}
RANDOM = {name for name, cls in operators() if cls.traits.uses_random}


@rows("name", [name for name, _ in operators()], of=family)
def test_every_operator_is_in_a_table(name):
    if name.startswith("_backward_") or name in ELSEWHERE or name in RANDOM:
        return  # the gradients are checked with their operators, samplers in test_random.py
    assert name in CHECKED, f"add a row for {name} to a table in tests/op_cases, or say in ELSEWHERE why not"


@rows("name", sorted(CHECKED - RANDOM), of=family)
def test_every_gradient_is_checked(name):
    cls = lookup(name)
    has_gradient = not cls.traits.no_gradient and cls.gradient is not Operator.gradient
    if has_gradient and name not in ELSEWHERE:
        assert name in DIFFERENTIATED, f"no row of {name} checks its gradient"


def test_listed_exceptions_exist():
    assert set(ELSEWHERE) | set(ANY_ORDER) <= {name for name, _ in operators()}
    assert all(list(inherited_out_of_order(lookup(name))) for name in ANY_ORDER)


def inherited_out_of_order(cls):
    """Return the traits that a class inherits from a class with other inputs, or a different order of inputs."""
    mro = cls.__mro__

    def first(*names):
        is_declared = [{*vars(base), *vars(base).get("_given_traits", {})} for base in mro[:-1]]
        return next(
            (position for position, item in enumerate(is_declared) if not item.isdisjoint(names)), mro.index(Operator)
        )

    for fact in BY_POSITION:
        says = mro[first(fact)]
        if says is Operator or first(*INPUTS) >= first(fact):
            continue
        if first("inputs") < first(fact) and says.inputs is not Operator.inputs and "arguments" not in vars(cls):
            yield fact
        is_declared = "name" in vars(says) or any(
            "arguments" in vars(base) for base in says.__mro__ if base is not Operator
        )
        inputs = zip((*says.arguments, *says.auxiliary), (*cls.arguments, *cls.auxiliary), strict=False)
        if is_declared and any(one != second for one, second in inputs):
            yield fact


@rows(("name", "cls"), operators(), of=lambda row: family(row[0]))
def test_positional_traits_are_not_inherited_with_other_inputs(name, cls):
    if name not in ANY_ORDER:
        assert not list(inherited_out_of_order(cls)), f"{name} must set these itself, since its base has other inputs"


@rows(("name", "cls"), operators(), of=lambda row: family(row[0]))
def test_every_operator_is_documented(name, cls):
    assert cls.__doc__
    assert cls.__doc__ != Operator.__doc__
