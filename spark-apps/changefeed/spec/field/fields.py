"""The kinds of value that the resource's fields take, each with the text that says what is allowed.

Every string and every list has an upper bound: the API server refuses rules over what could be endless.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated
from urllib.parse import SplitResult, urlsplit

from pydantic import PlainSerializer
from pydantic.config import JsonDict

from changefeed.spec.field.kind import (
    ALLOWED,
    RULES,
    TYPE,
    WRONG,
    WRONG_SECRET,
    FieldKind,
    cel_text,
    rule,
    wrong,
)
from changefeed.spec.field.location import BUCKET_SCHEMES, parse_bucket
from changefeed.spec.field.quantity import (
    DURATION_PATTERN,
    SIZE_PATTERN,
    format_duration,
    format_size,
    parse_duration,
    parse_size,
)

_DIGITS = "[0-9]{1,20}"
_MAX_U64 = (1 << 64) - 1
_LONGEST_QUANTITY = 32
_LONGEST_URI = 1024
_SECRET_NAME = "key|secret|token|passw|credential|signature"
_SECRET_PARAMETER = re.compile(f"(?i:{_SECRET_NAME}|^sig$|^sas)")
_NO_CREDENTIALS = "a URI without credentials; name a Secret instead: credentials: {secretRef: {name: ...}}"
_PD = r"https?://(?:[0-9A-Za-z._-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}/*"


def whole(low: int, high: int) -> FieldKind:
    """int in [low, high]."""
    allowed = f"a whole number from {low} to {high}"

    def check(value: object) -> int:
        if type(value) is int and low <= value <= high:
            return value
        raise wrong(allowed)

    width = "int32" if high < 1 << 31 else "int64"
    return FieldKind(check, {"format": width, "minimum": low, "maximum": high, ALLOWED: allowed})


def duration(low: str, high: str) -> FieldKind:
    """`Seconds` in [low, high]; "5s" in the resource."""
    allowed = f'a duration from {low} to {high}, such as "5s"'

    def check(value: object) -> float:
        try:
            short = isinstance(value, str) and len(value) <= _LONGEST_QUANTITY
            seconds = parse_duration(value) if isinstance(value, str) and short else -1.0
        except ValueError:
            seconds = -1.0
        if parse_duration(low) <= seconds <= parse_duration(high):
            return seconds
        raise wrong(allowed)

    cel = (
        f"self.matches({cel_text(_whole(DURATION_PATTERN))}) && duration(self) >= duration({cel_text(low)}) "
        f"&& duration(self) <= duration({cel_text(high)})"
    )
    return FieldKind(
        check, {"maxLength": _LONGEST_QUANTITY, TYPE: "duration", ALLOWED: allowed, RULES: [rule(cel, allowed)]}
    )


def size(low: str, high: str) -> FieldKind:
    """`Bytes` in [low, high]; "64Mi" in the resource."""
    allowed = f'a size from {low} to {high}, such as "64Mi"'

    def check(value: object) -> int:
        try:
            short = isinstance(value, str) and len(value) <= _LONGEST_QUANTITY
            number = value if type(value) is int else parse_size(value) if isinstance(value, str) and short else -1
        except ValueError:
            number = -1
        if parse_size(low) <= number <= parse_size(high):
            return number
        raise wrong(allowed)

    cel = (
        f"string(self).matches({cel_text(_whole(SIZE_PATTERN))}) "
        f"&& quantity(string(self)).compareTo(quantity({cel_text(low)})) >= 0 "
        f"&& quantity(string(self)).compareTo(quantity({cel_text(high)})) <= 0"
    )
    schema = {
        "type": None,
        "x-kubernetes-int-or-string": True,
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "maxLength": _LONGEST_QUANTITY,
        TYPE: "size",
        ALLOWED: allowed,
        RULES: [rule(cel, allowed)],
    }
    return FieldKind(check, schema)


def one_of(*allowed: str) -> FieldKind:
    """One of some words."""

    def check(value: object) -> str:
        if isinstance(value, str) and value in allowed:
            return value
        raise wrong(" | ".join(allowed))

    return FieldKind(check, {"enum": [*allowed], "maxLength": max(map(len, allowed)), ALLOWED: " | ".join(allowed)})


def text(pattern: str, allowed: str, longest: int) -> FieldKind:
    """str of at most `longest` characters that matches `pattern` as a whole; the pattern is one for Python and RE2."""
    compiled = re.compile(pattern)

    def check(value: object) -> str:
        if isinstance(value, str) and len(value) <= longest and compiled.fullmatch(value):
            return value
        raise wrong(allowed)

    schema = {"maxLength": longest, "pattern": _whole(pattern), ALLOWED: allowed, RULES: [_matches(pattern, allowed)]}
    return FieldKind(check, schema)


def many(low: int, high: int, allowed: str) -> FieldKind:
    """A list of low to high items."""

    def check(value: object) -> object:
        if isinstance(value, list | tuple) and not low <= len(value) <= high:
            raise wrong(allowed)
        return value

    bounds = {"minItems": low or None, "maxItems": high}
    return FieldKind(check, {**bounds, "x-kubernetes-list-type": "atomic", ALLOWED: allowed})


def later_than(one: str, other: str) -> str:
    """CEL: the ts `one` is above `other`. Compared as texts of 20 digits: CEL's int ends at 2^63."""
    return f"{_padded(one)} > {_padded(other)}"


def _padded(digits: str) -> str:
    return f"('{'0' * 20}' + {digits}).substring(size({digits}))"


def _whole(pattern: str) -> str:
    return f"^(?:{pattern})$"


def _matches(pattern: str, allowed: str) -> JsonDict:
    return rule(f"self.matches({cel_text(_whole(pattern))})", allowed)


def _u64(allowed: str) -> FieldKind:
    """A number below 2^64 as text: JSON's numbers lose digits above 2^53."""

    def check(value: object) -> int:
        if isinstance(value, str) and re.fullmatch(_DIGITS, value) and int(value) <= _MAX_U64:
            return int(value)
        raise wrong(allowed)

    cel = f"self.matches('^{_DIGITS}$') && {_padded('self')} <= '{_MAX_U64}'"
    schema = {"pattern": f"^{_DIGITS}$", "maxLength": 20, TYPE: "digits", ALLOWED: allowed}
    return FieldKind(check, {**schema, RULES: [rule(cel, allowed)]})


def _flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise wrong("true | false")


def _pd_address() -> FieldKind:
    allowed = 'an address such as "http://127.0.0.1:2379"'
    bare = f"{allowed}, with no credentials and no query in it"

    def check(value: object) -> str:
        if not isinstance(value, str):
            raise wrong(allowed)
        if "@" in value or "?" in value:
            raise wrong(bare, WRONG_SECRET)
        if len(value) > _LONGEST_URI or not re.fullmatch(_PD, value) or not 0 < _port(value) < 1 << 16:
            raise wrong(allowed)
        return value.rstrip("/")

    port = "int(url(self).getPort())"
    rules = [
        rule("!self.contains('@') && !self.contains('?')", bare),
        rule(f"self.matches({cel_text(_whole(_PD))}) && {port} > 0 && {port} < 65536", allowed),
    ]
    return FieldKind(check, {"maxLength": _LONGEST_URI, TYPE: "URI", ALLOWED: allowed, RULES: rules})


def _port(address: str) -> int:
    return int(address.rstrip("/").rpartition(":")[2])


def _without_credentials() -> JsonDict:
    cel = f"!self.matches('^[^/?#]*//[^/?#]*@') && !self.matches('(?i)[?&]([^=&#]*({_SECRET_NAME})|sig[=&#]|sig$|sas)')"
    return rule(cel, _NO_CREDENTIALS)


_BUCKET = "[0-9A-Za-z][0-9A-Za-z._-]{1,254}(/[^?#]*)?"
_IN_BUCKETS = {
    "s3": rf"^s3://{_BUCKET}([?][^#]*)?$",
    "az": rf"^az://{_BUCKET}[?]([^#]*&)?account-name=[^&#]+(&[^#]*)?$",
    "gs": rf"^gs://{_BUCKET}([?][^#]*)?$",
}


def _location(allowed: str, schemes: Sequence[str], plain: bool = False) -> FieldKind:
    """`schemes`: of object stores. `plain`: without a storage class, an encryption or headers."""

    def check(value: object) -> str:
        if not isinstance(value, str) or len(value) > _LONGEST_URI:
            raise wrong(allowed)
        parts = _checked_split(value, allowed)
        if parts.scheme in schemes:
            try:
                location = parse_bucket(value)
            except ValueError as e:
                raise wrong(str(e), WRONG_SECRET if parts.query else WRONG) from None
            if plain and (location.storage_class or location.sse or location.headers):
                raise wrong(f"{allowed}, without storage-class, sse and header-...: the catalog writes without them")
            return value.rstrip("/")
        if parts.scheme != "file":
            raise wrong(allowed)
        folders = [part for part in parts.path.split("/") if part not in ("", ".")]
        if parts.netloc not in ("", ".") or not folders or ".." in folders or set("?#") & set(value):
            raise wrong(allowed)
        return value.rstrip("/")

    folder = "self.matches('^file://[.]?/[^?#]*$') && self.split('/').exists(p, !(p in ['', '.', 'file:']))"
    forms = " || ".join([f"({folder})", *(f"self.matches({cel_text(_IN_BUCKETS[scheme])})" for scheme in schemes)])
    cel = f"({forms}) && !self.matches('^[^?#]*/[.][.](/|[?]|$)')"
    rules = [_without_credentials(), rule(cel, allowed)]
    return FieldKind(check, {"maxLength": _LONGEST_URI, TYPE: "URI", ALLOWED: allowed, RULES: rules})


#: Of a cluster, behind the first.
_OTHER_HOSTS = re.compile(r"(?:,[^,/@\s]+:\d{1,5})+(?=/|$)")


def server(scheme: str, allowed: str) -> FieldKind:
    """The URI of a server, `scheme`://host:port and what follows, or of several; without credentials."""
    return server_of((scheme,), allowed)


def server_of(schemes: tuple[str, ...], allowed: str) -> FieldKind:
    """Make a field as `server` does, for one of several schemes."""

    def check(value: object) -> str:
        if not isinstance(value, str) or len(value) > _LONGEST_URI:
            raise wrong(allowed)
        if _checked_split(_OTHER_HOSTS.sub("", value), allowed).scheme not in schemes:
            raise wrong(allowed)
        return value

    named = [f"self.startsWith('{scheme}://') && size(self) > {len(scheme) + 3}" for scheme in schemes]
    form = rule(" || ".join(named), allowed)
    rules = [_without_credentials(), form]
    return FieldKind(check, {"maxLength": _LONGEST_URI, TYPE: "URI", ALLOWED: allowed, RULES: rules})


def _checked_split(uri: str, allowed: str) -> SplitResult:
    """The parts of a URI that holds no credentials."""
    try:
        parts = urlsplit(uri)
        _ = parts.port
    except ValueError as e:
        raise wrong(allowed, WRONG_SECRET) from e
    names = [pair.partition("=")[0] for pair in parts.query.split("&")]
    if "@" in parts.netloc or any(_SECRET_PARAMETER.search(name) for name in names):
        raise wrong(_NO_CREDENTIALS, WRONG_SECRET)
    return parts


Seconds = Annotated[float, PlainSerializer(format_duration, return_type=str)]
Bytes = Annotated[int, PlainSerializer(format_size, return_type=str)]
Flag = Annotated[bool, FieldKind(_flag, {ALLOWED: "true | false"})]
Ts = Annotated[
    int,
    PlainSerializer(str, return_type=str),
    _u64("a ts: a string of 1 to 20 digits, in quotes, below 2^64"),
]
ClusterId = Annotated[
    int,
    PlainSerializer(str, return_type=str),
    _u64("the cluster id that PD gives: a string of 1 to 20 digits, in quotes"),
]
PdAddress = Annotated[str, _pd_address()]
_FOLDERS = "file:///absolute/path, file://./relative/path"
#: A location of objects: a folder of this machine, or one of a bucket.
Location = Annotated[
    str,
    _location(
        f"{_FOLDERS}, s3://bucket/folder, az://container/folder?account-name=name or gs://bucket/folder",
        BUCKET_SCHEMES,
    ),
]
#: One that the libraries of Iceberg reach as well.
Warehouse = Annotated[str, _location(f"{_FOLDERS} or s3://bucket/folder", ["s3"], plain=True)]
