"""Explains that a metric is no number, where a program uses it as one."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

__all__ = ["NoNumber"]


class NoNumber:
    """Base class of metrics, which raise an error that names their value if they are compared, added or formatted."""

    if not TYPE_CHECKING:  # type checkers refuse these expressions themselves

        def _refuse(self, *_: object) -> NoReturn:
            raise TypeError(
                f"{type(self).__name__} is a metric, expected a number: its value is metric.get()[1], and metric.get() "
                "has its name, too"
            )

        __lt__ = __le__ = __gt__ = __ge__ = __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _refuse
        __truediv__ = __rtruediv__ = __neg__ = __abs__ = __float__ = __int__ = __round__ = _refuse

        def __format__(self, spec: str) -> str:
            return self._refuse() if spec else str(self)
