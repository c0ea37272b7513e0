"""A spooled file becomes one object, once, whatever the store answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from changefeed.errors import OutcomeUnknown, OutputConflict, ProtocolViolation, Transient, Unavailable
from changefeed.objectstore.digest import Digest
from changefeed.objectstore.local import LocalStore
from changefeed.objectstore.patience import Patience
from changefeed.sink.storage.publish import publish, whole_files
from sink_stores import FaultyStore

PATH = "shop/t/1/CDC00000000000000000001.csv"


def digest(content: bytes) -> str:
    return Digest(content).hexdigest()


def spooled(folder: Path, *chunks: bytes, entry: int = 0, path: str = PATH) -> list[dict[str, Any]]:
    """Descriptors as pipeline.spool makes them, a row a chunk."""
    spool = folder / f"spool-{entry}"
    spool.write_bytes(b"".join(chunks))
    pieces, done = [], b""
    for chunk in (*chunks, None):
        pieces.append(
            {
                "record": 9,
                "entry": entry,
                "chunk": len(pieces),
                "last": chunk is None,
                "path": path,
                "spool": str(spool),
                "offset": len(done),
                "length": len(chunk or b""),
                "rows": 1 if chunk is not None else len(chunks),
                "raw_rows": 5 if chunk is None else 0,
                "filtered_rows": 0,
                "hash": digest(done + (chunk or b"")),
            }
        )
        done += chunk or b""
    return pieces


def files(*rows: list[dict[str, Any]]) -> list[Any]:
    return list(whole_files(pa.RecordBatch.from_pylist(batch) for batch in rows))


def no_pause(seconds: float) -> None:
    assert seconds > 0


def test_a_spooled_file_becomes_an_object(tmp_path):
    store = LocalStore(tmp_path / "sink")
    (pieces,) = files(spooled(tmp_path, b"one\n", b"two\n"))
    done = publish(store, pieces)
    assert store.get(PATH).body == b"one\ntwo\n"
    assert done.model_dump() == {
        "entry": 0,
        "rows": 2,
        "raw_rows": 5,
        "filtered_rows": 0,
        "bytes": 8,
        "hash": digest(b"one\ntwo\n"),
    }
    assert not (tmp_path / "spool-0").exists()


def test_rule_13_no_rows_are_an_empty_object(tmp_path):
    store = LocalStore(tmp_path / "sink")
    (pieces,) = files(spooled(tmp_path))
    assert publish(store, pieces).bytes == 0
    assert store.list() == [(PATH, 0)]


def test_files_come_one_after_the_other_over_batches_of_any_size(tmp_path):
    rows = [*spooled(tmp_path, b"a"), *spooled(tmp_path, entry=1), *spooled(tmp_path, b"b", b"c", entry=2)]
    for step in (1, 2, 6):
        found = files(*(rows[n : n + step] for n in range(0, 6, step)))
        assert [pieces[-1]["entry"] for pieces in found] == [0, 1, 2]
        assert [len(pieces) for pieces in found] == [2, 1, 3]


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda rows: rows[:1] + rows[2:], "chunk 2 where 1"),
        (lambda rows: rows[1:], "chunk 1 where 0"),
        (lambda rows: rows[:3], "without its last row"),
        (lambda rows: [rows[1], rows[0], *rows[2:]], "chunk 1 where 0"),
        (lambda rows: [*rows, rows[-1]], "chunk 3 where 0"),
        (lambda rows: [rows[0], rows[1] | {"entry": 4}, *rows[2:]], "no last row"),
        (lambda rows: [*rows[:3], rows[3] | {"rows": 4}], "says 4 rows"),
        (lambda rows: [rows[0], rows[1] | {"offset": 9}, *rows[2:]], "offset 9"),
    ],
    ids=["gap", "no-first", "no-end", "order", "two-ends", "mixed", "rows", "offset"],
)
def test_rule_3_an_incomplete_file_is_not_put(tmp_path, damage, says):
    rows = damage(spooled(tmp_path, b"a", b"b", b"c"))
    with pytest.raises(ProtocolViolation, match=says):
        files(rows)


@pytest.mark.parametrize("content", [b"onX\ntwo\n", b"one\n", None], ids=["changed", "short", "gone"])
def test_rule_3_spooled_bytes_that_changed_are_not_put(tmp_path, content):
    store = LocalStore(tmp_path / "sink")
    (pieces,) = files(spooled(tmp_path, b"one\n", b"two\n"))
    if content is None:
        (tmp_path / "spool-0").unlink()
    else:
        (tmp_path / "spool-0").write_bytes(content)
    with pytest.raises(Transient, match="its task must run again"):
        publish(store, pieces, Patience(sleep=no_pause))
    assert store.list() == []
    assert not (tmp_path / "spool-0").exists()


def test_the_same_bytes_that_stand_there_are_success(tmp_path):
    store = LocalStore(tmp_path / "sink")
    store.create(PATH, b"one\n")
    (pieces,) = files(spooled(tmp_path, b"one\n"))
    assert publish(store, pieces).bytes == 4


def test_other_bytes_that_stand_there_are_a_conflict(tmp_path):
    store = LocalStore(tmp_path / "sink")
    store.create(PATH, b"another\n")
    (pieces,) = files(spooled(tmp_path, b"one\n"))
    with pytest.raises(OutputConflict, match="CDC00000000000000000001"):
        publish(store, pieces)
    assert store.get(PATH).body == b"another\n"
    assert not (tmp_path / "spool-0").exists()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("error", [OutcomeUnknown("?"), Unavailable("down"), Transient("again")])
def test_rule_16_after_an_unknown_outcome_the_same_bytes_are_tried_again(tmp_path, when, error):
    store = FaultyStore(LocalStore(tmp_path / "sink"), (when, error))
    (pieces,) = files(spooled(tmp_path, b"one\n", b"two\n"))
    assert publish(store, pieces, Patience(sleep=no_pause)).rows == 2
    assert store.creates == 2
    assert store.inner.get(PATH).body == b"one\ntwo\n"


def test_rule_16_a_store_that_stays_away_is_given_up_and_nothing_is_cleaned(tmp_path):
    store = FaultyStore(
        LocalStore(tmp_path / "sink"), ("after", OutcomeUnknown("?")), *[("before", Unavailable("x"))] * 99
    )
    (pieces,) = files(spooled(tmp_path, b"one\n"))
    with pytest.raises(Unavailable):
        publish(store, pieces, Patience(sleep=no_pause))
    assert store.inner.get(PATH).body == b"one\n"
    assert not (tmp_path / "spool-0").exists()
