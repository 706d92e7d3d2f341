"""Copies to, from and between GPUs, on the stream that is current. What changes the dtype does so on a GPU."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from flowmx.devices.cuda.memory import home_of
from flowmx.devices.cuda.staging import CHUNK, PinnedBytes, is_pinned
from flowmx.devices.cuda.stream import CudaStream
from flowmx.devices.streams import Token, current_stream

if TYPE_CHECKING:
    from flowmx.devices.cuda.device import CudaDevice

_AT_ONCE = 2
"""Blocks that a copy to ordinary memory of the host is ahead of the host."""


def _here() -> CudaStream:
    stream = current_stream()
    assert isinstance(stream, CudaStream), "copies are launched on a stream"
    return stream


def is_plain(array: Any) -> bool:
    """Tell whether an array is C-contiguous."""
    return bool(array.flags.c_contiguous)


def copy_in(device: CudaDevice, source: Any, target: Any) -> None:
    """Copy an array of the host's, or of any GPU's, into one of a device."""
    if not target.size:
        return
    if isinstance(source, device.xp.ndarray) and source.data.device_id == device.number:
        device.xp.copyto(target, source, casting="unsafe")
        return
    bring = upload if isinstance(source, np.ndarray) else _from_peer
    if source.dtype == target.dtype and source.shape == target.shape and is_plain(target):
        bring(device, source, target)
    else:
        there = device.allocate(source.shape, source.dtype)
        bring(device, source, there)
        device.xp.copyto(target, there, casting="unsafe")


def copy_out(device: CudaDevice, source: Any, target: Any) -> None:
    """Copy an array of a device into one of the host's."""
    if not source.size:
        return
    if source.dtype != target.dtype:
        source = source.astype(target.dtype)
    source = device.xp.ascontiguousarray(source)
    if is_plain(target) and target.shape == source.shape:
        download(device, source, target)
    else:
        whole = np.empty(source.shape, source.dtype)
        download(device, source, whole)
        np.copyto(target, whole)


def upload(device: CudaDevice, source: Any, target: Any) -> None:
    """Copy bytes of the host's to a device: through pinned memory, unless they lie in it."""
    stream = _here()
    source = np.ascontiguousarray(source)
    if is_pinned(source):
        target.data.copy_from_host_async(_address(source), source.nbytes, stream.raw)
        return
    content = _bytes(source)
    for start in range(0, content.size, CHUNK):
        part = content[start : start + CHUNK]
        block = device.staging.take(part.size)
        block[: part.size] = part
        (target.data + start).copy_from_host_async(_address(block), part.size, stream.raw)
        device.staging.give(block, stream.record())


def download(device: CudaDevice, source: Any, target: Any) -> None:
    """Copy bytes of a device to the host: through pinned memory, for which this thread waits, unless they lie in it."""
    stream = _here()
    if is_pinned(target):
        source.data.copy_to_host_async(_address(target), target.nbytes, stream.raw)
        return
    content = _bytes(target)
    ahead: deque[tuple[Any, PinnedBytes, Token]] = deque()
    for start in range(0, content.size, CHUNK):
        part = content[start : start + CHUNK]
        block = device.staging.take(part.size)
        (source.data + start).copy_to_host_async(_address(block), part.size, stream.raw)
        ahead.append((part, block, stream.record()))
        if len(ahead) >= _AT_ONCE:
            _arrive(device, *ahead.popleft())
    while ahead:
        _arrive(device, *ahead.popleft())


def _arrive(device: CudaDevice, part: Any, block: PinnedBytes, token: Token) -> None:
    try:
        token.wait()
        part[...] = block[: part.size]
    finally:
        device.staging.give(block, token)


def _from_peer(device: CudaDevice, source: Any, target: Any) -> None:
    """Copy bytes of another GPU. The driver takes them through the host where the two can not reach each other."""
    stream = _here()
    other = source.data.device_id
    device.reach(other)
    if not is_plain(source):
        source = _packed(source, stream)
    device.xp.cuda.runtime.memcpyPeerAsync(
        target.data.ptr, device.number, source.data.ptr, other, source.nbytes, stream.raw.ptr
    )


def _packed(source: Any, stream: CudaStream) -> Any:
    """An array without gaps, made on the GPU where it lies; a stream of ours waits for that."""
    home = home_of(source)
    with home.reading:
        home.reader.wait(stream.record())  # the stream has waited for what wrote it
        with home.reader:
            packed = home.xp.ascontiguousarray(source)
            token = home.reader.record()
    stream.wait(token)
    return packed


def _bytes(array: Any) -> Any:
    return array.reshape(-1).view(np.uint8)


def _address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])
