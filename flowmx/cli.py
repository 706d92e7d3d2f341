"""The command line of flowmx: ``python -m flowmx info``, and the nodes of a distributed job."""

import argparse
import json
import logging
import os
import platform
import sys
from collections.abc import Sequence
from importlib import import_module, metadata
from typing import Any

from flowmx import settings
from flowmx.errors import MXNetError

__all__ = ["main"]

# Distribution -> what flowmx uses it for. What is missing is shown as such: most of them only bring speed.
PACKAGES = {
    "flowmx": "",
    "numpy": "arrays on the CPU",
    "ml_dtypes": "bfloat16",
    "msgpack": "messages between peers",
    "aiohttp": "peers",
    "uvloop": "a faster event loop",
    "onednn-cpu-gomp": "convolutions, products and normalisations on the CPU",
    "llvmlite": "fused loops on the CPU",
    "threadpoolctl": "thread counts of BLAS",
    "pillow": "image files",
    "simplejpeg": "JPEG files, faster",
    "cupy-cuda12x": "arrays on GPUs",
}

# Commands with a parser and a `main` of their own -> the module and what they are for.
NODES = {
    "launch": ("flowmx.kvstore.launching.command", "run a distributed job: here, over ssh, or on a Dask cluster"),
    "call": ("flowmx.kvstore.launching.call", "call a function of a module: call module:function"),
    "scheduler": ("flowmx.comm.launch.scheduler", "be the scheduler of a distributed job"),
    "server": ("flowmx.kvstore.server.main", "be a server of a distributed job"),
    "doctor": ("flowmx.doctor.command", "say what running processes do, what waits for what, who is to blame"),
    "plan": ("flowmx.plan.command", "tell what a training script would take on GPUs that are not here"),
    "serve": ("flowmx.serve.command", "serve a model over HTTP"),
    "im2rec": ("flowmx.im2rec", "make lists of images, and RecordIO files of them"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status: 0, or 1 for an error (argparse exits with 2 itself)."""
    given = list(sys.argv[1:] if argv is None else argv)
    try:
        return _node(given) if given and given[0] in NODES else _info(given)
    except (settings.SettingError, MXNetError, ValueError, OSError) as error:
        print(f"flowmx: error: {error}", file=sys.stderr)
        return 1


def _node(given: list[str]) -> int:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s: %(message)s")
    status: int = import_module(NODES[given[0]][0]).main(given[1:])
    return status


def _info(given: list[str]) -> int:
    arguments = _parser().parse_args(given)
    found = collect()
    print(json.dumps(found, indent=2) if arguments.json else _as_text(found))
    return 0


def collect() -> dict[str, Any]:
    """Return what ``info`` prints, made of values that JSON can hold.

    Raises:
        SettingError: An environment variable holds a value that its setting does not take.
    """
    values, sources = settings.get(), settings.sources()
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": _cores(),
        "packages": {name: _version(name) for name in PACKAGES},
        "devices": _devices(),
        "settings": [
            {
                "variable": row.variable,
                "value": getattr(values, name),
                "source": sources[name],
                "default": row.default,
                "allowed": row.allowed,
                "doc": row.doc,
            }
            for name, row in settings.TABLE.items()
        ],
        "ignored": settings.mxnet_variables(os.environ),
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="flowmx", description="The MXNet programming model on asyncio.")
    commands = parser.add_subparsers(title="commands", dest="command", required=True)
    about = "print versions, devices and every setting with its value and where it came from"
    info = commands.add_parser("info", help=about, description=about.capitalize() + ".")
    info.add_argument("--json", action="store_true", help="print one JSON object")
    for name, (_, purpose) in NODES.items():
        commands.add_parser(name, help=purpose, add_help=False)
    return parser


def _as_text(found: dict[str, Any]) -> str:
    lines = [f"python {found['python']} on {found['platform']}, {found['cores']} cores", "", "packages"]
    for name, version in found["packages"].items():
        purpose = f"  ({PACKAGES[name]})" if PACKAGES[name] else ""
        lines.append(f"  {name:<16} {version or 'not installed'}{purpose}")
    lines += ["", "devices", *(f"  {device}" for device in found["devices"]), "", "settings"]
    for row in found["settings"]:
        value = "unset" if row["value"] is None else row["value"]
        lines.append(f"  {row['variable']} = {value}  ({row['source']})")
        lines.append(f"      {row['doc']} Takes {row['allowed']}.")
    if found["ignored"]:
        lines += ["", "ignored: variables of MXNet, which flowmx reads under another name"]
        lines += [f"  {old}: set {new}" for old, new in found["ignored"].items()]
    return "\n".join(lines)


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _cores() -> int:
    # What this process may use, which a container or taskset can make fewer than the machine has.
    if sys.platform != "win32" and hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _devices() -> list[str]:
    try:
        runtime = import_module("cupy").cuda.runtime
        return ["cpu(0)", *(f"gpu({i})" for i in range(runtime.getDeviceCount()))]
    except Exception:  # CuPy is missing, or finds no driver; it has no common base for its errors
        return ["cpu(0)"]
