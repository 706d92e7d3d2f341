"""The context that handlers of Multi Model Server get: the model's folder, the requests' headers, and responses."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from flowmx.serve.metrics import Instruments
from flowmx.version import __version__

__all__ = ["Context", "RequestProcessor", "Response", "read_manifest"]

Manifest = Mapping[str, object]


class Response(NamedTuple):
    """The answer of a handler to one request.

    Attributes:
        value: the value that it returned: a string, bytes, or a JSON-compatible value.
        status: the HTTP status.
        headers: the headers that it set.
    """

    value: object
    status: int = 200
    headers: Mapping[str, str] = {}


def read_manifest(folder: Path | None) -> Manifest | None:
    """Return the manifest of a model's folder, ``MAR-INF/MANIFEST.json``, or None.

    Raises:
        ValueError: it is not a JSON object.
    """
    for name in ("MAR-INF/MANIFEST.json", "MANIFEST.json"):
        path = None if folder is None else folder / name
        if path is not None and path.is_file():
            manifest = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(manifest, dict):
                raise ValueError(f"{path} has a {type(manifest).__name__}, expected a JSON object")
            return manifest
    return None


class RequestProcessor:
    """The headers of one request, and the status and headers of its response.

    Args:
        request_header: the headers of the request.
    """

    def __init__(self, request_header: Mapping[str, str]) -> None:
        self._request_header = dict(request_header)
        self._response_header: dict[str, str] = {}
        self._status_code = 200
        self._reason_phrase: str | None = None

    def get_request_property(self, key: str) -> str | None:
        """Return a header of the request."""
        wanted = key.lower()
        return next((value for name, value in self._request_header.items() if name.lower() == wanted), None)

    def get_request_properties(self) -> dict[str, str]:
        """Return all headers of the request."""
        return self._request_header

    def report_status(self, code: int, reason_phrase: str | None = None) -> None:
        """Set the status of the response."""
        self._status_code, self._reason_phrase = code, reason_phrase

    def get_response_status_code(self) -> int:
        """Return the status of the response."""
        return self._status_code

    def get_response_status_phrase(self) -> str | None:
        """Return the reason phrase of the response."""
        return self._reason_phrase

    def add_response_property(self, key: str, value: str) -> None:
        """Set a header of the response."""
        self._response_header[key] = value

    def get_response_headers(self) -> dict[str, str]:
        """Return the headers of the response."""
        return self._response_header

    def get_response_header(self, key: str | None = None) -> dict[str, str] | str | None:
        """Return a header of the response, or, as older versions of MMS do without a key, all of them."""
        return self._response_header if key is None else self._response_header.get(key)


class HandlerMetrics:
    """The metrics that a handler adds, as metrics of the service.

    Args:
        instruments: the metrics of the predictor.
        model: its name.
    """

    def __init__(self, instruments: Instruments, model: str) -> None:
        self._model = model
        self._counts, self._values = instruments.handler_counts, instruments.handler_values

    def add_counter(self, name: str, value: float, idx: int | None = None, dimensions: object = None) -> None:
        """Add to a counter."""
        self._counts.add(self._model, name, by=value)

    def add_error(self, name: str, value: object, dimensions: object = None) -> None:
        """Count an error."""
        self._counts.add(self._model, name)

    def add_time(
        self, name: str, value: float, idx: int | None = None, unit: str = "ms", dimensions: object = None
    ) -> None:
        """Set a duration."""
        self.add_metric(name, value, idx, unit)

    def add_size(
        self, name: str, value: float, idx: int | None = None, unit: str = "MB", dimensions: object = None
    ) -> None:
        """Set a size."""
        self.add_metric(name, value, idx, unit)

    def add_percent(self, name: str, value: float, idx: int | None = None, dimensions: object = None) -> None:
        """Set a percentage."""
        self.add_metric(name, value, idx, "percent")

    def add_metric(
        self, name: str, value: float, idx: int | None = None, unit: str = "", dimensions: object = None
    ) -> None:
        """Set any other value."""
        self._values.set(float(value), self._model, name, unit)


class Context:
    """The context of a handler: facts about the model, and the requests of the current batch.

    Args:
        model_name: name of the predictor.
        folder: the folder of the model.
        batch_size: maximum number of requests in a batch.
        gpu: index of the GPU, or None.
        instruments: the metrics of the predictor.
    """

    def __init__(
        self, model_name: str, folder: Path | None, batch_size: int, gpu: int | None, instruments: Instruments
    ) -> None:
        self.model_name = model_name
        self.manifest = read_manifest(folder)
        self.system_properties: dict[str, object] = {
            "model_dir": str(Path.cwd() if folder is None else folder), "gpu_id": gpu, "batch_size": batch_size,
            "server_name": "MMS", "server_version": __version__,
        }  # fmt: skip
        self.metrics = HandlerMetrics(instruments, model_name)
        self.request_ids: dict[int, str] = {}
        self.request_processor: Sequence[RequestProcessor] = []

    def begin(self, headers: Sequence[Mapping[str, str]], request_ids: Sequence[str]) -> None:
        """Begin a batch.

        Args:
            headers: the headers of its requests.
            request_ids: their ids.
        """
        self.request_processor = [RequestProcessor(each) for each in headers]
        self.request_ids = dict(enumerate(request_ids))

    def get_request_id(self, idx: int = 0) -> str | None:
        """Return the id of a request."""
        return self.request_ids.get(idx)

    def get_request_header(self, idx: int, key: str) -> str | None:
        """Return a header of a request."""
        return self.request_processor[idx].get_request_property(key)

    def get_all_request_header(self, idx: int) -> dict[str, str]:
        """Return all headers of a request."""
        return self.request_processor[idx].get_request_properties()

    def set_response_content_type(self, idx: int, value: str) -> None:
        """Set the content type of a response."""
        self.request_processor[idx].add_response_property("content-type", value)

    def get_response_content_type(self, idx: int) -> str | None:
        """Return the content type of a response, if it was set."""
        return self.request_processor[idx].get_response_headers().get("content-type")

    def set_response_header(self, idx: int, key: str, value: str) -> None:
        """Set a header of a response."""
        self.request_processor[idx].add_response_property(key, value)

    def get_response_headers(self, idx: int) -> dict[str, str]:
        """Return the headers of a response."""
        return self.request_processor[idx].get_response_headers()

    def set_response_status(self, code: int = 200, phrase: str = "", idx: int = 0) -> None:
        """Set the status of a response."""
        self.request_processor[idx].report_status(code, phrase)

    set_http_response_status = set_response_status

    def set_all_response_status(self, code: int = 200, phrase: str = "") -> None:
        """Set the status of the responses to all requests of the batch."""
        for processor in self.request_processor:
            processor.report_status(code, phrase)

    def get_response_status(self, idx: int) -> tuple[int, str | None]:
        """Return the status of a response, and its reason phrase."""
        processor = self.request_processor[idx]
        return processor.get_response_status_code(), processor.get_response_status_phrase()

    get_http_response_status = get_response_status

    def response(self, idx: int, value: object) -> Response:
        """Return the response to a request, with the status and headers that the handler set."""
        processor = self.request_processor[idx]
        return Response(value, processor.get_response_status_code(), dict(processor.get_response_headers()))
