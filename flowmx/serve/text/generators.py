"""The generators of a service, by name."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping

from flowmx.generation import Generator
from flowmx.serve.text.errors import BadRequest

__all__ = ["Generators"]


class Generators:
    """Generators of text by name.

    Args:
        generators: the generators.
    """

    def __init__(self, generators: Mapping[str, Generator]) -> None:
        self._generators = dict(generators)

    def __iter__(self) -> Iterator[str]:
        return iter(self._generators)

    def __len__(self) -> int:
        return len(self._generators)

    def find(self, name: str) -> Generator:
        """Return the generator of a name.

        Raises:
            BadRequest: 404, the name is unknown.
        """
        return self.resolve(name)[0]

    def resolve(self, name: str) -> tuple[Generator, str | None]:
        """Return the generator and the adapter of a name, such as ``smollm2`` or ``smollm2:german``.

        Raises:
            BadRequest: 404, the name is unknown.
        """
        if name in self._generators:
            return self._generators[name], None
        base, _, adapter = name.rpartition(":")
        generator = self._generators.get(base)
        if generator is None or adapter not in generator.adapters:
            names = ", ".join(self.names()) or "none"
            raise BadRequest(f"there is no model {name[:80]!r}, expected one of {names}", "model", 404)
        return generator, adapter

    def names(self) -> list[str]:
        """Return the names that requests may use: those of the generators and of their adapters."""
        return [
            each
            for name, generator in self._generators.items()
            for each in (name, *(f"{name}:{adapter}" for adapter in generator.adapters))
        ]

    def metrics(self) -> str:
        """Return the metrics in Prometheus' text format."""
        registries = {id(each.metrics): each.metrics for each in self._generators.values()}
        return "".join(metrics.text() for metrics in registries.values())

    async def close(self) -> None:
        """End all generations."""
        await asyncio.gather(*(generator.aclose() for generator in self._generators.values()))
