"""Classifies a server's errors by what to do about them. Pure.

Servers say errors in the language that they are set to, so only the codes count (PostgreSQL, Error Codes).
"""

from __future__ import annotations

from changefeed.errors import (
    ChangefeedError,
    NeedsHuman,
    ProtocolViolation,
    Refused,
    SnapshotLostByGC,
    Transient,
)
from changefeed.upstream.contract import Stopped

#: Reasons of the condition UpstreamAvailable.
REFUSED, AWAY = "PostgresqlRefuses", "PostgresqlUnavailable"
#: What a reader of a slot meets: another has the slot, the slot is gone, the WAL is gone.
_IN_USE, _UNDEFINED, _NO_FILE = "55006", "42704", "58P01"
_LOCKED = "55P03"
_NO_LOGIN, _NO_RIGHTS, _NO_DATABASE = "28", "42501", "3D000"
#: By its class: lost connections, rolled back because of others, no more of something, an operator's doing, the disk.
_AWAY = frozenset({"08", "40", "53", "57", "58"})

_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.2, 5.0
#: What a feed has in place of the number of a store.
_SERVER = 0
_TRIED_AGAIN = "Check the server and the network to it; it is tried again."
#: What to do when a slot's history is gone.
LOST = "Start a new changefeed, unless what is missing is written by now."


def stopped(error: ChangefeedError) -> Stopped:
    """Say why a server sends nothing."""
    return Stopped(_SERVER, REFUSED if isinstance(error, Refused) else AWAY, str(error))


class FailuresInARow:
    """Those of what is tried again and again. `stopped`: the last one, once there are `said_from` of them."""

    def __init__(self, said_from: int) -> None:
        self._said_from = said_from
        self._count = 0
        self.stopped: Stopped | None = None

    def add(self, error: ChangefeedError) -> float:
        """Count one more; gives the seconds until the next attempt."""
        pause = min(_LAST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(self._count, 16))
        self._count += 1
        if self._count >= self._said_from:
            self.stopped = stopped(error)
        return pause

    def end(self) -> None:
        """An attempt has not failed."""
        self._count, self.stopped = 0, None


def failure(where: str, code: str, text: str, slot: str = "") -> ChangefeedError:
    """What an error of the server means, by its SQLSTATE. `slot`: the one from which we are about to read."""
    error = _meant(where, code, text, slot)
    error.answered = True
    return error


def lost(where: str, why: str) -> Transient:
    """The connection is."""
    error = Transient(f"{where}: {why}.", _TRIED_AGAIN, 1.0)
    error.answered = False
    return error


def broken_stream(what: str) -> ProtocolViolation:
    """Say what is not as the protocol has it."""
    return ProtocolViolation(
        what, "The stream is begun again. If this happens again, report it with the server's version."
    )


def _meant(where: str, code: str, text: str, slot: str) -> ChangefeedError:
    said = f"{where}: {text} ({code})."
    if code == _IN_USE:
        return Transient(said, "Another process reads the slot, or did until just now; it is tried again.", 1.0)
    if code == _NO_FILE or (slot and code == _UNDEFINED):
        return SnapshotLostByGC(said, LOST)
    if code.startswith(_NO_LOGIN) or code == _NO_DATABASE:
        return Refused(
            said,
            "Check the username, password and database, the Secret's tls.crt if the server wants one, and what its "
            "pg_hba.conf lets in from here.",
        )
    if code == _NO_RIGHTS:
        return Refused(said, "Grant the changefeed's user what it lacks.")
    if code[:2] in _AWAY or code == _LOCKED:
        return Transient(said, _TRIED_AGAIN, 1.0)
    return NeedsHuman(said, "Mend on the server what the error names, then start again.")
