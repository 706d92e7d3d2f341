"""A network namespace with one interface, whose packets this process reads and writes.

The namespace has no name: it exists as long as this process has a descriptor of it or a process runs inside. So it
disappears with them, however they end.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import NamedTuple, TypeVar

__all__ = ["Namespace", "unavailable"]

CLONE_NEWUTS, CLONE_NEWNET = 0x04000000, 0x40000000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
DEVICE = "net0"
TOOLS = ("ip", "nsenter")

T = TypeVar("T")


class Namespace(NamedTuple):
    """The descriptors of a namespace: its network, its host name and its interface."""

    net: int
    uts: int
    tun: int

    @classmethod
    def create(cls, name: str, address: str, mtu: int) -> Namespace:
        """Create a namespace.

        Args:
            name: its host name.
            address: its IP address with the prefix length, such as ``"10.0.0.1/24"``.
            mtu: the size of its largest packet in bytes.

        Raises:
            OSError: the system does not allow it.
        """
        return _in_a_thread(lambda: cls(*_create(name, address, mtu)))

    def enter(self) -> list[str]:
        """Return the prefix of a command that runs inside."""
        paths = f"/proc/{os.getpid()}/fd"
        return ["nsenter", f"--net={paths}/{self.net}", f"--uts={paths}/{self.uts}", "--"]

    def close(self) -> None:
        """Close the descriptors."""
        for descriptor in self:
            os.close(descriptor)


def unavailable() -> str:
    """Return the reason why namespaces are unavailable; empty if they are available."""
    if sys.platform != "linux":
        return "network namespaces need Linux"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    try:
        Namespace.create("probe", "10.255.255.1/24", 1500).close()
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no network namespace can be created (this needs root and /dev/net/tun): {error}"
    return ""


def _in_a_thread(work: Callable[[], T]) -> T:
    """Call `work` in a new thread, because a thread cannot return to its old namespaces."""
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as error:
            result.set_exception(error)

    thread = threading.Thread(target=run, name="namespace")
    thread.start()
    thread.join()
    return result.result()


def _create(name: str, address: str, mtu: int) -> tuple[int, int, int]:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET | CLONE_NEWUTS):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    socket.sethostname(name)
    # The same algorithm on all machines, and one that handles bursts: this process wakes up every millisecond.
    Path("/proc/sys/net/ipv4/tcp_congestion_control").write_text("reno")
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), IFF_TUN | IFF_NO_PI))
        device = ("dev", DEVICE)
        _ip("link", "set", "dev", "lo", "up")
        _ip("address", "add", address, *device)
        _ip("link", "set", *device, "mtu", str(mtu), "txqueuelen", "10000", "up")
        return (*(os.open(f"/proc/thread-self/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in ("net", "uts")), tun)  # type: ignore[return-value]
    except BaseException:
        os.close(tun)
        raise


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
