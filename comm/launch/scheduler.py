"""``python -m flowmx scheduler``: run the scheduler of one job."""

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
from flowmx.comm.exit_reason import TERMINATED
from flowmx.comm.heap import return_freed_memory
from flowmx.comm.members import POLICIES, Job
from flowmx.comm.runtime_folder import path as own_folder
from flowmx.comm.scheduler import Scheduler
from flowmx.comm.security import Security, is_loopback
from flowmx.tools import usage

__all__ = ["ANNOUNCEMENT", "main", "serve"]

log = logging.getLogger("flowmx.comm")

ANNOUNCEMENT = "flowmx scheduler at "  # the beginning of the line with the address


async def serve(scheduler: Scheduler, host: str, port: int, started: Callable[[str], None] | None = None) -> int:
    """Serve until the job has ended, or SIGTERM or SIGINT is received; return the exit status.

    The status is 1 if the job failed, that of SIGTERM if there are nodes that still need the scheduler, otherwise 0.

    Args:
        scheduler: the scheduler.
        host: an address of this machine.
        port: the port; 0 chooses a free one.
        started: called with the address once it serves.
    """
    end = asyncio.create_task(scheduler.wait_until_over())
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, end.cancel)
    try:
        address = await scheduler.start(host, port)
        if started is not None:
            started(address)
        sys.stdout.write(f"{ANNOUNCEMENT}{address}\n")
        sys.stdout.flush()
        view = await end
    except asyncio.CancelledError:
        log.info("the scheduler was asked to end")
        view = scheduler.members.view
        return 0 if view.over or not view.members else TERMINATED
    finally:
        await scheduler.stop()
    return int(view.phase == "failed")


def _default_address(config: settings.Settings) -> tuple[str, int]:
    """Return the scheduler's host and port from the environment, as the nodes use them.

    Raises:
        SettingError: the address is invalid.
    """
    address = config.scheduler
    if not address:
        return config.node_host, 0
    try:
        url = urlsplit(address if "://" in address else f"http://{address}")
        return url.hostname or config.node_host, url.port or 0
    except ValueError as error:
        raise settings.SettingError(f"FLOWMX_SCHEDULER is {address!r}, expected host:port ({error})") from None


def parser() -> argparse.ArgumentParser:
    """Build the argument parser of the command ``scheduler``.

    Raises:
        SettingError: a setting that is a default here has an invalid value.
    """
    config = settings.get()
    host, port = _default_address(config)
    arguments = usage.parser(
        "scheduler", "Run the scheduler of a distributed job.", exits={1: "the job failed", TERMINATED: "SIGTERM"}
    )
    arguments.add_argument(
        "--host", default=host, help="the address to serve on (FLOWMX_SCHEDULER, or FLOWMX_NODE_HOST)"
    )
    arguments.add_argument(
        "--port", type=usage.port, default=port, help="the port (FLOWMX_SCHEDULER); 0 picks a free one"
    )
    arguments.add_argument("--workers", type=int, default=config.num_workers, help="number of workers of the job")
    arguments.add_argument("--servers", type=int, default=config.num_servers, help="number of servers of the job")
    arguments.add_argument(
        "--job", default=config.job, help="name of the job, the same as that of its nodes (FLOWMX_JOB)"
    )
    arguments.add_argument(
        "--policy", choices=POLICIES, default=config.kvstore_policy, help="what happens when a node is lost"
    )
    arguments.add_argument(
        "--timeout", type=float, default=config.kvstore_timeout, help="seconds of silence after which a node is lost"
    )
    arguments.add_argument("--snapshot", default=config.snapshot, help="file from which a restarted scheduler resumes")
    secret = arguments.add_mutually_exclusive_group()
    secret.add_argument("--secret-file", default=config.secret_file, help="file with the secret of all nodes")
    insecure = "create no secret if none is set: every user of this machine may then join and end the job"
    secret.add_argument("--insecure", action="store_true", help=insecure)
    return arguments


@contextlib.contextmanager
def _job_security(
    options: argparse.Namespace, argv: Sequence[str] | None
) -> Iterator[tuple[Security | None, Callable[[str], None] | None]]:
    """Yield the job's security, and a function of the address that prints how to start the other nodes.

    If no secret is set, one is created in a file that only this user can read. But if the environment sets the
    scheduler's address, the other nodes have no secret, so none is used: every user of this machine may join.
    """
    security = Security.from_settings(options.secret_file)
    if security is not None or not is_loopback(options.host):  # other addresses are refused later
        yield security, None
    elif options.insecure or settings.get().scheduler:
        _print_error(_secret_advice(argv))
        yield None, None
    else:
        file = own_folder(make=True) / f"job-{secrets.token_hex(8)}.secret"
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
            out.write(secrets.token_hex(32))
        try:
            yield Security.from_file(file), lambda address: _print_error(_join_advice(address, options, file))
        finally:
            file.unlink(missing_ok=True)


def _print_error(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def _join_advice(address: str, options: argparse.Namespace, file: Path) -> str:
    """Return the commands that start the other nodes of a job whose secret was created here."""
    variables = {
        "FLOWMX_SCHEDULER": address, "FLOWMX_SECRET_FILE": str(file), "FLOWMX_NUM_WORKERS": str(options.workers),
        "FLOWMX_NUM_SERVERS": str(options.servers),
    }  # fmt: skip
    variables |= {"FLOWMX_JOB": options.job} if options.job else {}
    exports = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
    return (
        "flowmx: created a secret for this job, which its other nodes need (none with --insecure):\n"
        f"  export {exports}\n"
        "  python -m flowmx server                         # each server\n"
        "  FLOWMX_ROLE=worker python train.py              # each worker\n"
    )


def _secret_advice(argv: Sequence[str] | None) -> str:
    """Return the command line of a scheduler with a secret, for a user who starts one without."""
    command = shlex.join(
        ["python", "-m", "flowmx", "scheduler", *(argument for argument in argv or () if argument != "--insecure")]
    )
    return (
        "flowmx: this scheduler has no secret: it listens on the loopback address only, and every user of this machine "
        "may join the job. To use a secret, which all nodes of the job need:\n"
        "  (umask 077; openssl rand -hex 32 > flowmx.secret); export FLOWMX_SECRET_FILE=$PWD/flowmx.secret\n"
        f"  {command}\n"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run a scheduler; return the exit status."""
    options = parser().parse_args(argv)
    return_freed_memory()
    config = settings.get()
    job = Job(
        options.workers, options.servers, options.timeout, options.policy, config.kvstore_busy,
        config.kvstore_no_workers, options.job,
    )  # fmt: skip

    async def run(security: Security | None, started: Callable[[str], None] | None) -> int:
        interval = settings.get().kvstore_heartbeat
        scheduler = Scheduler(job, snapshot=options.snapshot or None, interval=interval, security=security)
        return await serve(scheduler, options.host, options.port, started)

    with _job_security(options, argv) as (security, started):
        return asyncio.run(run(security, started))
