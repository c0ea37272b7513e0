"""The files of Secrets, read on each use: they may be replaced at any time (rule 21)."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import NamedTuple

from changefeed.errors import Refused

_SHORTEST_KEY, _LONGEST_KEY = 16, 4096  # bytes


class TlsFiles(NamedTuple):
    """Paths of PEM files: whose signature the server's certificate has, and our own certificate and key, if any."""

    ca: Path
    certificate: Path | None = None
    key: Path | None = None


def user_and_password(folder: Path) -> tuple[str, str]:
    """Raises Refused."""
    user, password = (_read(folder, name) for name in ("username", "password"))
    return user, password


def hash_key(folder: Path) -> bytes:
    """The key of hashes of masked columns, without the newline that editors put behind it. Raises Refused."""
    try:
        key = _file(folder, "key").read_bytes().rstrip(b"\r\n")
    except OSError:
        raise _missing(folder, "key") from None
    if not _SHORTEST_KEY <= len(key) <= _LONGEST_KEY:
        raise Refused(
            f"The key of Secret {folder.name} has {len(key)} bytes; allowed: {_SHORTEST_KEY} to {_LONGEST_KEY}.",
            "Give it one that nobody can guess, as `openssl rand -hex 32` makes it.",
        )
    return key


def tls_files(folder: Path) -> TlsFiles:
    """Raises Refused."""
    ca, certificate, key = (_file(folder, name) for name in ("ca.crt", "tls.crt", "tls.key"))
    if not ca.exists():
        raise _missing(folder, "ca.crt")
    return TlsFiles(ca, certificate, key) if certificate.exists() and key.exists() else TlsFiles(ca)


def tls_context(folder: Path) -> ssl.SSLContext:
    """Trusts the CA alone, for the name that is connected to. Raises Refused."""
    ca, certificate, key = tls_files(folder)
    try:
        context = ssl.create_default_context(cafile=ca)
        if certificate is not None:
            context.load_cert_chain(certificate, key, password="")  # else it asks the terminal
    except (OSError, ValueError) as error:
        raise Refused(
            f"The files of Secret {folder.name} at {folder} can't be used for TLS: {type(error).__name__}.",
            "Look at ca.crt, tls.crt and tls.key: each must be PEM, and the key must be that of the certificate.",
        ) from None
    return context


def _read(folder: Path, name: str) -> str:
    try:
        return _file(folder, name).read_text().rstrip("\n")
    except OSError:
        raise _missing(folder, name) from None


def _file(folder: Path, name: str) -> Path:
    # Kubernetes replaces all files of a Secret at once, by turning this link to another folder.
    link = folder / "..data"
    return (link.resolve() if link.exists() else folder) / name


def _missing(folder: Path, name: str) -> Refused:
    return Refused(f"Secret {folder.name} has no {name} at {folder}.", f"Give the Secret the key {name}.")


def optional(folder: Path, name: str) -> str | None:
    """None: the Secret has no such key."""
    file = _file(folder, name)
    return file.read_text().strip() if file.exists() else None
