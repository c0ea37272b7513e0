"""Masked columns of rows: what a task makes of raw ones, against Python's own HMAC."""

from __future__ import annotations

import hmac
import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from changefeed.errors import InvalidSpec, NeedsHuman, Refused
from changefeed.model.position import OP_INSERT
from changefeed.pipeline.mounter import mount
from changefeed.pipeline.recipe import Recipe
from changefeed.pipeline.run import EntryRows
from changefeed.routing.routes import Routes
from changefeed.schema.sql_type import SqlType
from changefeed.schema.table_info import FLAG_NOT_NULL, FLAG_PRI_KEY, TableInfo
from changefeed.upstream.written_rows import MaskKeys, masked
from pipeline_rows import PEOPLE, Row, delete, insert, key, make_work, mounts, raw, segment, update
from pipeline_rows import column as raw_column

KEY = b"0123456789abcdef0123456789abcdef"
HASH: dict[str, Any] = {"hash": {"secretRef": {"name": "masking"}}}


def hashed(value: str | bytes, of: bytes = KEY) -> str:
    return hmac.new(of, value if isinstance(value, bytes) else value.encode(), "sha256").hexdigest()


def secrets(folder: Path, content: bytes = KEY) -> MaskKeys:
    (folder / "masking").mkdir(exist_ok=True)
    (folder / "masking" / "key").write_bytes(content)
    return MaskKeys(folder)


def shaped(*given: dict[str, Any], table: TableInfo = PEOPLE) -> TableInfo:
    entries = [{"match": ["*.*"], **each} for each in given]
    return Routes.of({"spec": {"filter": {"rules": ["*.*"]}, "columns": entries}}).routed(table)


def shown(table: TableInfo, rows: list[Row], keys: MaskKeys, **more: Any) -> list[list[Any]]:
    (batch,) = raw(rows).to_batches()
    records = mount(batch, table, "UTC", mask_keys=keys, **more)
    arrays = records.columns if records.old_columns is None else records.old_columns
    for array in arrays:
        array.validate(full=True)
    return [list(row) for row in zip(*(array.to_pylist() for array in arrays), strict=True)]


def test_values_are_hashed_each_the_same_wherever_it_stands_and_null_stays_null(tmp_path: Path) -> None:
    keys = secrets(tmp_path)
    table = shaped({"columns": ["id", "name"], **HASH})
    rows = [
        insert(1, 7, 3, "Ann"),
        insert(2, 8, 4, None),
        insert(3, 9, 5, "Ann"),
        delete(4, 7, 3, "äöü"),
        insert(5, 1, 0, ""),
    ]
    assert shown(table, rows, keys) == [
        [hashed("7"), 3, hashed("Ann")],
        [hashed("8"), 4, None],
        [hashed("9"), 5, hashed("Ann")],
        [hashed("7"), 3, hashed("äöü")],
        [hashed("1"), 0, hashed("")],
    ]


def test_what_a_row_was_is_masked_as_well(tmp_path: Path) -> None:
    table = shaped({"columns": ["name"], **HASH}, {"columns": ["k"], "constant": "-9"})
    old = shown(table, [update(1, 7, (3, "was"), (3, "is"))], secrets(tmp_path), with_old=True)
    assert old == [[7, -9, hashed("was")]]


def test_dropped_renamed_cut_and_emptied(tmp_path: Path) -> None:
    rows = [insert(1, 7, 3, "äöüx"), insert(2, 8, 4, None)]
    keys = MaskKeys()  # nothing is hashed
    assert shown(shaped({"columns": ["k"], "drop": True}), rows, keys) == [[7, "äöüx"], [8, None]]
    assert shown(shaped({"columns": ["name"], "truncate": 2}), rows, keys) == [[7, 3, "äö"], [8, 4, None]]
    assert shown(shaped({"columns": ["name", "k"], "setNull": True}), rows, keys) == [[7, None, None], [8, None, None]]
    assert shown(shaped({"columns": ["name"], "constant": "-"}), rows, keys) == [[7, 3, "-"], [8, 4, "-"]]
    assert shown(shaped({"columns": ["name"], "rename": "x"}), rows, keys) == [[7, 3, "äöüx"], [8, 4, None]]


def test_text_of_broken_bytes_is_hashed_by_them_and_cut_between_characters(tmp_path: Path) -> None:
    keys, broken = secrets(tmp_path), [b"\xff\xe4a", "äöü".encode(), None]
    values = pa.array(broken, pa.binary())
    column = PEOPLE.columns[2]
    masks = dict(shaped({"columns": ["name"], **HASH}).masks)
    assert masked(column, values, masks[3], keys).to_pylist() == [hashed(broken[0]), hashed("äöü"), None]
    cut = dict(shaped({"columns": ["name"], "truncate": 2}).masks)[3]
    assert masked(column, values, cut, keys).to_pylist() == [b"\xff\xe4", "äö".encode(), None]
    binary = replace(column, type=SqlType.BLOB if hasattr(SqlType, "BLOB") else SqlType.TEXT, charset="binary")
    assert masked(binary, values, cut, keys).to_pylist() == [b"\xff\xe4", "ä".encode(), None]


def test_a_choice_is_hashed_by_its_text_also_in_a_slice(tmp_path: Path) -> None:
    keys = secrets(tmp_path)
    mask = dict(shaped({"columns": ["name"], **HASH}).masks)[3]
    type_ = pa.struct([("number", pa.uint64()), ("text", pa.string())])
    values = pa.array([{"number": 1, "text": "x"}, None, {"number": 2, "text": "y"}, {"number": 1, "text": "x"}], type_)
    found = masked(PEOPLE.columns[2], values.slice(1), mask, keys)
    assert found.to_pylist() == [None, hashed("y"), hashed("x")]


@pytest.mark.parametrize("length", [16, 63, 64, 65, 4096])
def test_keys_of_every_length_give_what_rfc_2104_says(tmp_path: Path, length: int) -> None:
    of = bytes(n % 251 for n in range(length))
    keys = secrets(tmp_path, of + b"\r\n")
    values = [b"", b"a" * 55, b"a" * 56, b"a" * 64, b"a" * 1000]
    digests = keys.hashes("masking")(values)
    assert [digests[n * 32 : n * 32 + 32].hex() for n in range(len(values))] == [hashed(value, of) for value in values]


def test_a_key_that_is_missing_or_can_be_guessed_is_refused_and_not_shown(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match=r"--secrets-dir: missing; spec.columns names Secret masking"):
        MaskKeys().check(["masking"])
    with pytest.raises(Refused, match="Secret masking has no key"):
        MaskKeys(tmp_path).check(["masking"])
    with pytest.raises(Refused, match="has 6 bytes; allowed: 16 to 4096") as refused:
        secrets(tmp_path, b"s3cret\n").check(["masking"])
    assert "s3cret" not in f"{refused.value}"
    assert "openssl rand" in refused.value.next_step


def test_what_goes_to_tasks_has_no_key_in_it(tmp_path: Path) -> None:
    keys = secrets(tmp_path)
    keys.check(["masking"])
    pickled = pickle.dumps(keys)
    assert KEY not in pickled
    assert pickle.loads(pickled).hashes("masking")([b"a"]) == keys.hashes("masking")([b"a"])


def test_a_row_that_can_not_be_decoded_is_not_shown(tmp_path: Path) -> None:
    secret = b"very-secret-name"
    row = Row(1, OP_INSERT, 424242, b"\x80\x00\x07\x00" + secret)
    with pytest.raises(NeedsHuman) as open_:
        shown(PEOPLE, [row], MaskKeys())
    assert key(424242).hex() in str(open_.value), "else this test proves nothing"
    with pytest.raises(NeedsHuman) as refused:
        shown(shaped({"columns": ["id", "name"], **HASH}), [row], secrets(tmp_path))
    said = f"{refused.value!r} {refused.value} {refused.value.__cause__}"
    assert key(424242).hex() not in said
    assert secret.hex() not in said
    assert "A row of shop.t can't be decoded" in said


def test_an_entry_is_split_and_filtered_by_what_is_upstream_and_written_masked(tmp_path: Path) -> None:
    """An update of a unique key is a delete and an insert, and a condition sees the name."""
    unique = {"id": 1, "idx_name": {"O": "u"}, "idx_cols": [{"name": {"O": "k"}, "length": -1}], "state": 5}
    table = TableInfo.from_json(PEOPLE.to_json() | {"index_info": [unique | {"is_unique": True}]})
    written = shaped({"columns": ["k", "name"], **HASH}, {"columns": ["k"], "rename": "number"}, table=table)
    filters = {"eventFilters": [{"matcher": ["*.*"], "ignoreInsertValueExpr": "name = 'Eve'"}]}
    work, entry = make_work([segment(1, 3)], written, filter_=filters)
    rows = raw([insert(1, 7, 3, "Ann"), insert(2, 8, 4, "Eve"), update(3, 7, (3, "Ann"), (5, "Ann"))])

    recipe = Recipe.of(json.loads(work.config), written, mounts, secrets(tmp_path))
    made = list(EntryRows(recipe, entry, lambda _: rows))
    found = [row for records in made for row in zip(*(array.to_pylist() for array in records.columns), strict=True)]
    assert found == [
        (7, hashed("3"), hashed("Ann")),
        (7, hashed("3"), hashed("Ann")),
        (7, hashed("5"), hashed("Ann")),
    ]
    assert [each.name for each in made[0].shown] == ["id", "number", "name"]


def test_tables_that_are_masked_alike_are_alike_whatever_their_names(tmp_path: Path) -> None:
    cols = [raw_column(1, "id", SqlType.BIGINT, FLAG_NOT_NULL | FLAG_PRI_KEY), raw_column(2, "c", SqlType.VARCHAR)]
    base = PEOPLE.to_json() | {"cols": cols}
    one, other = (TableInfo.from_json(base | {"id": n, "name": f"t{n}"}) for n in (1, 2))
    work, _ = make_work([], one)

    def likeness(table: TableInfo, *given: dict[str, Any]) -> str | None:
        return Recipe.of(json.loads(work.config), shaped(*given, table=table), mounts).likeness

    entry = {"columns": ["c"], **HASH}
    assert likeness(one, entry) == likeness(other, entry) != likeness(one)
    assert likeness(one, entry) != likeness(one, {"columns": ["c"], "truncate": 3})
