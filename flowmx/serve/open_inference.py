"""The Open Inference Protocol over HTTP: its routes, requests and responses, with binary tensors.

This module does no I/O.

The protocol of KServe (v2) and Triton, with Triton's extensions for binary tensors and model repositories:
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

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from flowmx.comm.offload import LARGE
from flowmx.ops.registry.dtypes import DType
from flowmx.serve.errors import InvalidInput
from flowmx.serve.formats import JSON, parsed
from flowmx.serve.inputs import Array, Input
from flowmx.serve.large_bodies import array_of, joined, text_of
from flowmx.serve.replies import Reply
from flowmx.serve.sessions.sequences import SequenceStep, read_sequence
from flowmx.shape_limits import ShapeError, read_shape

__all__ = ["HEADER", "NAME", "Inference", "describe", "server"]

NAME = "flowmx"
HEADER = "Inference-Header-Content-Length"
"""Bytes of JSON before the binary tensors, in a request and in a response."""

_DTYPES: dict[str, DType] = {
    "BOOL": np.dtype(bool),
    **{f"{'U' * unsigned}INT{bits}": np.dtype(f"{'u' * unsigned}int{bits}")
       for unsigned in (False, True) for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": np.dtype(f"float{bits}") for bits in (16, 32, 64)},
    "BF16": np.dtype(ml_dtypes.bfloat16),
}  # fmt: skip
"""NumPy's dtypes by the protocol's datatypes. BYTES (text) is not supported."""
_DATATYPES = {dtype: name for name, dtype in _DTYPES.items()}


def server(version: str) -> dict[str, object]:
    """Return the description of the server."""
    return {
        "name": NAME,
        "version": version,
        "extensions": ["binary_tensor_data", "generate", "model_repository", "sequence"],
    }


def describe(name: str, versions: Sequence[str], inputs: Sequence[Input], outputs: Sequence[Input]) -> dict[str, Any]:
    """Return the description of a model; -1 marks the batch axis and variable lengths."""
    return {
        "name": name, "versions": list(versions), "platform": NAME,
        "inputs": [_tensor_spec(spec) for spec in inputs], "outputs": [_tensor_spec(spec) for spec in outputs],
    }  # fmt: skip


def _tensor_spec(spec: Input) -> dict[str, object]:
    shape = [-1, *(-1 if size is None else size for size in spec.shape)]
    return {"name": spec.name, "datatype": datatype(spec.dtype), "shape": shape}


def datatype(dtype: Any) -> str:
    """Return the protocol's name of a dtype."""
    return _DATATYPES[np.dtype(dtype)]


class Inference:
    """The exchange of one prediction: parses the request and writes the response in the requested form.

    Args:
        name: name of the model.
        version: version of the model.
        header: bytes of JSON at the start of the body; None if the body is only JSON.
    """

    def __init__(self, name: str, version: str, header: int | None = None) -> None:
        self._name, self._version, self._header = name, version, header
        self._id: str | None = None
        self._outputs: dict[str, bool] = {}
        self._binary = False
        self.sequence: SequenceStep | None = None
        """The sequence of the request, once it is read."""

    @property
    def hint(self) -> str:
        """A way to send larger bodies."""
        return ": send large tensors in binary" if self._header is None else ""

    def scan(self, chunk: bytes) -> None:
        """Check the first bytes of a body against the limits on what may be built."""
        JSON.scan(chunk if self._header is None else chunk[: self._header])

    def is_quick(self, body: bytes) -> bool:
        """Return whether parsing a body takes no longer than handing it to another thread."""
        return JSON.is_quick(body if self._header is None else body[: self._header]) and len(body) < LARGE

    def is_text(self, name: str) -> bool:
        """Return whether an output is written as text."""
        return not self._outputs.get(name, self._binary)

    def read(self, body: bytes) -> dict[str, Array]:
        """Parse the inputs by name.

        Raises:
            InvalidInput: the body violates the protocol.
        """
        size = len(body) if self._header is None else self._header
        if size > len(body):
            raise InvalidInput(f"{HEADER} is {size}, expected at most the {len(body)} bytes of the body")
        request = parsed(body[:size])
        self._read_options(request)
        return _tensors(_objects(request, "inputs"), memoryview(body)[size:])

    def _read_options(self, request: object) -> None:
        if not isinstance(request, dict):
            raise InvalidInput(f"the body is a {type(request).__name__}, expected an object with the key inputs")
        self._id = request.get("id")
        if self._id is not None and not isinstance(self._id, str):
            raise InvalidInput(f"the id is a {type(self._id).__name__}, expected a string")
        self._binary = _parameters(request).get("binary_data_output", False) is True
        self.sequence = read_sequence(_parameters(request))
        for output in _objects(request, "outputs") if "outputs" in request else []:
            options = _parameters(output)
            if options.get("classification"):
                raise InvalidInput("the classification extension is not supported: request the output itself")
            self._outputs[_name_of(output)] = options.get("binary_data", self._binary) is True

    def write(self, outputs: Mapping[str, Array]) -> Reply:
        """Return the response with the requested outputs (default: all).

        Raises:
            InvalidInput: a requested output does not exist.
        """
        requested = self._outputs or dict.fromkeys(outputs, self._binary)
        missing = [name for name in requested if name not in outputs]
        if missing:
            raise InvalidInput(f"there is no output {missing[0][:80]!r}, expected some of {', '.join(outputs)}")
        tensors, parts = [], []
        for name, is_binary in requested.items():
            array = outputs[name]
            tensor: dict[str, Any] = {"name": name, "datatype": datatype(array.dtype), "shape": list(array.shape)}
            if is_binary:
                parts.append(array.astype(array.dtype.newbyteorder("<"), copy=False))
                tensor["parameters"] = {"binary_data_size": array.nbytes}
            else:
                tensor["data"] = array.ravel()
            tensors.append(tensor)
        response = {"model_name": self._name, "model_version": self._version, "outputs": tensors}
        response |= {} if self._id is None else {"id": self._id}
        head = text_of(response, sum(tensor["data"].size for tensor in tensors if "data" in tensor))
        if not parts:
            return Reply(200, head)
        return Reply(200, joined([head, *parts]), "application/octet-stream", {HEADER: str(len(head))})


@dataclass
class _Tail:
    """The binary tensors after the JSON, consumed in order."""

    rest: memoryview

    def take(self, name: str, size: object) -> memoryview:
        if type(size) is not int or not 0 <= size <= len(self.rest):
            raise InvalidInput(f"binary_data_size of {name} is {str(size)[:40]}, and {len(self.rest)} bytes remain")
        data, self.rest = self.rest[:size], self.rest[size:]
        return data


def _tensors(descriptions: Sequence[Any], binary: memoryview) -> dict[str, Array]:
    tail, tensors = _Tail(binary), {}
    for description in descriptions:
        name = _name_of(description)
        if name in tensors:
            raise InvalidInput(f"the input {name} occurs twice")
        tensors[name] = _tensor(name, description, tail)
    if tail.rest:
        raise InvalidInput(f"{len(tail.rest)} bytes remain after the last tensor, expected none")
    return tensors


def _tensor(name: str, description: Mapping[str, object], tail: _Tail) -> Array:
    dtype = _DTYPES.get(str(description.get("datatype")))
    if dtype is None:
        datatype = str(description.get("datatype"))[:40]
        raise InvalidInput(f"the datatype of {name} is {datatype!r}, expected one of {', '.join(_DTYPES)}")
    try:
        shape = read_shape(description.get("shape"), dtype.itemsize)
    except ShapeError as error:
        raise InvalidInput(f"the shape of {name} {error}") from None
    options = _parameters(description)
    try:
        if "binary_data_size" in options:
            array = np.frombuffer(tail.take(name, options["binary_data_size"]), dtype.newbyteorder("<"))
        else:
            array = _from_numbers(description.get("data"), dtype)
        if array.size != math.prod(shape):
            raise InvalidInput(f"input {name} has {array.size} values, expected {math.prod(shape)} for {list(shape)}")
        return array.reshape(shape)
    except InvalidInput:
        raise
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidInput(
            f"input {name} is not a tensor of {description['datatype']} {list(shape)}: {error}"
        ) from None


def _from_numbers(data: object, dtype: DType) -> Array:
    """Return the array of a flat or nested list of numbers."""
    if not isinstance(data, list):
        raise InvalidInput(f"the data are a {type(data).__name__}, expected a list, or binary_data_size in parameters")
    array = array_of(data)
    if array.size and array.dtype.kind not in "biuf":
        raise InvalidInput(f"the data have the dtype {array.dtype}, expected numbers")
    if dtype.kind in "biu" and array.size:
        if array.dtype.kind == "f":
            raise InvalidInput("the data have fractions, expected integers")
        low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        if int(array.min()) < low or int(array.max()) > high:
            raise InvalidInput(f"the data are from {array.min()} to {array.max()}, expected {low} to {high}")
    with np.errstate(over="ignore"):  # overflow becomes infinity
        return array.astype(dtype)


def _objects(request: Mapping[str, object], key: str) -> list[Any]:
    value = request.get(key)
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise InvalidInput(f"{key} is {str(value)[:80]}, expected a list of objects")
    return value


def _name_of(tensor: Mapping[str, object]) -> str:
    name = tensor.get("name")
    if not isinstance(name, str):
        raise InvalidInput(f"the name of a tensor is {str(name)[:80]}, expected a string")
    return name


def _parameters(owner: Mapping[str, object]) -> Mapping[str, object]:
    parameters = owner.get("parameters", {})
    if not isinstance(parameters, dict):
        raise InvalidInput(f"parameters is a {type(parameters).__name__}, expected an object")
    return parameters
