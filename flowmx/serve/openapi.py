"""The OpenAPI document of a service, with the shapes of its models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flowmx.serve.images import IMAGE_TYPES
from flowmx.serve.inputs import Input
from flowmx.serve.model_registry import ModelRegistry
from flowmx.serve.predictor import Predictor
from flowmx.serve.route import Route

__all__ = ["document"]


def document(routes: Sequence[Route], models: ModelRegistry) -> dict[str, object]:
    """Return the OpenAPI 3.1 document. Prediction routes have one path per model."""
    paths: dict[str, object] = {}
    for route in routes:
        for path, predictor in _paths(route, models):
            paths[path] = {"post" if route.is_post else "get": _operation(route, predictor)}
    return {
        "openapi": "3.1.0",
        "info": {"title": "flowmx", "version": "1", "description": "Predictions of models, computed in batches."},
        "paths": paths,
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def _paths(route: Route, models: ModelRegistry) -> list[tuple[str, Predictor | None]]:
    """Return the paths of a route: one per model if it is a prediction route."""
    if route.is_post and route.path.endswith(("predict", "infer")):
        if "{name}" not in route.path:
            names = [models.default_name] if models.default_name is not None else list(models)
            has_default = len(names) == 1 and names[0] in list(models)
            return [(f"/{route.path}", models.default())] if has_default else []
        return [(f"/{route.path.replace('{name}', name)}", models.find(name)) for name in models]
    return [(f"/{route.path}", None)]


def _operation(route: Route, predictor: Predictor | None) -> dict[str, object]:
    names = [part.strip("{}") for part in route.path.split("/") if part.startswith("{")]
    parameters = [name for name in names if predictor is None or name != "name"]
    operation: dict[str, Any] = {
        "summary": route.summary,
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in parameters
        ],
        "responses": {"200": {"description": "done"}, "default": {"description": "an error: {\"error\": MESSAGE}"}},
        "security": [] if route.access == "all" else [{"token": []}],
    }  # fmt: skip
    if predictor is not None:
        is_open_inference = route.path.endswith("infer")
        request, response = (_infer if is_open_inference else _predict)(predictor)
        bodies, replies = _content(request, is_open_inference), _content(response, is_open_inference)
        if not is_open_inference:
            bodies, replies = _with_hooks(predictor, bodies, replies)
        operation["requestBody"] = {"required": True, "content": bodies}
        operation["responses"]["200"]["content"] = replies
        operation["responses"]["503"] = {"description": "overloaded: retry after Retry-After seconds"}
    return operation


def _content(schema: Mapping[str, object], is_open_inference: bool) -> dict[str, Any]:
    content: dict[str, object] = {"application/json": {"schema": schema}}
    if is_open_inference:
        return content
    return content | {"application/msgpack": {}, "application/x-npy": {}}


def _with_hooks(
    predictor: Predictor, bodies: dict[str, Any], replies: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the contents of bodies and replies, those of hooks without a schema."""
    hooks = predictor.hooks
    if hooks.decode is not None:
        bodies = {"*/*": {}}
    if hooks.image is not None:
        bodies = bodies | {media_type: {} for media_type in IMAGE_TYPES}
    return bodies, replies if hooks.encode is None else {"application/json": {}, "*/*": {}}


def _predict(predictor: Predictor) -> tuple[dict[str, Any], dict[str, Any]]:
    return (
        _object({"inputs": _arrays(predictor.inputs.specs)}),
        _object({"outputs": _arrays(predictor.results, "null")}),
    )


def _arrays(specs: Sequence[Input], *more_types: str) -> dict[str, object]:
    if len(specs) == 1:
        return _rows(specs[0], *more_types)
    return _object({spec.name: _rows(spec, *more_types) for spec in specs})


def _rows(spec: Input, *more_types: str) -> dict[str, object]:
    """Return the schema of rows as nested lists.

    Args:
        spec: the input or output.
        *more_types: other types of numbers: null for NaN and infinities in replies.
    """
    is_integer = np.dtype(spec.dtype).kind in "iu"
    schema: dict[str, object] = {
        "type": "integer" if is_integer else ["number", *more_types] if more_types else "number"
    }
    for size in reversed(spec.shape):
        bounds = {} if size is None else {"minItems": size, "maxItems": size}
        schema = {"type": "array", "items": schema, **bounds}
    return {"type": "array", "items": schema, "description": f"rows of {spec}"}


def _infer(predictor: Predictor) -> tuple[dict[str, Any], dict[str, Any]]:
    return (
        _object({"inputs": _tensors(predictor.inputs.specs)}),
        _object({"outputs": _tensors(predictor.results)}),
    )


def _tensors(specs: Sequence[Input]) -> dict[str, object]:
    from flowmx.serve.open_inference import datatype

    tensor = [
        _object({
            "name": {"const": spec.name}, "datatype": {"const": datatype(spec.dtype)},
            "shape": {"type": "array", "items": {"type": "integer"}, "description": f"rows of {spec}"},
            "data": {"type": "array"},
        })
        for spec in specs
    ]  # fmt: skip
    return {"type": "array", "items": {"anyOf": tensor} if tensor else {}}


def _object(properties: Mapping[str, object]) -> dict[str, object]:
    return {"type": "object", "properties": properties, "required": list(properties)}
