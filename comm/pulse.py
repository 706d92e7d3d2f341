"""Signs of life of a node that is busy: a small process of its own sends them, which no interpreter lock holds up.

The node's own heartbeats say more: what it does, and which view it has. But one long call that holds the interpreter
lock stops them, and the node is alive all the same.
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

__all__ = ["AVAILABLE", "Pulse"]

AVAILABLE = sys.platform == "linux" and hasattr(os, "pidfd_open")
PROGRAM = (sys.executable, "-I", "-S", str(Path(__file__).with_name("pulse_process.py")))
COUNT = 1 << 63  # stands for the count in the message, which has its largest form then
DIED = "its process ended, and had not left the job"


class Pulse:
    """The signs of life of this process.

    Args:
        scheduler: the scheduler's address.
        node: the node's id.
        incarnation: which start of the node this is.
        every: seconds between two.
        timeout: seconds for which an answer is waited for.
        security: as the node's.
    """

    def __init__(
        self, scheduler: str, node: str, incarnation: int, every: float, timeout: float, security: Security | None
    ) -> None:
        tls = security.tls if security is not None else None
        url = urlsplit(scheduler if "://" in scheduler else f"http{'s' if tls else ''}://{scheduler}")
        named = {"node": node, "incarnation": incarnation}
        before, after = _frame(named | {"count": COUNT}).split(COUNT.to_bytes(8, "big"))
        self._process: subprocess.Popen[str] | None = None
        self._order = {
            "process": os.getpid(),
            "host": url.hostname,
            "port": url.port,
            "tls": None if tls is None else [*map(str, (tls.certificate, tls.key, tls.authority)), tls.check_hostname],
            "secret": security.secret.hex() if security is not None and security.signs else None,
            "scheme": SCHEME,
            "content_type": CONTENT_TYPE,
            "node": node,
            "every": every,
            "timeout": timeout,
            "pulse": [before.hex(), after.hex()],
            "fail": _frame(named | {"why": DIED}).hex(),
        }

    def start(self) -> None:
        """Start the process.

        Raises:
            OSError: it can not be started.
        """
        null = subprocess.DEVNULL
        self._process = subprocess.Popen(PROGRAM, stdin=subprocess.PIPE, stdout=null, stderr=null, text=True)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(self._order) + "\n")
        self._process.stdin.flush()

    def stop(self) -> None:
        """End it: nothing is said of this process any more."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def _frame(header: dict[str, object]) -> bytes:
    return bytes(encode(Message(header, []))[0])
