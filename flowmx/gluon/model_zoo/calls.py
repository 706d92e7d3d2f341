"""Calls of models with optional inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

from flowmx.gluon.base_block import A
from flowmx.gluon.hybrid import HybridBlock

__all__ = ["CausalBlock", "without_nones"]


def without_nones(*arguments: Any) -> tuple[object, ...]:
    """Return the arguments of a call without None at the end."""
    end = max(index for index, each in enumerate(arguments) if index == 0 or each is not None)
    return arguments[: end + 1]


class CausalBlock(HybridBlock):
    """A causal decoder: a block of tokens, and optionally their padding and a cache."""

    if TYPE_CHECKING:

        @overload
        def __call__(self, tokens: A, padding: A | None = None, cache: None = None) -> A: ...

        @overload
        def __call__(
            self, tokens: A, padding: A | None = None, *, cache: Sequence[Sequence[A]]
        ) -> tuple[A, list[list[A]]]: ...

    def __call__(self, tokens: Any, padding: Any = None, cache: Any = None) -> Any:
        """Compute the outputs; see the class."""
        return super().__call__(*without_nones(tokens, padding, cache))
