"""Open Inference Protocol over HTTP: its routes, requests and answers, with binary tensors. Pure.

The protocol of KServe (v2) and of Triton, with Triton's extensions for binary tensors and for statistics of models:
https://kserve.github.io/website/docs/concepts/architecture/data-plane/v2-protocol.

==============================================  ==============================================================
``GET  v2``                                     name, version and extensions of the server
``GET  v2/health/live``, ``v2/health/ready``    200, or 503
``GET  v2/models/NAME[/versions/V]``            inputs and outputs
``GET  v2/models/NAME[/versions/V]/ready``      200, or 503
``POST v2/models/NAME[/versions/V]/infer``      a prediction
==============================================  ==============================================================
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from flowmx.comm.offload import LARGE
from flowmx.serve.errors import InvalidInput
from flowmx.serve.formats import JSON, parsed
from flowmx.serve.inputs import Array, Input
from flowmx.serve.replies import Reply

__all__ = ["HEADER", "NAME", "Inference", "described", "server"]

NAME = "flowmx"
HEADER = "Inference-Header-Content-Length"
"""Bytes of JSON before the binary tensors, in a request and in an answer."""

_DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(bool),
    **{f"{'U' * unsigned}INT{bits}": np.dtype(f"{'u' * unsigned}int{bits}")
       for unsigned in (False, True) for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": np.dtype(f"float{bits}") for bits in (16, 32, 64)},
    "BF16": np.dtype(ml_dtypes.bfloat16),
}  # fmt: skip
"""NumPy's dtype of each datatype of the protocol; BYTES, which is text, is no input of a network."""
_DATATYPES = {dtype: name for name, dtype in _DTYPES.items()}


def server(version: str) -> dict[str, Any]:
    """Description of the server."""
    return {"name": NAME, "version": version, "extensions": ["binary_tensor_data", "model_repository"]}


def described(name: str, versions: Sequence[str], inputs: Sequence[Input], outputs: Sequence[Input]) -> dict[str, Any]:
    """Description of a model: -1 stands for the rows, and for lengths that vary."""
    return {
        "name": name, "versions": list(versions), "platform": NAME,
        "inputs": [_specified(each) for each in inputs], "outputs": [_specified(each) for each in outputs],
    }  # fmt: skip


def _specified(spec: Input) -> dict[str, Any]:
    shape = [-1, *(-1 if size is None else size for size in spec.shape)]
    return {"name": spec.name, "datatype": datatype(spec.dtype), "shape": shape}


def datatype(dtype: Any) -> str:
    """The protocol's name of a dtype."""
    return _DATATYPES[np.dtype(dtype)]


class Inference:
    """One prediction: reads the request, and writes the answer in the form that was asked for.

    Args:
        name: the model's.
        version: the model's.
        header: bytes of JSON at the body's beginning; None where it is JSON alone.
    """

    def __init__(self, name: str, version: str, header: int | None = None) -> None:
        self._name, self._version, self._header = name, version, header
        self._id: str | None = None
        self._wanted: dict[str, bool] = {}
        self._binary = False

    @property
    def hint(self) -> str:
        """A way to send more."""
        return ": send large tensors in binary" if self._header is None else ""

    def scan(self, chunk: bytes) -> None:
        """Refuse bytes that begin a body of more than may be built."""
        JSON.scan(chunk if self._header is None else chunk[: self._header])

    def is_quick(self, body: bytes) -> bool:
        """Tell whether reading a body takes no longer than handing it to another thread."""
        return JSON.is_quick(body if self._header is None else body[: self._header]) and len(body) < LARGE

    def is_text(self, name: str) -> bool:
        """Tell whether an output is written as text."""
        return not self._wanted.get(name, self._binary)

    def read(self, body: bytes) -> dict[str, Array]:
        """The inputs by name.

        Raises:
            InvalidInput: the body is none of the protocol.
        """
        size = len(body) if self._header is None else self._header
        if size > len(body):
            raise InvalidInput(f"{HEADER} is {size}, expected at most the {len(body)} bytes of the body")
        request = parsed(body[:size])
        self._read_options(request)
        return _tensors(_objects(request, "inputs"), memoryview(body)[size:])

    def _read_options(self, request: Any) -> None:
        if not isinstance(request, dict):
            raise InvalidInput(f"the body is a {type(request).__name__}, expected an object with inputs")
        self._id = request.get("id")
        if self._id is not None and not isinstance(self._id, str):
            raise InvalidInput(f"the id is a {type(self._id).__name__}, expected a string")
        self._binary = _parameters(request).get("binary_data_output", False) is True
        for each in _objects(request, "outputs") if "outputs" in request else []:
            options = _parameters(each)
            if options.get("classification"):
                raise InvalidInput("the extension of classification is not here: ask for the output itself")
            self._wanted[_named(each)] = options.get("binary_data", self._binary) is True

    def write(self, outputs: Mapping[str, Array]) -> Reply:
        """The answer: of the outputs that were asked for, or of all.

        Raises:
            InvalidInput: there is no output of a name that was asked for.
        """
        wanted = self._wanted or dict.fromkeys(outputs, self._binary)
        missing = [name for name in wanted if name not in outputs]
        if missing:
            raise InvalidInput(f"there is no output {missing[0][:80]!r}, expected some of {', '.join(outputs)}")
        described, parts = [], []
        for name, is_binary in wanted.items():
            array = outputs[name]
            each: dict[str, Any] = {"name": name, "datatype": datatype(array.dtype), "shape": list(array.shape)}
            if is_binary:
                parts.append(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())
                each["parameters"] = {"binary_data_size": len(parts[-1])}
            else:
                each["data"] = array.ravel().tolist()
            described.append(each)
        answer = {"model_name": self._name, "model_version": self._version, "outputs": described}
        head = json.dumps(answer if self._id is None else answer | {"id": self._id}).encode()
        if not parts:
            return Reply(200, head)
        return Reply(200, b"".join([head, *parts]), "application/octet-stream", {HEADER: str(len(head))})


@dataclass
class _Tail:
    """The binary tensors after the JSON, taken in turn."""

    rest: memoryview

    def take(self, name: str, size: Any) -> memoryview:
        if type(size) is not int or not 0 <= size <= len(self.rest):
            raise InvalidInput(f"binary_data_size of {name} is {str(size)[:40]}, and {len(self.rest)} bytes are left")
        taken, self.rest = self.rest[:size], self.rest[size:]
        return taken


def _tensors(given: Sequence[Any], tail: memoryview) -> dict[str, Array]:
    rest, found = _Tail(tail), {}
    for each in given:
        name = _named(each)
        if name in found:
            raise InvalidInput(f"the input {name} is there twice")
        found[name] = _tensor(name, each, rest)
    if rest.rest:
        raise InvalidInput(f"{len(rest.rest)} bytes are left after the last tensor, expected none")
    return found


def _tensor(name: str, given: dict[str, Any], rest: _Tail) -> Array:
    shape, dtype = given.get("shape"), _DTYPES.get(str(given.get("datatype")))
    if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
        raise InvalidInput(f"the shape of {name} is {str(shape)[:80]}, expected a list of sizes")
    if dtype is None:
        wrong = str(given.get("datatype"))[:40]
        raise InvalidInput(f"the datatype of {name} is {wrong!r}, expected one of {', '.join(_DTYPES)}")
    options = _parameters(given)
    try:
        if "binary_data_size" in options:
            array = np.frombuffer(rest.take(name, options["binary_data_size"]), dtype.newbyteorder("<"))
        else:
            array = _of_numbers(given.get("data"), dtype)
        if array.size != math.prod(shape):
            raise InvalidInput(f"input {name} has {array.size} values, expected {math.prod(shape)} for {shape}")
        return array.reshape(shape)
    except InvalidInput:
        raise
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidInput(f"input {name} is no tensor of {given['datatype']} {str(shape)[:80]}: {error}") from None


def _of_numbers(data: Any, dtype: np.dtype[Any]) -> Array:
    """The array of a list of numbers, flat or nested."""
    if not isinstance(data, list):
        raise InvalidInput(f"the data are a {type(data).__name__}, expected a list, or binary_data_size in parameters")
    array = np.asarray(data)
    if array.size and array.dtype.kind not in "biuf":
        raise InvalidInput(f"the data are {array.dtype}, expected numbers")
    if dtype.kind in "biu" and array.size:
        if array.dtype.kind == "f":
            raise InvalidInput("the data have fractions, expected integers")
        least, most = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        if int(array.min()) < least or int(array.max()) > most:
            raise InvalidInput(f"the data are {array.min()} to {array.max()}, expected {least} to {most}")
    with np.errstate(over="ignore"):  # infinity, as everywhere
        return array.astype(dtype)


def _objects(given: Mapping[str, Any], key: str) -> list[Any]:
    found = given.get(key)
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise InvalidInput(f"{key} is {str(found)[:80]}, expected a list of objects")
    return found


def _named(given: Mapping[str, Any]) -> str:
    name = given.get("name")
    if not isinstance(name, str):
        raise InvalidInput(f"the name of a tensor is {str(name)[:80]}, expected a string")
    return name


def _parameters(given: Mapping[str, Any]) -> Mapping[str, Any]:
    found = given.get("parameters", {})
    if not isinstance(found, dict):
        raise InvalidInput(f"parameters is a {type(found).__name__}, expected an object")
    return found
