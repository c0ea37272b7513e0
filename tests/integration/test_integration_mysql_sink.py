"""The MySQL sink against a real server: types, kills, lost answers, and writers that have been replaced."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import integration_mysql_bank as bank
import pytest
from changefeed.errors import DuplicateKey, Fenced, NeedsHuman
from changefeed.sink.contract import EntryId
from changefeed.sink.mysql.rows.changes import Changes
from changefeed.sink.mysql.server import MysqlServer, Session
from integration_mariadb import MariaDb, Proxy
from integration_mysql_programs import every_server

KILLS = 24


@pytest.fixture
def database(mariadb: MariaDb) -> MariaDb:
    """Without the tables of an earlier test."""
    mariadb.query("DROP DATABASE IF EXISTS bank", "DROP DATABASE IF EXISTS changefeed", *bank.CREATE)
    return mariadb


def state_of(database: MariaDb) -> bank.State:
    rows = database.query("SELECT id, owner, balance FROM bank.accounts")
    return {int(id_): (int(id_), owner.decode(), int(balance)) for id_, owner, balance in rows}


def total_of(database: MariaDb) -> int:
    return int(database.query("SELECT COALESCE(SUM(balance), 0) FROM bank.accounts")[0][0])


def test_rule_25_each_row_counts_once_whenever_the_writer_is_killed(database: MariaDb) -> None:
    """Through a proxy that loses answers to COMMIT, too, and at times the COMMIT itself."""
    proxy = Proxy(database.port, lambda number: number % 5 == 0)
    chosen, killed, writer = random.Random(25), 0, 0
    code = -int(signal.SIGKILL)
    while code == -signal.SIGKILL:
        writer += 1
        commits = chosen.randrange(2, 12) if killed < KILLS else 1 << 30
        arguments = [str(proxy.port), str(writer), str(commits), chosen.choice(["before", "after"])]
        ended = subprocess.run([sys.executable, bank.__file__, *arguments], capture_output=True, text=True)
        code = ended.returncode
        killed += code == -signal.SIGKILL
        assert total_of(database) in (0, bank.TOTAL)
    proxy.close()
    assert code == 0, ended.stderr
    assert (killed, proxy.lost > KILLS) == (KILLS, True)
    assert state_of(database) == bank.history()[1]
    assert database.query("SELECT COUNT(*) FROM changefeed.nodes") == [(b"0",)]


@every_server
def test_rule_25_a_writer_that_was_replaced_adds_nothing(database: MariaDb) -> None:
    entries, after = bank.history()
    zombie, heir = bank.open_sink(database.server()), bank.open_sink(database.server())
    is_asleep, wakes = threading.Event(), threading.Event()

    def slowly(chunks: list[Changes]) -> Iterator[Changes]:
        yield chunks[0]
        is_asleep.set()
        assert wakes.wait(60)
        yield chunks[1]

    raised: list[BaseException] = []

    def write_as_zombie() -> None:
        zombie.claim(bank.claim(1))
        try:
            zombie.write(bank.claim(1), EntryId(1, 0), 100, slowly(entries[0]))
        except Fenced as error:
            raised.append(error)

    thread = threading.Thread(target=write_as_zombie)
    thread.start()
    assert is_asleep.wait(60)
    rows = list(bank.write_all(heir, bank.claim(2), entries))
    wakes.set()
    thread.join(60)
    assert "Epoch 1, writer 2" in str(raised[0]) or "Another writer" in str(raised[0])
    assert state_of(database) == after
    assert all(rows[1:])
    assert list(bank.write_all(heir, bank.claim(2), entries)) == [0] * len(entries)
    zombie.close()
    heir.close()


def test_rule_25_who_was_replaced_is_fenced_by_the_rows_that_it_meets(database: MariaDb) -> None:
    """What it would insert stands there; that is no foreign row, which a person would have to remove."""
    entries, after = bank.history()
    zombie, heir = bank.open_sink(database.server()), bank.open_sink(database.server())
    zombie.claim(bank.claim(1))

    def late() -> Iterator[Changes]:
        assert list(bank.write_all(heir, bank.claim(2), entries))
        yield from entries[0]

    with pytest.raises(Fenced):
        zombie.write(bank.claim(1), EntryId(1, 0), 100, late())
    assert state_of(database) == after
    zombie.close()
    heir.close()


@every_server
def test_rule_25_an_earlier_driver_can_claim_nothing(database: MariaDb) -> None:
    sink = bank.open_sink(database.server())
    assert sink.claim(bank.claim(7, epoch=3)) == EntryId(-1, -1)
    for refused in (bank.claim(8, epoch=2), bank.claim(8, epoch=3, nonce="other"), bank.claim(6, epoch=3)):
        with pytest.raises(Fenced):
            sink.claim(refused)
    sink.claim(bank.claim(1, epoch=4))
    sink.close()


def test_a_foreign_row_stops_the_sink_and_says_what_to_do(database: MariaDb) -> None:
    database.query("INSERT INTO bank.accounts VALUES (3, 'somebody', 0)")
    sink = bank.open_sink(database.server())
    with pytest.raises(DuplicateKey, match=r"bank\.accounts: the row id=3 can't be written: the row id=3 is there"):
        list(bank.write_all(sink, bank.claim(1), bank.history()[0]))
    sink.close()


def test_a_transaction_may_be_larger_than_what_the_server_takes_at_once(database: MariaDb) -> None:
    (before,) = database.query("SELECT @@GLOBAL.max_allowed_packet")
    database.query("SET GLOBAL max_allowed_packet=1024")
    try:
        sink = bank.open_sink(database.server())
        entries, state = bank.history()
        assert sum(bank.write_all(sink, bank.claim(1), entries)) > 0
        sink.close()
    finally:
        database.query(f"SET GLOBAL max_allowed_packet={int(before[0])}")
    assert state_of(database) == state


def test_a_transaction_that_pauses_is_committed_by_its_own_connection(
    database: MariaDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(database.server())
    session.begin()
    session.run([b"BEGIN", b"INSERT INTO bank.accounts VALUES (1, 'a', 5)"])
    later = time.monotonic() + 1000
    monkeypatch.setattr(time, "monotonic", lambda: later)
    session.commit()
    session.close()
    assert total_of(database) == 5


def test_no_message_has_the_password(mariadb: MariaDb) -> None:
    session = Session(MysqlServer("127.0.0.1", mariadb.port, "nobody", "hidden-password"))
    with pytest.raises(NeedsHuman, match="Access denied for user 'nobody'") as refused:
        session.rows(b"SELECT 1")
    assert "hidden-password" not in f"{refused.value!r} {Path(__file__).name} {session!r}"
