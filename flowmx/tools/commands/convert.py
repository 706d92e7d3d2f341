"""``python -m flowmx convert``: models, parameters and optimizer states into other formats."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from flowmx.tools import usage

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Convert; returns the exit status."""
    given = _parser().parse_args(argv)
    logging.getLogger().setLevel(logging.WARNING)
    from flowmx.tools.commands.comparing import check
    from flowmx.tools.commands.converting import Job, convert

    job = Job(
        given.source, given.target, usage.shapes(given.shape), given.dtype, given.batch, given.epoch, given.states,
        given.opset,
    )  # fmt: skip
    convert(job)
    checked = f": {check(job)}" if given.check else ""
    sys.stdout.write(f"{given.source} -> {given.target}{checked}\n")
    return usage.FINE


def _parser() -> argparse.ArgumentParser:
    parser = usage.parser(
        "convert", "Turn a model, parameters or optimizer states into another format, which the names say: .onnx; "
        "-symbol.json with .params (or their prefix, or folder); .params, .safetensors, .npz; .states. MXNet's files "
        "of every version since 0.8 are read; a symbol or a checkpoint is written as MXNet 1.9 does.",
        [
            "resnet-symbol.json resnet.onnx --shape 3,224,224 --check",
            "resnet.onnx resnet",
            "resnet-0000.params resnet.safetensors --check",
            "old-symbol.json new-symbol.json",
            "trainer.states for-mxnet.states",
        ],
        exits={1: "it failed, or --check found a difference"},
    )  # fmt: skip
    parser.add_argument("source", type=Path, help="what is read")
    parser.add_argument("target", type=Path, help="what is written")
    parser.add_argument(
        "--shape", action="append", metavar="[NAME=]SIZES",
        help="of one row, such as 3,224,224 (a length that varies: ?); again for each input. For ONNX files",
    )  # fmt: skip
    parser.add_argument("--dtype", help="of the inputs (default: float32)")
    parser.add_argument("--batch", type=int, help="rows of a batch in the ONNX file (default: any number)")
    parser.add_argument("--epoch", type=int, help="which of a checkpoint's parameters (default: the latest)")
    parser.add_argument("--opset", type=int, default=13, help="of the ONNX file (default: %(default)s)")
    parser.add_argument(
        "--states", choices=["mxnet", "flowmx"], default="mxnet", help="whose format of states (default: %(default)s)"
    )
    parser.add_argument("--check", action="store_true", help="run both on a random input, or compare them")
    return parser
