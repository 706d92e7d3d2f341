"""A script of SageMaker as a handler of Multi Model Server, which SageMaker's containers run it with."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable
from typing import Any

from flowmx.artifacts.scripts import FUNCTIONS
from flowmx.serve.hooks import call_guarded
from flowmx.serve.mms_context import Context
from flowmx.serve.replies import JSON_TYPE, Refusal, Reply
from flowmx.serve.request_head import media_type_of
from flowmx.serve.sagemaker.defaults import defaults_for, model_fn
from flowmx.serve.sagemaker.formats import TEXT_TYPES

__all__ = ["ScriptHandler", "is_script"]

_log = logging.getLogger("flowmx.serve")
_ACCEPT = "SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT"
"""The environment variable with the media type of responses to requests that accept any."""
_STEPS = FUNCTIONS[2:5]


def is_script(target: object) -> bool:
    """Return whether a module defines functions that SageMaker calls."""
    return any(callable(getattr(target, name, None)) for name in FUNCTIONS)


class ScriptHandler:
    """A handler that calls the functions of a script.

    Args:
        module: the script.

    Raises:
        ValueError: it has transform_fn and a function that transform_fn replaces.
    """

    def __init__(self, module: object) -> None:
        self.__name__ = str(getattr(module, "__name__", "script"))
        functions = {name: getattr(module, name, None) for name in FUNCTIONS}
        self._functions: dict[str, Callable[..., Any]] = {n: f for n, f in functions.items() if f is not None}
        surplus = [name for name in _STEPS if name in self._functions]
        if "transform_fn" in self._functions and surplus:
            raise ValueError(
                f"the script has transform_fn and {', '.join(surplus)}, expected either transform_fn or the others, as "
                "SageMaker does"
            )

    def initialize(self, context: Context) -> None:
        """Load the model."""
        self._context, functions = context, self._functions
        folder = str(context.system_properties["model_dir"])
        if "pre_model_fn" in functions:
            self._call("pre_model_fn", folder)
        functions.setdefault("model_fn", model_fn)
        self._model = self._call("model_fn", folder)
        if "model_warmup_fn" in functions:
            self._call("model_warmup_fn", folder, self._model)
        if "transform_fn" not in functions:
            defaults = defaults_for(self._model, needs_predict="predict_fn" not in functions)
            for name in _STEPS:
                functions.setdefault(name, getattr(defaults, name))

    def handle(self, data: list[dict[str, object]], context: Context) -> list[object]:
        """Return the responses to requests; one that fails does not affect the others."""
        return [self._response(index, request["body"]) for index, request in enumerate(data)]

    def _response(self, index: int, body: Any) -> object:
        context = self._context
        content_type = context.get_request_header(index, "content-type") or ""
        accept = context.get_request_header(index, "accept") or "*/*"
        if accept == "*/*":
            accept = os.environ.get(_ACCEPT, JSON_TYPE)
        try:
            value = body.decode() if media_type_of(content_type) in TEXT_TYPES else body
            response = call_guarded(self._transform, (value, content_type, accept))
        except Exception as error:  # the user's script may raise anything
            reply = _failure(error)
            context.set_response_status(reply.status, "", index)
            return reply
        if isinstance(response, tuple):
            response, accept = response
        context.set_response_content_type(index, accept)
        return response

    def _transform(self, value: object, content_type: str, accept: str) -> object:
        if "transform_fn" in self._functions:
            return self._call("transform_fn", self._model, value, content_type, accept)
        takes_model = "model" in inspect.signature(self._functions["input_fn"]).parameters
        inputs = self._call("input_fn", value, content_type, *((self._model,) if takes_model else ()))
        return self._call("output_fn", self._call("predict_fn", inputs, self._model), accept)

    def _call(self, name: str, *arguments: object) -> Any:
        """Call a function of the script, with the context if it has one more parameter."""
        function = self._functions[name]
        count = len(inspect.signature(function).parameters)
        if count not in (len(arguments), len(arguments) + 1):
            raise TypeError(f"{name} has {count} parameters, and SageMaker calls it with {len(arguments)}")
        return function(*arguments, *((self._context,) if count > len(arguments) else ()))


def _failure(error: Exception) -> Reply:
    """Return the response to a request for which a function raised an exception."""
    if isinstance(error, Refusal):
        return error.reply
    status, message = getattr(error, "status_code", None), getattr(error, "message", None)
    if isinstance(status, int) and isinstance(message, str):  # an error of SageMaker's toolkit
        return Refusal(status, message).reply
    if type(error).__name__ == "UnsupportedFormatError":
        return Refusal(415, str(error)).reply
    _log.error("the script failed", exc_info=error)
    return Refusal(500, f"the script failed: {type(error).__name__}").reply
