"""Losses: one number for each sample of a batch."""

from flowmx.gluon.loss.base_loss import Loss
from flowmx.gluon.loss.classification import (
    HingeLoss,
    KLDivLoss,
    LogisticLoss,
    SigmoidBCELoss,
    SigmoidBinaryCrossEntropyLoss,
    SoftmaxCELoss,
    SoftmaxCrossEntropyLoss,
    SquaredHingeLoss,
)
from flowmx.gluon.loss.ctc import CTCLoss
from flowmx.gluon.loss.regression import HuberLoss, L1Loss, L2Loss, PoissonNLLLoss
from flowmx.gluon.loss.similarity import CosineEmbeddingLoss, SDMLLoss, TripletLoss
from flowmx.lazy import lazy_attributes

__all__ = [
    "CTCLoss", "CosineEmbeddingLoss", "HingeLoss", "HuberLoss", "KLDivLoss", "L1Loss", "L2Loss", "LogisticLoss", "Loss",
    "PoissonNLLLoss", "SDMLLoss", "SigmoidBCELoss", "SigmoidBinaryCrossEntropyLoss", "SoftmaxCELoss",
    "SoftmaxCrossEntropyLoss", "SquaredHingeLoss", "TripletLoss",
]  # fmt: skip

__getattr__, __dir__ = lazy_attributes(__name__)
