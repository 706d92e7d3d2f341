"""A folder of models, which are loaded, replaced and unloaded while the service runs."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import tomllib
from collections import defaultdict
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

from flowmx.keywords import ChecksKeywords
from flowmx.serve.budget import Budget
from flowmx.serve.folders import create_predictor
from flowmx.serve.model_archives import SUFFIX
from flowmx.serve.model_registry import ModelRegistry
from flowmx.serve.predictor import Predictor
from flowmx.serve.replies import Refusal

__all__ = ["Repository"]

_log = logging.getLogger("flowmx.serve")
_OPTIONS_FILE = "model.toml"
_NUMBER = re.compile("[0-9]+")
_OPTION_NAMES = (
    "shape", "dtype", "epoch", "max_batch", "sizes", "max_latency", "max_queue", "queue", "lengths", "finite",
    "handler", "image", "weight", "states", "sessions", "constants",
)  # fmt: skip
_VERSIONS = "versions"
_ONLY_VERSION = "1"
"""The version of a model without version folders."""

_Fingerprint = tuple[tuple[str, int, int], ...]


class _Loaded(NamedTuple):
    """A served version, and the fingerprint of its files."""

    predictor: Predictor
    fingerprint: _Fingerprint


class Repository(ChecksKeywords):
    """A folder of models, each with its versions.

    ::

        models/
            digits/
                model.toml                shape = [1, 8, 8]
                1/                        model-symbol.json, model-0000.params
                2/
            resnet/
                resnet.onnx               a model without versions
            animals.mar                   an archive of Multi Model Server, with its handler

    ``model.toml`` holds arguments of :class:`Predictor` (shape, dtype, epoch, max_batch, sizes, max_latency, max_queue,
    lengths, finite, image, states, sessions, constants; ``"?"`` marks a variable length); ``handler``, as
    ``flowmx serve --handler`` takes it; ``weight``, the model's part of the computing time that all models share; and
    ``versions``, the number of newest versions to serve. Archives may also be in folders of models and versions, with a
    ``model.toml``.

    Args:
        folder: the folder of the models.
        budget: the computing time that the models share (default: one batch at a time for each worker of the engine).

    Raises:
        NotADirectoryError: the folder does not exist.
    """

    def __init__(self, folder: str | os.PathLike[str], budget: Budget | None = None) -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise NotADirectoryError(f"{self.folder} is not a folder, expected one with a folder per model")
        self.models = ModelRegistry({})
        self._budget = Budget() if budget is None else budget
        self.failures: dict[str, str] = {}
        """Reasons of load failures, by model."""
        self._loaded: dict[str, dict[str, _Loaded]] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._is_closed = False

    def names(self) -> list[str]:
        """Return the names of the models in the folder."""
        paths = [path for path in self.folder.iterdir() if not path.name.startswith(".")]
        archives = [path.stem for path in paths if path.suffix == SUFFIX and path.is_file()]
        return sorted({*archives, *(path.name for path in paths if path.is_dir())})

    async def index(self) -> list[dict[str, str]]:
        """Return the states of all versions, in the format of the protocol's repository extension."""
        entries = []
        for name in sorted({*self.names(), *self.models}):
            served = self.models.versions(name) if name in self.models else {}
            for version, predictor in served.items():
                state = "READY" if predictor.is_ready else "UNAVAILABLE"
                entries.append({"name": name, "version": version, "state": state, "reason": ""})
            if not served or name in self.failures:
                reason = self.failures.get(name, "unloaded")
                entries.append({"name": name, "version": "", "state": "UNAVAILABLE", "reason": reason})
        return entries

    async def load_all(self, skip: Collection[str] = ()) -> None:
        """Load every model of the folder, except some; failures are recorded in ``failures``."""
        names = self.names()
        if not names:
            _log.warning(
                "%s has no models: expected a folder or .mar archive for each model; `flowmx serve FOLDER` serves the "
                "model of a folder", self.folder,
            )  # fmt: skip
        for name in names:
            if name in skip:
                continue
            try:
                await self.load(name)
            except Refusal:
                pass  # the index reports it

    async def load(self, name: str) -> None:
        """Load a model, or its changed versions. New versions are warm before the old ones are drained.

        Raises:
            Refusal: the model does not exist (404) or cannot be loaded (400); the old versions stay.
        """
        self._check(name)
        async with self._locks[name]:
            if self._is_closed:
                raise Refusal(503, "the service is shutting down")
            old_versions, new_versions = self._loaded.get(name, {}), dict[str, _Loaded]()
            try:
                options, versions = await asyncio.to_thread(self._read, name)
                for version, folder in versions.items():
                    fingerprint = _fingerprint(folder)
                    loaded = old_versions.get(version)
                    if loaded is None or loaded.fingerprint != fingerprint or name in self.failures:
                        loaded = await self._load_version(f"{name}:{version}", folder, options, fingerprint)
                    new_versions[version] = loaded
            except Exception as error:  # the user's model may raise anything
                await _drain(set(new_versions.values()) - set(old_versions.values()))
                self.failures[name] = f"{type(error).__name__}: {error}"
                _log.error("the model %s cannot be loaded: %s", name, self.failures[name])
                raise Refusal(400, f"{name} cannot be loaded: {self.failures[name]}") from error
            self.failures.pop(name, None)
            self._loaded[name] = new_versions
            self.models.put(name, {version: loaded.predictor for version, loaded in new_versions.items()})
            await _drain(set(old_versions.values()) - set(new_versions.values()))

    async def unload(self, name: str) -> None:
        """Unload a model: pending requests are answered, new ones are refused.

        Raises:
            Refusal: 404, the model does not exist.
        """
        if name not in self.models:
            self._check(name)
        async with self._locks[name]:
            self.models.put(name, {})
            await _drain(set(self._loaded.pop(name, {}).values()))

    def open(self) -> None:
        """Accept loads again after :meth:`close`, possibly on another event loop."""
        self._is_closed = False
        self._locks.clear()

    async def close(self) -> None:
        """Refuse further loads, and wait for the running ones."""
        self._is_closed = True
        for lock in list(self._locks.values()):
            async with lock:
                pass

    async def _load_version(
        self, name: str, folder: Path, options: dict[str, Any], fingerprint: _Fingerprint
    ) -> _Loaded:
        """Load a version and warm it up."""
        predictor = await asyncio.to_thread(create_predictor, folder, name=name, budget=self._budget, **options)
        try:
            await predictor.ready()
        except BaseException:  # cleanup, also when interrupted
            await predictor.drain()
            raise
        return _Loaded(predictor, fingerprint)

    def _check(self, name: str) -> None:
        if name not in self.names():
            names = ", ".join(self.names()) or "none"
            raise Refusal(404, f"there is no model {name[:80]!r} in the folder, expected one of {names}")

    def _read(self, name: str) -> tuple[dict[str, Any], dict[str, Path]]:
        """Return the options of a model, and the folders or archives of the versions to serve, the newest last."""
        folder, archive = self.folder / name, self.folder / f"{name}{SUFFIX}"
        if archive.is_file():
            if folder.is_dir():
                raise ValueError(f"{self.folder} has both {archive.name} and a folder {name}: rename or remove one")
            return {}, {_ONLY_VERSION: archive}
        options = _options(folder / _OPTIONS_FILE)
        count = options.pop(_VERSIONS, 1)
        names = [path.name for path in folder.iterdir() if path.is_dir() and _NUMBER.fullmatch(path.name)]
        zero_padded = sorted(name for name in names if name.startswith("0") and name != "0")
        numbers = sorted(int(name) for name in names if name not in zero_padded)
        if zero_padded:
            fault = (
                f"{folder} has {', '.join(zero_padded)}, expected versions without leading zeros, as in Triton: 1, 2, 3"
            )
            if not numbers:
                raise ValueError(f"{fault}; rename the folders")
            _log.warning("%s; they are not served", fault)
        folders = {str(number): folder / str(number) for number in numbers[-count:]}
        return options, folders or {_ONLY_VERSION: folder}


def _options(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        options = tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is not TOML: {error}; expected lines such as shape = [3, 32, 32]") from None
    unknown = [key for key in options if key not in (*_OPTION_NAMES, _VERSIONS)]
    if unknown:
        raise ValueError(f"{path} has {', '.join(unknown)}, expected some of {', '.join((*_OPTION_NAMES, _VERSIONS))}")
    count = options.get(_VERSIONS, 1)
    if type(count) is not int or count < 1:
        raise ValueError(f"{path}: versions is {count!r}, expected the number of newest versions to serve")
    shape = options.get("shape")
    if isinstance(shape, dict):
        options["shape"] = {name: _sizes(path, sizes) for name, sizes in shape.items()}
    elif shape is not None:
        options["shape"] = _sizes(path, shape)
    return options


def _sizes(path: Path, shape: Any) -> tuple[int | None, ...]:
    if not isinstance(shape, list) or not all(size == "?" or (type(size) is int and size > 0) for size in shape):
        raise ValueError(f'{path}: the shape is {shape!r}, expected sizes such as [3, 32, 32], or "?" for a length')
    return tuple(None if size == "?" else size for size in shape)


def _fingerprint(folder: Path) -> _Fingerprint:
    """Return the names, sizes and modification times of the files that a version is loaded from."""
    paths = [folder.parent / _OPTIONS_FILE, *folder.iterdir()] if folder.is_dir() else [folder]
    files = [(path, path.stat()) for path in paths if path.is_file()]
    return tuple(sorted((path.name, status.st_size, status.st_mtime_ns) for path, status in files))


async def _drain(versions: set[_Loaded]) -> None:
    await asyncio.gather(*(loaded.predictor.drain() for loaded in versions))
