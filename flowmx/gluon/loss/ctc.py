"""Connectionist temporal classification (CTC): the loss for sequences with unaligned labels."""

from __future__ import annotations

from typing import Unpack

from flowmx.gluon.loss.base_loss import Loss
from flowmx.gluon.scope import BlockOptions
from flowmx.ops.registry.tensors import Functions, Tensor

__all__ = ["CTCLoss"]


class CTCLoss(Loss):
    """Connectionist temporal classification (Graves et al., ICML 2006); the last class is the blank.

    Predictions are logits. Labels are class numbers; without ``label_lengths``, short ones are padded with -1.

    Args:
        layout: the layout of the predictions, ``"NTC"`` or ``"TNC"``: batch, time, classes.
        label_layout: the layout of the labels, ``"NT"`` or ``"TN"``.
        weight: a factor.
        **kwargs: ``prefix`` and ``params``.

    Raises:
        ValueError: a layout is unknown.
    """

    def __init__(
        self, layout: str = "NTC", label_layout: str = "NT", weight: float | None = None, **kwargs: Unpack[BlockOptions]
    ) -> None:
        for name, value, choices in (("layout", layout, ("NTC", "TNC")), ("label_layout", label_layout, ("NT", "TN"))):
            if value not in choices:
                raise ValueError(f"CTCLoss: {name} is {value!r}, expected {' or '.join(map(repr, choices))}")
        super().__init__(weight, label_layout.index("N"), **kwargs)
        self._layout, self._label_layout = layout, label_layout

    def hybrid_forward(
        self, F: Functions, pred: Tensor, label: Tensor, pred_lengths: Tensor | None = None,
        label_lengths: Tensor | None = None, sample_weight: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        if self._layout == "NTC":
            pred = F.swapaxes(pred, 0, 1)
        if self._batch_axis == 1:
            label = F.swapaxes(label, 0, 1)
        loss = F.CTCLoss(
            pred, label, data_lengths=pred_lengths, label_lengths=label_lengths,
            use_data_lengths=pred_lengths is not None, use_label_lengths=label_lengths is not None, blank_label="last",
        )  # fmt: skip
        return self._apply_weights(F, loss, sample_weight)
