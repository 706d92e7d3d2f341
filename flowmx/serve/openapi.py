"""The OpenAPI document of a service, with the shapes of its models, and an HTML page of it."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from flowmx.serve.inputs import Input
from flowmx.serve.model_registry import ModelRegistry
from flowmx.serve.predictor import Predictor

__all__ = ["document", "page"]


class Route(Protocol):
    """One path of the service."""

    @property
    def path(self) -> str:
        """The path; segments in braces are parameters."""

    @property
    def summary(self) -> str:
        """Its purpose, in a few words."""

    @property
    def is_post(self) -> bool:
        """Whether the method is POST instead of GET."""

    @property
    def access(self) -> str:
        """Audience: ``all``, ``users`` or ``admins``."""


def document(routes: Sequence[Route], models: ModelRegistry) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document. Prediction routes have one path per model."""
    paths: dict[str, Any] = {}
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
            return [(f"/{route.path}", models.first())] if list(models) else []
        return [(f"/{route.path.replace('{name}', name)}", models.find(name)) for name in models]
    return [(f"/{route.path}", None)]


def _operation(route: Route, predictor: Predictor | None) -> dict[str, Any]:
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
        operation["requestBody"] = {"required": True, "content": _content(request, is_open_inference)}
        operation["responses"]["200"]["content"] = _content(response, is_open_inference)
        operation["responses"]["503"] = {"description": "overloaded: retry after Retry-After seconds"}
    return operation


def _content(schema: dict[str, Any], is_open_inference: bool) -> dict[str, Any]:
    content: dict[str, Any] = {"application/json": {"schema": schema}}
    if is_open_inference:
        return content
    return content | {"application/msgpack": {}, "application/x-npy": {}}


def _predict(predictor: Predictor) -> tuple[dict[str, Any], dict[str, Any]]:
    return (
        _object({"inputs": _arrays(predictor.inputs.specs)}),
        _object({"outputs": _arrays(predictor.results, "null")}),
    )


def _arrays(specs: Sequence[Input], *more_types: str) -> dict[str, Any]:
    if len(specs) == 1:
        return _rows(specs[0], *more_types)
    return _object({spec.name: _rows(spec, *more_types) for spec in specs})


def _rows(spec: Input, *more_types: str) -> dict[str, Any]:
    """Return the schema of rows as nested lists.

    Args:
        spec: the input or output.
        *more_types: other types of numbers: null for NaN and infinities in replies.
    """
    is_integer = np.dtype(spec.dtype).kind in "iu"
    schema: dict[str, Any] = {"type": "integer" if is_integer else ["number", *more_types] if more_types else "number"}
    for size in reversed(spec.shape):
        bounds = {} if size is None else {"minItems": size, "maxItems": size}
        schema = {"type": "array", "items": schema, **bounds}
    return {"type": "array", "items": schema, "description": f"rows of {spec}"}


def _infer(predictor: Predictor) -> tuple[dict[str, Any], dict[str, Any]]:
    return (
        _object({"inputs": _tensors(predictor.inputs.specs)}),
        _object({"outputs": _tensors(predictor.results)}),
    )


def _tensors(specs: Sequence[Input]) -> dict[str, Any]:
    from flowmx.serve.open_inference import datatype

    tensor = [
        _object({
            "name": {"const": spec.name}, "datatype": {"const": datatype(spec.dtype)},
            "shape": {"type": "array", "items": {"type": "integer"}, "description": f"rows of {spec}"},
            "data": {"type": "array"},
        })
        for spec in specs
    ]  # fmt: skip
    return {"type": "array", "items": {"anyOf": tensor}}


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def page(routes: Sequence[Route], models: ModelRegistry) -> str:
    """Return a self-contained HTML page of the models and routes."""
    rows = "".join(
        f"<tr><td><code>{'POST' if route.is_post else 'GET'} /{html.escape(route.path)}</code></td>"
        f"<td>{html.escape(route.summary)}</td><td>{route.access}</td></tr>"
        for route in routes
    )
    sections = "".join(_model(name, models.find(name)) for name in models) or "<p>No model is loaded.</p>"
    return (
        "<!doctype html><html lang='en'><meta charset='utf-8'><title>flowmx: API of the service</title>"
        "<meta name='viewport' content='width=device-width'>"
        "<style>body{font:16px/1.5 system-ui;max-width:60rem;margin:2rem auto;padding:0 1rem}"
        "td,th{text-align:left;padding:.2rem 1rem .2rem 0;vertical-align:top}pre{overflow:auto;background:#8881;"
        "padding:.6rem}</style>"
        f"<h1>Models</h1>{sections}<h1>Routes</h1><table><tr><th>Route</th><th>Purpose</th><th>Access</th></tr>{rows}"
        "</table><p>OpenAPI document: <a href='openapi.json'>openapi.json</a></p></html>"
    )


def _model(name: str, predictor: Predictor) -> str:
    specs = predictor.inputs.specs
    zeros = {spec.name: np.zeros([1, *(size or 1 for size in spec.shape)], spec.dtype).tolist() for spec in specs}
    example = json.dumps({"inputs": zeros if len(specs) > 1 else next(iter(zeros.values()))})
    body = example if len(example) <= _EXAMPLE_LENGTH else f"{example[:_EXAMPLE_LENGTH]}..."
    inputs, outputs = (
        ", ".join(f"<code>{html.escape(spec.name)}</code> {html.escape(str(spec))}" for spec in specs)
        for specs in (predictor.inputs.specs, predictor.results)
    )
    return (
        f"<h2>{html.escape(name)}</h2><p>Input rows: {inputs}. Output rows: {outputs or 'unknown'}.</p>"
        f"<pre>curl -d '{html.escape(body)}' -H 'Content-Type: application/json' \\\n"
        f"    HOST/models/{html.escape(name)}/predict</pre>"
    )


_EXAMPLE_LENGTH = 300
