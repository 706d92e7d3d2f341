"""The optimizers of a server: one for each key space."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from flowmx.kvstore.shards import Key
from flowmx.kvstore.spaces import PLAIN, space_of
from flowmx.optimizer.base_optimizer import from_config

__all__ = ["InstalledOptimizer", "Optimizers", "check_optimizer", "configs_of"]


class InstalledOptimizer(NamedTuple):
    """An optimizer, as described by a worker.

    Attributes:
        config: its ``Optimizer.get_config``.
        number: counts the calls of ``set_optimizer``. Another description under the same number, such as another
            learning rate, keeps states and counts; a new number starts over.
    """

    config: Mapping[str, Any]
    number: int = 0


class Optimizers:
    """The current optimizer of each key space."""

    def __init__(self) -> None:
        self._installed: dict[str, InstalledOptimizer] = {}

    def __bool__(self) -> bool:
        return bool(self._installed)

    def use(self, config: Mapping[str, object] | None, space: str = PLAIN, number: int = 0) -> None:
        """Set the optimizer of a space; None removes it.

        Raises:
            ValueError: the description does not make an optimizer.
        """
        current = self._installed.get(space)
        if config is None:
            self._installed.pop(space, None)
        elif current is None or current != (config, number):
            check_optimizer(config)
            self._installed[space] = InstalledOptimizer(config, number)

    def of(self, key: Key) -> InstalledOptimizer | None:
        """Return the optimizer of a key, or None if sums replace values."""
        return self._installed.get(space_of(key)) if self._installed else None


def configs_of(common: Any) -> dict[str, tuple[Any, int]]:
    """Return the optimizers in a job's configuration: the description and its number, for each space."""
    by_space = {PLAIN: common or {}, **(common or {}).get("spaces", {})}
    return {space: (options.get("optimizer"), (options.get("order") or [0])[0]) for space, options in by_space.items()}


_MAY_BE_NONE = ("clip_gradient", "lr")


def check_optimizer(config: Mapping[str, Any]) -> None:
    """Check that an optimizer can be made from a description.

    Raises:
        ValueError: it cannot; the message gives the reason.
    """
    try:
        own_config = from_config(config).get_config()
        unknown = [
            f"{name}.{key}"
            for name in ("attributes", "tables")
            for key in config[name].keys() - own_config[name].keys()
        ]
    except Exception as error:  # custom optimizers may raise anything
        raise ValueError(f"invalid description of an optimizer ({type(error).__name__}: {error})") from error
    if unknown:
        raise ValueError(f"invalid description of an optimizer: unknown {', '.join(sorted(unknown))}")
    for key, value in config["attributes"].items():
        is_number = isinstance(value, int if key == "begin_num_update" else (int, float))
        if not is_number and not (value is None and key in _MAY_BE_NONE):
            raise ValueError(f"invalid description of an optimizer: {key} is {value!r}, expected a number")
