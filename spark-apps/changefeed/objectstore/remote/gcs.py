"""Google Cloud Storage through its XML API: x-goog-if-generation-match, so a swap compares the generation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from obstore.store import GCSStore

from changefeed.objectstore.remote.secret import gcs_key
from changefeed.objectstore.remote.service import ANY_NAME, Service
from changefeed.spec.field.location import BucketLocation


def _open(location: BucketLocation, secret: Path | None, common: Mapping[str, Any]) -> Any:
    options: dict[str, Any] = {}
    if location.endpoint:
        options["base_url"] = location.endpoint
    if secret is not None:
        options["service_account"] = str(gcs_key(secret))
    return GCSStore(location.bucket, **common, **options)


GCS = Service(
    open=_open,
    version="version",
    bucket="bucket",
    unfit=ANY_NAME,
    conditions="x-goog-if-generation-match",
    allow="Give the identity the role Storage Object User on the bucket, or name another.",
    credentials="Look at the file service-account.json of the Secret that credentials.secretRef names, below "
    "--secrets-dir; without it at the application default credentials of the environment.",
    gone=frozenset({"NoSuchKey"}),
    no_bucket=frozenset({"NoSuchBucket"}),
    bad_credentials=frozenset({"AuthenticationRequired", "InvalidSecurity", "ExpiredToken"}),
    not_allowed=frozenset({"AccessDenied"}),
    cut_short=frozenset({"BadDigest", "IncompleteBody", "RequestTimeout"}),
)
