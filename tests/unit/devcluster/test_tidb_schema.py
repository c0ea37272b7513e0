"""Definitions and jobs have TiDB's JSON form, as real clusters stored it (docs/design/tidb.md, Definitions)."""

from __future__ import annotations

import json

import pytest
from changefeed_devcluster.tidb import schema
from changefeed_devcluster.tidb.field_types import FieldType, Tp, field_type
from changefeed_devcluster.tidb.schema import NewColumn, TidbTable, make_table, with_column

# Members of a TableInfo and its columns that a TiDB of 2022 stored (tiflash, gtest_decoding_storage_schema_snapshot).
_TABLE_MEMBERS = {
    "id", "name", "charset", "collate", "cols", "index_info", "constraint_info", "fk_info", "state", "pk_is_handle",
    "is_common_handle", "common_handle_version", "comment", "auto_inc_id", "auto_id_cache", "auto_rand_id",
    "max_col_id", "max_idx_id", "max_fk_id", "max_cst_id", "update_timestamp", "ShardRowIDBits",
    "max_shard_row_id_bits", "auto_random_bits", "auto_random_range_bits", "pre_split_regions", "partition",
    "compression", "view", "sequence", "Lock", "version", "tiflash_replica", "is_columnar", "temp_table_type",
    "cache_table_status", "policy_ref_info", "stats_options", "exchange_partition_info", "ttl_info",
}  # fmt: skip
_REAL_COLUMN = json.loads(
    '{"id":2,"name":{"O":"B","L":"b"},"offset":1,"origin_default":null,"origin_default_bit":null,"default":null,'
    '"default_bit":null,"default_is_expr":false,"generated_expr_string":"","generated_stored":false,'
    '"dependences":null,"type":{"Tp":15,"Flag":0,"Flen":20,"Decimal":0,"Charset":"utf8mb4","Collate":"utf8mb4_bin",'
    '"Elems":null},"state":5,"comment":"","hidden":false,"change_state_info":null,"version":2}'
)
_COLUMNS = [
    NewColumn("id", "bigint"),
    NewColumn("B", "varchar(20)", nullable=True),
    NewColumn("mail", "varchar(64)", unique=True),
    NewColumn("n", "decimal(18,2)", default="1.50"),
]


def test_a_table_has_tidbs_members() -> None:
    data = make_table(7, "Orders", _COLUMNS, "id").to_json()
    assert data.keys() >= _TABLE_MEMBERS
    assert (data["name"], data["pk_is_handle"], data["max_col_id"]) == ({"O": "Orders", "L": "orders"}, True, 4)
    column = data["cols"][1]
    for member in ("ElemsIsBinaryLit", "Array"):
        del column["type"][member]
    assert column == _REAL_COLUMN


def test_the_primary_key_carries_its_flags() -> None:
    info = make_table(7, "t", [NewColumn("id", "int unsigned"), NewColumn("v", "int", nullable=True)], "id")
    assert [column.type.flag for column in info.columns] == [4096 + 32 + 2 + 1, 0]


def test_a_unique_column_makes_an_index() -> None:
    (index,) = make_table(7, "t", _COLUMNS, "id").to_json()["index_info"]
    assert (index["is_unique"], index["is_primary"], index["state"]) == (True, False, 5)
    assert index["idx_cols"] == [{"name": {"O": "mail", "L": "mail"}, "offset": 2, "length": -1}]


@pytest.mark.parametrize("pk", ["id", None])
def test_a_table_is_read_back(pk: str | None) -> None:
    info = with_column(make_table(7, "t", _COLUMNS, pk), NewColumn("late", "int", default=3))
    assert schema.TidbTable.from_json(json.loads(schema.dump(info.to_json()))) == info


@pytest.mark.parametrize(
    ("sql", "field"),
    [
        ("tinyint", FieldType(Tp.TINY, 0, 4)),
        ("bigint unsigned", FieldType(Tp.LONGLONG, 32, 20)),
        ("int unsigned", FieldType(Tp.LONG, 32, 10)),
        ("double", FieldType(Tp.DOUBLE, 0, 22, -1)),
        ("float", FieldType(Tp.FLOAT, 0, 12, -1)),
        ("decimal(20,1)", FieldType(Tp.DECIMAL, 0, 20, 1)),
        ("decimal", FieldType(Tp.DECIMAL, 0, 10, 0)),
        ("datetime(6)", FieldType(Tp.DATETIME, 128, 26, 6)),
        ("timestamp", FieldType(Tp.TIMESTAMP, 128, 19, 0)),
        ("char(20)", FieldType(Tp.STRING, 0, 20, 0, "utf8mb4", "utf8mb4_bin")),
        ("text", FieldType(Tp.BLOB, 0, 65535, 0, "utf8mb4", "utf8mb4_bin")),
        ("binary(16)", FieldType(Tp.STRING, 128, 16)),
        ("blob", FieldType(Tp.BLOB, 128, 65535)),
        ("time(3)", FieldType(Tp.DURATION, 128, 14, 3)),
        ("year", FieldType(Tp.YEAR, 32 | 64 | 128, 4)),
        ("bit(10)", FieldType(Tp.BIT, 32, 10)),
        ("int(5) unsigned zerofill", FieldType(Tp.LONG, 32 | 64, 5)),
        ("enum('a b','C')", FieldType(Tp.ENUM, 0, -1, 0, "utf8mb4", "utf8mb4_bin", ("a b", "C"))),
        ("SET('x')", FieldType(Tp.SET, 0, -1, 0, "utf8mb4", "utf8mb4_bin", ("x",))),
    ],
)
def test_field_types_are_those_that_tidb_stores(sql: str, field: FieldType) -> None:
    assert field_type(sql) == field


def test_a_default_of_bits_is_kept_as_its_bytes() -> None:
    info = with_column(make_table(7, "t", _COLUMNS, "id"), NewColumn("b", "bit(12)", default=2571))
    stored = info.to_json()
    column = stored["cols"][-1]
    assert (column["default"], column["default_bit"], column["origin_default_bit"]) == ("\n\v", "Cgs=", "Cgs=")
    assert TidbTable.from_json(stored) == info


@pytest.mark.parametrize("sql", ["json", "enum(a)", "bigint(", ""])
def test_a_type_that_cant_be_written_is_refused(sql: str) -> None:
    with pytest.raises(ValueError, match="column"):
        field_type(sql)


@pytest.mark.parametrize("pk", ["nope", ("B", "nope")])
def test_a_primary_key_that_cant_be(pk: str | tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="'nope' is not one of its columns"):
        make_table(7, "t", _COLUMNS, pk)


def test_a_primary_key_of_other_types_is_a_common_handle() -> None:
    info = make_table(7, "t", _COLUMNS, ("B", "id"))
    stored = info.to_json()
    assert (info.pk, info.clustered) == (None, ("B", "id"))
    assert (stored["pk_is_handle"], stored["is_common_handle"]) == (False, True)
    primary = next(index for index in stored["index_info"] if index["is_primary"])
    assert [member["name"]["O"] for member in primary["idx_cols"]] == ["B", "id"]
    assert TidbTable.from_json(stored) == info


def test_the_job_table_is_the_reserved_one() -> None:
    info = schema.ddl_job_table()
    assert info.id == 281474976710654
    assert next(column.id for column in info.columns if column.name == "job_meta") == 5
