"""Handlers of Multi Model Server (MMS), unchanged: they load their models and compute batches of requests themselves.

A handler gets a list of requests, each a dict: ``body``, or the fields of a form by name, and the parameters of the
query. Values are strings for text, parsed JSON, and otherwise bytes. It returns a list with one response for each
request.
"""

from __future__ import annotations

import inspect
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np

from flowmx.artifacts.scripts import FUNCTIONS
from flowmx.serve.batching import Piece
from flowmx.serve.errors import InvalidInput
from flowmx.serve.formats import parsed
from flowmx.serve.handler_modules import load_object
from flowmx.serve.hooks import Hooks, call_guarded, value_reply
from flowmx.serve.inputs import Array, Input, Rows
from flowmx.serve.metrics import Instruments
from flowmx.serve.mms_context import Context, Response
from flowmx.serve.model_archives import ModelCode, has_code, is_archive, open_code
from flowmx.serve.multipart import FORM, parts
from flowmx.serve.replies import JSON_TYPE, Refusal, Reply
from flowmx.serve.request_head import Head
from flowmx.serve.sagemaker.scripts import ScriptHandler, is_script

__all__ = ["Handler", "HandlerModel", "Request", "is_handler"]

_STEPS = ("preprocess", "inference", "postprocess")
_TEXT_TYPE = "text/plain; charset=utf-8"
_MIN_STATUS, _MAX_STATUS = 200, 599


class Request(NamedTuple):
    """A request to a handler.

    Attributes:
        data: its values by name, as the handler gets them.
        headers: its headers.
    """

    data: Mapping[str, object]
    headers: Mapping[str, str] = {}


class Service(NamedTuple):
    """The functions of a handler.

    Attributes:
        initialize: loads the model.
        handle: answers a batch.
    """

    initialize: Callable[[Context], object]
    handle: Callable[[list[dict[str, object]], Context], object]


class Handler:
    """A handler of Multi Model Server, as the model of a :class:`Predictor`.

    Args:
        handler: ``module:function``, ``module:Class``, ``module`` or a ``.py`` file, as MMS's ``--handler``; or the
            function, class or object itself. A function ``handle(data, context)`` is called with ``data`` None to load
            the model. A class has ``initialize(context)`` and ``handle(data, context)``, or ``preprocess``,
            ``inference`` and ``postprocess``. Or a model archive, a ``.mar`` file, whose manifest names its handler; or
            a folder or archive with a script of SageMaker, ``code/inference.py``, or the script itself.
        folder: the folder of the model: ``context.system_properties["model_dir"]``. Modules are found there, too. It
            may be an archive, which is unpacked into a temporary folder.
        gpu: index of the GPU for ``context.system_properties["gpu_id"]``.

    Raises:
        ImportError: there is no such module.
        FileNotFoundError: there is no such file.
        ValueError: it is not a handler, or the archive is damaged, hostile, or names no handler.

    Example:
        >>> handler = mx.serve.Handler("service.py:handle", "model/")
        >>> async with mx.serve.Predictor(handler, max_batch=8) as predictor:
        ...     response = await predictor({"body": image})
    """

    def __init__(
        self, handler: object, folder: str | os.PathLike[str] | None = None, *, gpu: int | None = None
    ) -> None:
        self.gpu = gpu
        code = handler if isinstance(handler, ModelCode) else _code_at(handler, folder)
        if code is not None:
            folder, handler = code.folder, code.handler
        self.scratch: object = None if code is None else code.scratch
        """The owner of the folder, if it is temporary: the folder exists as long as this object."""
        self.folder = None if folder is None else Path(folder).resolve()
        target = load_object(handler, self.folder) if isinstance(handler, str) else handler
        is_named_script = code is not None and code.is_script
        if is_named_script or (isinstance(target, ModuleType) and is_script(target) and not is_handler(target)):
            target = ScriptHandler(target)
        self._target = target
        if not is_handler(self._target):
            raise ValueError(
                f"{handler!r} is not a handler: expected a function handle(data, context), a class with handle, or "
                f"with {', '.join(_STEPS)}, or a script of SageMaker with {', '.join(FUNCTIONS[:5])}"
            )
        self.hooks = _SCRIPT_HOOKS if isinstance(self._target, ScriptHandler) else _HANDLER_HOOKS
        """The hooks of predictors whose model it is."""

    @property
    def name(self) -> str:
        """The name of its function, class or module."""
        return str(getattr(self._target, "__name__", type(self._target).__name__))

    def service(self) -> Service:
        """Return its functions; a class is called to create an object."""
        target = self._target
        if isinstance(target, ModuleType):
            target = target.handle if hasattr(target, "handle") else _class_of(target)
        if isinstance(target, type):
            target = target()
        if inspect.isroutine(target):
            return Service(lambda context: target(None, context), target)
        initialize = getattr(target, "initialize", lambda context: None)
        return Service(initialize, getattr(target, "handle", None) or _handle_by_steps(target))

    def __repr__(self) -> str:
        return f"<Handler {self.name!r}>"


def _code_at(handler: object, folder: str | os.PathLike[str] | None) -> ModelCode | None:
    """Return the code of an archive, or of a folder with a script; None for other handlers and folders."""
    if isinstance(handler, (str, os.PathLike)) and has_code(handler):
        if folder is not None:
            raise ValueError(f"{handler} is a model archive, which has its folder: leave out folder={str(folder)!r}")
        return open_code(Path(handler))
    if folder is not None and (is_archive(folder) or Path(folder).is_file()):
        return open_code(Path(folder), handler)
    return None


def is_handler(target: object) -> bool:
    """Return whether an object is a handler: a module, function, class, or instance."""
    if isinstance(target, ModuleType):
        return hasattr(target, "handle") or _class_of(target) is not None
    return inspect.isroutine(target) or hasattr(target, "handle") or all(hasattr(target, step) for step in _STEPS)


def _class_of(module: ModuleType) -> type[object] | None:
    """Return the only class with a handler's methods that a module defines."""
    classes = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__ == module.__name__ and is_handler(value)
    ]
    return classes[0] if len(classes) == 1 else None


def _handle_by_steps(target: object) -> Callable[[list[dict[str, object]], Context], object]:
    """Return a function that calls a handler's three steps."""
    preprocess, inference, postprocess = (getattr(target, step) for step in _STEPS)
    return lambda data, context: postprocess(inference(preprocess(data)))


# -- the model ---------------------------------------------------------------------------------------------


class Requests:
    """The inputs of a handler: requests, which only the handler can check."""

    specs: Sequence[Input] = ()

    def read(self, x: object) -> Rows:
        """Return a request as a row.

        Args:
            x: a :class:`Request`, or its values by name.

        Raises:
            InvalidInput: it is neither.
        """
        if isinstance(x, Mapping):
            x = Request(x)
        if not isinstance(x, Request):
            raise InvalidInput(f"the request is a {type(x).__name__}, expected a dict such as {{'body': b'...'}}")
        return Rows((_objects([x]),), 1, True, ())

    def describe(self) -> list[dict[str, object]]:
        """Return no inputs."""
        return []


class HandlerModel:
    """A handler with its context. One thread at a time calls it.

    Args:
        handler: the handler.
        name: name of the predictor.
        batch_size: maximum number of requests in a batch.
        instruments: the metrics of the predictor.
        version: its number among the models of the predictor.
    """

    def __init__(self, handler: Handler, name: str, batch_size: int, instruments: Instruments, version: int) -> None:
        self.inputs, self.version = Requests(), version
        self.outputs = ("response",)
        self.results: tuple[Input, ...] = ()
        self._scratch = handler.scratch
        self._service = handler.service()
        self._context = Context(name, handler.folder, batch_size, handler.gpu, instruments)

    def warm(self, sizes: Sequence[int]) -> dict[int, float]:
        """Call the handler's ``initialize``, which loads its model; all sizes of batches count as equally fast."""
        call_guarded(self._service.initialize, (self._context,))
        return dict.fromkeys(sizes, 1.0)

    def compute(self, pieces: Sequence[Piece], size: int) -> tuple[Array, ...]:
        """Return the responses to the requests of jobs.

        Raises:
            Refusal: the handler raised an exception with ``message`` and ``error_code``, as MMS's PredictionException.
            TypeError: the handler did not return a list.
            ValueError: the list has a wrong length.
        """
        requests: list[Request] = [piece.job.rows.arrays[0][0] for piece in pieces]
        self._context.begin([request.headers for request in requests], [uuid.uuid4().hex for _ in requests])
        try:
            values = call_guarded(self._service.handle, ([dict(request.data) for request in requests], self._context))
        except Exception as error:  # the user's handler may raise anything
            status, message = getattr(error, "error_code", None), getattr(error, "message", None)
            if isinstance(status, int) and _MIN_STATUS <= status <= _MAX_STATUS and isinstance(message, str):
                raise Refusal(status, message) from error
            raise
        if not isinstance(values, (list, tuple)):
            raise TypeError(f"the handler returned a {type(values).__name__}, expected a list with a response for each "
                            f"of {len(requests)} requests")  # fmt: skip
        if len(values) != len(requests):
            raise ValueError(f"the handler returned {len(values)} responses for {len(requests)} requests")
        return (_objects([self._context.response(index, value) for index, value in enumerate(values)]),)


def _objects(values: Sequence[object]) -> Array:
    """Return values as an array of objects."""
    array = np.empty(len(values), object)
    for index, value in enumerate(values):
        array[index] = value
    return array


# -- bodies ------------------------------------------------------------------------------------------------


def _decode(body: object, head: Head) -> Request:
    """Return the request with the parameters of the query, and ``{"body": value}`` or the fields of a form."""
    headers, content_type = dict(head.headers), head.headers.get("content-type", "")
    data: dict[str, object] = {name: bytearray(value.encode()) for name, value in head.parameters.items()}
    if content_type.lower().startswith(FORM) and isinstance(body, bytes):
        fields = {part.name: _value(part.body, part.content_type) for part in parts(body, content_type)}
        return Request(data | fields, headers)
    return Request({**data, "body": _value(body, content_type)}, headers)


def _value(body: object, content_type: str) -> object:
    """Return a value as MMS passes it to handlers."""
    if not isinstance(body, bytes):  # JSON, which is parsed already
        return body
    if content_type == JSON_TYPE:
        return parsed(body)
    return body.decode("utf-8", "replace") if content_type.startswith("text") else bytearray(body)


def _encode(response: Response) -> Reply:
    """Return the reply with a response."""
    headers = {name: str(value) for name, value in response.headers.items() if name.lower() != "content-type"}
    content_type = next((value for name, value in response.headers.items() if name.lower() == "content-type"), None)
    value, default = response.value, None
    if isinstance(value, str):
        value, default = value.encode(), _TEXT_TYPE
    reply = value_reply(value)
    return reply._replace(status=response.status, type=content_type or default or reply.type, headers=headers)


def _decode_script(body: bytes, head: Head) -> Request:
    """Return the request to a script, with the bytes of the body."""
    return Request({"body": bytearray(body)}, dict(head.headers))


_HANDLER_HOOKS = Hooks(_decode, _encode, reads_head=True)
_SCRIPT_HOOKS = Hooks(_decode_script, _encode, reads_head=True, parses_json=False)
