"""Files of optimizer states from one system's format to the other's."""

from __future__ import annotations

import os

from flowmx.optimizer import mxnet_states
from flowmx.optimizer import states as states_file
from flowmx.optimizer.base import Test
from flowmx.optimizer.updater import Updater
from flowmx.serialization.atomic import replace_file
from flowmx.serialization.reading import read_whole

__all__ = ["convert_states"]


def convert_states(source: str | os.PathLike[str], target: str | os.PathLike[str], format: str = "mxnet") -> None:
    """Write a file of optimizer states again, in MXNet's format or in flowmx's.

    What :meth:`.Trainer.save_states` and :meth:`.Module.save_optimizer_states` write, MXNet can load afterwards. MXNet
    keeps update counts in the optimizer alone, which a Module's file does not hold: Adam's count then begins anew
    there, as it does for MXNet's own files.

    Args:
        source: the file, in either format.
        target: the file to write (it may be the same), replaced as a whole.
        format: ``"mxnet"`` or ``"flowmx"``.

    Raises:
        StatesFormatError: the file is something else, or damaged.
        TypeError: MXNet's format has no place for a state.
        ValueError: there is no such format.
        OSError: a file can not be read or written.
    """
    data = read_whole(source)
    updater = Updater(Test())
    updater.set_states(data)
    replace_file(target, [updater.get_states(_holds_an_optimizer(data), format)])


def _holds_an_optimizer(data: bytes) -> bool:
    if states_file.is_pickle(data):
        return mxnet_states.loads(data)[1] is not None
    return states_file.loads(data).optimizer is not None
