"""Verify of text that is not UTF-8: in csv by its bytes, in canal-json as far as U+FFFD goes, which it says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from changefeed.reading.failures import NotVerifiable
from changefeed.verify.storage.report import verify
from changefeed_devcluster.server import DevCluster
from changefeed_devcluster.tidb.schema import NamedTable, NewColumn
from changefeed_devcluster.tidb.tidb import Tidb
from verify_sink import HandSink, Shop, write_sink


class Names(Shop):
    """`shop.notes` by a number, `shop.named` by a text; both hold bytes that are no text, before startTs and after."""

    @property
    def tables(self) -> list[NamedTable]:
        return [self.tidb.tables["shop.named"], self.tidb.tables["shop.notes"]]


@pytest.fixture(scope="module")
def names() -> Iterator[Names]:
    with DevCluster() as cluster:
        tidb = Tidb(cluster)
        tidb.bootstrap()
        tidb.create_database("shop")
        amount = NewColumn("amount", "int")
        columns = (
            NewColumn("id", "bigint"),
            NewColumn("code", "varchar(9)", unique=True),
            NewColumn("note", "varchar(9)"),
            amount,
        )
        notes = tidb.create_table("shop", "notes", columns)
        named = tidb.create_table("shop", "named", (NewColumn("name", "varchar(9)"), amount), pk=["name"])
        with tidb.begin() as txn:
            txn.insert(notes, {"id": 1, "code": "a", "note": "\udcff", "amount": 1})
            txn.insert(named, {"name": "\udcff", "amount": 1})
            txn.insert(named, {"name": "\udcfe", "amount": 2})
            txn.insert(named, {"name": "\\xFF", "amount": 0})  # how DuckDB shows the byte
        start_ts = tidb.now()
        with tidb.begin() as txn:
            txn.insert(notes, {"id": 2, "code": "b", "note": "ä\udce4", "amount": 1})
            txn.insert(named, {"name": "\udcfd", "amount": 3})
            txn.update(named, {"name": "\udcff", "amount": 0})
            txn.update(named, {"name": "\udcfe", "amount": 0})
            txn.update(notes, {"id": 1, "note": "whole", "amount": 0})
        with tidb.begin() as txn:
            txn.update(notes, {"id": 2, "note": "ä\udce5", "amount": 1})
            txn.delete(named, "\udcfe")
        with tidb.begin() as txn:
            txn.update(notes, {"id": 1, "code": "\udcc3", "amount": 0})  # a split one
            txn.insert(named, {"name": "\udcfc", "amount": 0})
        checkpoint_ts = tidb.now()
        yield Names(cluster, tidb, start_ts, checkpoint_ts, tidb.now())


async def test_csv_is_held_to_the_very_bytes(names: Names, tmp_path: Path) -> None:
    sink = write_sink(tmp_path, names)
    result = await verify(sink.uri, names.pd, "amount")
    assert result.first_problem is None
    assert result.conserved == "4"
    assert (result.rows, result.replayed, result.notes) == (10, 6, [])
    with pytest.raises(NotVerifiable, match=r"shop.notes.note holds b'.*', which can't be summed"):
        await verify(sink.uri, names.pd, "note")
    (file,) = (path for path in (sink.lake / "shop/notes").rglob("CDC*.csv") if b"\xe4" in path.read_bytes())
    file.write_bytes(file.read_bytes().replace(b"\xe4", b"\xe5"))
    result = await verify(sink.uri, names.pd)
    assert not result.ok
    assert result.first_problem is not None
    for said in (f"{sink.name(file)}, row 2: the upstream has no such change", r"note='ä\\xe5'", r"note='ä\\xe4'"):
        assert said in result.first_problem


async def test_canal_json_is_held_to_what_is_left_and_a_note_says_so(names: Names, tmp_path: Path) -> None:
    sink = write_sink(tmp_path, names, protocol="canal-json")
    result = await verify(sink.uri, names.pd, "amount")
    assert result.first_problem is None
    assert result.conserved == "4"
    assert (result.rows, result.replayed) == (10, 2)  # which row a change of shop.named is of, its files do not say
    same = "holds bytes that are not UTF-8 in {}: canal-json has U+FFFD for each of them"
    (named, no_key, notes, consumed) = result.notes
    assert "shop.named " + same.format("name") in named
    assert "shop.named has no key in its files" in no_key
    assert "shop.notes " + same.format("code, note") in notes
    assert "A consumer's rows of shop.named were not compared: some of its keys are text that is not UTF-8" in consumed
    harm_one_replacement(sink)
    result = await verify(sink.uri, names.pd)
    assert result.first_problem is not None
    assert "the upstream has no such change to shop.notes" in result.first_problem


def harm_one_replacement(sink: HandSink) -> None:
    for path in (sink.lake / "shop/notes").rglob("CDC*.json"):
        path.write_bytes(path.read_bytes().replace(rb"\ufffd", b"?"))
