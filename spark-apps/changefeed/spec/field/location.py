"""`s3://` URIs: which bucket, which folder in it, at which endpoint. Text only: no I/O, and no credentials ever.

The parameters are those of TiCDC's storage URIs (facts, ticdc-compatibility 1.1) that say where a store is; the rest is
refused rather than ignored.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

S3_SCHEME = "s3://"
_BUCKET = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{1,254}")
_REGION = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_PARAMETERS = ("endpoint", "region", "force-path-style")
_PATH_STYLES = {"true": True, "1": True, "false": False, "0": False}
_FORM = "s3://bucket/folder, or s3://bucket/folder?endpoint=https://host:port&region=name"


@dataclass(frozen=True)
class S3Location:
    """`prefix`: the folder, without a slash at its ends, "" for the bucket itself; `endpoint`, `region` "": AWS's own.

    `path_style`: the bucket is the first part of a request's path, not of its host name.
    """

    bucket: str
    prefix: str
    endpoint: str = ""
    region: str = ""
    path_style: bool = True

    @property
    def uri(self) -> str:
        """The one spelling of this place: equal places have equal URIs."""
        named = {"endpoint": self.endpoint, "region": self.region, "force-path-style": "" if self.path_style else "0"}
        query = urlencode({name: value for name, value in named.items() if value}, safe=":/")
        folder = f"/{quote(self.prefix)}" if self.prefix else ""
        return f"{S3_SCHEME}{self.bucket}{folder}" + (f"?{query}" if query else "")

    def below(self, *names: str) -> S3Location:
        """A folder in this one."""
        prefix = "/".join(name for name in (self.prefix, *names) if name)
        return S3Location(self.bucket, prefix, self.endpoint, self.region, self.path_style)

    def beside(self, suffix: str) -> S3Location:
        """A folder next to this one, named like it with `suffix` behind. Raises ValueError for a whole bucket."""
        if not self.prefix:
            raise ValueError("a folder in a bucket")
        return replace(self, prefix=self.prefix + suffix)


def parse_s3(uri: str) -> S3Location:
    """Raises ValueError that finishes the sentence "allowed: ..." and holds nothing of the URI."""
    try:
        parts = urlsplit(uri)
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=True) if parts.query else []
    except ValueError:
        raise ValueError(_FORM) from None
    if parts.scheme != "s3" or not _BUCKET.fullmatch(parts.netloc) or parts.fragment:
        raise ValueError(_FORM)
    query = dict(pairs)
    if len(query) != len(pairs) or not query.keys() <= set(_PARAMETERS):
        raise ValueError(f"{_FORM}; its parameters are {', '.join(_PARAMETERS)}, each once")
    region = query.get("region", "")
    if region and not _REGION.fullmatch(region):
        raise ValueError("a region such as us-east-1")
    style = query.get("force-path-style", "true").lower()
    if style not in _PATH_STYLES:
        raise ValueError("force-path-style=true or force-path-style=false")
    return S3Location(parts.netloc, _folder(parts), _endpoint(query.get("endpoint", "")), region, _PATH_STYLES[style])


def _folder(parts: SplitResult) -> str:
    folders = [part for part in unquote(parts.path).split("/") if part]
    if any(part in (".", "..") or not part.isprintable() for part in folders):
        raise ValueError(f"{_FORM}, without '.', '..' and control characters")
    return "/".join(folders)


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
