"""What registries that compare schemas take of DDLs: each line of a table of docs/databases.md, ours and TiCDC's."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from changefeed.errors import NeedsHuman
from changefeed.objectstore.patience import Patience
from changefeed.schema.table_info import ColumnInfo, TableInfo, parse_table_info
from changefeed.sink.kafka.codec.avro.schema import AvroTypes, schema_of
from changefeed.sink.kafka.registry import RegistryEndpoint, SchemaRegistry
from changefeed.sink.text.canal_types import primary_key
from changefeed_devcluster.ddl.columns import FIRST, add_column, drop_column, modify_column, set_default
from changefeed_devcluster.ddl.running import States, last
from changefeed_devcluster.server import DevCluster
from changefeed_devcluster.tidb.schema import NamedTable, NewColumn
from changefeed_devcluster.tidb.tidb import Tidb
from integration_java import FETCH_S
from integration_registry import RELEASES, RegistryServer, Release, version_of

pytestmark = pytest.mark.timeout(FETCH_S + 120)

PAGE = Path(__file__).parents[2] / "docs" / "databases.md"
HEADING = "| DDL | our schema | TiCDC's |"
AS_USUAL, AS_TEXT = AvroTypes(), AvroTypes(decimal_as_text=True)


class Alter(NamedTuple):
    """`old`: a column before the DDL."""

    run: Callable[[Tidb, NamedTable], States]
    old: NewColumn = NewColumn("old", "int", nullable=True)
    types: AvroTypes = AS_USUAL


def add(column: str, *, nullable: bool = False, default: str | None = None, after: str | None = None) -> Alter:
    made = NewColumn("a", column, nullable, default)
    return Alter(lambda tidb, table: add_column(tidb, table, made, after))


def modify(old: NewColumn, new: NewColumn) -> Alter:
    return Alter(lambda tidb, table: modify_column(tidb, table, old.name, new), old)


def to(before: str, after: str) -> Alter:
    """Another type of a nullable column."""
    return modify(NewColumn("old", before, nullable=True), NewColumn("old", after, nullable=True))


def rename(column: str, *, nullable: bool = False, default: str | None = None) -> Alter:
    return modify(NewColumn("old", column, nullable, default), NewColumn("new", column, nullable, default))


PRICE = add("decimal(9,2)", default="1")
DDLS = {
    "ADD c VARCHAR(20)": add("varchar(20)", nullable=True),
    "ADD c VARCHAR(20) DEFAULT 'x'": add("varchar(20)", nullable=True, default="x"),
    "ADD c VARCHAR(20) NOT NULL DEFAULT 'x'": add("varchar(20)", default="x"),
    "ADD c VARCHAR(20) NOT NULL": add("varchar(20)"),
    "ADD c INT NOT NULL DEFAULT 5 FIRST": add("int", default="5", after=FIRST),
    "ADD c DATETIME NOT NULL DEFAULT '2024-02-29 01:02:03'": add("datetime", default="2024-02-29 01:02:03"),
    "ADD c VARBINARY(9) NOT NULL DEFAULT 'x'": add("varbinary(9)", default="x"),
    "ADD c DECIMAL(9,2) DEFAULT 1": add("decimal(9,2)", nullable=True, default="1"),
    "ADD c DECIMAL(9,2) NOT NULL DEFAULT 1": PRICE,
    "the same with `decimalHandlingMode: string`": PRICE._replace(types=AS_TEXT),
    "ALTER c SET DEFAULT 5": Alter(lambda tidb, table: set_default(tidb, table, "old", "5")),
    "MODIFY c from INT to BIGINT": to("int", "bigint"),
    "MODIFY c from INT to INT UNSIGNED": to("int", "int unsigned"),
    "MODIFY c from FLOAT to DOUBLE": to("float", "double"),
    "MODIFY c to a longer or a shorter VARCHAR": to("varchar(20)", "varchar(40)"),
    "MODIFY c to an ENUM with more values": to("enum('a','b')", "enum('a','b','c')"),
    "MODIFY c from VARCHAR to VARBINARY": to("varchar(20)", "varbinary(20)"),
    "MODIFY c to a DECIMAL with more digits before the point": to("decimal(9,2)", "decimal(12,2)"),
    "MODIFY c to a DECIMAL with more digits after the point": to("decimal(9,2)", "decimal(12,4)"),
    "MODIFY c from INT to TINYINT": to("int", "tinyint"),
    "MODIFY c from BIGINT to INT": to("bigint", "int"),
    "MODIFY c from INT to VARCHAR": to("int", "varchar(20)"),
    "MODIFY c from NOT NULL to NULL": modify(NewColumn("old", "int"), NewColumn("old", "int", nullable=True)),
    "MODIFY c from NULL to NOT NULL": modify(NewColumn("old", "int", nullable=True), NewColumn("old", "int")),
    "RENAME COLUMN, NULL": rename("int", nullable=True),
    "RENAME COLUMN, NOT NULL DEFAULT 5": rename("int", default="5"),
    "RENAME COLUMN, NOT NULL without a default": rename("int"),
    "RENAME COLUMN of the primary key": Alter(
        lambda tidb, table: modify_column(tidb, table, "id", NewColumn("nr", "bigint"))
    ),
    "DROP COLUMN": Alter(lambda tidb, table: drop_column(tidb, table, "old")),
}


@pytest.fixture(params=RELEASES, ids=version_of)
def server(request: pytest.FixtureRequest, every_registry: Callable[[Release], RegistryServer]) -> RegistryServer:
    return every_registry(request.param)


@pytest.fixture(scope="module")
def tidb() -> Iterator[Tidb]:
    with DevCluster() as cluster:
        tidb = Tidb(cluster)
        tidb.bootstrap()
        tidb.create_database("shop")
        yield tidb


def ours(info: TableInfo, columns: Sequence[ColumnInfo], types: AvroTypes) -> str:
    return schema_of(info, columns, "default", types, with_extension=False)


def ticdcs(info: TableInfo, columns: Sequence[ColumnInfo], types: AvroTypes) -> str:
    """As its `columns2AvroSchema` does it: a field's default is the one of rows to come, as its Go encodes that."""
    said = json.loads(ours(info, columns, types))
    for column, field in zip(columns, said["fields"], strict=True):
        kind = field["type"]
        kind = next(each for each in kind if each != "null") if isinstance(kind, list) else kind
        default: Any = None if "logicalType" in kind else column.default
        if default is not None and kind["type"] in ("int", "long"):
            default = int(default)
        elif default is not None and kind["type"] == "bytes":
            default = base64.b64encode(default.encode()).decode()
        field.pop("default", None)
        if column.nullable:
            kind = ["null", kind] if default is None else [kind, "null"]
        if column.nullable or default is not None:
            field["default"] = default
        field["type"] = kind
    return json.dumps(said)


def register(
    server: RegistryServer, subject: str, table: NamedTable, types: AvroTypes, schema: Callable[..., str]
) -> None:
    """A table's keys and values, as they are now."""
    info = parse_table_info(table.info.to_json(), "shop")
    key = [column for column in info.output_columns if column.name in primary_key(info)]
    asked = SchemaRegistry(RegistryEndpoint(server.uri), Patience(60, sleep=lambda _: None))
    for side, columns in (("key", key), ("value", info.output_columns)):
        assert asked.number_of(f"{subject}-{side}", schema(info, columns, types)) > 0


def takes(server: RegistryServer, tidb: Tidb, name: str, ddl: str, schema: Callable[..., str]) -> bool:
    """Whether the registry does while it demands BACKWARD. When it demands nothing, it takes whatever comes."""
    alter = DDLS[ddl]
    before = tidb.create_table("shop", name, (NewColumn("id", "bigint"), alter.old))
    register(server, name, before, alter.types, schema)
    after = last(alter.run(tidb, before))
    server.demand("BACKWARD")
    try:
        register(server, name, after, alter.types, schema)
        return True
    except NeedsHuman as refused:
        if "(409)" not in refused.message:
            raise
    finally:
        server.demand("NONE")
    register(server, name, after, alter.types, schema)
    return False


def table_of_the_page() -> dict[str, list[str]]:
    """Its cells, by DDL."""
    _, lines = PAGE.read_text().split(HEADING + "\n")
    rows = [line.strip("| ").split(" | ") for line in lines.partition("\n\n")[0].splitlines()[1:]]
    return {ddl: cells for ddl, *cells in rows}


def test_the_table_has_all_ddls() -> None:
    assert list(table_of_the_page()) == list(DDLS)


@pytest.mark.parametrize("number", range(len(DDLS)))
def test_a_ddl_under_backward(server: RegistryServer, tidb: Tidb, number: int) -> None:
    ddl = list(DDLS)[number]
    name = f"t{number}_{server.release.version.replace('.', '_')}"
    taken = [takes(server, tidb, f"{name}_{schema.__name__}", ddl, schema) for schema in (ours, ticdcs)]
    assert table_of_the_page()[ddl] == ["taken" if each else "refused" for each in taken]
