"""``python -m flowmx train``: a script with settings around it, or a model on a file of data."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from flowmx.tools import script, usage
from flowmx.tools.commands.training.environment import add_arguments, around

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Train; returns the exit status."""
    parser = _parser()
    given = parser.parse_args(argv)
    words = given.script[1:] if given.script[:1] == ["--"] else given.script
    if bool(words) == bool(given.model):
        parser.error("give a SCRIPT, or --model and --data" + (": not both" if words else ""))
    if given.model and not given.data:
        parser.error(f"--model {given.model} needs --data: digits, or a file that ends with .npz, .csv or .rec")
    with around(given):
        if given.model:
            from flowmx.tools.commands.training.fitting import fit

            return fit(given)
        return _script(words)


def _script(words: Sequence[str]) -> int:
    try:
        script.run(words)
    except script.Ended as ended:
        return ended.status
    return usage.FINE


def _parser() -> argparse.ArgumentParser:
    parser = usage.parser(
        "train",
        "Run a training script with settings around it; or train a model of the zoo, or a symbol from a file, on "
        "data, with progress, validation, and a model at the end that flowmx serve takes.",
        [
            "--seed 7 --stop-at-nan train.py --epochs 3",
            "--profile trace.json --set ENGINE_TYPE=NaiveEngine train.py",
            "--checkpoint run train.py        # Module.fit goes on from there",
            "--model lenet --data digits --epochs 3 --out model",
            "--model resnet18_v1 --data train.rec --validation val.rec --classes 100 --device gpu(0)",
            "--model mlp --data table.csv --optimizer adam --lr 0.001",
        ],
        exits={1: "it failed; the script's own status, if it has one"},
        usage="flowmx train [options] SCRIPT [arguments]\n       flowmx train --model NAME --data DATA [options]",
    )
    add_arguments(parser)
    _add_model(parser.add_argument_group("a model instead of a script"))
    parser.add_argument("script", nargs=argparse.REMAINDER, metavar="SCRIPT ...", help="the script and its arguments")
    return parser


def _add_model(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--model", help="lenet, mlp, a name of the model zoo, or a -symbol.json file")
    group.add_argument("--data", help="digits (scikit-learn's), .npz, .csv (the label last), or .rec")
    group.add_argument("--validation", default="", metavar="FILE", help="data to validate on")
    group.add_argument(
        "--held-out", type=float, default=0.2, help="part to validate on, where there is no file (default: %(default)s)"
    )
    group.add_argument("--shape", type=usage.fixed_sizes, help="of a row, such as 3,224,224 (default: as the data is)")
    group.add_argument("--classes", type=int, help="how many (default: as the labels say; .rec files need it)")
    group.add_argument("--epochs", type=int, default=10, help="passes over the data (default: %(default)s)")
    group.add_argument("--batch-size", type=int, default=64, help="rows of a batch (default: %(default)s)")
    group.add_argument("--optimizer", default="sgd", help="sgd, adam, lamb, ... (default: %(default)s)")
    group.add_argument("--lr", type=float, default=0.05, help="learning rate at the start (default: %(default)s)")
    group.add_argument("--momentum", type=float, default=0.9, help="of sgd and nag (default: %(default)s)")
    group.add_argument("--wd", type=float, default=1e-4, help="weight decay (default: %(default)s)")
    group.add_argument("--out", default="model", metavar="FOLDER", help="of the model (default: %(default)s)")
