"""The kinds of value that the resource's fields take, each with the text that says what is allowed.

Every check raises `Wrong`, so that one report can name the field, the value and what would be right.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Final, Literal
from urllib.parse import SplitResult, urlsplit

from pydantic import BeforeValidator, PlainSerializer
from pydantic_core import PydanticCustomError

from changefeed.spec.location import S3_SCHEME, parse_s3
from changefeed.spec.quantity import format_duration, format_size, parse_duration, parse_size

#: The types of the errors that our checks raise; their message is what is allowed.
WRONG: Final = "wrong"
WRONG_SECRET: Final = "wrong_secret"  # the value may hold a secret and must not be shown
NOT_YET: Final = "not_yet"  # a later version will take it

_TS = re.compile(r"[0-9]{1,20}")
_LATER_SCHEMES = ("gs", "gcs", "azure", "azblob")
_SECRET_PARAMETER = re.compile(r"key|secret|token|passw|credential|signature|^sig$|^sas", re.IGNORECASE)


def wrong(allowed: str, kind: Literal["wrong", "wrong_secret", "not_yet"] = WRONG) -> PydanticCustomError:
    """What a check raises: `allowed` finishes the sentence "allowed: ..."."""
    return PydanticCustomError(kind, "{allowed}", {"allowed": allowed})


def whole(low: int, high: int) -> BeforeValidator:
    """int in [low, high]."""

    def check(value: object) -> int:
        if type(value) is int and low <= value <= high:
            return value
        raise wrong(f"a whole number from {low} to {high}")

    return BeforeValidator(check)


def duration(low: str, high: str) -> BeforeValidator:
    """`Seconds` in [low, high]; "5s" in the resource."""

    def check(value: object) -> float:
        try:
            seconds = parse_duration(value) if isinstance(value, str) else -1.0
        except ValueError:
            seconds = -1.0
        if parse_duration(low) <= seconds <= parse_duration(high):
            return seconds
        raise wrong(f'a duration from {low} to {high}, such as "5s"')

    return BeforeValidator(check)


def size(low: str, high: str) -> BeforeValidator:
    """`Bytes` in [low, high]; "64Mi" in the resource."""

    def check(value: object) -> int:
        try:
            number = value if type(value) is int else parse_size(value) if isinstance(value, str) else -1
        except ValueError:
            number = -1
        if parse_size(low) <= number <= parse_size(high):
            return number
        raise wrong(f'a size from {low} to {high}, such as "64Mi"')

    return BeforeValidator(check)


def one_of(*allowed: str, later: tuple[str, ...] = ()) -> BeforeValidator:
    """One of some words; `later` are those that a coming version will take."""

    def check(value: object) -> str:
        if isinstance(value, str) and value in allowed:
            return value
        raise wrong(" | ".join(allowed), NOT_YET if value in later else WRONG)

    return BeforeValidator(check)


def text(pattern: str, allowed: str) -> BeforeValidator:
    """str that matches `pattern` as a whole."""
    compiled = re.compile(pattern)

    def check(value: object) -> str:
        if isinstance(value, str) and compiled.fullmatch(value):
            return value
        raise wrong(allowed)

    return BeforeValidator(check)


def not_yet(allowed: str, empty: Callable[[object], bool]) -> BeforeValidator:
    """Takes nothing but the empty value for now: ignoring the rest would change what is written."""

    def check(value: object) -> object:
        if empty(value):
            return value
        raise wrong(allowed, NOT_YET)

    return BeforeValidator(check)


def _flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise wrong("true | false")


def _ts(value: object) -> int:
    if isinstance(value, str) and _TS.fullmatch(value) and int(value) < 1 << 64:
        return int(value)
    raise wrong("a ts: a string of 1 to 20 digits, in quotes, below 2^64")


def _cluster_id(value: object) -> int:
    if isinstance(value, str) and _TS.fullmatch(value) and int(value) < 1 << 64:
        return int(value)
    raise wrong("the cluster id that PD gives: a string of 1 to 20 digits, in quotes")


def _pd_address(value: object) -> str:
    allowed = 'an address such as "http://127.0.0.1:2379"'
    if not isinstance(value, str):
        raise wrong(allowed)
    parts = _split(value, allowed)
    if parts.username is not None or parts.query:
        raise wrong(f"{allowed}, with no credentials and no query in it", WRONG_SECRET)
    if parts.scheme not in ("http", "https") or not parts.hostname or not parts.port or parts.path.strip("/"):
        raise wrong(allowed)
    return value.rstrip("/")


def _location(value: object) -> str:
    allowed = "file:///absolute/path, file://./relative/path or s3://bucket/folder"
    if not isinstance(value, str):
        raise wrong(allowed)
    parts = _split(value, allowed)
    names = [pair.partition("=")[0] for pair in parts.query.split("&")]
    if "@" in parts.netloc or any(_SECRET_PARAMETER.search(name) for name in names):
        raise wrong(
            "a URI without credentials; name a Secret instead: credentials: {secretRef: {name: ...}}", WRONG_SECRET
        )
    if value.startswith(S3_SCHEME):
        try:
            parse_s3(value)
        except ValueError as e:
            raise wrong(str(e), WRONG_SECRET if parts.query else WRONG) from None
        return value.rstrip("/")
    if parts.scheme != "file":
        raise wrong(allowed, NOT_YET if parts.scheme in _LATER_SCHEMES else WRONG)
    folders = [part for part in parts.path.split("/") if part not in ("", ".")]
    if parts.netloc not in ("", ".") or not folders or ".." in folders or parts.query or parts.fragment:
        raise wrong(allowed)
    return value.rstrip("/")


def _split(value: str, allowed: str) -> SplitResult:
    try:
        parts = urlsplit(value)
        _ = parts.port
    except ValueError as e:
        raise wrong(allowed, WRONG_SECRET) from e
    return parts


Seconds = Annotated[float, PlainSerializer(format_duration, return_type=str)]
Bytes = Annotated[int, PlainSerializer(format_size, return_type=str)]
Flag = Annotated[bool, BeforeValidator(_flag)]
Ts = Annotated[int, BeforeValidator(_ts), PlainSerializer(str, return_type=str)]
ClusterId = Annotated[int, BeforeValidator(_cluster_id), PlainSerializer(str, return_type=str)]
PdAddress = Annotated[str, BeforeValidator(_pd_address)]
#: A place of objects: a folder of this machine, or one of an S3 bucket.
Location = Annotated[str, BeforeValidator(_location)]
