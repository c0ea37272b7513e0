"""Secrets are files, `<dir>/<secretName>/<key>` (INTERFACES.md); what they hold goes to a client library only."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from changefeed.errors import NeedsHuman

_S3_KEYS = ("access-key-id", "secret-access-key")
_S3_TOKEN = "session-token"
_REREAD = timedelta(minutes=5)  # keys are rotated by replacing the files


def s3_credentials(folder: Path) -> Callable[[], dict[str, str | datetime | None]]:
    """What obstore calls for credentials, now and every few minutes. Raises NeedsHuman when a file can't be read."""

    def read() -> dict[str, str | datetime | None]:
        key_id, key = (_read(folder / name) for name in _S3_KEYS)
        token = _read(folder / _S3_TOKEN) if (folder / _S3_TOKEN).exists() else None
        # The library wants a moment of the wall clock; nothing of ours is decided by it.
        return {"access_key_id": key_id, "secret_access_key": key, "token": token, "expires_at": _in(_REREAD)}

    read()
    return read


def _read(file: Path) -> str:
    try:
        text = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise NeedsHuman(
            f"The credentials in {file} can't be read: {why}.",
            f"A Secret is a folder below --secrets-dir with the files {', '.join(_S3_KEYS)} and, if there is one, "
            f"{_S3_TOKEN}.",
        ) from None
    if not text:
        raise NeedsHuman(f"The file {file} is empty.", "Write the key into it.")
    return text


def _in(span: timedelta) -> datetime:
    return datetime.now(UTC) + span
