"""Authentication of peers: signatures with a shared secret, mutual TLS, and the addresses that require them.

The signature of a request covers its method, path, node, time, nonce and the digest of its body. The service verifies
it before it reads the body, and then compares the body's digest. The signature of a response covers the nonce of its
request. `docs/wire.md` has the details and an example.
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
from flowmx.comm.replay_protection import ReplayWindow

__all__ = [
    "ANSWER", "REQUEST", "InsecureAddress", "Proof", "Security", "Tls", "digest_of", "host_of", "is_address",
    "is_loopback", "read_secret",
]  # fmt: skip

REQUEST, ANSWER = "Authorization", "Flowmx-Signature"
SCHEME = "FMX1-HMAC-SHA256"
MIN_SECRET = 16
_MAX_SECRET = 4096
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
    """An attempt to serve on an address that other machines can reach, without a secret or mutual TLS."""


class Proof(NamedTuple):
    """The facts that a request's signature proves.

    Attributes:
        node: the sender.
        nonce: the request's nonce, which is part of the response's signature too.
        digest: the digest that the body must have.
    """

    node: str
    nonce: str
    digest: str


@dataclass(frozen=True)
class Tls:
    """Mutual TLS: both sides present a certificate of the same authority.

    Args:
        certificate: PEM file of this node's certificate (with intermediate certificates).
        key: PEM file of the certificate's private key.
        authority: PEM file of the authority's certificates, which must have issued the certificates of peers.
        check_hostname: whether a service's certificate must be for the address that clients use.
    """

    certificate: str | Path
    key: str | Path
    authority: str | Path
    check_hostname: bool = True

    def server(self) -> ssl.SSLContext:
        """Return the TLS context of a service."""
        return self._context(ssl.PROTOCOL_TLS_SERVER)

    def client(self) -> ssl.SSLContext:
        """Return the TLS context of a client."""
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
    """The credentials of a service and its peers: sign and verify requests and responses.

    Args:
        secret: the secret of all nodes, at least 16 bytes; text is encoded as UTF-8.
        tls: certificates, instead of a secret or in addition to one.
        skew: maximum difference between clocks in seconds.
        nonces: maximum number of stored nonces, for the detection of repeated requests.
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
            raise ValueError("Security requires a secret, or certificates for mutual TLS")
        if key is not None and len(key) < MIN_SECRET:
            raise ValueError(
                f"the secret has {len(key)} bytes; it must have at least {MIN_SECRET}: `openssl rand -hex 32`"
            )
        self.tls = tls
        self.has_secret = key is not None
        self.secret = self._secret_key = key or b""
        self._clock = clock
        self._replay_window = ReplayWindow(skew, nonces, clock())

    @classmethod
    def from_file(cls, path: str | Path, tls: Tls | None = None) -> Security:
        """Create the credentials from the secret in a file; see :func:`read_secret`.

        Raises:
            OSError: the file cannot be read.
            ValueError: other users may read the file, or the secret is too short.
        """
        try:
            return cls(read_secret(path), tls=tls)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    @classmethod
    def from_settings(cls, secret_file: str = "") -> Security | None:
        """Return the Security that the settings define: ``FLOWMX_SECRET_FILE``, ``FLOWMX_TLS_...``, or both; else None.

        Args:
            secret_file: overrides the file of the settings.

        Raises:
            SettingError: a file cannot be read or is invalid, or only some of the TLS files are set.
        """
        config = settings.get()
        path, tls = secret_file or config.secret_file, _tls_from(config)
        try:
            return cls.from_file(path, tls) if path else cls(tls=tls) if tls else None
        except (OSError, ValueError) as error:
            raise settings.SettingError(f"FLOWMX_SECRET_FILE: {error}") from error

    def __repr__(self) -> str:
        return f"Security(secret={'***' if self.has_secret else None}, tls={self.tls!r})"

    def sign_request(self, method: str, path: str, node: str, digest: str) -> tuple[str, str]:
        """Sign a request.

        Returns:
            The nonce, and the value of the header `REQUEST`.
        """
        timestamp, nonce = str(int(self._clock() * 1000)), secrets.token_hex(16)
        signature = self._sign("request", method, path, node, timestamp, nonce, digest)
        return nonce, f"{SCHEME} node={node}, time={timestamp}, nonce={nonce}, digest={digest}, signature={signature}"

    def check_request(self, method: str, path: str, headers: Mapping[str, str]) -> Proof:
        """Check the signature of a request, before its body is read.

        Raises:
            Unauthorized: the signature is missing or wrong, or the request is a repetition.
        """
        proof, timestamp = self.check_signature(method, path, headers.get(REQUEST, ""))
        self._replay_window.admit(bytes.fromhex(proof.nonce), timestamp, self._clock())
        return proof

    def check_signature(self, method: str, path: str, signature_header: str) -> tuple[Proof, float]:
        """Check the signature of a request, but not whether it is a repetition.

        Args:
            method: such as POST.
            path: the signed path.
            signature_header: the value of the header `REQUEST`.

        Returns:
            The proof, and the time at which the request was sent.

        Raises:
            Unauthorized: the signature is missing or wrong.
        """
        match = _REQUEST.fullmatch(signature_header)
        if match is None:
            raise Unauthorized(
                f"this service requires requests that are signed with its secret: {REQUEST}: {SCHEME} ..."
            )
        node, timestamp, nonce, digest, signature = match.groups()
        if not hmac.compare_digest(signature, self._sign("request", method, path, node, timestamp, nonce, digest)):
            raise Unauthorized("the signature does not match this request and the service's secret")
        return Proof(node, nonce, digest), int(timestamp) / 1000

    def sign_response(self, nonce: str, status: int, digest: str) -> str:
        """Return the value of a response's header `ANSWER`."""
        return f"{SCHEME} digest={digest}, signature={self._sign('answer', str(status), nonce, digest)}"

    def check_response(self, nonce: str, status: int, headers: Mapping[str, str]) -> str:
        """Check the signature of a response; return the digest that its body must have.

        Raises:
            Unauthorized: the signature is missing or wrong.
        """
        match = _ANSWER.fullmatch(headers.get(ANSWER, ""))
        if match is None:
            raise Unauthorized(
                "the response is not signed: the peer does not have the secret, or a proxy removed the signature"
            )
        digest, signature = match.groups()
        if not hmac.compare_digest(signature, self._sign("answer", str(status), nonce, digest)):
            raise Unauthorized("the response's signature does not match the secret")
        return digest

    def stream_key(self, sender: str, client: str, service: str) -> bytes:
        """Return the key of the authentication codes of a stream's messages.

        Args:
            sender: the end that sends the messages, ``"client"`` or ``"service"``.
            client: the nonce of the request that opened the stream.
            service: the nonce of the response.
        """
        return bytes.fromhex(self._sign("stream", sender, client, service))

    def metrics_token(self) -> str:
        """Return the bearer token for `/metrics`: sent as ``Authorization: Bearer ...``."""
        return self._sign("metrics")

    def check_metrics(self, headers: Mapping[str, str]) -> None:
        """Check the bearer token of a request for metrics.

        Raises:
            Unauthorized: the token is missing or wrong.
        """
        token = headers.get(REQUEST, "").encode("utf-8", "surrogateescape")
        if self.has_secret and not hmac.compare_digest(token, f"Bearer {self.metrics_token()}".encode()):
            raise Unauthorized("metrics require the token of Security.metrics_token(): Authorization: Bearer ...")

    def _sign(self, *fields: str) -> str:
        return hmac.new(self._secret_key, "\n".join(("FMX1", *fields)).encode(), hashlib.sha256).hexdigest()


def _tls_from(config: settings.Settings) -> Tls | None:
    paths = {"FLOWMX_TLS_CERT": config.tls_cert, "FLOWMX_TLS_KEY": config.tls_key, "FLOWMX_TLS_CA": config.tls_ca}
    missing = [variable for variable, path in paths.items() if not path]
    if len(missing) == len(paths):
        return None
    if missing:
        raise settings.SettingError(f"mutual TLS requires three files; not set: {' and '.join(missing)}")
    tls = Tls(config.tls_cert, config.tls_key, config.tls_ca, config.tls_check_hostname)
    try:
        tls.client()  # report an invalid file now, not at the first call
    except OSError as error:
        files = ", ".join(f"{variable}={path}" for variable, path in paths.items())
        raise settings.SettingError(f"{files}: {error}") from error
    return tls


def digest_of(parts: Iterable[bytes]) -> str:
    """Return the digest of a body from the SHA-256 of its head and of each of its tensors."""
    total = hashlib.sha256()
    for part in parts:
        total.update(part)
    return total.hexdigest()


def check_digest(expected: str, actual: str) -> None:
    """Check a body's digest against the signed one.

    Raises:
        Unauthorized: the digests differ.
    """
    if not hmac.compare_digest(expected, actual):
        raise Unauthorized("the body does not match its signed digest: it was changed in transit")


def read_secret(path: str | Path) -> bytes:
    """Return the secret in a file, without surrounding whitespace.

    Args:
        path: the file; ``/dev/fd/7`` is an open file of this process, such as one inherited from the launcher.

    Raises:
        OSError: the file cannot be read.
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
        # At an offset, so that processes that share the open file do not consume it.
        seekable = stat.S_ISREG(mode) and hasattr(os, "pread")
        return (os.pread(descriptor, _MAX_SECRET, 0) if seekable else os.read(descriptor, _MAX_SECRET)).strip()
    finally:
        os.close(descriptor)


def check_node(node: str) -> str:
    """Check the name of a node.

    Raises:
        ValueError: it has characters other than letters, digits, and ``. _ : -``, or more than 128.
    """
    if not _NODE.fullmatch(node):
        raise ValueError(f"a node's name has at most 128 letters, digits and . _ : - and cannot be {node!r}")
    return node


def host_of(authority: str) -> str:
    """Return the host of ``host:port``, the value of a Host header."""
    host = authority[1:].partition("]")[0] if authority.startswith("[") else authority.partition(":")[0]
    return host.lower()


def is_address(host: str) -> bool:
    """Return whether a host is a numeric address, which is safe from DNS rebinding."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Return whether an address (or "localhost") is a loopback address."""
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
        InsecureAddress: other machines can reach it, and there is neither a secret nor mutual TLS.
    """
    if security is None and not is_loopback(host):
        raise InsecureAddress(
            f"serving on {host!r}, which other machines may reach, requires a shared secret or mutual TLS: "
            "FLOWMX_SECRET_FILE or FLOWMX_TLS_CERT, _KEY and _CA for a job, Service(..., security=...) in a program; "
            "without them, use 127.0.0.1"
        )
