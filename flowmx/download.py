"""Downloads of files: once per machine, verified, resumed after interruptions, and written atomically."""

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
from flowmx.process_hooks import fold_uncaught
from flowmx.progress import Bar, is_live

if TYPE_CHECKING:
    import requests

if os.name == "posix":
    import fcntl

__all__ = [
    "ChecksumError", "DownloadError", "check_sha1", "data_dir", "data_dir_default", "download", "exclusive_part",
    "fetch", "repository",
]  # fmt: skip

_TIMEOUT = (10, 60)
"""Seconds to wait for a connection, and for the next bytes."""
_CHUNK = 1 << 14
_FIRST_PAUSE = 0.1
"""Seconds before the second attempt; pauses double."""
_RETRYABLE = {408, 425, 429}
"""Statuses from 400 to 499 that are worth another attempt."""

Folder = str | os.PathLike[str]


class DownloadError(MXNetError, FileNotFoundError):
    """A download failed. The message has the URL, the reason, and the path for a manual download."""


class ChecksumError(DownloadError, UserWarning, ValueError):
    """A complete download has an unexpected checksum."""


def data_dir() -> Path:
    """Return the folder of models and datasets: the setting ``home``, or :func:`data_dir_default`."""
    home = settings.fresh("home")
    return Path(home).expanduser() if home else data_dir_default()


def data_dir_default() -> Path:
    """Return the default folder of models and datasets, ``~/.mxnet``."""
    return Path("~/.mxnet").expanduser()


def repository() -> str:
    """Return the URL of MXNet's models and datasets (the setting ``gluon_repo``), with a trailing slash."""
    address: str = settings.fresh("gluon_repo")
    return address.rstrip("/") + "/"


def check_sha1(filename: Folder, sha1_hash: str) -> bool:
    """Return whether a file has this SHA-1, in hexadecimal digits."""
    with Path(filename).open("rb") as file:
        return hashlib.file_digest(file, "sha1").hexdigest() == sha1_hash


def download(
    url: str, path: Folder | None = None, overwrite: bool = False, sha1_hash: str | None = None, retries: int = 5,
    verify_ssl: bool = True,
) -> str:  # fmt: skip
    """Download a file, unless it exists.

    If several processes request the same file, one downloads it and the others wait. An interrupted transfer leaves a
    partial file next to the target, which the next attempt resumes.

    Args:
        url: the URL.
        path: the file to write, or its folder (default: the current one); the file name is then the last part of the
            URL.
        overwrite: whether to download an existing file again.
        sha1_hash: the expected SHA-1 in hexadecimal digits; a file with another SHA-1 is replaced.
        retries: maximum number of attempts (at least one is made).
        verify_ssl: whether to verify the server's certificate.

    Returns:
        the path of the file.

    Raises:
        DownloadError: the download failed.
        ChecksumError: the downloaded file has another SHA-1.

    Example:
        >>> download("http://localhost:8000/net-0000.params", path="models/", sha1_hash="44335d1f0046b328...")
        'models/net-0000.params'
    """
    if retries < 0:
        raise ArgumentError(f"download: retries is {retries}, expected at least 0")
    if not verify_ssl:
        warnings.warn("Unverified HTTPS request (verify_ssl=False): the file may be modified in transit", stacklevel=2)
    target = _target(url, path)
    if overwrite or not _is_whole(target, sha1_hash):
        fetch(url, target, sha1_hash, attempts=max(1, retries), verify=verify_ssl, force=overwrite)
    return os.fspath(target)


def _target(url: str, path: Folder | None) -> Path:
    name = url.split("/")[-1]
    target = Path(name if path is None else path).expanduser()
    if path is not None and target.is_dir():
        target /= name
    if not target.name or (target.is_dir() and not name):
        raise ArgumentError(f"download: {url!r} does not end with a file name: pass path")
    return target


def _is_whole(target: Path, sha1: str | None) -> bool:
    return target.exists() and (sha1 is None or check_sha1(target, sha1))


def fetch(
    url: str, target: Path, sha1: str | None = None, *, attempts: int = 5, verify: bool = True, force: bool = False
) -> None:
    """Download a file to `target`, as :func:`download` does; ``force`` downloads an existing file again.

    Raises:
        DownloadError: the download failed.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with exclusive_part(target.with_name(f".{target.name}.part")) as part:
        if not force and _is_whole(target, sha1):  # another process was faster
            part.discard()
            return
        logging.getLogger(__name__).info("downloading %s from %s", target, url)
        for remaining in reversed(range(attempts)):
            try:
                _transfer(url, part, verify)
                _check(part, sha1, url, target)
                break
            except (OSError, MXNetError) as error:  # requests' exceptions are OSErrors
                if not remaining or _is_final(error):
                    part.close_unfinished()
                    fold_uncaught()
                    raise _download_error(error, url, target) from None  # the chain of causes has 80 lines
                time.sleep(_FIRST_PAUSE * 2 ** (attempts - 1 - remaining))
        part.replace(target)


def _check(part: Part, sha1: str | None, url: str, target: Path) -> None:
    if sha1 is None or part.sha1() == sha1:
        return
    part.empty("")
    raise ChecksumError(
        f"{url} has another SHA-1, expected {sha1} for {target}: the repository is outdated, or a proxy modifies files"
    )


def _is_final(error: Exception) -> bool:
    status = getattr(getattr(error, "response", None), "status_code", 0)
    return 400 <= status < 500 and status not in _RETRYABLE


def _download_error(error: Exception, url: str, target: Path) -> Exception:
    if isinstance(error, ChecksumError):
        return error
    cause: BaseException = error
    while (inner := cause.__cause__ or cause.__context__) is not None:
        cause = inner
    reason = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
    return DownloadError(
        f"{url} could not be downloaded ({reason}): without a network, download it elsewhere and copy it to {target}"
    )


# -- transfers ---------------------------------------------------------------------------------------------


class Part:
    """A partial download and the version of the file.

    Args:
        path: path of the partial file; the version is stored next to it.
        file: the open file, locked by this process.
    """

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self.path, self.file = path, file
        self._version = path.with_name(f"{path.name}.version")

    @property
    def size(self) -> int:
        """Number of downloaded bytes."""
        return self.file.seek(0, os.SEEK_END)

    @property
    def version(self) -> str:
        """The server's identifier of the version; empty if unknown."""
        try:
            return self._version.read_text("utf-8")
        except OSError:
            return ""

    def empty(self, version: str) -> None:
        """Discard the content and set the version."""
        self.file.truncate(0)
        self.file.seek(0)
        self._version.unlink(missing_ok=True)
        if version:
            self._version.write_text(version, "utf-8")

    def sha1(self) -> str:
        """Return the SHA-1 of the content."""
        self.file.seek(0)
        return hashlib.file_digest(self.file, "sha1").hexdigest()  # type: ignore[arg-type]

    def replace(self, target: Path) -> None:
        """Move the partial file to its target."""
        self.file.flush()
        os.fsync(self.file.fileno())
        self.path.replace(target)
        self._version.unlink(missing_ok=True)

    def discard(self) -> None:
        """Delete the partial file."""
        self.path.unlink(missing_ok=True)
        self._version.unlink(missing_ok=True)

    def close_unfinished(self) -> None:
        """Keep the partial file for another attempt, if it can be resumed."""
        self.file.flush()
        if not self.size or not self.version:
            self.discard()


@contextlib.contextmanager
def exclusive_part(path: Path) -> Iterator[Part]:
    """Open a partial file and lock it; other processes and threads wait."""
    while True:
        file = path.open("a+b")
        if os.name == "posix":
            fcntl.flock(file, fcntl.LOCK_EX)
        if os.name != "posix" or _is_file_at(path, file):
            break
        file.close()  # the previous owner has replaced or removed it
    with file:
        yield Part(path, file)


def _is_file_at(path: Path, file: IO[bytes]) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _transfer(url: str, part: Part, verify: bool) -> None:
    """Download the missing bytes of a partial file.

    Raises:
        OSError: the transfer was interrupted or refused.
    """
    import requests  # here, because few programs download

    headers = {"Accept-Encoding": "identity"}
    if part.size and part.version:
        headers |= {"Range": f"bytes={part.size}-", "If-Range": part.version}
    with requests.get(url, stream=True, verify=verify, headers=headers, timeout=_TIMEOUT) as response:
        if response.status_code == 416:  # the file has become shorter
            part.empty("")
        response.raise_for_status()
        if response.status_code != 206:
            part.empty(_version_of(response))
        length = response.headers.get("Content-Length")
        expected = None if length is None or response.headers.get("Content-Encoding") else part.size + int(length)
        with _progress(expected, url, part.size) as bar:
            for chunk in response.iter_content(_CHUNK):
                part.file.write(chunk)
                if bar is not None:
                    bar.step(len(chunk))
    part.file.flush()
    if expected is not None and part.size != expected:
        raise ConnectionError(f"the connection ended after {part.size} of {expected} bytes")


def _version_of(response: requests.Response) -> str:
    """Return the identifier of the version (ETag or Last-Modified); empty if transfers cannot be resumed."""
    headers: Any = response.headers
    tag = headers.get("ETag", "")
    return "" if tag.startswith("W/") else tag or headers.get("Last-Modified", "")


def _progress(total: int | None, url: str, done: int) -> contextlib.AbstractContextManager[Bar | None]:
    """Return a progress bar on a terminal, and a null context elsewhere."""
    if not is_live(sys.stderr):
        return contextlib.nullcontext()
    bar = Bar(total, url.split("/")[-1], unit="bytes")
    bar.step(done)
    return bar
