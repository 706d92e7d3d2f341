"""The finding of a NaN watch: the origin of a NaN or an infinity."""

from __future__ import annotations

from typing import NamedTuple

from flowmx.errors import MXNetError


class Finding(NamedTuple):
    """The operator that first computed a NaN or an infinity.

    Attributes:
        operator: name of the operator.
        layer: the layer, or the node of a graph; None if unknown.
        step: number of the training step, from 1.
        is_backward: whether it ran in a backward pass.
        nans, infinities: number of such values in its output.
        inputs: descriptions of its inputs with such values.
        place: source line of the program.
        forward: in a backward pass, the operator of the forward pass whose gradient was computed, or the node of a
            graph; None if unknown.
        forward_place: the source line that called this operator.
    """

    operator: str
    layer: str | None
    step: int
    is_backward: bool
    nans: int
    infinities: int
    inputs: tuple[str, ...]
    place: str
    forward: str | None = None
    forward_place: str | None = None

    def __str__(self) -> str:
        where = f" in layer {self.layer!r}" if self.layer else ""
        passes = "backward" if self.is_backward else "forward"
        kinds = [f"{count} {kind}" for count, kind in ((self.nans, "NaN"), (self.infinities, "infinite")) if count]
        source = f"; its inputs had such values in {', '.join(self.inputs)}" if self.inputs else ""
        return (
            f"operator {self.operator}{where} computed {' and '.join(kinds)} values in the {passes} pass of step "
            f"{self.step}{source} (at {self.place}){self._gradient()}"
        )

    def _gradient(self) -> str:
        """Describe the operator of the forward pass."""
        if self.forward is None:
            return ""
        is_new = self.forward_place not in (None, self.place)
        return f"; this is the gradient of {self.forward}" + (f", called at {self.forward_place}" if is_new else "")


class NonFiniteError(MXNetError, FloatingPointError):
    """The first NaN or infinity under :func:`flowmx.observability.safety.stop_at_nan`.

    Attributes:
        finding: its origin.
    """

    def __init__(self, finding: Finding) -> None:
        super().__init__(str(finding))
        self.finding = finding
