"""The program of :class:`flowmx.comm.heartbeat_process.HeartbeatProcess`: report the parent process as alive.

Its input is one line of JSON. It sends nothing while the parent is stopped (by SIGSTOP or a debugger), and reports to
the scheduler when the parent has died. A node that shuts down cleanly kills this process.

It runs as a separate program that uses only the standard library, so that it starts fast and uses little memory. The
modules for sending are imported at the first report: many processes end before that.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time

TYPE_CHECKING = False  # importing typing takes as long as starting the interpreter
if TYPE_CHECKING:
    from http.client import HTTPConnection
    from typing import Any

STOPPED_STATES = "TtZX"
LAUNCHER_TIME = 1.0  # seconds in which the launcher, which has the exit status, can report the end first


class SchedulerConnection:
    """A connection to the scheduler, which is reopened after a failure.

    Args:
        config: the line of JSON that :class:`~flowmx.comm.heartbeat_process.HeartbeatProcess` wrote.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self._connection: HTTPConnection | None = None

    def post(self, operation: str, body: bytes) -> None:
        """Call an operation; the response, and a failure to get one, are ignored."""
        from http.client import HTTPException

        path = f"/v1/{operation}"
        headers = {"Content-Type": self.config["content_type"]}
        if self.config["secret"] is not None:
            headers["Authorization"] = self._authorization(path, body)
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

        host, port, timeout = self.config["host"], self.config["port"], self.config["timeout"]
        if self.config["tls"] is None:
            return HTTPConnection(host, port, timeout=timeout)
        import ssl

        certificate, key, authority, check = self.config["tls"]
        context = ssl.create_default_context(cafile=authority)
        context.check_hostname = check
        context.load_cert_chain(certificate, key)
        return HTTPSConnection(host, port, timeout=timeout, context=context)

    def _authorization(self, path: str, body: bytes) -> str:
        import hashlib
        import hmac
        import secrets

        node, sent, nonce = self.config["node"], str(int(time.time() * 1000)), secrets.token_hex(16)
        digest = hashlib.sha256(hashlib.sha256(body).digest()).hexdigest()
        fields = ("FMX1", "request", "POST", path, node, sent, nonce, digest)
        signature = hmac.new(
            bytes.fromhex(self.config["secret"]), "\n".join(fields).encode(), hashlib.sha256
        ).hexdigest()
        scheme = self.config["scheme"]
        return f"{scheme} node={node}, time={sent}, nonce={nonce}, digest={digest}, signature={signature}"


def is_running(process: int) -> bool:
    """Return whether a process exists and is not stopped."""
    try:
        with open(f"/proc/{process}/stat") as file:  # noqa: PTH123 - pathlib takes long to import
            return file.read().rpartition(")")[2].split()[0] not in STOPPED_STATES
    except OSError:
        return False


def main() -> None:
    """Send reports until the parent has ended, then report its end."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    config = json.loads(sys.stdin.readline())
    connection, process = SchedulerConnection(config), config["process"]
    prefix, suffix = (bytes.fromhex(part) for part in config["pulse"])
    wakers = [os.pidfd_open(process), sys.stdin]  # a fork of the parent may keep the input open
    count = 0
    while not select.select(wakers, [], [], config["interval"])[0]:
        if is_running(process):
            count += 1
            connection.post("pulse", prefix + count.to_bytes(8, "big") + suffix)
    time.sleep(LAUNCHER_TIME)
    connection.post("fail", bytes.fromhex(config["fail"]))


if __name__ == "__main__":
    main()
