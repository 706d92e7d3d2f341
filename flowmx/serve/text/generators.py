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
        generator = self._generators.get(name)
        if generator is None:
            names = ", ".join(self) or "none"
            raise BadRequest(f"there is no model {name[:80]!r}, expected one of {names}", "model", 404)
        return generator

    def metrics(self) -> str:
        """Return the metrics in Prometheus' text format."""
        registries = {id(each.metrics): each.metrics for each in self._generators.values()}
        return "".join(metrics.text() for metrics in registries.values())

    async def close(self) -> None:
        """End all generations."""
        await asyncio.gather(*(generator.aclose() for generator in self._generators.values()))
