"""Copies to, from and between GPUs, on the current stream. Dtypes are converted on a GPU."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from flowmx.devices.cuda.memory import device_of
from flowmx.devices.cuda.staging import CHUNK, PinnedBytes, is_pinned
from flowmx.devices.cuda.stream import CudaStream
from flowmx.devices.streams import Token, current_stream

if TYPE_CHECKING:
    from flowmx.devices.cuda.device import CudaDevice

_BLOCKS_AHEAD = 2
"""Blocks by which a copy to ordinary host memory is ahead of the host."""


def _current_cuda_stream() -> CudaStream:
    stream = current_stream()
    assert isinstance(stream, CudaStream), "copies are launched on a stream"
    return stream


def is_contiguous(array: Any) -> bool:
    """Return whether an array is C-contiguous."""
    return bool(array.flags.c_contiguous)


def copy_in(device: CudaDevice, source: Any, target: Any) -> None:
    """Copy an array of the host or of any GPU to one of a device."""
    if not target.size:
        return
    if isinstance(source, device.xp.ndarray) and source.data.device_id == device.number:
        device.xp.copyto(target, source, casting="unsafe")
        return
    transfer = upload if isinstance(source, np.ndarray) else _from_peer
    if source.dtype == target.dtype and source.shape == target.shape and is_contiguous(target):
        transfer(device, source, target)
    else:
        converted = device.allocate(source.shape, source.dtype)
        transfer(device, source, converted)
        device.xp.copyto(target, converted, casting="unsafe")


def copy_out(device: CudaDevice, source: Any, target: Any) -> None:
    """Copy an array of a device to one of the host."""
    if not source.size:
        return
    if source.dtype != target.dtype:
        source = source.astype(target.dtype)
    source = device.xp.ascontiguousarray(source)
    if is_contiguous(target) and target.shape == source.shape:
        download(device, source, target)
    else:
        contiguous = np.empty(source.shape, source.dtype)
        download(device, source, contiguous)
        np.copyto(target, contiguous)


def upload(device: CudaDevice, source: Any, target: Any) -> None:
    """Copy bytes from the host to a device, through pinned memory unless they are already in it."""
    stream = _current_cuda_stream()
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
    """Copy bytes from a device to the host: directly to pinned memory, or else through it, which blocks this thread."""
    stream = _current_cuda_stream()
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
        if len(ahead) >= _BLOCKS_AHEAD:
            _finish_block(device, *ahead.popleft())
    while ahead:
        _finish_block(device, *ahead.popleft())


def _finish_block(device: CudaDevice, part: Any, block: PinnedBytes, token: Token) -> None:
    try:
        token.wait()
        part[...] = block[: part.size]
    finally:
        device.staging.give(block, token)


def _from_peer(device: CudaDevice, source: Any, target: Any) -> None:
    """Copy bytes from another GPU; the driver copies through the host if there is no direct connection."""
    stream = _current_cuda_stream()
    other = source.data.device_id
    device.enable_peer_access(other)
    if not is_contiguous(source):
        source = _make_contiguous(source, stream)
    device.xp.cuda.runtime.memcpyPeerAsync(
        target.data.ptr, device.number, source.data.ptr, other, source.nbytes, stream.raw.ptr
    )


def _make_contiguous(source: object, stream: CudaStream) -> Any:
    """Return a contiguous copy on the array's GPU, and make a stream wait for it."""
    owner = device_of(source)
    with owner.reader_lock:
        owner.reader.wait(stream.record())  # the stream has waited for the last write
        with owner.reader:
            contiguous = owner.xp.ascontiguousarray(source)
            token = owner.reader.record()
    stream.wait(token)
    return contiguous


def _bytes(array: Any) -> Any:
    return array.reshape(-1).view(np.uint8)


def _address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])
