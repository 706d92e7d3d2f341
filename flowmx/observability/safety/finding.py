"""Result of a watch: the origin of a NaN or an infinity."""

from __future__ import annotations

from typing import NamedTuple

from flowmx.errors import MXNetError


class Finding(NamedTuple):
    """The operator that first produced a value that is not finite.

    Attributes:
        operator: the operator.
        layer: the layer, or the node of a graph; None where neither is known.
        step: the number of the training step, counted from 1.
        is_backward: True in a backward pass.
        nans, infinities: how many there are in the operator's output.
        inputs: which of its inputs held such values already, in words.
        place: the line of the program.
    """

    operator: str
    layer: str | None
    step: int
    is_backward: bool
    nans: int
    infinities: int
    inputs: tuple[str, ...]
    place: str

    def __str__(self) -> str:
        where = f" in layer {self.layer!r}" if self.layer else ""
        passes = "backward" if self.is_backward else "forward"
        kinds = [f"{count} {kind}" for count, kind in ((self.nans, "NaN"), (self.infinities, "infinite")) if count]
        before = f"; it was given such values by {', '.join(self.inputs)}" if self.inputs else ""
        return (
            f"operator {self.operator}{where} gave {' and '.join(kinds)} values in the {passes} pass of step "
            f"{self.step}{before} (at {self.place})"
        )


class NonFiniteError(MXNetError, FloatingPointError):
    """The first NaN or infinity, where :func:`flowmx.observability.safety.stop_at_nan` looks for it.

    Attributes:
        finding: where it came about.
    """

    def __init__(self, finding: Finding) -> None:
        super().__init__(str(finding))
        self.finding = finding
