"""A client for schema registries with Confluent's API: register, get by id, get a subject's latest."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from typing import Any

from changefeed.errors import NeedsHuman, NotFound, Refused, Transient

_TIMEOUT_S = 10.0
_TYPE = "application/vnd.schemaregistry.v1+json"
_TOO_MANY = 429


@dataclass
class Registry:
    """One thread's. Numbers that it has been told are kept: a schema's never changes."""

    uri: str
    username: str = ""
    password: str = field(default="", repr=False)
    _numbers: dict[tuple[str, str], int] = field(default_factory=dict, repr=False)

    def number_of(self, subject: str, schema: str) -> int:
        """Register it, or find that it is. Raises NeedsHuman (older ones forbid it), Transient, Refused."""
        known = self._numbers.get((subject, schema))
        if known is None:
            path = f"subjects/{urllib.parse.quote(subject, safe='')}/versions"
            known = int(self._ask(path, {"schema": schema})["id"])
            self._numbers[subject, schema] = known
        return known

    def schema(self, number: int) -> str:
        """Raises NotFound, and as `number_of`."""
        return str(self._ask(f"schemas/ids/{number}")["schema"])

    def latest(self, subject: str) -> tuple[int, str]:
        """Number and schema. Raises as `schema`."""
        found = self._ask(f"subjects/{urllib.parse.quote(subject, safe='')}/versions/latest")
        return int(found["id"]), str(found["schema"])

    def _ask(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        headers = {"Accept": _TYPE, "Content-Type": _TYPE}
        if self.username:
            secret = base64.b64encode(f"{self.username}:{self.password}".encode()).decode()
            headers["Authorization"] = f"Basic {secret}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.uri.rstrip('/')}/{path}", data, headers)
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except urllib.error.HTTPError as error:
            with error:
                raise self._of(path, error) from None
        except (OSError, ValueError) as error:
            raise Transient(f"The schema registry at {self.uri}, {path}: {error}.") from None

    def _of(self, path: str, error: urllib.error.HTTPError) -> Exception:
        said = error.read(1000).decode("utf-8", "replace")
        why = f"The schema registry at {self.uri}, {path}, answers {error.code}: {said}"
        if error.code in (401, 403):
            return Refused(why, "Check the registry's credentials.")
        if error.code == 404:
            return NotFound(why)
        if error.code >= 500 or error.code == _TOO_MANY:
            return Transient(why)
        return NeedsHuman(why, "Set the subject's compatibility to NONE, or give the table's topic another name.")
