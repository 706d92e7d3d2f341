"""Files from the network: fetched once, checked, gone on with where a transfer was cut, and replaced as a whole."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from flowmx import settings
from flowmx.errors import ArgumentError, MXNetError
from flowmx.progress import Bar, is_live

if TYPE_CHECKING:
    import requests

if os.name == "posix":
    import fcntl

__all__ = [
    "ChecksumError", "DownloadError", "alone", "check_sha1", "data_dir", "data_dir_default", "download", "fetch",
    "repository",
]  # fmt: skip

_TIMEOUT = (10, 60)
"""Seconds to wait for a connection, and for the next bytes."""
_PIECE = 1 << 14
_FIRST_PAUSE = 0.1
"""Seconds before the second attempt; each pause is twice the one before."""
_WORTH_ANOTHER = {408, 425, 429}
"""Refusals that may pass; the others of 400 to 499 do not."""

Folder = str | os.PathLike[str]


class DownloadError(MXNetError, FileNotFoundError):
    """A file could not be fetched; the message says from where, why, and where to put it by hand."""


class ChecksumError(DownloadError, UserWarning, ValueError):
    """A file was fetched whole, and is not the one that was expected."""


def data_dir() -> Path:
    """The folder of models and data sets: the setting ``home``, or :func:`data_dir_default`."""
    home = settings.fresh("home")
    return Path(home).expanduser() if home else data_dir_default()


def data_dir_default() -> Path:
    """The folder of models and data sets where the setting ``home`` is unset: ``~/.mxnet``."""
    return Path("~/.mxnet").expanduser()


def repository() -> str:
    """The address of MXNet's models and data sets (the setting ``gluon_repo``), with a slash at its end."""
    address: str = settings.fresh("gluon_repo")
    return address.rstrip("/") + "/"


def check_sha1(filename: Folder, sha1_hash: str) -> bool:
    """Tell whether a file has this SHA-1, given in hexadecimal digits."""
    with Path(filename).open("rb") as file:
        return hashlib.file_digest(file, "sha1").hexdigest() == sha1_hash


def download(
    url: str, path: Folder | None = None, overwrite: bool = False, sha1_hash: str | None = None, retries: int = 5,
    verify_ssl: bool = True,
) -> str:  # fmt: skip
    """Fetch a file, unless it is there.

    Several processes may ask for the same file at once: one of them fetches it, and the others wait. What was fetched
    of a transfer that was cut stays beside the file, and the next attempt goes on from there.

    Args:
        url: where it is.
        path: the file to write, or a folder for it (default: the current one). The end of the address is then its name.
        overwrite: fetch it although it is there.
        sha1_hash: the SHA-1 that it must have, in hexadecimal digits; a file with another one is replaced.
        retries: the maximum number of attempts (at least one is made).
        verify_ssl: verify the server's certificate.

    Returns:
        the file's path.

    Raises:
        DownloadError: it can not be had.
        ChecksumError: what is there has another SHA-1.

    Example:
        >>> download("http://localhost:8000/net-0000.params", path="models/", sha1_hash="44335d1f0046b328...")
        'models/net-0000.params'
    """
    if retries < 0:
        raise ArgumentError(f"download: retries is {retries}, expected at least 0")
    if not verify_ssl:
        warnings.warn("Unverified HTTPS request (verify_ssl=False): the file can be changed on its way", stacklevel=2)
    target = _target(url, path)
    if overwrite or not _is_whole(target, sha1_hash):
        fetch(url, target, sha1_hash, attempts=max(1, retries), verify=verify_ssl, anew=overwrite)
    return os.fspath(target)


def _target(url: str, path: Folder | None) -> Path:
    name = url.split("/")[-1]
    target = Path(name if path is None else path).expanduser()
    if path is not None and target.is_dir():
        target /= name
    if not target.name or (target.is_dir() and not name):
        raise ArgumentError(f"download: {url!r} ends in no name for a file: give one as path")
    return target


def _is_whole(target: Path, sha1: str | None) -> bool:
    return target.exists() and (sha1 is None or check_sha1(target, sha1))


def fetch(
    url: str, target: Path, sha1: str | None = None, *, attempts: int = 5, verify: bool = True, anew: bool = False
) -> None:
    """Fetch a file to `target`, as :func:`download` does; ``anew``: although it may be there.

    Raises:
        DownloadError: it can not be had.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with alone(target.with_name(f".{target.name}.part")) as part:
        if not anew and _is_whole(target, sha1):  # another process was faster
            part.discard()
            return
        logging.getLogger(__name__).info("downloading %s from %s", target, url)
        for left in reversed(range(attempts)):
            try:
                _transfer(url, part, verify)
                _check(part, sha1, url, target)
                break
            except (OSError, MXNetError) as error:  # requests' exceptions are OSErrors
                if not left or _is_final(error):
                    part.close_unfinished()
                    raise _explained(error, url, target) from error
                time.sleep(_FIRST_PAUSE * 2 ** (attempts - 1 - left))
        part.replace(target)


def _check(part: Part, sha1: str | None, url: str, target: Path) -> None:
    if sha1 is None or part.sha1() == sha1:
        return
    part.empty("")
    raise ChecksumError(
        f"{url} has another SHA-1 than the {sha1} of the file that is wanted at {target}: the repository is outdated, "
        "or something on the way changes files"
    )


def _is_final(error: Exception) -> bool:
    status = getattr(getattr(error, "response", None), "status_code", 0)
    return 400 <= status < 500 and status not in _WORTH_ANOTHER


def _explained(error: Exception, url: str, target: Path) -> Exception:
    if isinstance(error, ChecksumError):
        return error
    reason = str(error) or type(error).__name__
    return DownloadError(
        f"{url} could not be fetched ({reason}): without a network, fetch it elsewhere, and put it at {target}"
    )


# -- transfers ---------------------------------------------------------------------------------------------


class Part:
    """A partly fetched file, with the version of the file that it is a part of.

    Args:
        path: the part's file; the version's name is kept beside it.
        file: the open file, which this process alone has.
    """

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self.path, self.file = path, file
        self._version = path.with_name(f"{path.name}.version")

    @property
    def size(self) -> int:
        """The bytes fetched so far."""
        return self.file.seek(0, os.SEEK_END)

    @property
    def version(self) -> str:
        """The server's name of the version, empty where it gave none."""
        try:
            return self._version.read_text("utf-8")
        except OSError:
            return ""

    def empty(self, version: str) -> None:
        """Begin anew, with this version."""
        self.file.truncate(0)
        self.file.seek(0)
        self._version.unlink(missing_ok=True)
        if version:
            self._version.write_text(version, "utf-8")

    def sha1(self) -> str:
        """The SHA-1 of what is there."""
        self.file.seek(0)
        return hashlib.file_digest(self.file, "sha1").hexdigest()  # type: ignore[arg-type]

    def replace(self, target: Path) -> None:
        """Make it the file."""
        self.file.flush()
        os.fsync(self.file.fileno())
        self.path.replace(target)
        self._version.unlink(missing_ok=True)

    def discard(self) -> None:
        """Take it away."""
        self.path.unlink(missing_ok=True)
        self._version.unlink(missing_ok=True)

    def close_unfinished(self) -> None:
        """Leave it for another attempt, if one can go on from it."""
        self.file.flush()
        if not self.size or not self.version:
            self.discard()


@contextlib.contextmanager
def alone(path: Path) -> Iterator[Part]:
    """Open a file that one process (and thread) has at a time; the others wait."""
    while True:
        file = path.open("a+b")
        if os.name == "posix":
            fcntl.flock(file, fcntl.LOCK_EX)
        if os.name != "posix" or _is_at(path, file):
            break
        file.close()  # the one before has replaced or removed it
    with file:
        yield Part(path, file)


def _is_at(path: Path, file: IO[bytes]) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _transfer(url: str, part: Part, verify: bool) -> None:
    """Fetch what is missing of a part.

    Raises:
        OSError: it was cut off, or refused.
    """
    import requests  # here, since few programs download

    headers = {"Accept-Encoding": "identity"}
    if part.size and part.version:
        headers |= {"Range": f"bytes={part.size}-", "If-Range": part.version}
    with requests.get(url, stream=True, verify=verify, headers=headers, timeout=_TIMEOUT) as response:
        if response.status_code == 416:  # the file is not so long any more
            part.empty("")
        response.raise_for_status()
        if response.status_code != 206:
            part.empty(_version_of(response))
        length = response.headers.get("Content-Length")
        expected = None if length is None or response.headers.get("Content-Encoding") else part.size + int(length)
        with _progress(expected, url, part.size) as bar:
            for piece in response.iter_content(_PIECE):
                part.file.write(piece)
                if bar is not None:
                    bar.step(len(piece))
    part.file.flush()
    if expected is not None and part.size != expected:
        raise ConnectionError(f"the connection ended after {part.size} of {expected} bytes")


def _version_of(response: requests.Response) -> str:
    """The identifier of the file's version (ETag or Last-Modified); empty where a transfer can not be resumed."""
    headers: Any = response.headers
    tag = headers.get("ETag", "")
    return "" if tag.startswith("W/") else tag or headers.get("Last-Modified", "")


def _progress(total: int | None, url: str, done: int) -> contextlib.AbstractContextManager[Bar | None]:
    """A bar of bytes on a terminal, and nothing elsewhere."""
    if not is_live(sys.stderr):
        return contextlib.nullcontext()
    bar = Bar(total, url.split("/")[-1], unit="bytes")
    bar.step(done)
    return bar
