"""``python -m flowmx train``: runs a training script with settings, or trains a model on a data file."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from flowmx.tools import script, usage
from flowmx.tools.commands.training.setup import add_arguments, apply_options

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Train; return the exit status."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    words = arguments.script[1:] if arguments.script[:1] == ["--"] else arguments.script
    if bool(words) == bool(arguments.model):
        parser.error("expected a SCRIPT, or --model and --data" + (", not both" if words else ""))
    if arguments.model and not arguments.data:
        parser.error(f"--model {arguments.model} needs --data: digits, or a file that ends with .npz, .csv or .rec")
    with apply_options(arguments):
        if arguments.model:
            from flowmx.tools.commands.training.fitting import fit

            return fit(arguments)
        return _script(words)


def _script(words: Sequence[str]) -> int:
    try:
        script.run(words)
    except script.ScriptExit as error:
        return error.status
    return usage.SUCCESS


def _parser() -> argparse.ArgumentParser:
    parser = usage.parser(
        "train",
        "Run a training script with settings; or train a model of the zoo, or a symbol file, on data, with progress "
        "and validation, and save a model for flowmx serve. Scripts that import mxnet need `flowmx run`; `flowmx "
        "launch` runs a program as a distributed job, of several processes.",
        [
            "--seed 7 --stop-at-nan train.py --epochs 3",
            "--profile trace.json --set ENGINE_TYPE=NaiveEngine train.py",
            "--checkpoint run train.py        # Module.fit resumes from there",
            "--model lenet --data digits --epochs 3 --out model",
            "--model resnet18_v1 --data train.rec --validation val.rec --classes 100 --device gpu(0)",
            "--model mlp --data table.csv --optimizer adam --lr 0.001",
        ],
        exits={1: "failure, or the exit status of the script"},
        usage="flowmx train [options] SCRIPT [arguments]\n       flowmx train --model NAME --data DATA [options]",
    )
    add_arguments(parser)
    _add_model(parser.add_argument_group("a model instead of a script"))
    parser.add_argument("script", nargs=argparse.REMAINDER, metavar="SCRIPT ...", help="the script and its arguments")
    return parser


def _add_model(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--model", help="lenet, mlp, a name of the model zoo, or a -symbol.json file")
    group.add_argument("--data", help="digits (of scikit-learn), or a .npz, .csv (with the label last) or .rec file")
    group.add_argument("--validation", default="", metavar="FILE", help="file with validation data")
    group.add_argument(
        "--held-out",
        type=float,
        default=0.2,
        help="fraction of the data to hold out for validation if --validation is not given (default: %(default)s)",
    )
    group.add_argument(
        "--shape", type=usage.fixed_sizes, help="shape of a sample, such as 3,224,224 (default: that of the data)"
    )
    group.add_argument(
        "--classes", type=int, help="number of classes (default: from the labels; required for .rec files)"
    )
    group.add_argument("--epochs", type=int, default=10, help="number of passes over the data (default: %(default)s)")
    group.add_argument("--batch-size", type=int, default=64, help="batch size (default: %(default)s)")
    group.add_argument("--optimizer", default="sgd", help="sgd, adam, lamb, ... (default: %(default)s)")
    group.add_argument("--lr", type=float, default=0.05, help="initial learning rate (default: %(default)s)")
    group.add_argument("--momentum", type=float, default=0.9, help="momentum of sgd and nag (default: %(default)s)")
    group.add_argument("--wd", type=float, default=1e-4, help="weight decay (default: %(default)s)")
    group.add_argument("--out", default="model", metavar="FOLDER", help="folder of the model (default: %(default)s)")
