"""The fuzzed process: every kind of endpoint, both with signed requests and open to this machine.

``python -m tests.fuzz.target [fault]`` prints the addresses as a line of JSON, and then answers commands from standard
input: ``renew`` (start a new job behind the same endpoints), ``digests`` (of the endpoints' contents) and ``measure``
(resident memory in bytes, after free memory was returned). A fault is one of ``FAULTS``; the fuzzer must find each.
"""

import asyncio
import ctypes
import gc
import hashlib
import json
import logging
import os
import resource
import secrets
import sys
import time
from pathlib import Path

from aiohttp import web

from flowmx.comm import buffers
from flowmx.comm.client import Peer
from flowmx.comm.exchange import PostedCall
from flowmx.comm.frames import Message, Tensor
from flowmx.comm.limits import Limits
from flowmx.comm.logs import http_log
from flowmx.comm.members import Job, Members
from flowmx.comm.replay_protection import ReplayWindow
from flowmx.comm.scheduler import Scheduler
from flowmx.comm.security import Security
from flowmx.comm.server import Service
from flowmx.comm.view import Member, View
from flowmx.kvstore.server.callers import Callers
from flowmx.kvstore.server.service import OPERATIONS, KVServer
from flowmx.kvstore.server.store import Store

SECRET = "the secret of those who are fuzzed"
LIMITS = Limits(header=32 << 10, tensors=64, tensor=256 << 10, total=1 << 20, idle=0.3, peers=512, refusals=1e9)
WORKERS = ("worker0", "worker1")
SERVERS = ("server0", "server1")
SIGNED = {"signed": True, "open": False}
JOB = Job(len(WORKERS), len(SERVERS), timeout=1e6, policy="elastic")


class App:
    """A user's application with a mounted service."""

    def __init__(self, security, fault):
        self.count, self.fault = 0, fault
        self.leak = []
        self.service = Service("app", security=None if fault == "open door" else security, limits=LIMITS)
        self.service.operation("add", self.add)
        self.service.operation("echo", self.echo)

    async def add(self, caller, message):
        self.count += 1
        return Message({"count": self.count}, [])

    async def echo(self, caller, message):
        number = message.header.get("number", 0)
        if self.fault == "leak":
            self.leak.append(bytes(range(256)) * 4096)
        if not isinstance(number, int):
            if self.fault == "death":
                os._exit(3)
            if self.fault == "hang":
                await asyncio.Event().wait()
            if self.fault == "exception":
                raise KeyError(number)
        return message._replace(tensors=[Tensor.of(tensor.array()) for tensor in message.tensors])

    async def start(self):
        application = web.Application()
        application.router.add_get("/", self.home)
        application.add_subapp("/flowmx/", self.service.application)
        self.runner = web.AppRunner(
            application, handler_cancellation=True, auto_decompress=False, access_log=None, logger=http_log,
            shutdown_timeout=0.05,
        )  # fmt: skip
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", 0).start()
        self.address = f"http://127.0.0.1:{self.runner.addresses[0][1]}"

    async def home(self, request):
        return web.Response(text="the user's own page")

    async def stop(self):
        await self.runner.cleanup()

    def digest(self):
        return str(self.count)


class Servers:
    """Two servers of a job with two workers; each is the other's backup."""

    def __init__(self, security):
        self.security = security
        self.services = [Service(name, security=security, limits=LIMITS) for name in SERVERS]
        self.servers = []

    async def start(self):
        for service in self.services:
            await service.start()
        await self.renew()

    async def renew(self):
        """Replace the servers by those of a new job, behind the same services."""
        for server, service in zip(self.servers, self.services, strict=False):
            await server.close()
            for name in OPERATIONS:
                del service._operations[name]
        pairs = [(service.name, service) for service in self.services]
        self.servers = [
            KVServer(name, 1, len(SERVERS), service, self._connect(name), Store(threads=1)) for name, service in pairs
        ]
        members = [Member(name, "server", i, s.address, incarnation=1) for i, (name, s) in enumerate(pairs)]
        members += [Member(name, "worker", rank, incarnation=1, epoch=1) for rank, name in enumerate(WORKERS)]
        for server in self.servers:
            server.callers.patience = 0.05
            server.update_view(View("job", 1, 1, "running", tuple(members)))

    def _connect(self, name):
        return lambda address: Peer(address, security=self.security, node=name)

    async def stop(self):
        for service in self.services:
            await service.stop()
        for server in self.servers:
            await server.close()

    def digest(self):
        whole = hashlib.sha256()
        for server in self.servers:
            core = server.core
            whole.update(repr((core.recovery.common, core.state.mode.name)).encode())
            for part, slot in sorted(core.state.slots.items(), key=repr):
                content = slot.value.array.tobytes() if slot.value is not None else None
                state = (
                    part,
                    slot.number,
                    slot.round,
                    slot.marks,
                    slot.counted,
                    slot.turns,
                    content,
                    len(slot.gradients),
                )
                whole.update(repr(state).encode())
        return whole.hexdigest()


class Stand:
    """All endpoints of one process."""

    def __init__(self, fault):
        self.fault = fault
        self.parts = {}

    async def start(self):
        for kind, signed in SIGNED.items():
            security = Security(SECRET) if signed else None
            service = Service("scheduler", security=security, limits=LIMITS)
            scheduler = Scheduler(JOB, service=service, interval=0.05)
            self.parts[kind] = scheduler, App(security, self.fault), Servers(security)
            for part in self.parts[kind]:
                await part.start()

    async def stop(self):
        for part in (part for parts in self.parts.values() for part in parts):
            await part.stop()

    async def renew(self):
        for scheduler, _, servers in self.parts.values():
            scheduler.members = Members(JOB, scheduler.clock.now(), time.time_ns(), secrets.token_hex(8))
            await servers.renew()

    def where(self):
        """Return each endpoint's port, path and unix socket, and whether its requests are signed, by name."""
        places = {}
        for kind, (scheduler, app, servers) in self.parts.items():
            for service in (scheduler.service, app.service, *servers.services):
                is_app = service is app.service
                port = int((app.address if is_app else service.address).rpartition(":")[2])
                places[f"{kind} {service.name}"] = [port, "/flowmx" * is_app, service._socket, SIGNED[kind]]
        return places

    async def digests(self):
        scheduler, app, servers = self.parts["signed"]
        members = scheduler.members
        return {
            "scheduler": repr((members.epoch, members.version, members.snapshot(), sorted(members.barriers.waiting))),
            "app": app.digest(),
            "servers": servers.digest(),
        }

    async def measure(self):
        for _ in range(3):
            gc.collect()
        buffers.POOL.clear()  # its cache has a separate limit
        ctypes.CDLL(None).malloc_trim(0)
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _accept_replays():
    admit = ReplayWindow.admit

    def wrong(window, *arguments):
        window._nonces.clear()
        admit(window, *arguments)

    ReplayWindow.admit = wrong


def _take_no_notice_of_roles():
    Callers.restrict_to = lambda self, role, handler: handler


def _write_before_it_is_refused():
    handle = PostedCall._handle

    async def wrong(exchange):
        if exchange._service.name == "app":
            asyncio.get_running_loop().stand.parts["signed"][1].count += 1
        return await handle(exchange)

    PostedCall._handle = wrong


FAULTS = {
    "": lambda: None,
    "leak": lambda: None,
    "death": lambda: None,
    "hang": lambda: None,
    "exception": lambda: None,
    "open door": lambda: None,
    "replay": _accept_replays,
    "outsiders": _take_no_notice_of_roles,
    "early write": _write_before_it_is_refused,
}


class Loop(asyncio.SelectorEventLoop):
    """An event loop with an attribute for the stand, which planted faults use."""

    stand: Stand


def _is_of_an_optimizer(record):
    """Drop the traceback of an optimizer that raises: the job chose it, and every worker gets the error."""
    if str(record.msg).startswith("key %r cannot be updated"):
        record.exc_info = None
    return True


async def main(fault):
    logging.getLogger("flowmx.kvstore").addFilter(_is_of_an_optimizer)
    stand = asyncio.get_running_loop().stand = Stand(fault)
    FAULTS[fault]()
    await stand.start()
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    print(json.dumps(stand.where()), flush=True)
    while line := await reader.readline():
        answer = await getattr(stand, line.decode().strip())()
        print(json.dumps(answer), flush=True)
    await stand.stop()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(main(" ".join(sys.argv[1:])))
