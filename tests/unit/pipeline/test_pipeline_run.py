"""One entry from raw rows to the complete bytes of its file."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from changefeed.errors import NeedsHuman, Transient, Unavailable
from changefeed.model.position import OP_DELETE, OP_INSERT, Position
from changefeed.objectstore.patience import Patience
from changefeed.pipeline import recipe, run
from changefeed.pipeline.mounter import mount
from changefeed.schema.sql_type import SqlType
from changefeed.sink import spool
from changefeed.sink.stages import STAGES
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pipeline_rows import (
    PEOPLE,
    Row,
    column,
    content_of,
    delete,
    encode_entry,
    encode_file,
    index,
    insert,
    key,
    make_table,
    make_work,
    raw,
    segment,
    shuffled,
    update,
    with_index,
)

ROWS = [
    insert(5, 1, 10, "Ann"),
    insert(5, 2, 20, None),
    update(6, 1, (10, "Ann"), (10, "Anna")),
    update(6, 2, (20, None), (21, "Bo")),
    delete(7, 1, 10, "Anna"),
    insert(7, 3, -1, 'a"b'),
]


def test_golden_file(tmp_path):
    file, content = encode_file(tmp_path, ROWS[:3], ROWS[3:])
    assert content == (
        b'"I","t","shop",5,1,10,"Ann"\n'
        b'"I","t","shop",5,2,20,\\N\n'
        b'"U","t","shop",6,1,10,"Anna"\n'
        b'"U","t","shop",6,2,21,"Bo"\n'
        b'"D","t","shop",7,1,10,"Anna"\n'
        b'"I","t","shop",7,3,-1,"a""b"\n'
    )
    assert (file.plan, file.entry, file.rows, file.raw_rows, file.filtered_rows) == (9, 3, 6, 6, 0)


def test_an_update_of_a_unique_key_is_two_records(tmp_path):
    table = with_index(PEOPLE, index("k"))
    _, content = encode_file(tmp_path, ROWS[2:4], table=table)
    assert content == (b'"D","t","shop",6,2,20,\\N\n"U","t","shop",6,1,10,"Anna"\n"I","t","shop",6,2,21,"Bo"\n')
    _, untouched = encode_file(tmp_path, ROWS[2:4], table=table, outputRawChangeEvent=True)
    assert untouched == b'"U","t","shop",6,1,10,"Anna"\n"U","t","shop",6,2,21,"Bo"\n'


def test_output_old_value_halves_updates(tmp_path):
    file, content = encode_file(tmp_path, ROWS[1:5], outputOldValue=True, outputFieldHeader=True)
    assert content == (
        b"ticdc-meta$operation,ticdc-meta$table,ticdc-meta$schema,ticdc-meta$commit-ts,ticdc-meta$is-update,id,k,name\n"
        b'"I","t","shop",5,false,2,20,\\N\n'
        b'"D","t","shop",6,true,1,10,"Ann"\n'
        b'"I","t","shop",6,true,1,10,"Anna"\n'
        b'"D","t","shop",6,true,2,20,\\N\n'
        b'"I","t","shop",6,true,2,21,"Bo"\n'
        b'"D","t","shop",7,false,1,10,"Anna"\n'
    )
    assert file.rows == 4


@pytest.mark.parametrize("old_value", [None, b""])
def test_a_delete_of_nothing_writes_nothing(tmp_path, old_value):
    file, content = encode_file(tmp_path, [Row(5, OP_DELETE, 1, b"", old_value), delete(5, 2, 1, "x")])
    assert content == b'"D","t","shop",5,2,1,"x"\n'
    assert (file.rows, file.raw_rows) == (1, 2)


@pytest.mark.parametrize(("with_header", "expected"), [(False, b""), (True, None)])
def test_rule_13_an_entry_without_rows_is_a_file(tmp_path, with_header, expected):
    file, content = encode_file(tmp_path, [insert(5, 1)], to=Position.end_of(4), outputFieldHeader=with_header)
    names = b"ticdc-meta$operation,ticdc-meta$table,ticdc-meta$schema,ticdc-meta$commit-ts,id,k,name\n"
    assert content == (names if expected is None else expected)
    assert (file.rows, file.raw_rows) == (0, 0)


ACTIONS = st.sampled_from("iud")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9), ACTIONS), max_size=40), st.integers(), st.integers(1, 5)
)
def test_rule_10_other_segments_and_repeats_give_the_same_bytes(tmp_path, changes, seed, segments):
    unique = {(ts, handle): action for ts, handle, action in changes}
    rows = [
        insert(ts, handle, ts, f"n{handle}")
        if action == "i"
        else update(ts, handle, (ts % 2, "a"), (1, "b"))
        if action == "u"
        else delete(ts, handle, ts, None)
        for (ts, handle), action in unique.items()
    ]
    table = with_index(PEOPLE, index("k"))
    _, expected = encode_file(tmp_path, rows, table=table)
    _, found = encode_file(tmp_path, *shuffled([*rows, *rows[::2]], seed, segments), table=table)
    assert found == expected
    assert expected.count(b"\n") >= len(rows)


@pytest.mark.parametrize(("size", "rows"), [(1, 1), (150, 3), (700, 11)])
def test_rule_10_chunks_do_not_reach_the_bytes(tmp_path, monkeypatch, size, rows):
    changes = [insert(ts, handle, ts, "x" * handle) for ts in range(1, 5) for handle in range(20)]
    whole, expected = encode_file(tmp_path, changes)
    monkeypatch.setattr(run, "CHUNK_BYTES", size)
    chunks = []

    def mount_and_keep(rows, *rest, **options):
        chunks.append(rows.num_rows)
        return mount(rows, *rest, **options)

    monkeypatch.setattr(recipe, "mount", mount_and_keep)
    file, content = encode_file(tmp_path, changes)
    assert content == expected
    assert file == whole
    assert len(chunks) > 1
    assert max(chunks) <= rows
    assert sum(chunks) == file.rows == 80


def test_filters_drop_changes_after_updates_of_keys_are_split(tmp_path):
    rules = {"matcher": ["shop.t"], "ignoreDeleteValueExpr": "k = 20", "ignoreUpdateNewValueExpr": "name = 'Anna'"}
    file, content = encode_file(
        tmp_path, ROWS[2:], table=with_index(PEOPLE, index("k")), filter_={"eventFilters": [rules]}
    )
    assert content == (b'"I","t","shop",6,2,21,"Bo"\n"D","t","shop",7,1,10,"Anna"\n"I","t","shop",7,3,-1,"a""b"\n')
    assert (file.rows, file.raw_rows, file.filtered_rows) == (3, 4, 2)


def test_transactions_that_are_to_be_ignored_are_not_written(tmp_path):
    changes = [insert(5, 1, start_ts=3), insert(6, 2, start_ts=4)]
    file, content = encode_file(tmp_path, changes, filter_={"ignoreTxnStartTs": ["3"]})
    assert content == b'"I","t","shop",6,2,0,"n"\n'
    assert file.filtered_rows == 1
    file, nothing = encode_file(tmp_path, changes, filter_={"ignoreTxnStartTs": ["3", "4"]})
    assert nothing == b""
    assert (file.rows, file.raw_rows, file.filtered_rows) == (0, 2, 2)


SELECTORS = [{"matcher": ["shop.*"], "columns": ["*", "!name"]}]


def test_csv_has_the_selected_columns_and_names_them(tmp_path):
    _, content = encode_file(tmp_path, ROWS[1:4], outputFieldHeader=True, columnSelectors=SELECTORS)
    assert content == (
        b"ticdc-meta$operation,ticdc-meta$table,ticdc-meta$schema,ticdc-meta$commit-ts,id,k\n"
        b'"I","t","shop",5,2,20\n"U","t","shop",6,1,10\n"U","t","shop",6,2,21\n'
    )


def test_canal_json_has_the_selected_columns(tmp_path):
    _, content = encode_file(tmp_path, ROWS[3:5], protocol="canal-json", columnSelectors=SELECTORS)
    changed, deleted = map(json.loads, content.splitlines())
    assert changed["data"] == [{"id": "2", "k": "21"}]
    assert changed["old"] == [{"id": "2", "k": "20"}]
    assert deleted["data"] == [{"id": "1", "k": "10"}]
    assert [set(line[name]) for line in (changed, deleted) for name in ("sqlType", "mysqlType")] == [{"id", "k"}] * 4
    assert changed["pkNames"] == ["id"]


def test_a_plan_of_a_version_without_event_filters_is_executed(tmp_path):
    _, content = encode_file(tmp_path, ROWS[:1], filter_={"rules": ["*.*"], "events": [], "ignoreTxnStartTs": []})
    assert content == b'"I","t","shop",5,1,10,"Ann"\n'


def lost(piece):
    raise Transient(f"{piece.uri} is missing.")


def test_failures_leave_no_spool_file(tmp_path, monkeypatch):
    monkeypatch.setattr(spool, "IN_MEMORY_BYTES", 0)
    monkeypatch.setattr(run, "CHUNK_BYTES", 1)
    stood = []

    def mount_and_look(rows, *rest, **options):
        stood.append(len(list(tmp_path.iterdir())))
        return mount(rows, *rest, **options)

    monkeypatch.setattr(recipe, "mount", mount_and_look)
    with pytest.raises(NeedsHuman, match=r"shop\.t"):
        encode_file(tmp_path, [insert(1, 1), Row(5, 2, 1, b"\x01broken")])
    assert stood == [0, 1], "a file stood there when the second row came"
    assert list(tmp_path.iterdir()) == []

    work, entry = make_work([segment(0)])
    with pytest.raises(Transient, match=r"/0\.arrow"):
        encode_entry(work, entry, lost, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_attempts_of_one_entry_spool_apart(tmp_path, monkeypatch):
    """One that Spark believes dead may still run beside its successor, on the same machine."""
    monkeypatch.setattr(spool, "IN_MEMORY_BYTES", 0)
    work, entry = make_work([segment(0)])
    first, second = (encode_entry(work, entry, lambda _, k=k: raw([insert(5, 1, k)]), tmp_path) for k in (1, 2))
    assert len(list(tmp_path.iterdir())) == 2
    assert (content_of(first), content_of(second)) == (b'"I","t","shop",5,1,1,"n"\n', b'"I","t","shop",5,1,2,"n"\n')
    assert list(tmp_path.iterdir()) == []


def test_segments_are_read_several_at_a_time(tmp_path):
    """After an outage a plan has hundreds of small ones, and a store takes its time for each."""
    together = threading.Barrier(4, timeout=10)

    def read(piece):
        together.wait()
        return raw([insert(5 + piece.seq, piece.seq)])

    work, entry = make_work([segment(number) for number in range(8)])
    with ThreadPoolExecutor(4) as readers:
        encoded = encode_entry(work, entry, read, tmp_path, readers=readers)
    assert encoded.file.rows == 8


def test_where_the_cpu_time_went_is_said_by_stage(tmp_path):
    work, entry = make_work([segment(0)])
    encoded = encode_entry(work, entry, lambda _: raw([insert(5, n) for n in range(2000)]), tmp_path)
    assert tuple(encoded.cpu) == STAGES
    assert encoded.cpu["mount"] > 0


def test_an_unusable_spool_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(spool, "IN_MEMORY_BYTES", 0)
    work, entry = make_work([segment(0)])
    (tmp_path / "file").write_bytes(b"")
    patience = Patience(sleep=lambda _: None)
    with pytest.raises(Unavailable, match="spool"):
        encode_entry(work, entry, lambda piece: raw([insert(5, 1)]), tmp_path / "file", patience)


def test_rule_13_an_entry_without_segments_is_a_file(tmp_path):
    file, content = encode_file(tmp_path)
    assert (content, file.rows, file.raw_rows, file.filtered_rows) == (b"", 0, 0, 0)


#: {2: 42, 3: "foobar"} with a checksum of its columns.
CHECKED = bytes.fromhex("8002020000000203010007002a666f6f62617200837cf20a")


def checked(tmp_path, *values: bytes, **integrity: str):
    rows = [Row(10 + n, OP_INSERT, n, value) for n, value in enumerate(values)]
    table = make_table([column(2, "n", SqlType.BIGINT), column(3, "s", SqlType.VARCHAR)], pk_is_handle=False)
    return encode_file(tmp_path, rows, table=table, integrity=integrity)


def test_a_row_with_a_wrong_checksum_ends_the_run_or_is_told(tmp_path, caplog):
    spoilt = CHECKED[:-1] + b"\0"
    _, content = checked(tmp_path, CHECKED, level="Correctness", onCorruption="Error")
    assert content.count(b"foobar") == 1
    with pytest.raises(NeedsHuman, match=f"shop.t, key {key(1).hex()}: the row's checksum"):
        checked(tmp_path, CHECKED, spoilt, level="Correctness", onCorruption="Error")
    assert not caplog.records
    _, content = checked(tmp_path, CHECKED, spoilt, spoilt, level="Correctness", onCorruption="Warn")
    assert content.count(b"foobar") == 3
    (told,) = caplog.messages
    assert told.startswith(f"table shop.t, key {key(1).hex()}: the row's checksum is not that of its content; ")
    assert told.endswith("2 rows of this file are so.")
    _, content = checked(tmp_path, spoilt, level="None")
    assert content.count(b"foobar") == 1
