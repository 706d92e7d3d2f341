"""Conversion of files of optimizer states between MXNet's and flowmx's formats."""

from __future__ import annotations

import os

from flowmx.optimizer import mxnet_states, states_file
from flowmx.optimizer.base_optimizer import Test
from flowmx.optimizer.updater import Updater
from flowmx.serialization.atomic import replace_file
from flowmx.serialization.reading import read_whole

__all__ = ["convert_states"]


def convert_states(source: str | os.PathLike[str], target: str | os.PathLike[str], format: str = "mxnet") -> None:
    """Rewrite a file of optimizer states in MXNet's or in flowmx's format.

    MXNet can load the converted files of :meth:`.Trainer.save_states` and :meth:`.Module.save_optimizer_states`. MXNet
    stores update counts only with the optimizer, which a Module's file does not include: Adam's count then restarts
    there, as with MXNet's own files.

    Args:
        source: the file, in either format.
        target: the file to write (it may be the same), replaced as a whole.
        format: ``"mxnet"`` or ``"flowmx"``.

    Raises:
        StatesFormatError: the file has a different format, or is damaged.
        TypeError: MXNet's format cannot represent a state.
        ValueError: the format's name is unknown.
        OSError: a file cannot be read or written.
    """
    data = read_whole(source)
    updater = Updater(Test())
    updater.set_states(data)
    replace_file(target, [updater.get_states(_has_optimizer(data), format)])


def _has_optimizer(data: bytes) -> bool:
    if states_file.is_pickle(data):
        return mxnet_states.loads(data)[1] is not None
    return states_file.loads(data).optimizer is not None
