"""``python -m flowmx scheduler``: the scheduler of one job, from its first node to its last."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import secrets
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from flowmx import settings
from flowmx.comm.folder import path as own_folder
from flowmx.comm.heap import give_back
from flowmx.comm.members import POLICIES, Job
from flowmx.comm.scheduler import Scheduler
from flowmx.comm.security import Security, is_loopback
from flowmx.comm.verdict import TERMINATED
from flowmx.tools import usage

__all__ = ["ANNOUNCEMENT", "main", "serve"]

log = logging.getLogger("flowmx.comm")

ANNOUNCEMENT = "flowmx scheduler at "  # begins the line with the address


async def serve(scheduler: Scheduler, host: str, port: int, started: Callable[[str], None] | None = None) -> int:
    """Serve until the job is over, or SIGTERM or SIGINT asks for the end; return the exit status.

    It is 1 where the job failed, that of SIGTERM where nodes are left that need their scheduler, and otherwise 0.

    Args:
        scheduler: the scheduler.
        host: an address of this machine.
        port: 0 takes a free one.
        started: called with the address once it serves.
    """
    over = asyncio.create_task(scheduler.over())
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, over.cancel)
    try:
        address = await scheduler.start(host, port)
        if started is not None:
            started(address)
        sys.stdout.write(f"{ANNOUNCEMENT}{address}\n")
        sys.stdout.flush()
        view = await over
    except asyncio.CancelledError:
        log.info("the scheduler was asked to end")
        view = scheduler.members.view
        return 0 if view.over or not view.members else TERMINATED
    finally:
        await scheduler.stop()
    return int(view.phase == "failed")


def _where(config: settings.Settings) -> tuple[str, int]:
    """The scheduler's host and port by the environment, which is where the nodes look for it.

    Raises:
        SettingError: the address is none.
    """
    address = config.scheduler
    if not address:
        return config.node_host, 0
    try:
        found = urlsplit(address if "://" in address else f"http://{address}")
        return found.hostname or config.node_host, found.port or 0
    except ValueError as error:
        raise settings.SettingError(f"FLOWMX_SCHEDULER was given {address!r}; it takes host:port ({error})") from None


def parser() -> argparse.ArgumentParser:
    """Build the argument parser of the command ``scheduler``.

    Raises:
        SettingError: a setting, which is a default here, has a wrong value.
    """
    config = settings.get()
    host, port = _where(config)
    found = usage.parser(
        "scheduler", "Be the scheduler of a distributed job.", exits={1: "the job failed", TERMINATED: "SIGTERM"}
    )
    found.add_argument("--host", default=host, help="the address to serve on (FLOWMX_SCHEDULER, or FLOWMX_NODE_HOST)")
    found.add_argument("--port", type=usage.port, default=port, help="the port (FLOWMX_SCHEDULER); 0 takes a free one")
    found.add_argument("--workers", type=int, default=config.num_workers, help="workers of the job")
    found.add_argument("--servers", type=int, default=config.num_servers, help="servers of the job")
    found.add_argument("--policy", choices=POLICIES, default=config.kvstore_policy, help="what a lost node means")
    found.add_argument("--timeout", type=float, default=config.kvstore_timeout, help="seconds of silence until then")
    found.add_argument("--snapshot", default=config.snapshot, help="file to go on from when started anew")
    secret = found.add_mutually_exclusive_group()
    secret.add_argument("--secret-file", default=config.secret_file, help="file with the secret that all nodes share")
    insecure = "make no secret where none is given: every user of this machine may join the job, and end it"
    secret.add_argument("--insecure", action="store_true", help=insecure)
    return found


@contextlib.contextmanager
def _secured(
    given: argparse.Namespace, argv: Sequence[str] | None
) -> Iterator[tuple[Security | None, Callable[[str], None] | None]]:
    """The job's security, and what tells who starts its other nodes of it, once the address is known.

    Without a given one it is that of a secret that is made here, in a file of this user's alone. But a launcher that
    named the address in the environment has nodes that know of no secret: there every user of this machine may join.
    """
    security = Security.from_settings(given.secret_file)
    if security is not None or not is_loopback(given.host):  # others are refused
        yield security, None
    elif given.insecure or settings.get().scheduler:
        _say(_advice(argv))
        yield None, None
    else:
        file = own_folder(make=True) / f"job-{secrets.token_hex(8)}.secret"
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
            out.write(secrets.token_hex(32))
        try:
            yield Security.from_file(file), lambda address: _say(_lines(address, given, file))
        finally:
            file.unlink(missing_ok=True)


def _say(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def _lines(address: str, given: argparse.Namespace, file: Path) -> str:
    """The lines for who starts the other nodes of a job whose secret was made here."""
    variables = {
        "FLOWMX_SCHEDULER": address, "FLOWMX_SECRET_FILE": str(file), "FLOWMX_NUM_WORKERS": str(given.workers),
        "FLOWMX_NUM_SERVERS": str(given.servers),
    }  # fmt: skip
    shown = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
    return (
        "flowmx: no secret was given, so one was made for this job; who is to be in it takes it (--insecure: none):\n"
        f"  export {shown}\n"
        "  python -m flowmx server                         # each server\n"
        "  FLOWMX_ROLE=worker python train.py              # each worker\n"
    )


def _advice(argv: Sequence[str] | None) -> str:
    """The command line of a scheduler with a secret, for who starts one without."""
    command = shlex.join(
        ["python", "-m", "flowmx", "scheduler", *(each for each in argv or () if each != "--insecure")]
    )
    return (
        "flowmx: this scheduler has no secret: it listens on the loopback address only, and every user of this machine "
        "may join the job. With one, which all nodes of the job take:\n"
        "  (umask 077; openssl rand -hex 32 > flowmx.secret); export FLOWMX_SECRET_FILE=$PWD/flowmx.secret\n"
        f"  {command}\n"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run a scheduler; return the exit status."""
    given = parser().parse_args(argv)
    give_back()
    config = settings.get()
    job = Job(
        given.workers, given.servers, given.timeout, given.policy, config.kvstore_busy, config.kvstore_deserted
    )  # fmt: skip

    async def run(security: Security | None, started: Callable[[str], None] | None) -> int:
        interval = settings.get().kvstore_heartbeat
        scheduler = Scheduler(job, snapshot=given.snapshot or None, interval=interval, security=security)
        return await serve(scheduler, given.host, given.port, started)

    with _secured(given, argv) as (security, started):
        return asyncio.run(run(security, started))
