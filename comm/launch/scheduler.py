"""``python -m flowmx scheduler``: the scheduler of one job, from its first node to its last."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from collections.abc import Sequence

from flowmx import settings
from flowmx.comm.members import POLICIES, Job
from flowmx.comm.scheduler import Scheduler
from flowmx.comm.security import Security

__all__ = ["ANNOUNCEMENT", "main", "serve"]

log = logging.getLogger("flowmx.comm")

ANNOUNCEMENT = "flowmx scheduler at "  # begins the line that tells the address


async def serve(scheduler: Scheduler, host: str, port: int) -> int:
    """Serve until the job is over, or SIGTERM or SIGINT asks for the end; return 1 where the job failed, or else 0."""
    over = asyncio.create_task(scheduler.over())
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, over.cancel)
    try:
        sys.stdout.write(f"{ANNOUNCEMENT}{await scheduler.start(host, port)}\n")
        sys.stdout.flush()
        view = await over
    except asyncio.CancelledError:
        log.info("the scheduler was asked to end")
        return 0
    finally:
        await scheduler.stop()
    return int(view.phase == "failed")


def parser() -> argparse.ArgumentParser:
    """What ``scheduler`` takes.

    Raises:
        SettingError: a setting, which is a default here, has a wrong value.
    """
    config = settings.get()
    found = argparse.ArgumentParser(prog="flowmx scheduler", description="The scheduler of a distributed job.")
    found.add_argument("--host", default=config.node_host, help="the address to serve on (FLOWMX_NODE_HOST)")
    found.add_argument("--port", type=int, default=0, help="the port; 0 takes a free one")
    found.add_argument("--workers", type=int, default=config.num_workers, help="workers of the job")
    found.add_argument("--servers", type=int, default=config.num_servers, help="servers of the job")
    found.add_argument("--policy", choices=POLICIES, default=config.kvstore_policy, help="what a lost node means")
    found.add_argument("--timeout", type=float, default=config.kvstore_timeout, help="seconds of silence until then")
    found.add_argument("--snapshot", default=config.snapshot, help="file to go on from when started anew")
    found.add_argument("--secret-file", default=config.secret_file, help="file with the secret that all nodes share")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run a scheduler; return the exit status."""
    given = parser().parse_args(argv)
    security = Security.from_settings(given.secret_file)
    job = Job(given.workers, given.servers, given.timeout, given.policy)

    async def run() -> int:
        interval = settings.get().kvstore_heartbeat
        scheduler = Scheduler(job, snapshot=given.snapshot or None, interval=interval, security=security)
        return await serve(scheduler, given.host, given.port)

    return asyncio.run(run())
