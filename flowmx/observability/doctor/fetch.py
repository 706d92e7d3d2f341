"""Fetches snapshots of processes: by process id through their socket, by URL over HTTP, or from a report file."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import Sequence
from pathlib import Path

import aiohttp

from flowmx.comm.security import Security
from flowmx.observability.doctor.wait_chains import NO_PROCESS, Snapshot
from flowmx.observability.flight import folder
from flowmx.observability.flight.web import PATH

__all__ = ["fetch", "fetch_all"]

_TIMEOUT = 4.0
"""Seconds beyond the observation after which a process counts as not responding."""

_STATES = {"T": "it is stopped (SIGSTOP, or a debugger)", "Z": "it has exited and is a zombie",
           "D": "it waits for a disk or another device"}  # fmt: skip


async def fetch_all(targets: Sequence[str], seconds: float, values: bool = True) -> list[Snapshot]:
    """Fetch all snapshots concurrently. A process that cannot be reached yields a snapshot with the reason.

    Args:
        targets: process ids, URLs, or report files of the flight recorder.
        seconds: duration of the observation.
        values: whether to check values for NaN and infinities.

    Raises:
        ValueError: a target is invalid.
    """
    return list(await asyncio.gather(*(fetch(target, seconds, values) for target in targets)))


async def fetch(target: str, seconds: float, values: bool = True) -> Snapshot:
    """Fetch one snapshot; see :func:`fetch_all`."""
    if target.isdecimal():
        return await asyncio.to_thread(_by_socket, int(target), seconds, values)
    if target.startswith(("http://", "https://")):
        return await _by_http(target, seconds, values)
    return await asyncio.to_thread(_by_file, target)


def _by_file(target: str) -> Snapshot:
    if not Path(target).is_file():
        raise ValueError(f"doctor: {target!r} is not a process id, an http URL or a file")
    snapshot: Snapshot = json.loads(Path(target).read_text(encoding="utf-8"))
    return snapshot


def _by_socket(process: int, seconds: float, values: bool) -> Snapshot:
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            line.settimeout(seconds + _TIMEOUT)
            line.connect(str(folder.socket_path(process)))
            line.sendall(json.dumps({"seconds": seconds, "values": values}).encode() + b"\n")
            content = b"".join(iter(lambda: line.recv(1 << 20), b""))
        snapshot: Snapshot = json.loads(content)
        return snapshot
    except (OSError, ValueError) as error:
        return {"name": f"process {process}", "unreached": _reason(process, error)}


def _reason(process: int, error: Exception) -> str:
    """Return the reason why a process does not respond, as far as the system knows."""
    try:
        status = Path(f"/proc/{process}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return NO_PROCESS
    state = next((line.split()[1] for line in status.splitlines() if line.startswith("State:")), "")
    if state in _STATES:
        return f"it does not respond: {_STATES[state]}"
    if isinstance(error, FileNotFoundError):
        return "it has no socket: it has not queued an operation of flowmx, or FLOWMX_FLIGHT_RECORDER is 0"
    if isinstance(error, TimeoutError):
        return "it does not respond: native code holds the GIL" + _native(process)
    return f"it does not respond: {error}"


def _native(process: int) -> str:
    """Return the kernel function in which the main thread waits, as text for a message; empty if unknown."""
    try:
        function = Path(f"/proc/{process}/wchan").read_text(encoding="ascii").strip("\0\n 0")
    except OSError:
        return ""
    return f" (its main thread waits in {function})" if function else ""


def _credentials() -> tuple[dict[str, str], ssl.SSLContext | bool]:
    """Return the credentials for the services of a job from the settings: HTTP headers and the TLS context."""
    security = Security.from_settings()
    if security is None:
        return {}, True
    headers = {"Authorization": f"Bearer {security.metrics_token()}"} if security.has_secret else {}
    return headers, security.tls.client() if security.tls is not None else True


async def _by_http(address: str, seconds: float, values: bool) -> Snapshot:
    url = address.rstrip("/") + ("" if address.rstrip("/").endswith(PATH) else PATH)
    timeout = aiohttp.ClientTimeout(total=seconds + _TIMEOUT)
    query = {"seconds": str(seconds), "values": str(int(values))}
    headers, tls = _credentials()
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, headers=headers) as session,
            session.get(url, params=query, ssl=tls) as response,
        ):
            if response.status != 200:
                return {"name": address, "unreached": f"it responded {response.status} at {PATH}: {response.reason}"}
            snapshot: dict[str, object] = await response.json()
            return snapshot
    except TimeoutError:
        return {
            "name": address,
            "unreached": "it does not respond: its event loop is blocked, or it has exited",
        }
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return {"name": address, "unreached": f"it cannot be reached: {error}"}
