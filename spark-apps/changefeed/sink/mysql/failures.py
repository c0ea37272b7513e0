"""Classifies a server's errors by what to do about them. Pure."""

from __future__ import annotations

from changefeed.errors import ChangefeedError, NeedsHuman, OutcomeUnknown, Refused, Transient, Unavailable

#: The transaction was rolled back because of others: deadlock, lock wait, TiDB's write conflicts and changed schemas.
_OVERTAKEN = frozenset({1020, 1205, 1213, 8002, 8022, 8027, 8028, 8229, 9006, 9007, 9011})
#: Nobody is there, or wants no more of us: connections, shutdown, a read-only replica, full disks, TiKV away.
_AWAY = frozenset({
    1021, 1030, 1040, 1047, 1053, 1114, 1158, 1159, 1160, 1161, 1184, 1203, 1226, 1290, 1317, 1836, 1927, 1969, 3024,
    9001, 9002, 9003, 9004, 9005, 9008, 9010,
})  # fmt: skip
_REFUSED = frozenset({1044, 1045, 1095, 1129, 1130, 1131, 1132, 1142, 1143, 1227, 1370, 1698, 3118})
_DUPLICATE = frozenset({1062, 1169, 1586})
_UNKNOWN_THING = frozenset({1049, 1054, 1146})
#: To a DDL that was executed before: what it makes is there, or what it drops is not.
DONE_BEFORE = frozenset({1007, 1008, 1050, 1051, 1060, 1061, 1091})
_FIRST_OF_CLIENT, _LAST_OF_CLIENT = 2000, 2999
_NO_TLS = 2026
_TOO_LARGE = 1153

_NOT_TLS = "Look at the server's certificate and at the Secret's ca, cert and key."


class Refusal(NeedsHuman):
    """The server refuses a statement: a person must look at it. `number`: its error's."""

    def __init__(self, message: str, next_step: str = "", number: int = 0) -> None:
        super().__init__(message, next_step)
        self.number = number

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.message, self.next_step, self.number))


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
    if number in _REFUSED:
        return Refused(said, "Give the user of the sink's Secret what it lacks.")
    return Refusal(said, _next_step(number), number)


def too_large(where: str, size: int, limit: int) -> Refusal:
    return Refusal(
        f"{where}: a statement of {size} bytes is more than the server takes at once ({limit}).",
        "Raise the server's max_allowed_packet.",
        _TOO_LARGE,
    )


def is_of_client(number: int) -> bool:
    """Whether it is the client library's own: there is no connection then."""
    return not number or _FIRST_OF_CLIENT <= number <= _LAST_OF_CLIENT


def _next_step(number: int) -> str:
    if number in _DUPLICATE:
        return "The downstream has rows that the changefeed did not write: remove them, or set safeMode."
    if number in _UNKNOWN_THING:
        return "Create it downstream as it is upstream."
    return "Make the downstream accept this statement, or exclude the table by a filter rule."
