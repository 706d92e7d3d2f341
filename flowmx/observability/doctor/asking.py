"""Snapshots of processes: by process id through their socket, by address over HTTP, or from a report's file."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp

from flowmx.comm.security import Security
from flowmx.observability.doctor.chains import Snapshot
from flowmx.observability.flight import folder
from flowmx.observability.flight.web import PATH

__all__ = ["ask", "ask_all"]

_PATIENCE = 4.0
"""Seconds beyond the observation after which a process does not answer."""

_STATES = {"T": "it is stopped (SIGSTOP, or a debugger)", "Z": "it has ended, and its parent has not noticed",
           "D": "it waits for a disk or another device"}  # fmt: skip


async def ask_all(targets: Sequence[str], seconds: float, values: bool = True) -> list[Snapshot]:
    """Ask all at one time; who can not be asked gives a snapshot that says why.

    Args:
        targets: numbers of processes, addresses, or files that the flight recorder wrote.
        seconds: how long each shall look.
        values: whether to look for values that are not finite, too.

    Raises:
        ValueError: a target is none of these.
    """
    return list(await asyncio.gather(*(ask(target, seconds, values) for target in targets)))


async def ask(target: str, seconds: float, values: bool = True) -> Snapshot:
    """Ask one; as :func:`ask_all`."""
    if target.isdecimal():
        return await asyncio.to_thread(_by_socket, int(target), seconds, values)
    if target.startswith(("http://", "https://")):
        return await _by_http(target, seconds, values)
    return await asyncio.to_thread(_by_file, target)


def _by_file(target: str) -> Snapshot:
    if not Path(target).is_file():
        raise ValueError(f"doctor: {target!r} is no process number, no http address and no file")
    found: Snapshot = json.loads(Path(target).read_text(encoding="utf-8"))
    return found


def _by_socket(process: int, seconds: float, values: bool) -> Snapshot:
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            line.settimeout(seconds + _PATIENCE)
            line.connect(str(folder.socket_path(process)))
            line.sendall(json.dumps({"seconds": seconds, "values": values}).encode() + b"\n")
            content = b"".join(iter(lambda: line.recv(1 << 20), b""))
        found: Snapshot = json.loads(content)
        return found
    except (OSError, ValueError) as error:
        return {"name": f"process {process}", "unreached": _why(process, error)}


def _why(process: int, error: Exception) -> str:
    """Why a process does not answer, as far as the system knows."""
    try:
        status = Path(f"/proc/{process}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "there is no such process"
    state = next((line.split()[1] for line in status.splitlines() if line.startswith("State:")), "")
    if state in _STATES:
        return f"it does not answer: {_STATES[state]}"
    if isinstance(error, FileNotFoundError):
        return "it has no socket: no operation of flowmx was queued there, or FLOWMX_FLIGHT_RECORDER is 0"
    if isinstance(error, TimeoutError):
        return "it does not answer: native code holds the interpreter's lock" + _native(process)
    return f"it does not answer: {error}"


def _native(process: int) -> str:
    """The kernel function in which the main thread waits, as text for a message; empty if not known."""
    try:
        where = Path(f"/proc/{process}/wchan").read_text(encoding="ascii").strip("\0\n 0")
    except OSError:
        return ""
    return f" (its main thread waits in {where})" if where else ""


def _proof() -> tuple[dict[str, str], ssl.SSLContext | bool]:
    """Credentials from the settings for the services of a job: HTTP headers, and the TLS context."""
    security = Security.from_settings()
    if security is None:
        return {}, True
    headers = {"Authorization": f"Bearer {security.metrics_token()}"} if security.signs else {}
    return headers, security.tls.client() if security.tls is not None else True


async def _by_http(address: str, seconds: float, values: bool) -> Snapshot:
    url = address.rstrip("/") + ("" if address.rstrip("/").endswith(PATH) else PATH)
    timeout = aiohttp.ClientTimeout(total=seconds + _PATIENCE)
    query = {"seconds": str(seconds), "values": str(int(values))}
    headers, tls = _proof()
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, headers=headers) as session,
            session.get(url, params=query, ssl=tls) as response,
        ):
            if response.status != 200:
                return {"name": address, "unreached": f"it answered {response.status} at {PATH}: {response.reason}"}
            found: dict[str, Any] = await response.json()
            return found
    except TimeoutError:
        return {"name": address, "unreached": "it does not answer over HTTP: its event loop is blocked, or it is gone"}
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return {"name": address, "unreached": f"it can not be reached: {error}"}
