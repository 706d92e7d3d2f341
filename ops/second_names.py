"""Operators that equal another operator, but that MXNet registers separately."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from flowmx.ops.arrays.indexing import Embedding
from flowmx.ops.arrays.joining import Concat
from flowmx.ops.registry.operators import (
    Array,
    Operator,
    Run,
    ShapeOrNone,
    describe,
    lookup,
    operator,
    option,
    required,
)
from flowmx.ops.registry.tensors import Functions, Gradients, Tensors
from flowmx.ops.registry.traits import Passing, Precision

_SCATTER = "For MXNet's sparse arrays, on their stored elements; for dense arrays "

for _name, _same, _doc in [
    ("_copyto", "_copy", "A copy of x."),
    ("_scatter_elemwise_div", "elemwise_div", _SCATTER + "elementwise a / b."),
    ("_scatter_plus_scalar", "_plus_scalar", _SCATTER + "elementwise a + b, where b is a number."),
    ("_scatter_minus_scalar", "_minus_scalar", _SCATTER + "elementwise a - b, where b is a number."),
]:
    operator(_name)(type(_name, (lookup(_same),), {"__doc__": _doc, "__module__": __name__}))


@operator("cast_storage")
class CastStorage(Operator, passing=Passing.ALWAYS):
    """Convert an array to another storage type; 'default' is dense."""

    input_docs = describe(data="any shape, any dtype, any storage type; a matrix for csr")
    output_doc = "The shape and dtype of data"

    stype: Literal["default", "row_sparse", "csr"] = required("The target storage type.")

    def __post_init__(self) -> None:
        if self.stype != "default":
            self.with_traits(sparse=True)

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        run.xp.copyto(outputs[0], inputs[0])

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [heads[0]]


@operator("_contrib_SparseEmbedding")
class SparseEmbedding(Embedding, sparse=True):
    """Embedding with a gradient that has only the rows that were read."""

    deterministic: bool = option(False, "Ignored; always deterministic. Present in MXNet's files.")


@operator("_rnn_param_concat")
class RNNParamConcat(Concat, precision=Precision.GIVEN):
    """The parameters of a recurrent layer, joined along an axis."""

    def infer_back(self, shapes: list[ShapeOrNone], outputs: list[ShapeOrNone]) -> list[ShapeOrNone]:
        output = outputs[0]
        # Only the weights of the layer's input are unknown: one per direction, all of the same size.
        unknown = [index for index, shape in enumerate(shapes) if shape is None or -1 in shape]
        if not unknown or output is None or len(output) != 1 or -1 in output:
            return shapes
        rest = output[0] - sum(shape[0] for index, shape in enumerate(shapes) if shape and index not in unknown)
        if rest <= 0 or rest % len(unknown):
            return shapes
        return [(rest // len(unknown),) if index in unknown else shape for index, shape in enumerate(shapes)]


@operator("_identity_with_attr_like_rhs")
class IdentityWithAttrLikeRhs(Operator, in_place=((0, 0),), passing=Passing.ALWAYS, shapes_only=("rhs",)):
    """A copy of ``lhs``, which has the shape of ``rhs``."""

    arguments = ("lhs", "rhs")
    input_docs = describe(
        lhs="any shape, any dtype",
        rhs="the shape and dtype of lhs; only its shape is used",
    )
    onnx = "Identity"

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        run.xp.copyto(outputs[0], inputs[0])

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [heads[0], None]
