"""Azure Blob Storage: If-None-Match and If-Match; a container is a bucket."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from obstore.store import AzureStore

from changefeed.objectstore.remote.secret import azure_credentials
from changefeed.objectstore.remote.service import Service
from changefeed.spec.field.location import FOLDED_BY_AZURE, BucketLocation


def _open(location: BucketLocation, secret: Path | None, common: Mapping[str, Any]) -> Any:
    account = location.account
    options: dict[str, Any] = {"account_name": account}
    if location.endpoint:
        scheme, _, host = location.endpoint.partition("://")
        options["endpoint"] = f"{scheme}://{host}/{account}" if location.path_style else f"{scheme}://{account}.{host}"
    if secret is not None:
        options["credential_provider"] = azure_credentials(secret)
    return AzureStore(location.bucket, **common, **options)


AZURE = Service(
    open=_open,
    version="e_tag",
    bucket="container",
    unfit=FOLDED_BY_AZURE,
    conditions="Azure's conditional headers",
    allow="Give the identity the role Storage Blob Data Contributor on the container, or name another.",
    credentials="Look at the files of the Secret that credentials.secretRef names, below --secrets-dir; without them "
    "at the pod's workload identity (AZURE_CLIENT_ID, AZURE_TENANT_ID, AZURE_FEDERATED_TOKEN_FILE).",
    taken=frozenset({"BlobAlreadyExists"}),
    gone=frozenset({"BlobNotFound"}),
    locked=frozenset({"LeaseIdMissing"}),
    no_bucket=frozenset({"ContainerNotFound"}),
    bad_credentials=frozenset({"AuthenticationFailed", "InvalidAuthenticationInfo", "NoAuthenticationInformation"}),
    not_allowed=frozenset({"AuthorizationPermissionMismatch", "InsufficientAccountPermissions"}),
    cut_short=frozenset({"Md5Mismatch"}),
)
