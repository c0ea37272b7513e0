"""Secrets are files, `<dir>/<secretName>/<key>`; their contents only go to a client library.

See docs/design/layouts.md, Secrets.
"""

from __future__ import annotations

import base64
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from changefeed.errors import NeedsHuman

_S3_KEYS = "access-key-id, secret-access-key and, if there is one, session-token"
_AZURE_KEYS = "account-key"
_GCS_KEYS = "service-account.json"
_CA = "ca.crt"
_REREAD = timedelta(minutes=5)  # keys are rotated by replacing the files

#: What obstore calls for credentials, now and every few minutes.
Provider = Callable[[], dict[str, str | datetime | None]]


def s3_credentials(folder: Path) -> Provider:
    """Raises NeedsHuman when a file can't be read."""

    def read() -> dict[str, str | datetime | None]:
        key_id, key = (_read(folder / name, _S3_KEYS) for name in ("access-key-id", "secret-access-key"))
        token = _read(folder / "session-token", _S3_KEYS) if (folder / "session-token").exists() else None
        return {"access_key_id": key_id, "secret_access_key": key, "token": token, "expires_at": _soon()}

    read()
    return read


def azure_credentials(folder: Path) -> Provider:
    """Raises NeedsHuman when the file can't be read or holds no key."""

    def read() -> dict[str, str | datetime | None]:
        key = _read(folder / "account-key", _AZURE_KEYS)
        try:
            base64.b64decode(key, validate=True)
        except ValueError:
            raise NeedsHuman(
                f"The file {folder / 'account-key'} holds no key of a storage account.", "Write key1 or key2 into it."
            ) from None
        return {"access_key": key, "expires_at": _soon()}

    read()
    return read


def gcs_key(folder: Path) -> Path:
    """The file of a service account's key, which the client reads when it is made. Raises NeedsHuman."""
    file = folder / "service-account.json"
    _read(file, _GCS_KEYS)
    return file


def private_cas(folder: Path | None) -> dict[str, str]:
    """Give a client's option that has it trust the Secret's CAs beside the system's; nothing if the Secret has none.

    Raises NeedsHuman.
    """
    file = folder / _CA if folder is not None else None
    if file is None or not file.exists():
        return {}
    text = _read(file, _CA)
    try:
        ssl.create_default_context(cadata=text)
    except (ssl.SSLError, ValueError):
        raise NeedsHuman(f"The file {file} holds no certificate.", "Write the CA's into it, in PEM.") from None
    return {"root_certificate": text}


def _read(file: Path, keys: str) -> str:
    try:
        text = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise NeedsHuman(
            f"The credentials in {file} can't be read: {why}.",
            f"A Secret is a folder below --secrets-dir with the files {keys}.",
        ) from None
    if not text:
        raise NeedsHuman(f"The file {file} is empty.", "Write the key into it.")
    return text


def _soon() -> datetime:
    """The library wants a moment of the wall clock; nothing of ours is decided by it."""
    return datetime.now(UTC) + _REREAD
