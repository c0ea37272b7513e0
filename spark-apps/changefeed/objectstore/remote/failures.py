"""Maps obstore's errors to what the caller should do; keeps only status, code and kind of their text.

A response body may quote keys and signatures, so it must never get into a message.
"""

from __future__ import annotations

import re

from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

from changefeed.errors import ChangefeedError, NeedsHuman, NotFound, OutcomeUnknown, Refused, Transient
from changefeed.objectstore.remote.service import Service

#: Raised by obstore: its own, FileNotFoundError for what is not there, ValueError for a name it doesn't take.
FAILURES = (BaseError, OSError)

_STATUS = re.compile(r"(?:status code:|\(code:) (\d{3})")  # the latter: of one object of a bulk delete
_CODE = re.compile(r"<Code>(\w{1,64})</Code>")
_KIND = re.compile(r"HttpError \{\s*kind: (\w+)")
_METADATA_SERVICE = re.compile(r"169\.254\.169\.254|fd00:ec2::254|security-credentials|metadata\.google\.internal")
_TOKEN_SERVICE = re.compile(r"/oauth2/v2\.0/token|oauth2\.googleapis\.com")
_KINDS = {"Connect": "no connection", "Timeout": "no answer in time", "Interrupted": "the connection broke"}
_MISTRUST = re.compile(r"InvalidCertificate\(\s*(\w+)")  # ours of theirs
_TRY_AGAIN = frozenset({408, 409, 416, 425, 429})  # 416: the object is shorter than was said


def name_taken(error: Exception, service: Service) -> bool:
    """Tell whether the store said that a create came too late. A conflict of two that are under way says nothing."""
    return isinstance(error, AlreadyExistsError) and (_status(error) == 412 or _code(error) in service.taken)


def changed_meanwhile(error: Exception, service: Service) -> bool:
    """Tell whether the store has said that a swap's object is another one by now, or none."""
    if not isinstance(error, AlreadyExistsError | PreconditionError | FileNotFoundError):
        return False
    status, code = _status(error), _code(error)
    return (status == 412 and code not in service.locked) or code in service.taken | service.gone


def meaning(error: Exception, doing: str, path: str, uri: str, service: Service, writes: bool) -> ChangefeedError:
    """Return the error that a client's failure means here.

    `doing`: the verb for messages; `writes`: something may have happened.
    """
    failure = _meaning(error, doing, path, uri, service, writes)
    failure.answered = failure.answered or _status(error) > 0
    return failure


def _meaning(error: Exception, doing: str, path: str, uri: str, service: Service, writes: bool) -> ChangefeedError:
    text = str(error)
    status, code = _status(error), _code(error)
    what = f"Cannot {doing} {path} in {uri}: "
    if code in service.no_bucket:
        bucket = uri.partition("://")[2].partition("?")[0].partition("/")[0]
        return Refused(
            f"{what}there is no {service.bucket} {bucket}.", f"Create it, or correct the {service.bucket} in the URI."
        )
    if _METADATA_SERVICE.search(text):
        return Refused(f"{what}there are no credentials.", service.credentials)
    refused = 400 <= status < 500 and status not in _TRY_AGAIN
    if refused and _TOKEN_SERVICE.search(text):
        return Refused(f"{what}the credentials were not exchanged for a token.", service.credentials)
    if code in service.bad_credentials | service.not_allowed or status in (401, 403):
        step = service.allow if code in service.not_allowed else service.credentials
        return Refused(f"{what}the store refuses the credentials ({_said(status, code)}).", step)
    if code in service.other_region or status == 301:
        return NeedsHuman(
            f"{what}the bucket is in another region ({_said(status, code)}).", "Add ?region=... to the URI."
        )
    if isinstance(error, FileNotFoundError) and not writes:
        return NotFound(f"There is no {path} in {uri}.")
    kind = _found(_KIND, text)
    why = _said(status, code) if status else _KINDS.get(kind, "the request failed")
    if (refused and code not in service.cut_short) or status == 501:
        return NeedsHuman(f"{what}{why}.", f"The store does not take that request: use one with {service.conditions}.")
    if why_not := _found(_MISTRUST, text):
        return Refused(
            f"{what}its certificate is not trusted ({why_not}).",
            "Put the CA into the Secret of the store's credentials, as ca.crt.",
        )
    if writes and kind != "Connect":
        return OutcomeUnknown(f"It is unknown whether {path} in {uri} was written: {why}.")
    return Transient(f"{what}{why}.", "Look at the store and the network to it.")


def _status(error: Exception) -> int:
    return int(_found(_STATUS, str(error)) or 0)


def _code(error: Exception) -> str:
    return _found(_CODE, str(error))


def _found(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return match[1] if match else ""


def _said(status: int, code: str) -> str:
    return f"it says {status} {code}".strip()
