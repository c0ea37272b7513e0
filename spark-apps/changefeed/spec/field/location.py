"""URIs of object stores: which bucket and folder, at which endpoint. Text only: no I/O, and no credentials.

The parameters are those of TiCDC's storage URIs that say where a store is and how it
keeps objects; the rest is refused rather than ignored. A container of Azure is a bucket here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import Final
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

_BUCKET = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{1,254}")
#: In a part of a name: Azure takes a backslash for a slash and drops a dot at the end, so two names would be one.
FOLDED_BY_AZURE = re.compile(r"\\|\.$")
_PATH_STYLES = {"true": True, "1": True, "false": False, "0": False}
#: Scheme -> its parameters.
_PARAMETERS: Final = {
    "s3": ("endpoint", "region", "force-path-style", "storage-class", "sse", "sse-kms-id"),
    "az": ("endpoint", "account-name", "force-path-style", "storage-class"),
    "gs": ("endpoint", "storage-class"),
}
#: Further headers of each request: parameters `header-<name>`. What makes a write conditional, frames or signs a
#: request or says who asks is not another's to say. S3 and Azure want their own ones signed; a listing has them not.
_HEADER = "header-"
_HEADER_NAME = re.compile(
    r"(?!(?:x-amz-|x-ms-|x-goog-(?!user-project$)|if-|content-|proxy-)"
    r"|(?:authorization|connection|cookie|date|expect|host|range|te|trailer|transfer-encoding|upgrade)$)"
    r"[a-z][a-z0-9-]{0,62}"
)
_HEADER_VALUE = re.compile(r"[!-~](?:[ -~]{0,254}[!-~])?")
_HEADERS = 8
_HEADER_ALLOWED = (
    f"{_HEADER}name=value, at most {_HEADERS}: a name in small letters that is no header of the store's protocol, such "
    "as header-x-tenant=shop; a value of printable ASCII"
)
_FORM: Final = {
    "s3": "s3://bucket/folder, or s3://bucket/folder?endpoint=https://host:port&region=name",
    "az": "az://container/folder?account-name=name",
    "gs": "gs://bucket/folder",
}
BUCKET_SCHEMES = tuple(_PARAMETERS)
#: Parameter -> what it may be, and the end of "allowed: ...".
_FORMS = {
    "region": (re.compile(r"[a-z0-9][a-z0-9-]{0,62}"), "a region such as us-east-1"),
    "account-name": (re.compile(r"[a-z0-9]{3,24}"), "account-name=, 3 to 24 small letters and digits"),
    "storage-class": (
        re.compile(r"(?!(?i:GLACIER|DEEP_ARCHIVE|Archive)$)[A-Za-z][A-Za-z_]{1,31}"),
        "a storage-class that can be read at once, such as STANDARD_IA",
    ),
    "sse": (re.compile(r"AES256|aws:kms"), "sse=AES256 or sse=aws:kms"),
    "sse-kms-id": (re.compile(r"[A-Za-z0-9:/_-]{1,256}"), "sse-kms-id=, the id or ARN of a key of KMS"),
}


@dataclass(frozen=True)
class BucketLocation:
    """A folder of a bucket, and how its store is reached.

    `prefix`: the folder, without a slash at its ends, "" for the bucket itself. "": the cloud's own, or its default.

    `account`: Azure's, and never "" there, since a container is one of an account. `path_style`: S3's bucket, or
    Azure's account, is the first part of a request's path, not of its host name; without an endpoint Azure's never is.
    """

    scheme: str
    bucket: str
    prefix: str
    endpoint: str = ""
    region: str = ""
    account: str = ""
    path_style: bool = True
    storage_class: str = ""
    sse: str = ""
    sse_kms_id: str = ""
    headers: tuple[tuple[str, str], ...] = ()  # (name, value), sorted: of each request, beside the store's own

    @property
    def uri(self) -> str:
        """Return the one spelling of this location: equal locations have equal URIs."""
        named = {
            "endpoint": self.endpoint,
            "region": self.region,
            "account-name": self.account,
            "force-path-style": "" if self.path_style else "0",
            "storage-class": self.storage_class,
            "sse": self.sse,
            "sse-kms-id": self.sse_kms_id,
            **{f"{_HEADER}{name}": value for name, value in self.headers},
        }
        query = urlencode({name: value for name, value in named.items() if value}, safe=":/")
        folder = f"/{quote(self.prefix)}" if self.prefix else ""
        return f"{self.scheme}://{self.bucket}{folder}" + (f"?{query}" if query else "")

    def below(self, *names: str) -> BucketLocation:
        """A folder in this one."""
        return replace(self, prefix="/".join(name for name in (self.prefix, *names) if name))

    def beside(self, suffix: str) -> BucketLocation:
        """A folder next to this one, named like it with `suffix` behind. Raises ValueError for a whole bucket."""
        if not self.prefix:
            raise ValueError("a folder in a bucket")
        return replace(self, prefix=self.prefix + suffix)


def in_bucket(uri: str) -> bool:
    """Tell whether a URI is in an object store."""
    return uri.startswith(tuple(f"{scheme}://" for scheme in BUCKET_SCHEMES))


def parse_bucket(uri: str) -> BucketLocation:
    """Raises ValueError that finishes the sentence "allowed: ..." and holds nothing of the URI."""
    scheme = uri.partition("://")[0]
    if scheme not in _PARAMETERS:
        raise ValueError(" or ".join(_FORM.values()))
    known = _PARAMETERS[scheme]
    form = _FORM[scheme]
    try:
        parts = urlsplit(uri)
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=True) if parts.query else []
    except ValueError:
        raise ValueError(form) from None
    if not _BUCKET.fullmatch(parts.netloc) or parts.fragment:
        raise ValueError(form)
    query = dict(pairs)
    headers = {name: query.pop(name) for name in tuple(query) if name.startswith(_HEADER)}
    if len(query) + len(headers) != len(pairs) or not query.keys() <= set(known):
        raise ValueError(f"{form}; its parameters are {', '.join(known)} and {_HEADER}..., each once")
    for name, (pattern, allowed) in _FORMS.items():
        if query.get(name) and not pattern.fullmatch(query[name]):
            raise ValueError(allowed)
    style = query.get("force-path-style", "true").lower()
    if style not in _PATH_STYLES:
        raise ValueError("force-path-style=true or force-path-style=false")
    if scheme == "az" and not query.get("account-name"):
        raise ValueError(form)
    if query.get("sse-kms-id") and query.get("sse") != "aws:kms":
        raise ValueError("sse-kms-id with sse=aws:kms")
    return BucketLocation(
        scheme,
        parts.netloc,
        _folder(parts, form),
        endpoint=_endpoint(query.get("endpoint", "")),
        region=query.get("region", ""),
        account=query.get("account-name", ""),
        path_style=_PATH_STYLES[style],
        storage_class=query.get("storage-class", ""),
        sse=query.get("sse", ""),
        sse_kms_id=query.get("sse-kms-id", ""),
        headers=_headers(headers),
    )


def _folder(parts: SplitResult, form: str) -> str:
    folders = [part for part in unquote(parts.path).split("/") if part]
    if any(part in (".", "..") or not part.isprintable() for part in folders):
        raise ValueError(f"{form}, without '.', '..' and control characters")
    if parts.scheme == "az" and any(FOLDED_BY_AZURE.search(part) for part in folders):
        raise ValueError(f"{form}, without backslashes, and dots at the end of a folder's name")
    return "/".join(folders)


def _headers(parameters: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    headers = sorted((name.removeprefix(_HEADER), value) for name, value in parameters.items())
    fit = all(_HEADER_NAME.fullmatch(name) and _HEADER_VALUE.fullmatch(value) for name, value in headers)
    if not fit or len(headers) > _HEADERS:
        raise ValueError(_HEADER_ALLOWED)
    return tuple(headers)


def _endpoint(endpoint: str) -> str:
    if not endpoint:
        return ""
    allowed = "an endpoint such as https://host:port, with nothing behind it"
    try:
        parts = urlsplit(endpoint)
        _ = parts.port
    except ValueError:
        raise ValueError(allowed) from None
    plain = not (parts.path.strip("/") or parts.query or parts.fragment or parts.username or parts.password)
    if parts.scheme not in ("http", "https") or not parts.hostname or not plain:
        raise ValueError(allowed)
    return endpoint.rstrip("/")


def is_this_machine(host: str) -> bool:
    """Tell whether what is sent there leaves no machine."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:  # a name: also a Service's is another machine's
        return False
