"""``python -m flowmx serve MODEL``: a service of one model."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from typing import Any

from flowmx.engine import run as run_coroutine
from flowmx.observability import dashboard
from flowmx.serve.application import app, run
from flowmx.serve.predictor import Predictor
from flowmx.tools import usage

__all__ = ["main"]

_log = logging.getLogger("flowmx.serve")


def main(argv: Sequence[str]) -> int:
    """Serve until SIGTERM or SIGINT, then drain; returns the exit status."""
    options = _parser().parse_args(argv)
    predictor = Predictor(
        options.model, usage.shapes(options.shape), dtype=options.dtype, epoch=options.epoch,
        max_batch=options.max_batch, max_latency=options.max_latency / 1000, queue=options.queue,
        lengths=options.lengths, finite=options.finite, name=options.name,
    )  # fmt: skip

    def started(address: str) -> None:
        _log.info("%r at %s", predictor, address)

    if options.dashboard is not None:
        _log.info("the dashboard is at %s", dashboard.start(port=options.dashboard).url)
    run_coroutine(_serve(predictor, options.host, options.port, started))
    return 0


async def _serve(predictor: Predictor, host: str, port: int, started: Any) -> None:
    await run(app(predictor), host, port, started)


def _parser() -> argparse.ArgumentParser:
    parser = usage.parser(
        "serve", "Serve a model over HTTP: POST /predict with JSON, msgpack or .npy.",
        ["model-dir --shape 3,32,32", "resnet.onnx --port 0 --max-batch 64"],
    )  # fmt: skip
    parser.add_argument(
        "model", help="a folder with a checkpoint or an ONNX file, a checkpoint's prefix, an .onnx file"
    )
    parser.add_argument(
        "--shape", action="append", metavar="[NAME=]SIZES",
        help="of one row, such as 3,32,32 (a length that varies: ?); again for each input. ONNX files say it",
    )  # fmt: skip
    parser.add_argument("--dtype", default=None, help="of the inputs (default: float32)")
    parser.add_argument("--epoch", type=int, help="which of a checkpoint's parameters (default: the latest)")
    parser.add_argument("--host", default="127.0.0.1", help="the address to serve on (default: %(default)s)")
    parser.add_argument("--port", type=usage.port, default=8080, help="0 takes a free one (default: %(default)s)")
    parser.add_argument("--max-batch", type=int, default=32, help="most rows of a batch (default: %(default)s)")
    parser.add_argument(
        "--max-latency", type=float, default=2.0,
        help="milliseconds that a row may wait for company when the engine is idle (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--queue", type=int, help="most rows that wait (default: twice --max-batch)")
    parser.add_argument(
        "--lengths", type=usage.sizes, default=(), help="lengths that varying axes are padded to, such as 16,32,64"
    )
    parser.add_argument("--finite", action="store_true", help="refuse NaN and infinities")
    parser.add_argument(
        "--dashboard", type=usage.port, nargs="?", const=0, metavar="PORT",
        help="show what the service does in a browser, on this port of 127.0.0.1 (default: a free one)",
    )  # fmt: skip
    parser.add_argument("--name", default="model", help="of the model, in paths and metrics (default: %(default)s)")
    return parser
