"""Hooks of a predictor: user functions that turn a request body into inputs, and outputs into a response.

Plain functions run on a thread, coroutine functions on the event loop of the request.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import math
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import numpy as np

from flowmx.comm.offload import submit
from flowmx.ndarray import NDArray
from flowmx.serve.errors import Overloaded, Unavailable
from flowmx.serve.images import IMAGE_TYPES, ImageReader
from flowmx.serve.large_bodies import text_of
from flowmx.serve.replies import JSON_TYPE, Refusal, Reply

__all__ = ["Decode", "Encode", "Hooks", "call_guarded", "call_hook", "check_hook", "encoded", "is_async", "value_reply"]

Decode = Callable[[Any, Any], Any]
"""A function of a body (the value of JSON, else bytes) and its content type, which returns a predictor's input."""
Encode = Callable[[Any], Any]
"""A function of a predictor's result, which returns a JSON-compatible value, bytes, or (bytes, content type)."""

_BYTES_TYPE = "application/octet-stream"
_log = logging.getLogger("flowmx.serve")


class Hooks(NamedTuple):
    """The hooks of a predictor.

    Attributes:
        decode: turns the body of every request into inputs.
        encode: turns outputs into the response.
        image: turns images into inputs.
        reads_head: whether ``decode`` gets the head of the request instead of its content type.
        parses_json: whether ``decode`` gets the value of JSON instead of its bytes.
    """

    decode: Decode | None = None
    encode: Encode | None = None
    image: ImageReader | None = None
    reads_head: bool = False
    parses_json: bool = True

    def decoder(self, media_type: str) -> Decode | None:
        """Return the function that decodes bodies of a media type; None if they are arrays."""
        return self.decode if self.image is None or media_type not in IMAGE_TYPES else self.image


def check_hook(name: str, hook: Any, arguments: str) -> None:
    """Raise TypeError unless a hook is None or callable.

    Args:
        name: name of the hook.
        hook: its value.
        arguments: the arguments that it is called with.
    """
    if hook is not None and not callable(hook):
        raise TypeError(f"{name} is a {type(hook).__name__}, expected a function {name}({arguments}), or a coroutine")


def is_async(hook: Callable[..., Any]) -> bool:
    """Return whether a hook is a coroutine function, or an object with a coroutine function as ``__call__``."""
    return inspect.iscoroutinefunction(hook) or inspect.iscoroutinefunction(getattr(hook, "__call__", None))  # noqa: B004


async def call_hook(name: str, model: str, hook: Callable[..., Any], *arguments: Any) -> Any:
    """Call a hook: await a coroutine function, and run any other function on a thread.

    Args:
        name: name of the hook in messages.
        model: name of the model in messages.
        hook: the function.
        *arguments: its arguments.

    Raises:
        Refusal: 400, the hook raised ValueError; 500, it raised another exception, which is logged.
        Overloaded: the hook awaited another predictor, whose queue is full.
    """
    try:
        result = await (hook(*arguments) if is_async(hook) else asyncio.to_thread(call_guarded, hook, arguments))
        return await result if isinstance(result, Awaitable) and not isinstance(result, NDArray) else result
    except (Overloaded, Refusal):
        raise
    except Unavailable as error:  # of another predictor: this one is not to be looked up again
        raise Refusal(503, str(error), {"Retry-After": "1"}) from error
    except ValueError as error:
        raise Refusal(400, str(error) or f"the {name} hook of {model} refused the request") from error
    except Exception as error:  # a user's hook may raise anything
        _log.exception("the %s hook of %s failed", name, model)
        raise Refusal(500, f"the {name} hook of {model} failed: {type(error).__name__}") from error


def call_guarded(hook: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Call a hook; exceptions that would end the event loop, or that a future cannot hold, become RuntimeError."""
    try:
        return hook(*arguments)
    except (StopIteration, SystemExit, KeyboardInterrupt) as error:
        raise RuntimeError(f"the hook raised {type(error).__name__}") from error


async def encoded(model: str, encode: Encode, result: Any) -> Reply:
    """Return the reply of an encode hook.

    Args:
        model: name of the model in messages.
        encode: the hook.
        result: the predictor's result: an array, or a list of arrays.

    Raises:
        Refusal: the hook failed, or returned something that cannot be sent.
    """
    value = await call_hook("encode", model, encode, result)
    try:
        return await submit(contextvars.copy_context().run, value_reply, value)
    except (TypeError, ValueError, RecursionError) as error:
        _log.error("the encode hook of %s returned a value that cannot be sent: %s", model, error)
        raise Refusal(500, f"the encode hook of {model} returned a value that cannot be sent") from error


def value_reply(value: Any) -> Reply:
    """Return the reply with a value that an encode hook returned.

    Raises:
        TypeError: JSON cannot represent it.
    """
    if isinstance(value, Reply):
        return value
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], (bytes, bytearray, memoryview)):
        body, content_type = value
        if not isinstance(content_type, str) or not content_type.isprintable():
            raise TypeError(f"the content type is {content_type!r}, expected a string such as 'image/png'")
        return Reply(200, bytes(body), content_type)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return Reply(200, bytes(value), _BYTES_TYPE)
    counts: list[int] = []
    plain = _plain(value, counts)
    return Reply(200, text_of(plain, sum(counts)), JSON_TYPE)


def _plain(value: Any, counts: list[int]) -> Any:
    """Return a value as JSON has it, with arrays unchanged; append their numbers of elements to ``counts``.

    Raises:
        TypeError: JSON cannot represent a value.
    """
    if isinstance(value, dict):
        return {str(key): _plain(item, counts) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, counts) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, NDArray):
        value = value.asnumpy()
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "biufV":
            return _plain(value.tolist(), counts)
        counts.append(value.size)
        return value
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"a {type(value).__name__}, expected a JSON-compatible value, bytes, or (bytes, content type)")
