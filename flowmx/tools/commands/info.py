"""``python -m flowmx info``: versions, devices, and every setting with its value and where it came from."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Any

from flowmx import settings
from flowmx.devices import num_gpus
from flowmx.ops import kernels
from flowmx.ops.registry.dtypes import name_of
from flowmx.runtime import cpu_flags
from flowmx.tools.usage import parser

__all__ = ["collect", "cores", "main"]

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
    "cupy-cuda13x": "arrays on GPUs, with drivers of CUDA 13",
    "cupy-cuda12x": "arrays on GPUs, with drivers of CUDA 12",
    "nvidia-cudnn-frontend": "convolutions on GPUs",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Print what there is; returns the exit status."""
    about = "Print versions, devices, and every setting with its value and where it came from."
    options = parser("info", about, ["", "--json"])
    options.add_argument("--json", action="store_true", help="print one JSON object")
    given = options.parse_args(argv)
    found = collect()
    sys.stdout.write((json.dumps(found, indent=2) if given.json else _as_text(found)) + "\n")
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
        "cores": cores(),
        "packages": {name: _version(name) for name in PACKAGES},
        "devices": _devices(),
        "numbers": _numbers(),
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


def _as_text(found: dict[str, Any]) -> str:
    lines = [f"python {found['python']} on {found['platform']}, {found['cores']} cores", "", "packages"]
    for name, version in found["packages"].items():
        purpose = f"  ({PACKAGES[name]})" if PACKAGES[name] else ""
        lines.append(f"  {name:<21} {version or 'not installed'}{purpose}")
    lines += ["", "devices", *(f"  {device}" for device in found["devices"]), "", "narrow numbers on the CPU"]
    for name, row in found["numbers"].items():
        has = " and ".join(row["instructions"]) or "nothing"
        lines.append(f"  {name:<9} the processor has {has} for products: they are computed in {row['computed in']}")
    lines += ["", "settings"]
    for row in found["settings"]:
        value = "unset" if row["value"] is None else row["value"]
        lines.append(f"  {row['variable']} = {value}  ({row['source']})")
        lines.append(f"      {row['doc']} Takes {row['allowed']}.")
    if found["ignored"]:
        lines += ["", "ignored: variables of MXNet that no setting reads", *(f"  {each}" for each in found["ignored"])]
    return "\n".join(lines)


_INSTRUCTIONS = {
    "bfloat16": ("avx512_bf16", "amx_bf16", "bf16"),
    "float16": ("avx512_fp16", "amx_fp16", "asimdhp"),
    "int8": ("avx_vnni", "avx512_vnni", "amx_int8", "i8mm"),
}
"""Flags of processors that have instructions for products of such numbers."""


def _numbers() -> dict[str, dict[str, Any]]:
    """For each kind of narrow numbers the processor's instructions for products, and the type that is computed in."""
    flags, used = cpu_flags(), {name_of(dtype) for dtype in kernels.multiplied("cpu")}
    return {
        name: {
            "instructions": [each for each in wanted if each in flags],
            "computed in": f"{name}, summed in float32" if name in used else "float32",
        }
        for name, wanted in _INSTRUCTIONS.items()
    }


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def cores() -> int:
    """The cores that this process may use, which a container or taskset can make fewer than the machine has."""
    if sys.platform != "win32" and hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _devices() -> list[str]:
    return ["cpu(0)", *(f"gpu({i})" for i in range(num_gpus()))]
