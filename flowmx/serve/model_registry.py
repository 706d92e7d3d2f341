"""The models of a service, by name and version."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping

from flowmx.serve.predictor import Predictor
from flowmx.serve.replies import Refusal

__all__ = ["ModelRegistry", "Predictors"]

Predictors = Predictor | Mapping[str, Predictor]


class ModelRegistry:
    """Predictors by name and version; the newest version is the default.

    Args:
        predictors: a predictor, or a dict of predictors by name. Their version is the number of swaps.

    Raises:
        TypeError: a value of the dict is not a Predictor.
    """

    def __init__(self, predictors: Predictors) -> None:
        _check(predictors)
        by_name = {predictors.name: predictors} if isinstance(predictors, Predictor) else predictors
        for name, predictor in by_name.items():
            if not isinstance(predictor, Predictor):
                raise TypeError(f"{name!r} is a {type(predictor).__name__}, expected a Predictor")
        self.default_name: str | None = None
        """Name of the model of requests that name none, if one was chosen."""
        self._versions: dict[str, dict[str, Predictor]] = {name: {"": predictor} for name, predictor in by_name.items()}

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._versions))

    def put(self, name: str, versions: Mapping[str, Predictor]) -> None:
        """Set the versions of a model, the newest last; an empty mapping removes the model."""
        models = {**self._versions, name: dict(versions)}
        self._versions = {model: models[model] for model in sorted(models) if models[model]}

    def versions(self, name: str) -> dict[str, Predictor]:
        """Return the versions of a model, the newest last.

        Raises:
            Refusal: 404, there is no model of this name.
        """
        if name not in self._versions:
            raise Refusal(404, f"there is no model {name[:80]!r}, expected one of {', '.join(self) or 'none'}")
        return {version or str(predictor.version): predictor for version, predictor in self._versions[name].items()}

    def find(self, name: str, version: str = "") -> Predictor:
        """Return the predictor of a model.

        Args:
            name: its name.
            version: its version (default: the newest).

        Raises:
            Refusal: 404, there is no such model or version.
        """
        versions = self.versions(name)
        if version and version not in versions:
            raise Refusal(404, f"there is no version {version[:80]!r} of {name}, expected one of {', '.join(versions)}")
        return versions[version] if version else next(reversed(versions.values()))

    def default(self) -> Predictor:
        """Return the model of requests that name none: the default, or the only one.

        Raises:
            Refusal: 404, there is no model; 400, there are several.
        """
        names = list(self)
        if self.default_name is None and len(names) > 1:
            raise Refusal(
                400, f"the request names no model, and the service has {', '.join(names)}: POST to "
                f"/models/{names[0]}/predict, /predictions/{names[0]} or /invocations?model_name={names[0]}, or start "
                f"the service with --default {names[0]}, or default={names[0]!r} in a program",
            )  # fmt: skip
        return self.find(self.default_name or next(iter(names), ""))

    def all(self) -> list[Predictor]:
        """List the newest version of each model."""
        return [self.find(name) for name in self]

    def waiting(self) -> list[str]:
        """Return the names of the models with a version that does not accept requests."""
        return [name for name in self if not all(version.is_ready for version in self.versions(name).values())]

    def start(self) -> None:
        """Start to warm up all models; returns immediately."""
        for predictor in self._all_versions():
            predictor.start()

    async def drain(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Answer the pending requests, at most ``timeout`` seconds, then stop."""
        await asyncio.gather(*(predictor.drain(timeout) for predictor in self._all_versions()))

    def _all_versions(self) -> list[Predictor]:
        return [predictor for versions in self._versions.values() for predictor in versions.values()]


def _check(predictors: object) -> None:
    """Raise TypeError for models that are not predictors."""
    if not isinstance(predictors, (Predictor, Mapping)):
        raise TypeError(
            f"the service has a {type(predictors).__name__}, expected a Predictor, or a dict of Predictors by name: "
            "create one with mx.serve.Predictor(model, shape=...)"
        )
