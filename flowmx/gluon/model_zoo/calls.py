"""Calls of models with optional inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from flowmx.gluon.base_block import A
from flowmx.gluon.hybrid import HybridBlock
from flowmx.ndarray import NDArray

if TYPE_CHECKING:
    from typing_extensions import TypeVar as _TypeVar

    Pooled = _TypeVar("Pooled", bound=bool, default=Literal[True])
    Unpooled = _TypeVar("Unpooled", bound=bool, default=Literal[False])
else:
    Pooled = TypeVar("Pooled")
    Unpooled = TypeVar("Unpooled")

__all__ = ["CausalBlock", "Pooled", "Pretrained", "Unpooled", "without_nones"]


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


class Pretrained(HybridBlock):
    """A model whose class is in a folder, as type checkers see it: any model of the zoo, called with its inputs.

    Two results, such as the features and pooled features of BERT, unpack like an array. To check the inputs, pass the
    class to ``from_pretrained``.
    """

    if TYPE_CHECKING:

        @overload
        def __call__(self, *inputs: A | None, cache: None = None, **others: A | None) -> A: ...

        @overload
        def __call__(
            self, *inputs: A | None, cache: Sequence[Sequence[A]], **others: A | None
        ) -> tuple[A, list[list[A]]]: ...

        def __call__(self, *inputs: Any, **others: Any) -> Any: ...

        def begin_cache(
            self, batch_size: int, max_length: int, dtype: Any = None, ctx: Any = None
        ) -> list[list[NDArray]]:
            """Return an empty cache for each layer of a causal model."""
