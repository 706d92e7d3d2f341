"""Authentication of peers: signatures with a shared secret, mutual TLS, and the addresses that need them.

A request is signed over its method, path, node, time, nonce and the digest of its body, so that it is known to be
genuine before its body is read; the body must then have that digest. An answer is signed over the nonce of its request.
`docs/wire.md` has the details, with an example.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import re
import secrets
import ssl
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from flowmx import settings
from flowmx.comm.errors import CommError, Unauthorized
from flowmx.comm.replay import Window

__all__ = [
    "ANSWER", "REQUEST", "InsecureAddress", "Proof", "Security", "Tls", "digest_of", "host_of", "is_address",
    "is_loopback", "read_secret",
]  # fmt: skip

REQUEST, ANSWER = "Authorization", "Flowmx-Signature"
SCHEME = "FMX1-HMAC-SHA256"
LEAST = 16
_LONGEST = 4096
_OTHERS = stat.S_IROTH | stat.S_IWOTH
_INHERITED = re.compile(r"/dev/fd/(\d+)")
_NODE = re.compile(r"[A-Za-z0-9._:-]{0,128}", re.ASCII)
_REQUEST = re.compile(
    rf"{SCHEME} node=({_NODE.pattern}), time=([0-9]{{1,15}}), nonce=([0-9a-f]{{32}}), "
    r"digest=([0-9a-f]{64}), signature=([0-9a-f]{64})",
    re.ASCII,
)
_ANSWER = re.compile(rf"{SCHEME} digest=([0-9a-f]{{64}}), signature=([0-9a-f]{{64}})", re.ASCII)


class InsecureAddress(CommError, ValueError):
    """An address that other machines reach was to be served without a secret and without mutual TLS."""


class Proof(NamedTuple):
    """The facts that a request's signature proves.

    Attributes:
        node: who sent it.
        nonce: of the request, which its answer is signed with too.
        digest: that the body must have.
    """

    node: str
    nonce: str
    digest: str


@dataclass(frozen=True)
class Tls:
    """Mutual TLS: both sides show a certificate of the same authority.

    Args:
        certificate: PEM file of this node's certificate (and those between it and the authority's).
        key: PEM file of its private key.
        authority: PEM file of the certificates that peers must descend from.
        check_hostname: whether a service's certificate must be made out to the address that it is called by.
    """

    certificate: str | Path
    key: str | Path
    authority: str | Path
    check_hostname: bool = True

    def server(self) -> ssl.SSLContext:
        """The context of a service."""
        return self._context(ssl.PROTOCOL_TLS_SERVER)

    def client(self) -> ssl.SSLContext:
        """The context of a peer."""
        context = self._context(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = self.check_hostname
        return context

    def _context(self, protocol: int) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self.certificate, self.key)
        context.load_verify_locations(self.authority)
        context.verify_mode = ssl.CERT_REQUIRED
        return context


class Security:
    """The credentials of a service and its peers: sign and verify requests and answers.

    Args:
        secret: what all nodes share, at least 16 bytes; text stands for its UTF-8.
        tls: certificates, in place of a secret or in addition to one.
        skew: seconds by which clocks may differ.
        nonces: how many requests are remembered, so that none counts twice.
        clock: the time in seconds since 1970.

    Raises:
        ValueError: the secret is too short, or there is neither secret nor TLS.

    Example:
        >>> security = Security.from_file("/run/secrets/flowmx")
        >>> service = Service("server", security=security)
    """

    def __init__(
        self,
        secret: bytes | str | None = None,
        *,
        tls: Tls | None = None,
        skew: float = 60.0,
        nonces: int = 1_000_000,
        clock: Callable[[], float] = time.time,
    ) -> None:
        key = secret.encode() if isinstance(secret, str) else secret
        if key is None and tls is None:
            raise ValueError("Security takes a secret, or certificates for mutual TLS; it was given neither")
        if key is not None and len(key) < LEAST:
            raise ValueError(f"the secret has {len(key)} bytes, and must have at least {LEAST}: `openssl rand -hex 32`")
        self.tls = tls
        self.signs = key is not None
        self.secret = self._key = key or b""
        self._clock = clock
        self._window = Window(skew, nonces, clock())

    @classmethod
    def from_file(cls, path: str | Path, tls: Tls | None = None) -> Security:
        """Security with the secret that a file holds; see :func:`read_secret`.

        Raises:
            OSError: the file can not be read.
            ValueError: others may read the file, or the secret is too short.
        """
        try:
            return cls(read_secret(path), tls=tls)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    @classmethod
    def from_settings(cls, secret_file: str = "") -> Security | None:
        """The security that the settings say: ``FLOWMX_SECRET_FILE``, ``FLOWMX_TLS_...``, both, or None for neither.

        Args:
            secret_file: stands for that of the settings.

        Raises:
            SettingError: a file can not be read or is not what it must be, or some of the files of TLS are not named.
        """
        config = settings.get()
        path, tls = secret_file or config.secret_file, _tls_from(config)
        try:
            return cls.from_file(path, tls) if path else cls(tls=tls) if tls else None
        except (OSError, ValueError) as error:
            raise settings.SettingError(f"FLOWMX_SECRET_FILE: {error}") from error

    def __repr__(self) -> str:
        return f"Security(secret={'***' if self.signs else None}, tls={self.tls!r})"

    def sign_request(self, method: str, path: str, node: str, digest: str) -> tuple[str, str]:
        """Sign a request.

        Returns:
            its nonce, and the value of its header `REQUEST`.
        """
        sent, nonce = str(int(self._clock() * 1000)), secrets.token_hex(16)
        signature = self._sign("request", method, path, node, sent, nonce, digest)
        return nonce, f"{SCHEME} node={node}, time={sent}, nonce={nonce}, digest={digest}, signature={signature}"

    def check_request(self, method: str, path: str, headers: Mapping[str, str]) -> Proof:
        """Check the signature of a request, before its body is read.

        Raises:
            Unauthorized: it has none, a wrong one, or was here before.
        """
        proof, sent = self.check_signature(method, path, headers.get(REQUEST, ""))
        self._window.admit(bytes.fromhex(proof.nonce), sent, self._clock())
        return proof

    def check_signature(self, method: str, path: str, signed: str) -> tuple[Proof, float]:
        """Check the signature of a request, and not that it is new.

        Args:
            method: such as POST.
            path: as it was signed.
            signed: the value of its header `REQUEST`.

        Returns:
            what it proves, and the time at which it was sent.

        Raises:
            Unauthorized: it has none, or a wrong one.
        """
        found = _REQUEST.fullmatch(signed)
        if found is None:
            raise Unauthorized(f"this service takes requests that are signed with its secret: {REQUEST}: {SCHEME} ...")
        node, sent, nonce, digest, signature = found.groups()
        if not hmac.compare_digest(signature, self._sign("request", method, path, node, sent, nonce, digest)):
            raise Unauthorized("the signature is not that of this request with the service's secret")
        return Proof(node, nonce, digest), int(sent) / 1000

    def sign_answer(self, nonce: str, status: int, digest: str) -> str:
        """The value of an answer's header `ANSWER`."""
        return f"{SCHEME} digest={digest}, signature={self._sign('answer', str(status), nonce, digest)}"

    def check_answer(self, nonce: str, status: int, headers: Mapping[str, str]) -> str:
        """Check the signature of an answer; returns the digest that its body must have.

        Raises:
            Unauthorized: it has none, or a wrong one.
        """
        found = _ANSWER.fullmatch(headers.get(ANSWER, ""))
        if found is None:
            raise Unauthorized("the answer is not signed: the peer does not have the secret, or something is between")
        digest, signature = found.groups()
        if not hmac.compare_digest(signature, self._sign("answer", str(status), nonce, digest)):
            raise Unauthorized("the answer's signature is not that of the secret")
        return digest

    def stream_key(self, way: str, client: str, service: str) -> bytes:
        """The key of the seals of a stream's messages.

        Args:
            way: who seals them, ``"client"`` or ``"service"``.
            client: the nonce of the request that opened it.
            service: the nonce of the answer.
        """
        return bytes.fromhex(self._sign("stream", way, client, service))

    def metrics_token(self) -> str:
        """The bearer token for `/metrics`: sent as ``Authorization: Bearer ...``."""
        return self._sign("metrics")

    def check_metrics(self, headers: Mapping[str, str]) -> None:
        """Check the bearer token of a request for metrics.

        Raises:
            Unauthorized: the token is missing or wrong.
        """
        given = headers.get(REQUEST, "").encode("utf-8", "surrogateescape")
        if self.signs and not hmac.compare_digest(given, f"Bearer {self.metrics_token()}".encode()):
            raise Unauthorized("metrics need the token that Security.metrics_token() gives: Authorization: Bearer ...")

    def _sign(self, *fields: str) -> str:
        return hmac.new(self._key, "\n".join(("FMX1", *fields)).encode(), hashlib.sha256).hexdigest()


def _tls_from(config: settings.Settings) -> Tls | None:
    named = {"FLOWMX_TLS_CERT": config.tls_cert, "FLOWMX_TLS_KEY": config.tls_key, "FLOWMX_TLS_CA": config.tls_ca}
    missing = [variable for variable, path in named.items() if not path]
    if len(missing) == len(named):
        return None
    if missing:
        raise settings.SettingError(f"mutual TLS takes three files; there is no {' and no '.join(missing)}")
    tls = Tls(config.tls_cert, config.tls_key, config.tls_ca, config.tls_check_hostname)
    try:
        tls.client()  # a file that is none shows now, and not at the first call
    except OSError as error:
        files = ", ".join(f"{variable}={path}" for variable, path in named.items())
        raise settings.SettingError(f"{files}: {error}") from error
    return tls


def digest_of(parts: Iterable[bytes]) -> str:
    """The digest of a body, from the SHA-256 of its head and of each of its tensors."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(part)
    return whole.hexdigest()


def check_digest(wanted: str, found: str) -> None:
    """Check a body's digest against the signed one.

    Raises:
        Unauthorized: they differ.
    """
    if not hmac.compare_digest(wanted, found):
        raise Unauthorized("the body is not the one that was signed: it was changed on its way")


def read_secret(path: str | Path) -> bytes:
    """The secret that a file holds; blanks and line ends around it do not count.

    Args:
        path: the file; ``/dev/fd/7`` is a file that this process has open, as the launcher's processes have.

    Raises:
        OSError: the file can not be read.
        ValueError: every user of the machine may read or write the file.
    """
    inherited = _INHERITED.fullmatch(str(path))
    descriptor = os.dup(int(inherited[1])) if inherited else os.open(path, os.O_RDONLY)
    try:
        mode = os.fstat(descriptor).st_mode
        if os.name == "posix" and stat.S_ISREG(mode) and mode & _OTHERS:
            raise ValueError(
                f"every user of this machine may read or write it ({stat.filemode(mode)}): chmod 600 {path}"
            )
        # At a place, so that processes that share an open file do not take it from each other.
        seekable = stat.S_ISREG(mode) and hasattr(os, "pread")
        return (os.pread(descriptor, _LONGEST, 0) if seekable else os.read(descriptor, _LONGEST)).strip()
    finally:
        os.close(descriptor)


def check_node(node: str) -> str:
    """Check the name of a node.

    Raises:
        ValueError: it has other characters than letters, digits, and ``. _ : -``, or more than 128.
    """
    if not _NODE.fullmatch(node):
        raise ValueError(f"a node is named by at most 128 letters, digits and . _ : - and not {node!r}")
    return node


def host_of(authority: str) -> str:
    """The host of ``host:port``, as a Host header has it; empty where that is none."""
    host = authority[1:].partition("]")[0] if authority.startswith("[") else authority.partition(":")[0]
    return host.lower()


def is_address(host: str) -> bool:
    """Tell whether a host is given by its number, which no page of another site can have lead elsewhere."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Tell whether an address (or "localhost") is a loopback address."""
    host = host.strip("[]").partition("%")[0]
    if host.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def check_address(host: str, security: Security | None) -> None:
    """Check that a service may be served on an address.

    Raises:
        InsecureAddress: other machines reach it, and there is neither a secret nor mutual TLS.
    """
    if security is None and not is_loopback(host):
        raise InsecureAddress(
            f"serving on {host!r}, which other machines may reach, takes a shared secret or mutual TLS: "
            "FLOWMX_SECRET_FILE or FLOWMX_TLS_CERT, _KEY and _CA for a job, Service(..., security=...) in a program; "
            "without, there is 127.0.0.1"
        )
