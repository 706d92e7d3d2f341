"""Operators behave as their traits declare, and no module lists operator names."""

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowmx as mx
from flowmx import devices
from flowmx.ops.registry.operators import Operator, Run, lookup, operator, registered_operators
from flowmx.ops.registry.traits import Passing, Precision
from tests.graph_runs import operator_of
from tests.op_cases import every_case
from tests.rows import family, rows

ROOT = Path(mx.__file__).parent
PLACES = ("amp", "cached_op", "executor", "graph")

# Strings that are also names of operators, by file, and their purpose.
NAMED = {
    "amp/__init__.py": ({"BatchNorm", "gamma"}, "what MXNet's list_lp16_use_fp32_params answers"),
    "amp/lists.py": (
        {"SoftmaxOutput", "LinearRegressionOutput", "LogisticRegressionOutput", "MAERegressionOutput"},
        "what MXNet's list_loss_output_functions answers",
    ),
    "graph/passes/fold_batch_norm.py": ({"relu"}, "an activation's name, which layers take as a parameter"),
    "graph/passes/fuse.py": ({"relu", "clip", "sigmoid"}, "likewise"),
    "graph/passes/pooling_indices.py": ({"max"}, "a kind of pooling"),
    "graph/storage_types.py": (
        {
            *(
                "expm1",
                "sin",
                "cos",
                "tan",
                "arcsin",
                "arctanh",
                "degrees",
                "radians",
                "sinh",
                "cosh",
                "tanh",
                "arcsinh",
            ),
            *(
                "elemwise_mul",
                "_maximum",
                "_minimum",
                "_hypot",
                "_power",
                "broadcast_mul",
                "broadcast_div",
                "norm",
                "clip",
            ),
            *("LinearRegressionOutput", "LogisticRegressionOutput", "MAERegressionOutput", "make_loss", "_copy"),
        },
        "operators whose gradients MXNet declares dense without a rule, and those that make a dense copy",
    ),
    "graph/passes/join_int8.py": ({"relu", "clip", "max", "pad"}, "activations, a kind of pooling, a parameter"),
    "graph/quantizing/fuse_layers.py": ({"relu"}, "an activation's name"),
    "graph/passes/fold_int8.py": ({"sum"}, "an input's name"),
}
# Files that create operators by their public names.
MAKING = {"graph/gradient.py", "executor/monitored.py"}


def strings(tree):
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs
    }


@pytest.mark.parametrize("place", PLACES)
def test_no_module_lists_operator_names(place):
    for path in sorted((ROOT / place).rglob("*.py")):
        where = path.relative_to(ROOT).as_posix()
        names = strings(ast.parse(path.read_text(encoding="utf-8"))) & set(registered_operators())
        if where not in MAKING:
            assert names == NAMED.get(where, (set(), ""))[0], f"{where}: make it a trait, or compare classes"


# -- traits, and what operators do ---------------------------------------------------------------------------


CASES: dict[str, list[Any]] = {}
for _case in every_case():
    CASES.setdefault(lookup(_case.op).name, []).append(_case)
NAMES = sorted(CASES)


PASSING_ELSEWHERE = {
    "Dropout": "where it drops nothing, by a special rule",
    "IdentityAttachKLSparseReg": "in prediction; in training it moves an average",
    "_image_random_lighting": "on images that hide its noise",
    **dict.fromkeys(
        ["LinearRegressionOutput", "MAERegressionOutput", "SVMOutput"], "plans keep output layers as separate steps"
    ),
    "amp_multicast": "on arrays that already have one dtype",
    "_contrib_quantized_flatten": "it has outputs for a range too",
}
READ_ELSEWHERE = {
    **dict.fromkeys(
        ["LinearRegressionOutput", "LogisticRegressionOutput", "MAERegressionOutput", "SVMOutput", "SoftmaxOutput"],
        "a label, which the gradient reads",
    ),
    "IdentityAttachKLSparseReg": "an average, which training reads",
    "_contrib_getnnz": "it counts elements other than zero, and all of these are",
    "_random_pdf_uniform": "a sample, since all samples have the same density",
}


def computed(op, arrays):
    """Return the outputs of an operator in prediction; None if it refuses the arrays."""
    spec = op.spec(tuple(each.shape for each in arrays), tuple(each.dtype for each in arrays))
    outputs = [np.zeros(shape, dtype) for shape, dtype in zip(spec.shapes, spec.dtypes, strict=True)]
    try:
        with np.errstate(all="ignore"):
            op.forward(Run(devices.get(mx.cpu()), train=False), [each.copy() for each in arrays], outputs)
    except (ArithmeticError, IndexError, ValueError):
        return None
    return outputs


def calls(name):
    """Yield the operator, the inputs and the outputs of each row of an operator."""
    for case in CASES[name]:
        op, arrays = operator_of(case), case.call_inputs()
        if arrays and not op.updates and (outputs := computed(op, arrays)):
            yield op, arrays, outputs


def same_bytes(one, other):
    return one.dtype == other.dtype and one.tobytes() == other.tobytes()


@rows("name", NAMES, of=family)
def test_passthrough_outputs(name):
    """The first output has the first input's bytes in all rows exactly if the operator declares so."""
    all_calls = list(calls(name))
    for op, (first, *others), (out, *_) in all_calls:
        traits, is_alike = op.traits, first.shape == out.shape and first.dtype == out.dtype
        if traits.view or traits.passing is Passing.ALWAYS:
            assert same_bytes(first, out)
        if (traits.passing is Passing.ALIKE and is_alike) or (traits.passing is Passing.ALONE and not others):
            assert same_bytes(first, out)
        if traits.casts:
            np.testing.assert_array_equal(out, first.astype(out.dtype))
    says = lookup(name).traits
    if (
        all_calls
        and all(same_bytes(inputs[0], outputs[0]) for _, inputs, outputs in all_calls)
        and not says.uses_random
    ):
        excused = name in PASSING_ELSEWHERE or says.casts
        assert says.view or says.passing is not Passing.NEVER or excused, "say view=True, or passing=Passing.ALWAYS"


def test_matrix_products_are_heavy_and_return_no_input():
    multiplying = {name for name, cls in registered_operators().items() if cls.traits.multiplies}
    assert {"FullyConnected", "Convolution", "Deconvolution", "dot", "batch_dot", "_linalg_gemm"} <= multiplying
    for name in multiplying:
        traits = lookup(name).traits
        assert traits.heavy and not traits.view and traits.passing is Passing.NEVER, name


def changed(array):
    """Yield arrays of the same form with other elements."""
    yield np.roll(array.reshape(-1), 1).reshape(array.shape)
    yield -array
    yield array + array.dtype.type(1)
    if array.dtype.kind == "f":
        yield np.full_like(array, np.nan)


@rows("name", NAMES, of=family)
def test_shape_only_inputs(name):
    """The inputs whose elements change nothing are exactly those in ``shapes_only``."""
    read, alone = set(), set()
    for op, arrays, outputs in calls(name):
        for position, array in enumerate(arrays):
            says = op.inputs()[position] if position < len(op.inputs()) else ""
            for other in changed(array):
                actual = computed(op, [*arrays[:position], other, *arrays[position + 1 :]])
                if actual is None or not all(map(same_bytes, actual, outputs)):
                    read.add(says)
            if position in op.shape_only_inputs():
                alone.add(says)
        if op.traits.uses_random:
            return
    assert not read & alone
    unread = {each for op, _, _ in calls(name) for each in op.inputs()} - read - alone
    assert not unread or name in READ_ELSEWHERE, "these only lend their shape: name them in shapes_only"


@rows("name", NAMES, of=family)
def test_neutral_parameters_change_nothing(name):
    for op, (first, *others), _ in calls(name):
        neutral = op.traits.neutral
        if neutral is None or first.dtype.kind != "f":
            continue
        if not others:
            (same,) = computed(type(op).create(scalar=neutral.number), [first])
            assert same_bytes(first, same)
        for side in neutral.sides if others else ():
            pair = [np.full_like(first, neutral.number)] * 2
            pair[1 - side] = first
            assert same_bytes(first, computed(op, pair)[0])


def test_an_unknown_trait_is_refused():
    with pytest.raises(TypeError, match="heavi"):
        type("Misspelt", (Operator,), {}, heavi=True)


def test_heavy_operators_must_declare_their_precision():
    with pytest.raises(TypeError, match="'_test_heavy' is heavy and public, so it must set precision"):
        operator("_test_heavy")(type("Heavy", (Operator,), {}, heavy=True))
    assert "_test_heavy" not in registered_operators()


def test_a_trait_comes_from_the_first_base_that_sets_it():
    one = type("One", (Operator,), {}, heavy=True, keeps_layout=True)
    other = type("Other", (Operator,), {}, heavy=False, hidden=True)
    both = type("Both", (other, one), {}, precision=Precision.LOW)
    assert (both.traits.heavy, both.traits.hidden, both.traits.keeps_layout) == (False, True, True)
    assert both.traits.precision is Precision.LOW
