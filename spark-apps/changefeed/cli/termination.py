"""How a container ended, in the termination message: the operator reads it from the pod's status."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

_IN_A_POD = Path("/dev/termination-log")
_LIMIT = 4096  # bytes; Kubernetes cuts off what is beyond
_CUT = " ..."
_WIDEST = 6  # bytes of a character in JSON


def termination_log(environment: Mapping[str, str]) -> Path | None:
    """CHANGEFEED_TERMINATION_LOG, or Kubernetes' own path in a pod; None elsewhere."""
    if path := environment.get("CHANGEFEED_TERMINATION_LOG"):
        return Path(path)
    return _IN_A_POD if "KUBERNETES_SERVICE_HOST" in environment else None


def write_termination(log: Path | None, name: str, message: str, next_step: str = "", **facts: str) -> None:
    """`{"class", "message", "next"}` and `facts`, whole JSON however long the message is; nothing without a `log`.

    It is for show: a file that can't be written changes nothing about how the process ends.
    """
    if log is None:
        return
    body = _body(name, message, next_step, facts)
    kept = len(message)
    while len(body) > _LIMIT and kept > 0:
        kept -= max(1, (len(body) - _LIMIT) // _WIDEST)
        body = _body(name, message[:kept] + _CUT, next_step, facts)
    with suppress(OSError):
        log.write_bytes(body)


def _body(name: str, message: str, next_step: str, facts: Mapping[str, str]) -> bytes:
    said = {"class": name, "message": message, **({"next": next_step} if next_step else {}), **facts}
    return json.dumps(said, ensure_ascii=False).encode()
