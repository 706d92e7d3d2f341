"""The loss of sequences whose labels are not aligned with them."""

from __future__ import annotations

from typing import Any

from flowmx.gluon.loss.base import Loss

__all__ = ["CTCLoss"]


class CTCLoss(Loss):
    """Connectionist temporal classification (Graves et al., ICML 2006); the last class is the blank.

    Labels are class numbers, padded with -1 where ``label_lengths`` are not given.

    Args:
        layout: of the predictions before a softmax, ``"NTC"`` or ``"TNC"``: batch, time, classes.
        label_layout: ``"NT"`` or ``"TN"``.
        weight: a factor.
        **kwargs: ``prefix`` and ``params``.

    Raises:
        ValueError: another layout.
    """

    def __init__(
        self, layout: str = "NTC", label_layout: str = "NT", weight: float | None = None, **kwargs: Any
    ) -> None:
        for name, given, known in (("layout", layout, ("NTC", "TNC")), ("label_layout", label_layout, ("NT", "TN"))):
            if given not in known:
                raise ValueError(f"CTCLoss: {name} is {given!r}, expected {' or '.join(map(repr, known))}")
        super().__init__(weight, label_layout.index("N"), **kwargs)
        self._layout, self._label_layout = layout, label_layout

    def hybrid_forward(
        self, F: Any, pred: Any, label: Any, pred_lengths: Any = None, label_lengths: Any = None,
        sample_weight: Any = None,
    ) -> Any:  # fmt: skip
        if self._layout == "NTC":
            pred = F.swapaxes(pred, 0, 1)
        if self._batch_axis == 1:
            label = F.swapaxes(label, 0, 1)
        loss = F.CTCLoss(
            pred, label, data_lengths=pred_lengths, label_lengths=label_lengths,
            use_data_lengths=pred_lengths is not None, use_label_lengths=label_lengths is not None, blank_label="last",
        )  # fmt: skip
        return self._weighted(F, loss, sample_weight)
