"""The HTML page of a service: its models, each with a request to copy, and its routes."""

from __future__ import annotations

import html
import inspect
import json
import math
from collections.abc import Sequence
from urllib.parse import quote

import numpy as np

from flowmx.generation import Generator
from flowmx.serve.inputs import Input
from flowmx.serve.model_registry import ModelRegistry
from flowmx.serve.predictor import Predictor
from flowmx.serve.route import Route
from flowmx.serve.text.generators import Generators

__all__ = ["page"]

_MAX_NUMBERS = 16
"""Numbers of an input that a request in JSON shows; requests with more are read from a file."""

_STYLE = """
body{font:16px/1.5 system-ui;max-width:60rem;margin:2rem auto;padding:0 1rem}
td,th{text-align:left;padding:.2rem 1rem .2rem 0;vertical-align:top}
pre{overflow:auto;background:#8881;padding:.6rem}
"""
_BASE = "http://HOST"
"""Replaced by the service's address in browsers with JavaScript."""
_SCRIPT = """
const base = location.href.replace(/\\/docs\\/?([?#].*)?$/, "");
for (const example of document.querySelectorAll("pre"))
  example.textContent = example.textContent.replaceAll("http://HOST", base);
"""


def page(routes: Sequence[Route], models: ModelRegistry, generators: Generators) -> str:
    """Return a self-contained HTML page of the models and routes."""
    rows = "".join(
        f"<tr><td><code>{'POST' if route.is_post else 'GET'} /{html.escape(route.path)}</code></td>"
        f"<td>{html.escape(route.summary)}</td><td>{route.access}</td></tr>"
        for route in routes
    )
    sections = "".join(
        [*(_model(name, models.find(name)) for name in models), *(_generator(name, generators) for name in generators)]
    )
    sections = sections or "<p>No model is loaded.</p>"
    return (
        "<!doctype html><html lang='en'><meta charset='utf-8'><title>flowmx: API of the service</title>"
        f"<meta name='viewport' content='width=device-width'><style>{_STYLE}</style>"
        f"<h1>Models</h1>{sections}<h1>Routes</h1><table><tr><th>Route</th><th>Purpose</th><th>Access</th></tr>{rows}"
        f"</table><p>OpenAPI document: <a href='openapi.json'>openapi.json</a></p><script>{_SCRIPT}</script></html>"
    )


def _model(name: str, predictor: Predictor) -> str:
    hooks, specs = predictor.hooks, predictor.inputs.specs
    examples = "".join(f"<pre>{html.escape(example)}</pre>" for example in _examples(name, predictor))
    inputs, outputs = (
        ", ".join(f"<code>{html.escape(spec.name)}</code> {html.escape(str(spec))}" for spec in specs)
        for specs in (specs, predictor.results)
    )
    notes = _note("The service decodes bodies", hooks.decode) + _note("The service encodes responses", hooks.encode)
    rows = f"<p>Input sample: {inputs or 'unknown'}. Output sample: {outputs or 'unknown'}.</p>"
    return f"<h2>{html.escape(name)}</h2>{rows}{notes}{examples}"


def _generator(name: str, generators: Generators) -> str:
    """Return the section of a model that generates text."""
    generator = generators.find(name)
    adapters = "".join(f" <code>{html.escape(f'{name}:{adapter}')}</code>" for adapter in generator.adapters)
    notes = f"<p>This model generates text, of at most {generator.max_length} tokens with the prompt."
    notes += f" Adapters are models too:{adapters}.</p>" if adapters else "</p>"
    if generator.template is None:
        notes += "<p>It has no chat template: only completions are served.</p>"
    examples = "".join(f"<pre>{html.escape(example)}</pre>" for example in _requests_for_text(name, generator))
    return f"<h2>{html.escape(name)}</h2>{notes}{examples}<p>A <a href='chat'>page to chat</a>.</p>"


def _requests_for_text(name: str, generator: Generator) -> list[str]:
    """Return shell commands that request a text, and a program that streams one."""
    chat = {"model": name, "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 50}
    text = {"model": name, "prompt": "Once upon a time", "max_tokens": 50}
    completion = _curl(f"-d {_quoted(json.dumps(text))}", "application/json", f"{_BASE}/v1/completions")
    if generator.template is None:
        return [completion]
    program = (
        f'import openai\nclient = openai.OpenAI(base_url="{_BASE}/v1", api_key="none")\n'
        f"stream = client.chat.completions.create(\n    model={name!r}, stream=True,\n"
        '    messages=[{"role": "user", "content": "Hello!"}])\n'
        'for part in stream:\n    print(part.choices[0].delta.content or "", end="", flush=True)'
    )
    return [
        _curl(f"-d {_quoted(json.dumps(chat))}", "application/json", f"{_BASE}/v1/chat/completions"),
        program,
        completion,
    ]


def _note(text: str, hook: object) -> str:
    """Return the documentation of a hook as a paragraph."""
    if hook is None:
        return ""
    about = inspect.getdoc(hook) if inspect.isroutine(hook) else None
    return f"<p>{text}{f': {html.escape(about)}' if about else '.'}</p>"


def _examples(name: str, predictor: Predictor) -> list[str]:
    """Return shell commands that request a prediction."""
    hooks = predictor.hooks
    url = f"{_BASE}/models/{quote(name)}/predict"
    examples = []
    if hooks.image is not None:
        examples.append(_curl("--data-binary @image.jpg", "image/jpeg", url))
    if hooks.decode is not None:
        return [*examples, _curl("--data-binary @FILE", "TYPE", url)]
    return [*examples, _of_arrays(predictor.inputs.specs, url, has_json_reply=hooks.encode is not None)]


def _of_arrays(specs: Sequence[Input], url: str, has_json_reply: bool) -> str:
    """Return the command that sends a row of zeros."""
    shapes = {spec.name: tuple(size or 1 for size in spec.shape) for spec in specs}
    if sum(map(math.prod, shapes.values())) <= _MAX_NUMBERS:
        zeros = {spec.name: np.zeros((1, *shapes[spec.name]), spec.dtype).tolist() for spec in specs}
        body = json.dumps({"inputs": zeros if len(specs) > 1 else next(iter(zeros.values()))})
        return _curl(f"-d {_quoted(body)}", "application/json", url)
    if len(specs) == 1:
        array = f"numpy.zeros({shapes[specs[0].name]}, '{np.dtype(specs[0].dtype).name}')"
        accept = "" if has_json_reply else "-H 'Accept: application/json' "
        return (
            f'python -c "import numpy; numpy.save(\'row.npy\', {array})"\n'
            + _curl("--data-binary @row.npy", "application/x-npy", url, accept)
        )  # fmt: skip
    lists = ",\n    ".join(f"{name!r}: numpy.zeros({(1, *shape)}, int).tolist()" for name, shape in shapes.items())
    script = f"import json, numpy\ninputs = {{\n    {lists}}}\nprint(json.dumps({{'inputs': inputs}}))"
    return f'python -c "{script}" > rows.json\n' + _curl("--data-binary @rows.json", "application/json", url)


def _curl(body: str, content_type: str, url: str, accept: str = "") -> str:
    return f"curl {body} -H 'Content-Type: {content_type}' {accept}\\\n    {url}"


def _quoted(text: str) -> str:
    """Quote text for a shell."""
    return "'" + text.replace("'", "'\\''") + "'"
