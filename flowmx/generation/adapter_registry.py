"""The adapters of a generator by name, and the requests that use them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from flowmx.gluon.lora.weights import AdapterWeights
from flowmx.suggestions import did_you_mean

__all__ = ["NO_ADAPTER", "AdaptedDecoder", "Adapter", "AdapterRegistry"]


class AdaptedDecoder(Protocol):
    """A decoder that takes adapters; see :class:`~flowmx.generation.PagedDecoder`."""

    def add_adapter(self, weights: AdapterWeights) -> int:
        """Add an adapter; return its slot."""

    def remove_adapter(self, slot: int) -> None:
        """Free a slot."""


class Adapter(NamedTuple):
    """An adapter of a request.

    Attributes:
        slot: its number in the decoder, or -1 for none.
        salt: distinguishes the keys and values that it computes from those of other adapters.
    """

    slot: int = -1
    salt: bytes = b""


NO_ADAPTER = Adapter()


class AdapterRegistry:
    """The adapters of a generator.

    The slot of an adapter that is removed or replaced is freed when the last request that uses it has ended.

    Args:
        decoder: the decoder.
    """

    def __init__(self, decoder: object) -> None:
        self._decoder = decoder
        self._adapters: dict[str, Adapter] = {}
        self._uses: Counter[int] = Counter()
        self._retired: set[int] = set()
        self._count = 0

    def __iter__(self) -> Iterator[str]:
        return iter(self._adapters)

    def uses(self) -> dict[str, int]:
        """Return the number of unfinished requests of each adapter by name."""
        return {name: self._uses[adapter.slot] for name, adapter in self._adapters.items()}

    def add(self, name: str, weights: AdapterWeights) -> None:
        """Add an adapter, or replace that of the name; requests that run continue with the old one.

        Raises:
            TypeError: the decoder takes no adapters.
            ValueError: the name is empty.
            Overloaded: there is no memory for it.
        """
        if not name:
            raise ValueError("the name of the adapter is empty, expected a text such as 'german'")
        slot = self._of_decoder().add_adapter(weights)
        old = self._adapters.get(name)
        self._count += 1
        self._adapters[name] = Adapter(slot, f"adapter {self._count}".encode())
        if old is not None:
            self._retire(old.slot)

    def remove(self, name: str) -> None:
        """Remove an adapter; requests that run keep it.

        Raises:
            ValueError: there is no adapter of the name.
        """
        self._retire(self.find(name).slot)
        del self._adapters[name]

    def find(self, name: str | None) -> Adapter:
        """Return an adapter; ``NO_ADAPTER`` for None.

        Raises:
            ValueError: there is no adapter of the name.
        """
        if name is None:
            return NO_ADAPTER
        if name not in self._adapters:
            names = ", ".join(self._adapters) or "none"
            raise ValueError(f"there is no adapter {name[:80]!r}, only {names}{did_you_mean(name, self._adapters)}")
        return self._adapters[name]

    def acquire(self, adapter: Adapter) -> None:
        """Count a request that uses an adapter."""
        if adapter.slot >= 0:
            self._uses[adapter.slot] += 1

    def release(self, adapter: Adapter) -> None:
        """Count the end of such a request."""
        if adapter.slot >= 0:
            self._uses[adapter.slot] -= 1
            self._free(adapter.slot)

    def _retire(self, slot: int) -> None:
        self._retired.add(slot)
        self._free(slot)

    def _free(self, slot: int) -> None:
        if slot in self._retired and not self._uses[slot]:
            self._retired.discard(slot)
            self._of_decoder().remove_adapter(slot)

    def _of_decoder(self) -> AdaptedDecoder:
        if not hasattr(self._decoder, "add_adapter"):
            raise TypeError(
                f"the decoder is a {type(self._decoder).__name__}, which takes no adapters: use a "
                "mx.generation.PagedDecoder"
            )
        return self._decoder  # type: ignore[return-value]
