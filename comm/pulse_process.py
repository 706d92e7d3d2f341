"""The process behind :class:`flowmx.comm.pulse.Pulse`: signs of life of the process that started it.

Its input is one line of JSON. While the process is stopped (by SIGSTOP or a debugger) it sends nothing; when that has
died, the scheduler hears of it. A node that leaves by itself kills this process.

Run as a program of its own, with the standard library alone, so that it starts fast and holds little. What sends is
imported for the first sign of life: many a process ends before.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time

TYPE_CHECKING = False  # importing typing takes as long as the interpreter
if TYPE_CHECKING:
    from http.client import HTTPConnection
    from typing import Any

STOPPED = "TtZX"
PATIENCE = 1.0  # seconds in which a launcher, which knows more, tells of the end


class Line:
    """A connection to the scheduler, made anew after every failure.

    Args:
        order: the line of JSON, as :class:`~flowmx.comm.pulse.Pulse` writes it.
    """

    def __init__(self, order: dict[str, Any]) -> None:
        self.order = order
        self._connection: HTTPConnection | None = None

    def post(self, operation: str, body: bytes) -> None:
        """Call an operation; what is answered, and whether anything is, does not matter."""
        from http.client import HTTPException

        path = f"/v1/{operation}"
        headers = {"Content-Type": self.order["content_type"]}
        if self.order["secret"] is not None:
            headers["Authorization"] = self._signed(path, body)
        try:
            self._connection = self._connection or self._connect()
            self._connection.request("POST", path, body, headers)
            self._connection.getresponse().read()
        except (OSError, HTTPException):
            if self._connection is not None:
                self._connection.close()
            self._connection = None

    def _connect(self) -> HTTPConnection:
        from http.client import HTTPConnection, HTTPSConnection

        host, port, timeout = self.order["host"], self.order["port"], self.order["timeout"]
        if self.order["tls"] is None:
            return HTTPConnection(host, port, timeout=timeout)
        import ssl

        certificate, key, authority, check = self.order["tls"]
        context = ssl.create_default_context(cafile=authority)
        context.check_hostname = check
        context.load_cert_chain(certificate, key)
        return HTTPSConnection(host, port, timeout=timeout, context=context)

    def _signed(self, path: str, body: bytes) -> str:
        import hashlib
        import hmac
        import secrets

        node, sent, nonce = self.order["node"], str(int(time.time() * 1000)), secrets.token_hex(16)
        digest = hashlib.sha256(hashlib.sha256(body).digest()).hexdigest()
        fields = ("FMX1", "request", "POST", path, node, sent, nonce, digest)
        signature = hmac.new(
            bytes.fromhex(self.order["secret"]), "\n".join(fields).encode(), hashlib.sha256
        ).hexdigest()
        scheme = self.order["scheme"]
        return f"{scheme} node={node}, time={sent}, nonce={nonce}, digest={digest}, signature={signature}"


def runs(process: int) -> bool:
    """Tell whether a process runs: it is there, and not stopped."""
    try:
        with open(f"/proc/{process}/stat") as file:  # noqa: PTH123 - pathlib takes long to import
            return file.read().rpartition(")")[2].split()[0] not in STOPPED
    except OSError:
        return False


def main() -> None:
    """Send signs of life until the process has ended, and then word of that."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    order = json.loads(sys.stdin.readline())
    line, process = Line(order), order["process"]
    before, after = (bytes.fromhex(part) for part in order["pulse"])
    ends = [os.pidfd_open(process), sys.stdin]  # a fork of the process may hold the input open
    count = 0
    while not select.select(ends, [], [], order["every"])[0]:
        if runs(process):
            count += 1
            line.post("pulse", before + count.to_bytes(8, "big") + after)
    time.sleep(PATIENCE)
    line.post("fail", bytes.fromhex(order["fail"]))


if __name__ == "__main__":
    main()
