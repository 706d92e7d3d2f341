"""OpenAPI document of a service, with the shapes of its models, and a page that shows it."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from flowmx.serve.inputs import Input
from flowmx.serve.models import Models
from flowmx.serve.predictor import Predictor

__all__ = ["document", "page"]


class Route(Protocol):
    """One path of the service."""

    @property
    def path(self) -> str:
        """Its parts; those in braces are parameters."""

    @property
    def summary(self) -> str:
        """Its purpose, in a few words."""

    @property
    def is_post(self) -> bool:
        """True where it is asked for by POST instead of GET."""

    @property
    def access(self) -> str:
        """Those who may ask: ``all``, ``users`` or ``admins``."""


def document(routes: Sequence[Route], models: Models) -> dict[str, Any]:
    """The document, of OpenAPI 3.1: each prediction has a path of its own for each model."""
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


def _paths(route: Route, models: Models) -> list[tuple[str, Predictor | None]]:
    """The paths of a route: one for each model, where it is a prediction of one."""
    if route.is_post and route.path.endswith(("predict", "infer")):
        if "{name}" not in route.path:
            return [(f"/{route.path}", models.first())] if list(models) else []
        return [(f"/{route.path.replace('{name}', name)}", models.find(name)) for name in models]
    return [(f"/{route.path}", None)]


def _operation(route: Route, predictor: Predictor | None) -> dict[str, Any]:
    parameters = [each.strip("{}") for each in route.path.split("/") if each.startswith("{")]
    kept = [each for each in parameters if predictor is None or each != "name"]
    operation: dict[str, Any] = {
        "summary": route.summary,
        "parameters": [{"name": e, "in": "path", "required": True, "schema": {"type": "string"}} for e in kept],
        "responses": {"200": {"description": "done"}, "default": {"description": "an error: {\"error\": MESSAGE}"}},
        "security": [] if route.access == "all" else [{"token": []}],
    }  # fmt: skip
    if predictor is not None:
        is_open = route.path.endswith("infer")
        wanted, given = (_infer if is_open else _predict)(predictor)
        operation["requestBody"] = {"required": True, "content": _content(wanted, is_open)}
        operation["responses"]["200"]["content"] = _content(given, is_open)
        operation["responses"]["503"] = {"description": "no room: ask again after Retry-After seconds"}
    return operation


def _content(schema: dict[str, Any], is_open: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"application/json": {"schema": schema}}
    if is_open:
        return found
    return found | {"application/msgpack": {}, "application/x-npy": {}}


def _predict(predictor: Predictor) -> tuple[dict[str, Any], dict[str, Any]]:
    return (
        _object({"inputs": _arrays(predictor.inputs.specs)}),
        _object({"outputs": _arrays(predictor.results)}),
    )


def _arrays(specs: Sequence[Input]) -> dict[str, Any]:
    if len(specs) == 1:
        return _rows(specs[0])
    return _object({each.name: _rows(each) for each in specs})


def _rows(spec: Input) -> dict[str, Any]:
    """The schema of some rows, as nested lists."""
    schema: dict[str, Any] = {"type": "integer" if np.dtype(spec.dtype).kind in "iu" else "number"}
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

    one = [
        _object({
            "name": {"const": each.name}, "datatype": {"const": datatype(each.dtype)},
            "shape": {"type": "array", "items": {"type": "integer"}, "description": f"rows of {each}"},
            "data": {"type": "array"},
        })
        for each in specs
    ]  # fmt: skip
    return {"type": "array", "items": {"anyOf": one}}


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def page(routes: Sequence[Route], models: Models) -> str:
    """A page of the models and the routes; it needs no other file."""
    rows = "".join(
        f"<tr><td><code>{'POST' if each.is_post else 'GET'} /{html.escape(each.path)}</code></td>"
        f"<td>{html.escape(each.summary)}</td><td>{each.access}</td></tr>"
        for each in routes
    )
    found = "".join(_model(name, models.find(name)) for name in models) or "<p>No model is loaded.</p>"
    return (
        "<!doctype html><html lang='en'><meta charset='utf-8'><title>flowmx: the service's interface</title>"
        "<meta name='viewport' content='width=device-width'>"
        "<style>body{font:16px/1.5 system-ui;max-width:60rem;margin:2rem auto;padding:0 1rem}"
        "td,th{text-align:left;padding:.2rem 1rem .2rem 0;vertical-align:top}pre{overflow:auto;background:#8881;"
        "padding:.6rem}</style>"
        f"<h1>Models</h1>{found}<h1>Routes</h1><table><tr><th>Route</th><th>What for</th><th>Who</th></tr>{rows}"
        "</table><p>For programs: <a href='openapi.json'>openapi.json</a></p></html>"
    )


def _model(name: str, predictor: Predictor) -> str:
    specs = predictor.inputs.specs
    zeros = {each.name: np.zeros([1, *(size or 1 for size in each.shape)], each.dtype).tolist() for each in specs}
    example = json.dumps({"inputs": zeros if len(specs) > 1 else next(iter(zeros.values()))})
    shown = example if len(example) <= _SHOWN else f"{example[:_SHOWN]}..."
    inputs, outputs = (
        ", ".join(f"<code>{html.escape(each.name)}</code> {html.escape(str(each))}" for each in specs)
        for specs in (predictor.inputs.specs, predictor.results)
    )
    return (
        f"<h2>{html.escape(name)}</h2><p>Rows of {inputs} give rows of {outputs or 'what it computes'}.</p>"
        f"<pre>curl -d '{html.escape(shown)}' -H 'Content-Type: application/json' \\\n"
        f"    HOST/models/{html.escape(name)}/predict</pre>"
    )


_SHOWN = 300
