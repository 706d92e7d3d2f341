"""The models that a service has, by name and version."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping

from flowmx.serve.predictor import Predictor
from flowmx.serve.replies import Refusal

__all__ = ["Models", "Predictors"]

Predictors = Predictor | Mapping[str, Predictor]


class Models:
    """Predictors by name and version; the newest version answers where none is asked for.

    Args:
        given: a predictor, or a dict of some by name. Their versions count how often they were swapped.

    Raises:
        TypeError: it holds something else.
    """

    def __init__(self, given: Predictors) -> None:
        named = {given.name: given} if isinstance(given, Predictor) else given
        for name, each in named.items():
            if not isinstance(each, Predictor):
                raise TypeError(f"{name!r} is a {type(each).__name__}, expected a Predictor")
        self._found: dict[str, dict[str, Predictor]] = {name: {"": each} for name, each in named.items()}

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._found))

    def put(self, name: str, versions: Mapping[str, Predictor]) -> None:
        """Put versions, the newest last, in the place of those that the name had; names stay in order."""
        found = {**self._found, name: dict(versions)}
        self._found = {each: found[each] for each in sorted(found) if found[each]}

    def versions(self, name: str) -> dict[str, Predictor]:
        """Versions of a model, the newest last.

        Raises:
            Refusal: 404, there is none of this name.
        """
        if name not in self._found:
            raise Refusal(404, f"there is no model {name[:80]!r}, expected one of {', '.join(self) or 'none'}")
        return {version or str(each.version): each for version, each in self._found[name].items()}

    def find(self, name: str, version: str = "") -> Predictor:
        """Find a model.

        Args:
            name: its name.
            version: which; the newest by default.

        Raises:
            Refusal: 404, there is none.
        """
        versions = self.versions(name)
        if version and version not in versions:
            raise Refusal(404, f"there is no version {version[:80]!r} of {name}, expected one of {', '.join(versions)}")
        return versions[version] if version else next(reversed(versions.values()))

    def first(self) -> Predictor:
        """Return the first model.

        Raises:
            Refusal: 404, there is none.
        """
        return self.find(next(iter(self), ""))

    def all(self) -> list[Predictor]:
        """List the newest version of each model."""
        return [self.find(name) for name in self]

    def waiting(self) -> list[str]:
        """Names of the models of which a version takes no requests yet, or no more."""
        return [name for name in self if not all(each.is_ready for each in self.versions(name).values())]

    def start(self) -> None:
        """Begin to warm all up; returns at once."""
        for each in self._everything():
            each.start()

    async def drain(self) -> None:
        """Answer what waits, and end."""
        await asyncio.gather(*(each.drain() for each in self._everything()))

    def _everything(self) -> list[Predictor]:
        return [each for versions in self._found.values() for each in versions.values()]
