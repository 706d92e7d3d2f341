"""Traits of an operator: properties that passes, plans, mixed precision and the tape rely on.

A class sets the traits that differ from its bases' by keywords, ``class Dropout(Operator, uses_random=True)``; the
first base that sets a trait wins. An instance may override traits by its parameters (``Operator.with_traits``).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal, NamedTuple

__all__ = ["BatchParts", "BatchWise", "Neutral", "Passing", "Precision", "Quantization", "Traits"]


class Precision(Enum):
    """The precision in which mixed precision runs an operator."""

    LOW = "the 16-bit type"
    """Operators that do most of the work: sums of many products, which kernels accumulate in float32."""
    FLOAT32 = "float32"
    """Operators that easily overflow float16, or sum many numbers."""
    WIDEST = "the widest of the inputs"
    GIVEN = "as given"


class Passing(Enum):
    """The cases in which the first output equals the first input, bit for bit."""

    NEVER = "never"
    ALWAYS = "always"
    ALIKE = "where shape and dtype are the same"
    ALONE = "where there is one input"


class BatchWise(Enum):
    """The ways to compute an operator on parts of the batch (axis 0) in prediction.

    It holds in training too, unless the operator draws random numbers, writes a state, or depends on the mode.
    Subclasses of an operator do not inherit it.
    """

    UNKNOWN = "unknown: the whole batch is needed"
    FIRST = "the first input is split; the others are needed whole"
    ALL = "inputs with the outputs' batch and number of axes are split; the others are broadcast, and needed whole"
    EACH = "every input has the outputs' batch and is split"
    SUM = "every input has the batch and is split; the outputs are sums over it, added up over the parts"
    OWN = "as Operator.batch_parts says"


class BatchParts(NamedTuple):
    """Inputs and outputs that can be split along the batch.

    Attributes:
        inputs: positions of inputs; the others are needed whole.
        outputs: positions of outputs.
        sums: positions of outputs that are sums over the batch: add up those of the parts. Outputs in neither
            group are the same for each part.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    sums: tuple[int, ...] = ()


class Neutral(NamedTuple):
    """The neutral element of an arithmetic operator. In a sum, -0.0 is neutral and 0.0 is not.

    Attributes:
        number: the number.
        sides: the operands that may be this number, 0 or 1.
        kinds: NumPy's letters for the kinds of dtypes in which it is neutral.
        itemsize: the smallest element size in bytes for which it is neutral.
    """

    number: float
    sides: tuple[int, ...] = (1,)
    kinds: str = "fiu"
    itemsize: int = 1


class Quantization(NamedTuple):
    """The quantized form of an operator.

    Attributes:
        name: the quantized operator, with the same parameters. It takes the same inputs, then the minimum and maximum
            of each quantized input, and also returns the minimum and maximum of the output.
        always: quantize the operator even alone; others are quantized only next to quantized operators.
        real: positions of inputs that stay in floating point, without a range.
        real_by_channel: more such positions, for weights with a scale per channel.
        parameters: additional parameters of the quantized operator, as strings of MXNet's JSON.
        by_channel: parameters for weights with a scale per channel.
        asymmetric: positions of inputs whose range need not be symmetric; its ends are scale and shift.
        real_output: the outputs are in floating point, without a range.
    """

    name: str
    always: bool = False
    real: tuple[int, ...] = ()
    real_by_channel: tuple[int, ...] = ()
    parameters: tuple[tuple[str, str], ...] = ()
    by_channel: tuple[tuple[str, str], ...] = ()
    asymmetric: tuple[int, ...] = ()
    real_output: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """The traits of an operator.

    Attributes:
        skips: positional inputs skip over inputs that an instance does not take.
        open_ended: the names of inputs and parameters depend on the instance (Custom).
        hidden: used only by gradients and passes; it has no public function.
        dynamic: output shapes depend on the content of inputs, so its graphs cannot be planned.
        detached: it runs user code, which may push and wait, so it runs on separate threads.
        replays: it runs the same steps repeatedly; a device may capture them and launch them as one.
        uses_random: the forward may draw from the device's generator, which it then writes as a variable.
        draws_by_part: a part of the batch draws that part of the whole batch's numbers; ``Operator.skip_draws``
            skips the numbers of other parts.
        mode_matters: training mode changes what the forward computes.
        no_gradient: no gradient flows through it (comparisons, argmax, samplers).
        is_loss: an output layer whose gradient ignores the head gradient (SoftmaxOutput).
        heavy: the work grows faster than the bytes touched (convolutions, products).
        multiplies: a heavy operator computed by a library of matrix products, with many operations per byte.
        mirrored: MXNet's mirroring recomputes it in the backward pass, unless it is heavy.
        once: a bound graph reuses the result until its inputs change.
        in_place: pairs (input, output) that may share memory.
        makes_channels_last: kernels are faster with the channels (axis 1) of inputs and outputs contiguous in memory.
        keeps_layout: the forward may write outputs in the memory layout of its inputs, for any order of axes.
        view: the output is the first input's memory with a different shape, so a plan needs no step for it.
        casts: the output is the first input in a different dtype.
        repeats: the output is the first input, broadcast along axes.
        moves: elements of the inputs are copied to other positions, with at most a constant as padding.
        shapes_only: names of inputs whose elements the forward does not read, only shape and dtype.
        passing: when the first output equals the first input, bit for bit.
        neutral: the neutral element, for arithmetic with two operands.
        activation: the name of the function among the activations that layers apply.
        precision: the precision under mixed precision; None means unchanged, and is invalid for public heavy operators.
        float32_where: a parameter, and its values for which mixed precision leaves the operator in float32.
        input_named: MXNet's monitors call its only input "data", not "input0".
        sparse: calls on arrays return sparse arrays or sparse gradients, though all inputs are dense.
        typed_by_shapes: output dtypes may also depend on input shapes.
        quantized: the quantized form, or None.
        requantizes: for a quantized operator: its int32 output is requantized to bytes.
        calibrates: for a quantized operator: the value whose range it needs, its first input or its output.
        batch_wise: how it can be split along the batch; read by ``Operator.batch_parts``.
    """

    skips: bool = False
    open_ended: bool = False
    hidden: bool = False
    dynamic: bool = False
    detached: bool = False
    replays: bool = False
    uses_random: bool = False
    draws_by_part: bool = False
    mode_matters: bool = False
    no_gradient: bool = False
    is_loss: bool = False
    heavy: bool = False
    multiplies: bool = False
    mirrored: bool = True
    once: bool = False
    in_place: tuple[tuple[int, int], ...] = ()
    makes_channels_last: bool = False
    keeps_layout: bool = False
    view: bool = False
    casts: bool = False
    repeats: bool = False
    moves: bool = False
    shapes_only: tuple[str, ...] = ("like",)
    passing: Passing = Passing.NEVER
    neutral: Neutral | None = None
    activation: str = ""
    precision: Precision | None = None
    float32_where: tuple[str, tuple[str, ...]] | None = None
    input_named: bool = False
    sparse: bool = False
    typed_by_shapes: bool = False
    quantized: Quantization | None = None
    requantizes: bool = False
    calibrates: Literal["", "input", "output"] = ""
    batch_wise: BatchWise = BatchWise.UNKNOWN
