"""``python -m flowmx scheduler``: the scheduler of one job, from its first node to its last."""

from __future__ import annotations

import argparse
import asyncio
import logging
import shlex
import signal
import sys
from collections.abc import Sequence
from urllib.parse import urlsplit

from flowmx import settings
from flowmx.comm.heap import give_back
from flowmx.comm.members import POLICIES, Job
from flowmx.comm.scheduler import Scheduler
from flowmx.comm.security import Security
from flowmx.comm.verdict import TERMINATED
from flowmx.tools import usage

__all__ = ["ANNOUNCEMENT", "main", "serve"]

log = logging.getLogger("flowmx.comm")

ANNOUNCEMENT = "flowmx scheduler at "  # begins the line with the address


async def serve(scheduler: Scheduler, host: str, port: int) -> int:
    """Serve until the job is over, or SIGTERM or SIGINT asks for the end; return the exit status.

    It is 1 where the job failed, that of SIGTERM where nodes are left that need their scheduler, and otherwise 0.
    """
    over = asyncio.create_task(scheduler.over())
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, over.cancel)
    try:
        sys.stdout.write(f"{ANNOUNCEMENT}{await scheduler.start(host, port)}\n")
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
    found.add_argument("--secret-file", default=config.secret_file, help="file with the secret that all nodes share")
    return found


def _advice(argv: Sequence[str] | None) -> str:
    """The command line of a scheduler with a secret, for who starts one without."""
    command = shlex.join(["python", "-m", "flowmx", "scheduler", *(argv or ())])
    return (
        "flowmx: this scheduler has no secret: it listens on the loopback address only, and every user of this machine "
        "may join the job. With one, which all nodes of the job take:\n"
        "  (umask 077; openssl rand -hex 32 > flowmx.secret); export FLOWMX_SECRET_FILE=$PWD/flowmx.secret\n"
        f"  {command}\n"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run a scheduler; return the exit status."""
    given = parser().parse_args(argv)
    security = Security.from_settings(given.secret_file)
    if security is None:
        sys.stderr.write(_advice(argv))
    give_back()
    config = settings.get()
    job = Job(
        given.workers, given.servers, given.timeout, given.policy, config.kvstore_busy, config.kvstore_deserted
    )  # fmt: skip

    async def run() -> int:
        interval = settings.get().kvstore_heartbeat
        scheduler = Scheduler(job, snapshot=given.snapshot or None, interval=interval, security=security)
        return await serve(scheduler, given.host, given.port)

    return asyncio.run(run())
