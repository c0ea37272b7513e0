"""Classifies a server's errors by what to do about them. Pure."""

from __future__ import annotations

from changefeed.errors import (
    ChangefeedError,
    DuplicateKey,
    OutcomeUnknown,
    Refused,
    StatementRefused,
    StatementTooLarge,
    Transient,
    Unavailable,
    UnknownThing,
)

#: The transaction was rolled back because of others: deadlock, lock wait, TiDB's write conflicts and changed schemas.
_OVERTAKEN = frozenset({1020, 1205, 1213, 8002, 8022, 8027, 8028, 8229, 9006, 9007, 9011})
#: Nobody is there, or wants no more of us: connections, shutdown, a read-only replica, full disks, TiKV away.
_AWAY = frozenset({
    1021, 1030, 1040, 1047, 1053, 1114, 1158, 1159, 1160, 1161, 1184, 1203, 1226, 1290, 1317, 1836, 1927, 1969, 3024,
    9001, 9002, 9003, 9004, 9005, 9008, 9010,
})  # fmt: skip
_NO_LOGIN = frozenset({1045, 1130, 1698, 3118})
_BLOCKED = 1129
_NO_RIGHTS = frozenset({1044, 1095, 1131, 1132, 1142, 1143, 1227, 1370})
_DUPLICATE = frozenset({1062, 1169, 1586})
_UNKNOWN_THING = frozenset({1049, 1054, 1146})
#: To a DDL that was executed before: what it makes is there, or what it drops is not.
DONE_BEFORE = frozenset({1007, 1008, 1050, 1051, 1060, 1061, 1091})
_FIRST_OF_CLIENT, _LAST_OF_CLIENT = 2000, 2999
_NO_TLS = 2026
_TOO_LARGE = 1153
_OF_STATEMENTS = 1665

_NOT_TLS = "Look at the server's certificate and at the Secret's ca, cert and key."
_UNKNOWN = (
    "Somebody has removed it there, or never made it. Bring it back as it was upstream at the checkpoint, with its "
    "rows of that ts (an empty table would lack all older ones), then start again."
)
_TWO_ROWS = (
    "Don't let one row replace the other. Compare the collations of the key's columns (SHOW CREATE TABLE) with the "
    "upstream's and mend them, or find out who has written the row that is there; then start again."
)
_DO_IT_THERE = (
    "Mend downstream what the error names, then start again. If that can't be, run there a statement to the same end "
    "before: the changefeed sees that the table has changed, and goes on."
)
_LOG_ROWS = "Set binlog_format = ROW or MIXED in the server's configuration, then start again."
_SHOWN = 500  # characters of a statement
_MEND = "Mend downstream what the error names, then start again."


def failure(where: str, number: int, text: str, committing: bool = False) -> ChangefeedError:
    """What error `number` of the server or the client library means; `committing`: the answer to a COMMIT."""
    error = _meant(where, number, text, committing)
    error.answered = number == _NO_TLS or not is_of_client(number)
    return error


def _meant(where: str, number: int, text: str, committing: bool) -> ChangefeedError:
    said = f"{where}: {text} ({number})."
    is_lost = is_of_client(number) and number != _NO_TLS
    if committing and is_lost:
        return OutcomeUnknown(said, "It is looked up whether the transaction is committed.")
    if number in _OVERTAKEN:
        return Transient(said, "Retrying.")
    if is_lost or number in _AWAY:
        return Unavailable(said, "Check the server and the network to it.")
    if number == _NO_TLS:
        return Refused(said, _NOT_TLS)
    if number in _NO_LOGIN:
        return Refused(
            said, "Check the username and password in the sink's Secret, and from where the user may log in."
        )
    if number == _BLOCKED:
        return Refused(said, "Find out in the server's log why connections failed, then run FLUSH HOSTS there.")
    if number in _NO_RIGHTS:
        return Refused(said, "Grant the user of the sink's Secret what it lacks.")
    return _refused(said, number)


def too_large(where: str, size: int, limit: int) -> StatementTooLarge:
    said = f"{where}: a statement of {size} bytes is more than the server takes at once ({limit})."
    refused = StatementTooLarge(said, "Raise the server's max_allowed_packet, then start again.")
    refused.number = _TOO_LARGE
    return refused


def of_ddl(refused: StatementRefused, statement: str) -> StatementRefused:
    """The same about a DDL's statement, which it names: it has definitions and no rows."""
    shown = statement if len(statement) <= _SHOWN else f"{statement[:_SHOWN]} ..."
    next_step = _DO_IT_THERE if refused.next_step == _MEND else refused.next_step
    named = type(refused)(f"{refused.message} The statement was {shown}", next_step)
    named.number, named.answered = refused.number, refused.answered
    return named


def is_of_client(number: int) -> bool:
    """Whether it is the client library's own: there is no connection then."""
    return not number or _FIRST_OF_CLIENT <= number <= _LAST_OF_CLIENT


def _refused(said: str, number: int) -> StatementRefused:
    if number in _DUPLICATE:
        refused: StatementRefused = DuplicateKey(said, _TWO_ROWS)
    elif number in _UNKNOWN_THING:
        refused = UnknownThing(said, _UNKNOWN)
    elif number == _TOO_LARGE:
        refused = StatementTooLarge(said, "Raise the server's max_allowed_packet, then start again.")
    else:
        refused = StatementRefused(said, _LOG_ROWS if number == _OF_STATEMENTS else _MEND)
    refused.number = number
    return refused
