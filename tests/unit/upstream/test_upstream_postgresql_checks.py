"""What is wrong with a PostgreSQL as a whole; what can be made on a running one is tested there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from changefeed.errors import NeedsHuman
from changefeed.upstream.postgresql.checks import Facts, Needs, findings, refuse

SERVER = {
    "version": 18, "wal_level": "logical", "is_standby": False, "user": "me", "database": "d", "max_slots": 10,
    "slots": 0, "max_senders": 10, "senders": 0, "idle_timeout": "0", "kept_wal": "-1", "may_replicate": True,
    "awaited": [""], "standbys": [],
}  # fmt: skip
PUBLICATION = {"pubinsert": True, "pubupdate": True, "pubdelete": True, "pubtruncate": True, "pubviaroot": False}
SLOT = {"plugin": "pgoutput", "database": "d", "active": False, "wal_status": "reserved", "failover": True}
SOUND = Facts("mine", "p", SERVER, SLOT, PUBLICATION, [])
NEEDS = Needs(lambda *_: True)


def test_a_sound_server_has_no_finding() -> None:
    assert findings(SOUND, NEEDS) == []
    refuse("here", [])


@pytest.mark.parametrize(
    ("other", "said", "sql"),
    [
        ({"version": 13}, "It is PostgreSQL 13; supported are 14 to 18.", ""),
        ({"version": 19}, "It is PostgreSQL 19; supported are 14 to 18.", ""),
        ({"is_standby": True}, "It is a standby, which takes no messages of ours: name the primary.", ""),
        (
            {"wal_level": "replica"},
            "Its wal_level is replica, with which changes of rows can't be read.",
            "ALTER SYSTEM SET wal_level = logical; /* and restart the server */",
        ),
        (
            {"senders": 10},
            "All of its 10 WAL senders are taken.",
            "ALTER SYSTEM SET max_wal_senders = 20; /* and restart the server */",
        ),
    ],
)
def test_a_server_that_can_not_be_read_from_is_refused(other: dict[str, Any], said: str, sql: str) -> None:
    (finding,) = findings(replace(SOUND, server=SERVER | other), NEEDS)
    assert (finding.message, finding.sql) == (said, sql)
    with pytest.raises(NeedsHuman, match=r"^here can't be read from: "):
        refuse("here", [finding])


def test_the_sender_of_a_reader_that_goes_is_free_soon() -> None:
    """A changefeed that is taken over: its last driver may still be connected."""
    facts = replace(SOUND, server=SERVER | {"senders": 10}, slot=SLOT | {"active": True})
    assert findings(facts, NEEDS) == []


@pytest.mark.parametrize(
    ("server", "slot", "said"),
    [
        ({"standbys": ["a", "b"], "awaited": ["b", "c"]}, {}, []),
        ({"standbys": [], "awaited": [""]}, {"failover": False}, []),
        ({"standbys": ["a"], "awaited": None}, {}, []),
        ({"standbys": ["a"], "awaited": ["a"]}, {"failover": False}, ["Standbys have no copy of slot mine"]),
        ({"standbys": ["a", "b"], "awaited": [""]}, {}, ["What no standby has yet can be read"]),
    ],
    ids=["sound", "alone", "before 17", "no copy", "ahead"],
)
def test_what_a_failover_would_lose_is_a_warning(server: dict[str, Any], slot: dict[str, Any], said: list[str]) -> None:
    found = findings(replace(SOUND, server=SERVER | server, slot=SLOT | slot), NEEDS)
    assert [finding.message[: len(text)] for finding, text in zip(found, said, strict=True)] == said
    assert not any(finding.stops for finding in found)
    assert all("= 'a, b';" in finding.sql for finding in found if finding.sql)


def test_a_slot_that_will_be_lost_soon_is_a_warning() -> None:
    (finding,) = findings(replace(SOUND, slot=SLOT | {"wal_status": "unreserved"}), NEEDS)
    assert not finding.stops
    refuse("here", [finding])
