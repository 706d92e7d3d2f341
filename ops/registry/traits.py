"""The traits of an operator: what passes, plans, mixed precision and the tape must know of it beyond its signature.

A class gives those that differ from its bases' as keywords, ``class Dropout(Operator, uses_random=True)``; of several
bases the first that gives one wins. An instance may have others, as its parameters say (``Operator.with_traits``).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal, NamedTuple

__all__ = ["BatchParts", "BatchWise", "Neutral", "Passing", "Precision", "Quantization", "Traits"]


class Precision(Enum):
    """The precision that mixed precision gives an operator."""

    LOW = "the 16-bit type"
    """Most of the work, sums of many products, which kernels accumulate in float32."""
    FLOAT32 = "float32"
    """Operators that easily overflow float16, or that sum many numbers."""
    WIDEST = "the widest of the inputs"
    GIVEN = "as given"


class Passing(Enum):
    """The cases in which the first output is the first input, to the bit."""

    NEVER = "never"
    ALWAYS = "always"
    ALIKE = "where shape and dtype are the same"
    ALONE = "where there is one input"


class BatchWise(Enum):
    """The inputs of which, in prediction, a part of the batch gives that part of the outputs' batch.

    In training it holds too, but where the operator draws, writes a state, or its mode matters. The batch is axis 0.
    It is not inherited from an operator, so another one that is made of it has to say it anew.
    """

    UNKNOWN = "not known, so that the whole batch is needed"
    FIRST = "the first input; the others are needed whole"
    ALL = "the inputs with the outputs' batch and number of axes; the others are broadcast, and needed whole"
    EACH = "every input, each of which has the outputs' batch"
    SUM = "every input, each of which has the batch; the outputs are sums over it, so that those of the parts add up"
    OWN = "what Operator.batch_parts says"


class BatchParts(NamedTuple):
    """Inputs and outputs that go along with the batch: a part of these outputs follows from that part of these inputs.

    Attributes:
        inputs: positions of inputs; the others are needed whole.
        outputs: positions of outputs.
        sums: positions of outputs that are sums over the batch: those of the parts add up to that of the whole. The
            others, of neither kind, are the same for each part.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    sums: tuple[int, ...] = ()


class Neutral(NamedTuple):
    """The number that changes nothing as an operand of arithmetic. Of the zeros only -0.0 is neutral in a sum.

    Attributes:
        number: the number.
        sides: the operands that may be it, 0 or 1.
        kinds: the kinds of dtypes (as NumPy abbreviates them) in which that holds.
        itemsize: the bytes of an element from which on it holds.
    """

    number: float
    sides: tuple[int, ...] = (1,)
    kinds: str = "fiu"
    itemsize: int = 1


class Quantization(NamedTuple):
    """The quantized form of an operator.

    Attributes:
        name: the operator that does the same on quantized numbers, with the same parameters. It takes the same inputs,
            then the ends of the range of each that is quantized, and gives the ends of the output's range as well.
        always: it is worth it by itself; others are quantized where their neighbours are.
        real: positions of the inputs that stay as they are, with no range.
        real_by_channel: further ones, where weights have a scale for each channel.
        parameters: further parameters of the operator, as MXNet's JSON has them.
        by_channel: those where weights have a scale for each channel.
        asymmetric: positions of inputs whose range need not lie around 0; scale and shift are its ends.
        real_output: the outputs are real numbers, with no range.
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
        skips: positions count only the inputs that an instance takes, though others lie between them.
        open_ended: the names of inputs and parameters depend on the instance (Custom).
        hidden: only other operators' gradients or passes use it; it gets no public function.
        dynamic: the outputs' shapes follow from the content of inputs, so that graphs of it can not be planned.
        detached: it runs the user's own code, which may push and wait, so that it gets threads of its own.
        replays: it runs steps of its own again and again, which a device may capture and launch as one.
        uses_random: the forward may draw from the device's generator, which is then a variable that it writes.
        draws_by_part: what it draws for a part of the batch is that part of what it draws for the whole, which
            ``Operator.skip_draws`` passes over.
        mode_matters: training mode changes what the forward computes.
        no_gradient: no gradient flows through it (comparisons, argmax, samplers).
        is_loss: an output layer whose gradient ignores the head gradient (SoftmaxOutput).
        heavy: the work is more than proportional to the bytes touched (convolutions, products).
        multiplies: where it is heavy: libraries of matrix products do the work, which make much of each byte.
        mirrored: MXNet's mirroring computes it again in the backward pass, unless it is heavy.
        once: a bound graph keeps the result from run to run, for as long as what it reads stays as it is.
        in_place: pairs (input, output) that may share memory.
        makes_channels_last: kernels are faster with the channels (axis 1) of inputs and outputs contiguous in memory.
        keeps_layout: the forward may write outputs that lie in memory as its inputs do, in whatever order of axes.
        view: the output is the first input's bytes with another shape, so that a plan needs no step for it.
        casts: the output is the first input in another dtype.
        repeats: every element of the output is one of the first input's, with the axes broadcast.
        moves: elements of the inputs are copied to other places, and at most filled up with a number.
        shapes_only: the names of inputs of which the forward looks at nothing but shape and dtype.
        passing: when the first output is the first input, to the bit.
        neutral: for arithmetic with two operands, the number that changes nothing.
        activation: of a function, its name among the activations that layers apply.
        precision: what it computes in under mixed precision; None is as given, and not for public heavy operators.
        float32_where: a parameter, and the values of it for which mixed precision leaves the operator in float32.
        input_named: MXNet's monitors call its only input data, not input0.
        sparse: calls on arrays make sparse ones, or sparse gradients, though all inputs are dense.
        typed_by_shapes: the outputs' dtypes may follow from the inputs' shapes, too.
        quantized: the quantized form, where there is one.
        requantizes: of a quantized operator, that its output is of int32, and is made bytes after it.
        calibrates: of a quantized operator, the value whose range it wants to know: its first input, or its output.
        batch_wise: how it goes along with the batch; asked by ``Operator.batch_parts``.
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
