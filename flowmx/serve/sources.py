"""The models of a service: predictors, a repository of models, and generators of text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from flowmx.generation import Generator
from flowmx.serve.model_registry import ModelRegistry
from flowmx.serve.predictor import Predictor
from flowmx.serve.repository import Repository
from flowmx.serve.text.generators import Generators

__all__ = ["ModelSource", "Sources", "split"]

ModelSource = Predictor | Generator | Mapping[str, Predictor | Generator] | Mapping[str, Predictor] | Repository


class Sources(NamedTuple):
    """The models of a service.

    Attributes:
        models: the predictors.
        repository: the folder that they come from, if any.
        generators: the generators of text.
    """

    models: ModelRegistry
    repository: Repository | None
    generators: Generators


def split(source: ModelSource) -> Sources:
    """Return the predictors, the repository and the generators among the models of a service.

    Raises:
        TypeError: the source is neither of these.
        ValueError: there are no models.
    """
    if isinstance(source, Repository):
        return Sources(source.models, source, Generators({}))
    if isinstance(source, Generator):
        return Sources(ModelRegistry({}), None, Generators({source.name: source}))
    if not isinstance(source, Mapping):
        return Sources(ModelRegistry(source), None, Generators({}))
    if not source:
        raise ValueError("the service has no predictors, expected one or a dict of predictors by name")
    generators = {name: model for name, model in source.items() if isinstance(model, Generator)}
    predictors = {name: model for name, model in source.items() if not isinstance(model, Generator)}
    return Sources(ModelRegistry(predictors), None, Generators(generators))
