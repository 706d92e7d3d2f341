"""Default initializers of some operators' parameters: the ``__init__`` attribute of their variables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_STATISTICS: Final = {"moving_mean": '["zero", {}]', "moving_var": '["one", {}]'}
_DEFAULT_INITIALIZERS: Final[Mapping[str, Mapping[str, str]]] = {
    "BatchNorm": _STATISTICS,
    "_contrib_BatchNormWithReLU": _STATISTICS,
    "_contrib_SyncBatchNorm": _STATISTICS,
    "LeakyReLU": {"gamma": '["Constant", {"value": 0.25}]'},
}


def default_initializers(operator: str) -> Mapping[str, str]:
    """Return the initializers of an operator's inputs by input name, in the text form of ``Initializer.dumps``."""
    return _DEFAULT_INITIALIZERS.get(operator, {})
