"""Liveness reports for a busy node, sent by a small separate process that the interpreter lock cannot delay.

The node's own heartbeats carry more: its current activity, and the epoch of its view. But a long call that holds the
interpreter lock stops them, although the node is alive.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

from flowmx.comm.frames import Message, encode
from flowmx.comm.security import SCHEME, Security
from flowmx.comm.transfer import CONTENT_TYPE

__all__ = ["AVAILABLE", "HeartbeatProcess"]

AVAILABLE = sys.platform == "linux" and hasattr(os, "pidfd_open")
PROGRAM = (sys.executable, "-I", "-S", str(Path(__file__).with_name("heartbeat_main.py")))
COUNT_PLACEHOLDER = 1 << 63  # a number of the largest encoding, to be replaced by the count
ENDED = "its process ended without leaving the job"


class HeartbeatProcess:
    """The process that reports this process as alive.

    Args:
        scheduler: the scheduler's address.
        node: the node's id.
        incarnation: the number of this start of the node; it grows with each start.
        interval: seconds between two reports.
        timeout: seconds to wait for a response.
        security: the same as the node's.
    """

    def __init__(
        self, scheduler: str, node: str, incarnation: int, interval: float, timeout: float, security: Security | None
    ) -> None:
        tls = security.tls if security is not None else None
        url = urlsplit(scheduler if "://" in scheduler else f"http{'s' if tls else ''}://{scheduler}")
        sender = {"node": node, "incarnation": incarnation}
        before, after = _frame(sender | {"count": COUNT_PLACEHOLDER}).split(COUNT_PLACEHOLDER.to_bytes(8, "big"))
        self._process: subprocess.Popen[str] | None = None
        self._config = {
            "process": os.getpid(),
            "host": url.hostname,
            "port": url.port,
            "tls": None if tls is None else [*map(str, (tls.certificate, tls.key, tls.authority)), tls.check_hostname],
            "secret": security.secret.hex() if security is not None and security.has_secret else None,
            "scheme": SCHEME,
            "content_type": CONTENT_TYPE,
            "node": node,
            "interval": interval,
            "timeout": timeout,
            "pulse": [before.hex(), after.hex()],
            "fail": _frame(sender | {"why": ENDED}).hex(),
        }

    def start(self) -> None:
        """Start the process.

        Raises:
            OSError: it cannot be started.
        """
        null = subprocess.DEVNULL
        self._process = subprocess.Popen(PROGRAM, stdin=subprocess.PIPE, stdout=null, stderr=null, text=True)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(self._config) + "\n")
        self._process.stdin.flush()

    def stop(self) -> None:
        """Kill the process; it sends nothing more."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def _frame(header: dict[str, object]) -> bytes:
    return bytes(encode(Message(header, []))[0])
