"""``python -m flowmx convert``: converts models, parameters and optimizer states between formats."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from flowmx.tools import usage

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Convert; return the exit status."""
    arguments = _parser().parse_args(argv)
    logging.getLogger().setLevel(logging.WARNING)
    from flowmx.artifacts import open_artifact
    from flowmx.artifacts.opening import shapes_at
    from flowmx.tools.commands.convert_check import check
    from flowmx.tools.commands.convert_formats import Job, convert

    artifact = open_artifact(arguments.source, with_code=True)
    job = Job(
        artifact.path, arguments.target, usage.shapes(arguments.shape) or shapes_at(artifact.path),
        arguments.dtype, arguments.batch,
        arguments.epoch, arguments.states,
        arguments.opset,
    )  # fmt: skip
    if arguments.to:
        from flowmx.tools.commands.convert_source import write

        sys.stdout.write(f"{arguments.source} -> {write(job, arguments.to, arguments.python)}\n")
        return usage.SUCCESS
    precision = "int8" if arguments.int8 else "bfloat16" if arguments.bf16 else ""
    if precision:
        from flowmx.tools.commands.convert_precision import Lowering, lower

        options = {"mean": arguments.mean, "std": arguments.std}
        lower(
            job,
            Lowering(
                precision, arguments.calibrate, arguments.mode, arguments.examples,
                exclude=tuple(arguments.exclude or ()),
                **{name: value for name, value in options.items() if value is not None},
            ),
        )  # fmt: skip
    else:
        convert(job)
    result = f": {check(job, precision)}" if arguments.check else ""
    sys.stdout.write(f"{arguments.source} -> {arguments.target}{result}\n")
    return usage.SUCCESS


def _parser() -> argparse.ArgumentParser:
    parser = usage.parser(
        "convert", "Convert a model, parameters or optimizer states into another format, chosen by file name: .onnx; "
        "-symbol.json with .params (or their prefix, or folder); .params, .safetensors, .npz; .states; the folder of a "
        "model of Hugging Face's Transformers; an archive (model.tar.gz) of one of them. MXNet files since "
        "version 0.8 are read; symbols and checkpoints are written in the format of MXNet 1.9.",
        [
            "resnet-symbol.json resnet.onnx --shape 3,224,224 --check",
            "resnet.onnx resnet",
            "bert bert.onnx --shape tokens=? --shape padding=? --check",
            "resnet-0000.params resnet.safetensors --check",
            "old-symbol.json new-symbol.json",
            "trainer.states for-mxnet.states",
            "resnet resnet-int8 --int8 --calibrate images.rec --shape 3,224,224",
            "resnet resnet-bf16 --bf16 --shape 3,224,224",
            "resnet resnet.py --to torch --shape 3,224,224 --python torch-env/bin/python",
        ],
        exits={1: "failure, or --check found a difference"},
    )  # fmt: skip
    parser.add_argument("source", type=Path, help="the file, prefix or folder to read")
    parser.add_argument("target", type=Path, help="the file, prefix or folder to write")
    parser.add_argument(
        "--shape", action="append", metavar="[NAME=]SIZES",
        help="shape of one sample, such as 3,224,224 (? marks a variable length); repeat the option "
        "for each input. Needed for ONNX files",
    )  # fmt: skip
    parser.add_argument("--dtype", help="dtype of the inputs (default: float32)")
    parser.add_argument("--batch", type=int, help="batch size in the ONNX file (default: any)")
    parser.add_argument("--epoch", type=int, help="epoch of the checkpoint (default: the latest)")
    parser.add_argument("--opset", type=int, default=13, help="opset of the ONNX file (default: %(default)s)")
    parser.add_argument(
        "--states",
        choices=["mxnet", "flowmx"],
        default="mxnet",
        help="format of optimizer states (default: %(default)s)",
    )
    _add_precision(parser)
    _add_source_code(parser)
    parser.add_argument(
        "--check",
        action="store_true",
        help="run both models on a random input and compare the results (ONNX files run in "
        "onnxruntime, if it is installed); for arrays, symbols and states, compare the contents",
    )
    return parser


def _add_precision(parser: argparse.ArgumentParser) -> None:
    bits = parser.add_argument_group("checkpoints in lower precision")
    kind = bits.add_mutually_exclusive_group()
    kind.add_argument("--int8", action="store_true", help="quantize the supported layers")
    kind.add_argument("--bf16", action="store_true", help="compute in bfloat16 as mixed precision does")
    bits.add_argument("--calibrate", type=Path, metavar="FILE", help="file with calibration data: .rec, .npz or .npy")
    bits.add_argument(
        "--mode", choices=["naive", "entropy", "none"], default="naive",
        help="how ranges are determined: from the minimum and maximum, from thresholds that lose the "
        "least information, or in each call "
        "(default: %(default)s)",
    )  # fmt: skip
    bits.add_argument("--examples", type=int, default=256, help="number of calibration samples (default: %(default)s)")
    bits.add_argument(
        "--mean",
        type=_numbers,
        metavar="R,G,B",
        help="mean of the images, by channel or as one number (default: the same as flowmx train)",
    )
    bits.add_argument(
        "--std", type=_numbers, metavar="R,G,B", help="standard deviation of the images, by channel or as one number"
    )
    bits.add_argument("--exclude", action="append", metavar="LAYER", help="a layer to leave unchanged; may be repeated")


def _add_source_code(parser: argparse.ArgumentParser) -> None:
    code = parser.add_argument_group("source code of other frameworks")
    code.add_argument(
        "--to", choices=["torch", "gluon"], help="write a Python file with the network's classes, and a file of the "
        "same name with its parameters (.safetensors, or .params for Gluon); both networks run on random inputs, and "
        "the difference is printed",
    )  # fmt: skip
    code.add_argument("--python", metavar="PATH", help="the interpreter that has torch (default: this one)")


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(number) for number in text.split(","))
