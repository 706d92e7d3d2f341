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
    from flowmx.tools.commands.convert_check import check
    from flowmx.tools.commands.convert_formats import Job, convert

    job = Job(
        given.source, given.target, usage.shapes(given.shape), given.dtype, given.batch, given.epoch, given.states,
        given.opset,
    )  # fmt: skip
    lowered = "int8" if given.int8 else "bfloat16" if given.bf16 else ""
    if lowered:
        from flowmx.tools.commands.convert_precision import Lowering, lower

        options = {"mean": given.mean, "std": given.std}
        lower(
            job,
            Lowering(
                lowered, given.calibrate, given.mode, given.examples, exclude=tuple(given.exclude or ()),
                **{name: value for name, value in options.items() if value is not None},
            ),
        )  # fmt: skip
    else:
        convert(job)
    checked = f": {check(job, lowered)}" if given.check else ""
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
            "resnet resnet-int8 --int8 --calibrate images.rec --shape 3,224,224",
            "resnet resnet-bf16 --bf16 --shape 3,224,224",
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
    bits = parser.add_argument_group("fewer bits, in a checkpoint")
    kind = bits.add_mutually_exclusive_group()
    kind.add_argument("--int8", action="store_true", help="quantize what can be")
    kind.add_argument("--bf16", action="store_true", help="compute in bfloat16 what mixed precision does")
    bits.add_argument("--calibrate", type=Path, metavar="FILE", help="data to measure ranges on: .rec, .npz, .npy")
    bits.add_argument(
        "--mode", choices=["naive", "entropy", "none"], default="naive",
        help="least and largest values; the thresholds that tell the most; or ranges at each call (default: "
        "%(default)s)",
    )  # fmt: skip
    bits.add_argument("--examples", type=int, default=256, help="rows to measure on (default: %(default)s)")
    bits.add_argument("--mean", type=_numbers, metavar="R,G,B", help="of images, or one number (default: as train's)")
    bits.add_argument("--std", type=_numbers, metavar="R,G,B", help="likewise")
    bits.add_argument("--exclude", action="append", metavar="LAYER", help="stays as it is; again for each")
    parser.add_argument("--check", action="store_true", help="run both on a random input, or compare them")
    return parser


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(each) for each in text.split(","))
