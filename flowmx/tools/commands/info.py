"""``python -m flowmx info``: versions, devices, and all settings with their values and sources."""

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
from flowmx.ops.kernels.onednn import library
from flowmx.ops.registry.dtypes import name_of
from flowmx.runtime import cpu_flags
from flowmx.tools.usage import parser

__all__ = ["collect", "cores", "main"]

# Distributions and their purpose. Most are optional and only improve speed.
PACKAGES = {
    "flowmx": "",
    "numpy": "arrays on the CPU",
    "ml_dtypes": "bfloat16",
    "msgpack": "messages between nodes",
    "aiohttp": "services, jobs, the dashboard",
    "uvloop": "a faster event loop",
    "onednn-cpu-gomp": "convolutions, products and normalizations on the CPU",
    "llvmlite": "fused loops on the CPU",
    "threadpoolctl": "thread counts of BLAS",
    "pillow": "image files",
    "simplejpeg": "JPEG files, faster",
    "tokenizers": "texts of language models",
    "jinja2": "chats with language models",
    "cupy-cuda13x": "arrays on GPUs, with drivers of CUDA 13",
    "cupy-cuda12x": "arrays on GPUs, with drivers of CUDA 12",
    "nvidia-cudnn-frontend": "convolutions on GPUs",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Print the report; return the exit status."""
    about = "Print versions, devices, and all settings with their values and sources."
    options = parser("info", about, ["", "--json"])
    options.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = options.parse_args(argv)
    report = collect()
    sys.stdout.write((json.dumps(report, indent=2) if arguments.json else _as_text(report)) + "\n")
    return 0


def collect() -> dict[str, object]:
    """Return the report of ``info``, JSON-compatible.

    Raises:
        SettingError: an environment variable has an invalid value.
    """
    values, sources = settings.get(), settings.sources()
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": cores(),
        "packages": {name: _version(name) for name in PACKAGES},
        "onednn": _onednn(),
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


def _as_text(report: dict[str, Any]) -> str:
    lines = [f"python {report['python']} on {report['platform']}, {report['cores']} cores", "", "packages"]
    for name, version in report["packages"].items():
        purpose = f"  ({PACKAGES[name]})" if PACKAGES[name] else ""
        lines.append(f"  {name:<21} {version or 'not installed'}{purpose}")
    lines += ["", report["onednn"], "", "devices", *(f"  {device}" for device in report["devices"])]
    lines += ["", "low precision on the CPU"]
    for name, row in report["numbers"].items():
        instructions = " and ".join(row["instructions"]) or "none"
        lines.append(f"  {name:<9} instructions for products: {instructions}; computed in {row['computed in']}")
    lines += ["", "settings"]
    for row in report["settings"]:
        value = "unset" if row["value"] is None else row["value"]
        lines.append(f"  {row['variable']} = {value}  ({row['source']})")
        lines.append(f"      {row['doc']} Takes {row['allowed']}.")
    if report["ignored"]:
        lines += [
            "",
            "ignored: variables of MXNet without a setting",
            *(f"  {variable}" for variable in report["ignored"]),
        ]
    return "\n".join(lines)


_INSTRUCTIONS = {
    "bfloat16": ("avx512_bf16", "amx_bf16", "bf16"),
    "float16": ("avx512_fp16", "amx_fp16", "asimdhp"),
    "int8": ("avx_vnni", "avx512_vnni", "amx_int8", "i8mm"),
}
"""CPU flags of instructions for products in these types."""
_SUMS = {"bfloat16": "float32", "float16": "float32", "int8": "int32"}
"""The types in which products of these types are summed."""


def _numbers() -> dict[str, dict[str, Any]]:
    """Return, by low-precision type, the CPU's instructions for products and the type of the computation."""
    flags = cpu_flags()
    used = {name_of(dtype) for dtype in kernels.product_dtypes("cpu") | kernels.quantized_dtypes("cpu")}
    return {
        name: {
            "instructions": [flag for flag in candidates if flag in flags],
            "computed in": f"{name}, summed in {_SUMS[name]}" if name in used else "float32",
        }
        for name, candidates in _INSTRUCTIONS.items()
    }


def _onednn() -> str:
    """Return the version and the file of oneDNN, or where it was searched."""
    library.library()
    return library.status()


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def cores() -> int:
    """Return the number of cores that this process may use, which a container or taskset may limit."""
    if sys.platform != "win32" and hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _devices() -> list[str]:
    return ["cpu(0)", *(f"gpu({i})" for i in range(num_gpus()))]
