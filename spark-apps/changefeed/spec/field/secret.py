"""The folders that have the files of the Secrets which a resource names: DIR/<secretRef.name>/KEY."""

from __future__ import annotations

from pathlib import Path

from changefeed.errors import InvalidSpec
from changefeed.spec.field.location import in_bucket
from changefeed.spec.field.section import Credentials, SinkTls

_FILES = "Give the folder DIR with a file DIR/{secret}/KEY for each key of it."


def secret_folder(field: str, named: Credentials | SinkTls | None, secrets_dir: Path | None) -> Path | None:
    """Return the folder of a Secret's files. Raises InvalidSpec without the folder of Secrets."""
    if named is None:
        return None
    secret = named.secret_ref.name
    if secrets_dir is None:
        raise InvalidSpec("--secrets-dir", f"missing; {field} names Secret {secret}", _FILES.format(secret=secret))
    return secrets_dir.absolute() / secret


def store_secret(uri: str, credentials: Credentials | None, secrets_dir: Path | None) -> Path | None:
    """The folder of a Secret's files, for a store. Without files, the environment's own credentials are used."""
    if not in_bucket(uri) or credentials is None or secrets_dir is None:
        return None
    return secrets_dir.absolute() / credentials.secret_ref.name
