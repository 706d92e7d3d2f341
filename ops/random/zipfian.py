"""Candidates for sampled softmax: classes drawn by rank, the frequent ones first."""

from __future__ import annotations

import math
from collections.abc import Sequence

from flowmx.errors import ParameterError
from flowmx.ops.arrays.linear import Inferred, InferredTypes
from flowmx.ops.registry.dtypes import BY_NAME, DType
from flowmx.ops.registry.operators import Array, Operator, Run, Shape, ShapeOrNone, operator, option, required
from flowmx.ops.registry.tensors import Functions, Tensor


def candidates(
    F: Functions, true_classes: Tensor, count: int, range_max: int, **options: object
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw classes c below ``range_max`` with P(c) = log((c + 2)/(c + 1)) / log(range_max + 1).

    Args:
        F: the frontend: every operator as a function of arrays or symbols.
        true_classes: other classes whose expected counts to compute.
        count: the number of classes to draw.
        range_max: the total number of classes.
        **options: additional arguments of the random operator.

    Returns:
        the classes (count,), int64; the expected counts of the true classes; the expected counts of the drawn classes.
    """
    width = math.log(range_max + 1)
    draws = F.op("_random_uniform", low=0.0, high=width, shape=(count,), dtype="float64", **options)
    samples = F.op("_mod_scalar", F.Cast(F.exp(draws) - 1.0, dtype="int64"), scalar=range_max)

    def expected(classes: Tensor) -> Tensor:
        ranks = F.Cast(classes, dtype="float64")
        return F.log((ranks + 2.0) / (ranks + 1.0)) * (count / width)

    return samples, expected(true_classes), expected(samples)


@operator("_sample_unique_zipfian")
class SampleUniqueZipfian(Operator, uses_random=True, no_gradient=True):
    """Draw classes like ``rand_zipfian``, without repeats within a row, and count the draws of each row.

    Shapes: samples (rows, count) = ``shape``, numbers of draws (rows,); both are int64.
    """

    arguments = ()
    output_doc = "Samples `shape` and numbers of draws (rows,), int64"
    output_names = ("output0", "output1")
    range_max: int = required("The number of classes.", low=1)
    shape: Shape = option((), "The number of rows, and of samples in each.", low=0)

    def __post_init__(self) -> None:
        if len(self.shape) != 2 or self.shape[1] > self.range_max:
            raise ParameterError(
                f"{self.name}: parameter shape is {self.shape}, expected a number of rows and at most "
                f"range_max={self.range_max} samples in each"
            )

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, [self.shape, self.shape[:1]]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return dtypes, [BY_NAME["int64"]] * 2

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        count = self.shape[1]
        for row, samples in enumerate(outputs[0]):
            classes = self._draw(run, count)
            # The first position of each class; draw more until there are enough classes.
            while len(first := run.xp.unique(classes, return_index=True)[1]) < count:
                classes = run.xp.concatenate([classes, self._draw(run, len(classes))])
            first = run.xp.sort(first)[:count]
            samples[...] = classes[first]
            outputs[1][row] = first[-1] + 1 if count else 0

    def _draw(self, run: Run, count: int) -> Array:
        draws = run.xp.exp(run.random.random(count) * math.log(self.range_max + 1))
        result: Array = (draws - 1).astype("int64") % self.range_max
        return result
