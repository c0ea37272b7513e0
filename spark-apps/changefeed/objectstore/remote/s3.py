"""S3 and compatible stores: If-None-Match and If-Match."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from obstore.store import S3Store

from changefeed.objectstore.remote.secret import s3_credentials
from changefeed.objectstore.remote.service import ANY_NAME, Service
from changefeed.spec.field.location import BucketLocation

_DEFAULT_REGION = "us-east-1"


def _open(location: BucketLocation, secret: Path | None, common: Mapping[str, Any]) -> Any:
    options: dict[str, Any] = {}
    if location.endpoint:
        scheme, _, host = location.endpoint.partition("://")
        address = location.endpoint if location.path_style else f"{scheme}://{location.bucket}.{host}"
        options = {"endpoint": address, "region": _DEFAULT_REGION}
    if location.region:
        options["region"] = location.region
    if location.sse:
        options["server_side_encryption"] = location.sse
    if location.sse_kms_id:
        options["sse_kms_key_id"] = location.sse_kms_id
    if secret is not None:
        options["credential_provider"] = s3_credentials(secret)
    return S3Store(location.bucket, virtual_hosted_style_request=not location.path_style, **common, **options)


S3 = Service(
    open=_open,
    version="e_tag",
    bucket="bucket",
    unfit=ANY_NAME,
    conditions="S3's conditional writes",
    allow="Allow s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket there to the user of its credentials, "
    "or name others.",
    credentials="Look at the files of the Secret that credentials.secretRef names, below --secrets-dir; without them "
    "at AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.",
    gone=frozenset({"NoSuchKey"}),
    no_bucket=frozenset({"NoSuchBucket"}),
    bad_credentials=frozenset(
        {
            "AllAccessDisabled",
            "ExpiredToken",
            "InvalidAccessKeyId",
            "InvalidToken",
            "SignatureDoesNotMatch",
            "XAdminUserNotFound",  # versitygw's InvalidAccessKeyId
        }
    ),
    not_allowed=frozenset({"AccessDenied"}),
    other_region=frozenset({"AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "PermanentRedirect"}),
    cut_short=frozenset(
        {"BadDigest", "IncompleteBody", "RequestTimeout", "XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch"}
    ),
)
