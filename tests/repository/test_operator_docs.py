"""The documentation of every public operator: the shapes and dtypes of inputs and outputs are present and right."""

import ast
import re

import numpy as np

import flowmx as mx
from docs import reference
from docs.reference import CALLS, operator_page, smallest
from flowmx import nd
from flowmx.ops.registry.documentation import documentation, inputs_of, outputs_of
from flowmx.ops.registry.examples import EXAMPLES, example
from flowmx.ops.registry.operators import lookup, registered_operators
from tests.op_cases import every_case
from tests.rows import family, rows

PUBLIC = {cls.name: cls for cls in registered_operators().values() if not cls.traits.hidden}
SHAPE = re.compile(r"shape|axes|\(|lists?\b|matrices|flat")
DTYPE = re.compile(r"dtype|\bfloat|\bu?int")
TUPLE = r"\((?:[^()]|\([^()]*\))*\)"
NO_OUTPUT = {"reset_arrays"}


def cases():
    """Return the recorded cases of public operators with fixed inputs: operator, names, shapes, dtypes."""
    for case in every_case():
        cls = lookup(case.op)
        if cls.name in PUBLIC and not cls.variadic and not cls.traits.open_ended:
            op, inputs = cls.create(**case.params), case.call_inputs()
            names = (*op.inputs(), *op.auxiliary)
            yield op, {name: (array.shape, array.dtype) for name, array in zip(names, inputs, strict=True)}


CASES = list(cases())


def shapes_in(text):
    """Return the shapes at the start of a text, as pairs of their rank and whether there may be more axes."""
    if not text.startswith("("):
        return []
    for shape in re.findall(TUPLE, text.partition(";")[0]):
        axes = [axis.strip() for axis in re.sub(r"(?<=.)\(.*?\)", "", shape[1:-1]).split(",") if axis.strip()]
        fixed = [axis for axis in axes if axis != "..." and not axis.startswith("*")]
        yield len(fixed), len(fixed) < len(axes)


def fits(shape, text):
    actual = list(shapes_in(text))
    return not actual or any(len(shape) == count or (more and len(shape) > count) for count, more in actual)


@rows("name", sorted(PUBLIC), of=family)
def test_every_input_and_output_has_a_shape_and_a_dtype(name):
    cls = PUBLIC[name]
    texts = inputs_of(cls) | ({} if name in NO_OUTPUT else {"Returns": outputs_of(cls)})
    assert not {key: text for key, text in texts.items() if not (SHAPE.search(text) and DTYPE.search(text))}
    for key, text in inputs_of(cls).items():
        assert f"\n    {key}: {text}." in documentation(cls)


def test_the_documented_shapes_of_inputs_are_those_of_the_cases():
    wrong = {
        (op.name, name, shape): inputs_of(type(op))[name]
        for op, inputs in CASES
        for name, (shape, _) in inputs.items()
        if not fits(shape, inputs_of(type(op))[name])
    }
    assert not wrong


def test_the_documented_dtypes_are_those_of_the_cases():
    wrong = []
    for op, inputs in CASES:
        outputs = op.infer_type([dtype for _, dtype in inputs.values()])[1]
        texts = [(inputs_of(type(op))[name], dtype) for name, (_, dtype) in inputs.items()]
        if len(outputs) == 1:
            texts += [(outputs_of(type(op)), outputs[0])]
        for text, dtype in texts:
            same = re.search(r"the (?:shape and )?dtype of (\w+)$", text)
            if same and same[1] in inputs and dtype != inputs[same[1]][1]:
                wrong.append((op, text, dtype))
            named = re.search(r"[^,;]*, (uint8|int64|float32)$", text)
            if named and dtype != np.dtype(named[1]):
                wrong.append((op, text, dtype))
    assert not wrong


def test_the_documented_shape_of_an_output_is_that_of_the_input_named():
    wrong = []
    for op, inputs in CASES:
        same = re.match(r"The shape and dtype of (\w+)", outputs_of(type(op)))
        output = op.infer_shape([shape for shape, _ in inputs.values()])[1][0]
        if same and same[1] in inputs and output != inputs[same[1]][0]:
            wrong.append((op, inputs, output))
    assert not wrong


@rows("name", EXAMPLES, of=family)
def test_an_example_has_the_documented_result(name):
    code, value = example(name)
    space = {"mx": mx, "array": np.array, "float32": "float32", "int32": "int32", "int64": "int64", "nan": np.nan}
    result, text = eval(code, space), eval(value, space)
    assert (result.shape, result.dtype) == (text.shape, text.dtype)
    np.testing.assert_allclose(result, text, rtol=1e-6, atol=1e-6)
    assert f"\nExample:\n    >>> {code}\n    {value}" in documentation(PUBLIC[name])


def test_every_operator_has_an_example_on_its_page():
    assert PUBLIC.keys() - EXAMPLES.keys() - CALLS.keys() - smallest().keys() == {"Custom"}


def test_the_page_of_an_operator_is_complete():
    page = operator_page(lookup("_linalg_gemm2"), "linalg")
    assert page.startswith(":orphan:\n\n.. index::\n   ! single: _linalg_gemm2\n")
    assert ".. py:function:: mx.nd.linalg.gemm2(A: NDArray, B: NDArray, transpose_a: bool = False" in page
    for part in (
        "* - ``A``",
        "* - ``alpha``",
        ">>> mx.nd.linalg.gemm2(",
        "Written with ``_linalg_gemm2``",
        "``MatMul``",
    ):
        assert part in page, part


def test_a_function_lists_its_inputs_and_a_method_omits_its_array():
    assert "    indices: any shape, int or float.\n" in nd.take.__doc__
    assert "    a: any shape, any dtype.\n" in nd.take.__doc__
    assert "    a: " not in nd.NDArray.take.__doc__
    assert "    indices: any shape, int or float.\n" in nd.NDArray.take.__doc__
    assert "\nReturns:\n    (*a.shape[:axis], " in nd.take.__doc__


def test_the_signatures_on_the_site_are_python():
    for cls in reference.public():
        for array in ("NDArray", "Symbol"):
            text = reference.signature(cls, array)
            (function,) = ast.parse(f"def function{text}: ...").body
            assert all(each.annotation for each in (*function.args.args, *function.args.kwonlyargs)), cls.name
            assert "Any" not in text, cls.name
