"""Models in a folder, loaded, replaced and unloaded while a service runs."""

from __future__ import annotations

import asyncio
import os
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

from flowmx.serve.models import Models
from flowmx.serve.predictor import Predictor
from flowmx.serve.replies import Refusal

__all__ = ["Repository"]

_OPTIONS = "model.toml"
_KEYS = ("shape", "dtype", "epoch", "max_batch", "sizes", "max_latency", "queue", "lengths", "finite")
_VERSIONS = "versions"
_ONLY = "1"
"""The version of a model whose folder has no folders of versions."""

_Mark = tuple[tuple[str, int, int], ...]


class _Loaded(NamedTuple):
    """A version that is served, and the files that it was made of."""

    predictor: Predictor
    mark: _Mark


class Repository:
    """A folder of models, each with its versions.

    ::

        models/
            digits/
                model.toml                shape = [1, 8, 8]
                1/                        model-symbol.json, model-0000.params
                2/
            resnet/
                resnet.onnx               a model without versions

    ``model.toml`` holds arguments of :class:`Predictor` (shape, dtype, epoch, max_batch, sizes, max_latency, queue,
    lengths, finite; a length that varies is ``"?"``), and ``versions``: how many of the newest are served.

    Args:
        folder: where the models are.

    Raises:
        NotADirectoryError: there is no such folder.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise NotADirectoryError(f"{self.folder} is no folder, expected one with a folder for each model")
        self.models = Models({})
        self.failures: dict[str, str] = {}
        """For each model that could not be loaded, the reason."""
        self._loaded: dict[str, dict[str, _Loaded]] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._is_closed = False

    def names(self) -> list[str]:
        """Names of the models in the folder."""
        return sorted(each.name for each in self.folder.iterdir() if each.is_dir() and not each.name.startswith("."))

    async def index(self) -> list[dict[str, str]]:
        """State of each version of each model, as the protocol's repository extension has it."""
        found = []
        for name in sorted({*self.names(), *self.models}):
            served = self.models.versions(name) if name in self.models else {}
            for version, each in served.items():
                state = "READY" if each.is_ready else "UNAVAILABLE"
                found.append({"name": name, "version": version, "state": state, "reason": ""})
            if not served or name in self.failures:
                reason = self.failures.get(name, "unloaded")
                found.append({"name": name, "version": "", "state": "UNAVAILABLE", "reason": reason})
        return found

    async def load_all(self) -> None:
        """Load every model of the folder; one that fails is kept in ``failures``."""
        for name in self.names():
            try:
                await self.load(name)
            except Refusal:
                pass  # it is in the index

    async def load(self, name: str) -> None:
        """Load a model, or what of it has changed: the new versions are warm before those they replace are drained.

        Raises:
            Refusal: there is no such model (404), or it can not be loaded (400); what was served before stays.
        """
        self._check(name)
        async with self._locks[name]:
            if self._is_closed:
                raise Refusal(503, "the service ends")
            before, fresh = self._loaded.get(name, {}), dict[str, _Loaded]()
            try:
                options, versions = await asyncio.to_thread(self._read, name)
                for version, folder in versions.items():
                    mark = _mark(folder)
                    kept = before.get(version)
                    same = kept is not None and kept.mark == mark and name not in self.failures
                    fresh[version] = kept if same and kept else await _made(f"{name}:{version}", folder, options, mark)
            except Exception as error:
                await _drained(set(fresh.values()) - set(before.values()))
                self.failures[name] = f"{type(error).__name__}: {error}"
                raise Refusal(400, f"{name} can not be loaded: {self.failures[name]}") from error
            self.failures.pop(name, None)
            self._loaded[name] = fresh
            self.models.put(name, {version: each.predictor for version, each in fresh.items()})
            await _drained(set(before.values()) - set(fresh.values()))

    async def unload(self, name: str) -> None:
        """Take a model out of service: what was asked is answered, nothing more is taken.

        Raises:
            Refusal: 404, there is no such model.
        """
        if name not in self.models:
            self._check(name)
        async with self._locks[name]:
            self.models.put(name, {})
            await _drained(set(self._loaded.pop(name, {}).values()))

    async def close(self) -> None:
        """Load nothing more; what is being loaded is waited for."""
        self._is_closed = True
        for lock in list(self._locks.values()):
            async with lock:
                pass

    def _check(self, name: str) -> None:
        if name not in self.names():
            known = ", ".join(self.names()) or "none"
            raise Refusal(404, f"there is no model {name[:80]!r} in the folder, expected one of {known}")

    def _read(self, name: str) -> tuple[dict[str, Any], dict[str, Path]]:
        """The options of a model, and the folder of each version that is to be served, the newest last."""
        folder = self.folder / name
        options = _options(folder / _OPTIONS)
        count = options.pop(_VERSIONS, 1)
        numbers = sorted(int(each.name) for each in folder.iterdir() if each.is_dir() and each.name.isdecimal())
        found = {str(number): folder / str(number) for number in numbers[-count:]}
        return options, found or {_ONLY: folder}


def _options(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    found = tomllib.loads(path.read_text())
    wrong = [key for key in found if key not in (*_KEYS, _VERSIONS)]
    if wrong:
        raise ValueError(f"{path} has {', '.join(wrong)}, expected some of {', '.join((*_KEYS, _VERSIONS))}")
    count = found.get(_VERSIONS, 1)
    if type(count) is not int or count < 1:
        raise ValueError(f"{path}: versions is {count!r}, expected how many of the newest to serve")
    shape = found.get("shape")
    if isinstance(shape, dict):
        found["shape"] = {name: _sizes(path, each) for name, each in shape.items()}
    elif shape is not None:
        found["shape"] = _sizes(path, shape)
    return found


def _sizes(path: Path, given: Any) -> tuple[int | None, ...]:
    if not isinstance(given, list) or not all(each == "?" or (type(each) is int and each > 0) for each in given):
        raise ValueError(f'{path}: the shape is {given!r}, expected sizes such as [3, 32, 32], or "?" for a length')
    return tuple(None if each == "?" else each for each in given)


def _mark(folder: Path) -> _Mark:
    """A mark of a folder's files that changes when one of them does."""
    entries = [(each, each.stat()) for each in [folder.parent / _OPTIONS, *folder.iterdir()] if each.is_file()]
    return tuple(sorted((each.name, found.st_size, found.st_mtime_ns) for each, found in entries))


async def _made(name: str, folder: Path, options: dict[str, Any], mark: _Mark) -> _Loaded:
    """Load a version and warm it up."""
    predictor = await asyncio.to_thread(Predictor, folder, name=name, **options)
    try:
        await predictor.ready()
    except BaseException:
        await predictor.drain()
        raise
    return _Loaded(predictor, mark)


async def _drained(given: set[_Loaded]) -> None:
    await asyncio.gather(*(each.predictor.drain() for each in given))
