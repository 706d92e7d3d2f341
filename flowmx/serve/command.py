"""``python -m flowmx serve MODEL``: serve one model or a folder of models."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import ssl
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flowmx import generation, settings
from flowmx.comm.heap import return_freed_memory
from flowmx.comm.security import is_loopback
from flowmx.engine import run as run_coroutine
from flowmx.observability import dashboard
from flowmx.serve.access import Access
from flowmx.serve.aiohttp_app import app, run
from flowmx.serve.folders import create_predictor
from flowmx.serve.pool import Pool
from flowmx.serve.pool_member import MemberOptions
from flowmx.serve.predictor import Predictor
from flowmx.serve.repository import Repository
from flowmx.serve.service import DRAIN_SECONDS
from flowmx.tools import usage

__all__ = ["main"]

_log = logging.getLogger("flowmx.serve")
_DEFAULT_NAME = "model"
_EXIT_SECONDS = 1.0
"""The time, in seconds, in which the process must exit once it no longer waits for operations."""
_MAX_REQUESTS = 1024
"""Default number of unfinished requests of a language model."""


def main(argv: Sequence[str]) -> int:
    """Serve until SIGTERM or SIGINT, then drain; return the exit status."""
    parser = _parser()
    options = parser.parse_args(argv)
    if (options.model is None) == (options.repository is None):
        text = "expected a model, or --repository FOLDER"
        parser.error(f"{text}, not both" if options.model else text)
    if options.handler is not None and options.model is None:
        parser.error("--handler needs a model; a model of a repository names its handler in its model.toml")
    if options.default is not None and options.repository is None:
        parser.error("--default needs --repository FOLDER; a single model is the default")
    if (options.tls_cert is None) != (options.tls_key is None):
        parser.error("expected both of --tls-cert and --tls-key, or neither")
    _check_workers(parser, options)
    if options.workers > 1 and options.member is None:
        status: int = run_coroutine(_serve_pool(options, argv))
        return status
    return_freed_memory()
    access = Access.from_files(options.token_file, options.admin_token_file)
    tls = _tls(options)
    models = Repository(options.repository) if options.model is None else _model(parser, options)

    def started(address: str) -> None:
        if options.member is None:
            _log.info("%s at %s", options.repository or repr(models), address)

    if options.dashboard is not None:
        _log.info("the dashboard is at %s", dashboard.start(port=options.dashboard).url)
    names = ["localhost", *options.host_name] if options.host_name or is_loopback(options.host) else None

    application = app(
        models,
        hosts=names,
        access=access,
        origins=options.allow_origin,
        default=options.default,
        drain_timeout=options.drain_timeout,
    )

    async def serve() -> None:
        running = asyncio.create_task(run(application, options.host, options.port, started, tls, options.member))
        warming = asyncio.create_task(_warm(models))
        try:
            await asyncio.wait([running, warming], return_when=asyncio.FIRST_COMPLETED)
            if warming.done() and warming.exception() is not None:  # the service can never respond to a request
                running.cancel()
                await asyncio.wait([running])
                await warming
            if not await running:
                threading.Thread(target=_end_stuck_process, daemon=True).start()
        finally:
            warming.cancel()

    run_coroutine(serve())
    return 0


def _end_stuck_process() -> None:
    """End the process if code of an abandoned request keeps it alive."""
    time.sleep(settings.get().exit_timeout + _EXIT_SECONDS)
    _log.warning("the code of a request that was refused is still running: the process ends")
    os._exit(0)


def _check_workers(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    if options.workers < 1:
        parser.error(f"--workers is {options.workers}, expected at least 1")
    if options.workers > 1 and options.dashboard:
        parser.error("--dashboard takes no port with --workers: each worker has a dashboard, on a free port")
    if options.workers > 1 and sys.platform == "win32":
        parser.error("--workers needs Linux or macOS: start several services, each on its port")


async def _warm(models: Predictor | Repository | generation.Generator) -> None:
    """Wait until the model is warm; a repository's models report their failures themselves."""
    if isinstance(models, Predictor):
        await asyncio.shield(asyncio.ensure_future(models.ready()))
    elif isinstance(models, generation.Generator):
        await models.warm_up()


async def _serve_pool(options: argparse.Namespace, argv: Sequence[str]) -> int:
    scheme = "http" if options.tls_cert is None else "https"
    return await Pool(options.workers, argv, options.drain_timeout).run(options.host, options.port, scheme)


def _model(parser: argparse.ArgumentParser, options: argparse.Namespace) -> Predictor | generation.Generator:
    """Return the generator of a language model, or the predictor of any other model."""
    if options.handler is not None or not generation.is_text_model(options.model):
        if options.adapter:
            parser.error(f"{options.model} is no language model: --adapter does not apply")
        return _predictor(options)
    if options.shape or options.image:
        parser.error(f"{options.model} is a language model: --shape and --image do not apply")
    return generation.load(
        options.model, name=options.name if options.name != _DEFAULT_NAME else None, max_bytes=options.cache_mib << 20,
        max_length=options.max_length, data_bits=options.data_bits, max_requests=options.max_queue or _MAX_REQUESTS,
        adapters=dict(options.adapter),
    )  # fmt: skip


def _predictor(options: argparse.Namespace) -> Predictor:
    return create_predictor(
        Path(options.model), options.handler, _image(options), shape=usage.shapes(options.shape), dtype=options.dtype,
        epoch=options.epoch, max_batch=options.max_batch, max_latency=options.max_latency / 1000,
        max_queue=options.max_queue, lengths=options.lengths, finite=options.finite,
        name=options.name if options.name != _DEFAULT_NAME else None,
        **_session_options(options),
    )  # fmt: skip


def _session_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of a predictor for a model with states; none for other models."""
    arguments: dict[str, Any] = {}
    if options.states:
        pairs = dict(options.states)
        arguments["states"] = True if "" in pairs else pairs
    if options.constant:
        arguments["constants"] = dict(options.constant)
    if options.max_sessions is not None:
        arguments["sessions"] = {"sessions": options.max_sessions}
    return arguments


def _pair(text: str) -> tuple[str, str]:
    """Parse ``INPUT=OUTPUT``, for argparse's ``type``; an empty text means that the names tell the states."""
    name, _, output = text.partition("=")
    if text and not (name and output):
        raise argparse.ArgumentTypeError(f"{text!r}, expected INPUT=OUTPUT, such as state=stateN")
    return name, output


def _constant(text: str) -> tuple[str, float]:
    """Parse ``NAME=NUMBER``, for argparse's ``type``."""
    name, _, number = text.partition("=")
    try:
        return name, int(number) if number.lstrip("-").isdecimal() else float(number)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}, expected NAME=NUMBER, such as sr=16000") from None


def _image(options: argparse.Namespace) -> dict[str, Any] | None:
    """Return the options of the image transform, or None if images are not accepted."""
    values = {"resize": options.image_resize, "mean": options.image_mean, "std": options.image_std}
    values = {name: value for name, value in values.items() if value is not None}
    return values if options.image or values else None


def _adapter(text: str) -> tuple[str, Path]:
    """Parse ``NAME=FOLDER``, for argparse's ``type``."""
    name, _, folder = text.partition("=")
    if not name or not folder:
        raise argparse.ArgumentTypeError(f"{text!r}, expected NAME=FOLDER, such as german=adapters/german")
    return name, Path(folder)


def _numbers(text: str) -> tuple[float, ...]:
    """Parse ``0.485,0.456,0.406``, for argparse's ``type``."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}, expected numbers such as 0.485,0.456,0.406") from None


def _tls(options: argparse.Namespace) -> ssl.SSLContext | None:
    """Return the service's TLS context, if it has a certificate; with --tls-ca, clients must present certificates."""
    if options.tls_cert is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=options.tls_ca)
    context.load_cert_chain(options.tls_cert, options.tls_key)
    context.verify_mode = ssl.CERT_NONE if options.tls_ca is None else ssl.CERT_REQUIRED
    return context


def _parser() -> argparse.ArgumentParser:
    parser = usage.parser(
        "serve", "Serve models over HTTP: POST /predict with JSON, msgpack or .npy, the Open Inference Protocol, "
        "and OpenAI's API for language models.",
        ["model-dir --shape 3,32,32", "resnet.onnx --port 0 --max-batch 64", "model.gguf", "--repository models/"],
    )  # fmt: skip
    parser.add_argument(
        "model",
        nargs="?",
        help="a folder with a checkpoint or an ONNX file, the prefix of a checkpoint, an .onnx or .gguf file, or a "
        "folder of Hugging Face's Transformers",
    )
    parser.add_argument(
        "--shape", action="append", metavar="[NAME=]SIZES",
        help="shape of one sample, such as 3,32,32 (? marks a variable length); repeat the option "
        "for each input. ONNX files declare their shapes",
    )  # fmt: skip
    parser.add_argument("--dtype", default=None, help="dtype of the inputs (default: float32)")
    parser.add_argument("--epoch", type=int, help="epoch of the checkpoint (default: the latest)")
    _add_address(parser)
    _add_load(parser)
    parser.add_argument(
        "--lengths", type=usage.sizes, default=(), help="lengths that variable axes are padded to, such as 16,32,64"
    )
    parser.add_argument(
        "--handler", metavar="MODULE[:NAME]",
        help="functions decode(body, content_type), which returns the inputs, and encode(outputs), which returns the "
        "response; or a handler of Multi Model Server (MMS). MODULE may be a .py file",
    )  # fmt: skip
    _add_inputs(parser)
    parser.add_argument(
        "--dashboard", type=usage.port, nargs="?", const=0, metavar="PORT",
        help="serve the dashboard on this port of 127.0.0.1 (default: a free one)",
    )  # fmt: skip
    _add_generation(parser)
    parser.add_argument(
        "--name",
        default=_DEFAULT_NAME,
        help="name of the model in paths and metrics (default: that of a model archive, else %(default)s)",
    )
    parser.add_argument("--repository", metavar="FOLDER", help="serve all models and archives of a folder")
    parser.add_argument(
        "--default", metavar="NAME",
        help="the model of a repository that answers /predict and /invocations if the request names none (default: the "
        "only model)",
    )  # fmt: skip
    _add_security(parser)
    return parser


def _add_load(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--max-batch", type=int, help="maximum batch size (default: 32, or 1 for a handler of MMS)")
    parser.add_argument(
        "--max-latency", type=float, default=2.0,
        help="milliseconds that a sample may wait for a larger batch if the engine is idle (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--workers", type=int, default=1,
        help="number of processes, each with a copy of the models; a process that exits is replaced "
        "(default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--drain-timeout", type=usage.seconds, default=DRAIN_SECONDS, metavar="SECONDS",
        help="seconds that requests, streams and sessions have to finish after SIGTERM; the others get a 503, or are "
        "closed (default: %(default)g)",
    )  # fmt: skip
    parser.add_argument("--member", type=MemberOptions.from_text, help=argparse.SUPPRESS)
    parser.add_argument(
        "--max-queue", "--queue", type=int,
        help="maximum number of queued samples (default: twice --max-batch, or 100 for a handler of MMS)",
    )  # fmt: skip


def _add_address(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", default="127.0.0.1", help="the address to serve on (default: %(default)s)")
    parser.add_argument(
        "--host-name", action="append", default=[], metavar="NAME",
        help="a name to accept in the Host header; may be repeated (default: localhost if --host is a loopback "
        "address, else any)",
    )  # fmt: skip
    parser.add_argument("--port", type=usage.port, default=8080, help="port; 0 picks a free one (default: %(default)s)")


def _add_security(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--allow-origin", action="append", default=[], metavar="ORIGIN",
        help="a site whose pages may send requests from a browser, such as https://app.example, or * for all sites; "
        "may be repeated (default: only pages of the service itself)",
    )  # fmt: skip
    parser.add_argument("--token-file", metavar="FILE", help="file with the token that clients must send")
    parser.add_argument(
        "--admin-token-file", metavar="FILE", help="file with the token for loading and unloading models"
    )
    parser.add_argument("--tls-cert", metavar="FILE", help="PEM file of the service's certificate; enables HTTPS")
    parser.add_argument("--tls-key", metavar="FILE", help="PEM file of the certificate's private key")
    parser.add_argument(
        "--tls-ca",
        metavar="FILE",
        help="PEM file of a certificate authority; clients must present a certificate from it",
    )


def _add_sessions(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--states", action="append", nargs="?", const=("", ""), type=_pair, metavar="INPUT=OUTPUT",
        help="an input of an ONNX file that is a state, and the output with its next value, for sessions; may be "
        "repeated (without a value: the names of the file tell the states)",
    )  # fmt: skip
    parser.add_argument(
        "--constant", action="append", type=_constant, metavar="NAME=NUMBER",
        help="an input of an ONNX file that is always this number; may be repeated",
    )  # fmt: skip
    parser.add_argument("--max-sessions", type=int, help="maximum number of open sessions (default: 16384)")


def _add_generation(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cache-mib", type=int, default=256, metavar="MIB",
        help="memory for the keys and values of a language model (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--max-length", type=int, help="maximum number of tokens of a prompt and its text")
    parser.add_argument(
        "--adapter", action="append", type=_adapter, default=[], metavar="NAME=FOLDER",
        help="a low-rank adapter of a language model, in a folder of Hugging Face's PEFT; requests name it as the "
        "model MODEL:NAME; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--data-bits", type=int, choices=(8, 16),
        help="bits to which data are rounded before products with the weights of a GGUF file (default: 16)",
    )  # fmt: skip


def _add_inputs(parser: argparse.ArgumentParser) -> None:
    _add_sessions(parser)
    parser.add_argument("--finite", action="store_true", help="refuse NaN and infinities")
    parser.add_argument(
        "--image", action="store_true",
        help="accept JPEG and PNG images, resized to the model's input, with values from 0 to 1",
    )  # fmt: skip
    parser.add_argument(
        "--image-resize", type=int, metavar="SIZE",
        help="resize the shorter side of images to this length, and crop the center; implies --image",
    )  # fmt: skip
    parser.add_argument(
        "--image-mean", type=_numbers, metavar="NUMBERS",
        help="subtract this mean from images, such as 0.485,0.456,0.406; implies --image",
    )  # fmt: skip
    parser.add_argument(
        "--image-std", type=_numbers, metavar="NUMBERS",
        help="divide images by this standard deviation, such as 0.229,0.224,0.225; implies --image",
    )  # fmt: skip
