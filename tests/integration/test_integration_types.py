"""Every scalar type from a table's first row to the sink: each file's text, byte by byte, and `changefeed verify`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from changefeed.objectstore.open import open_store
from changefeed_devcluster.tidb.schema import NamedTable, NewColumn
from changefeed_devcluster.tidb.tidb import Tidb
from conftest import Changefeed, Upstream
from integration_observer import watching
from integration_s3_servers import S3Server, running, write_secret
from integration_types import BROKEN, DEFAULTS, KINDS, NULL, ZONE, Cell, Kind, plain

Row = dict[str, Cell]
ROWS = max(len(kind.cells) for kind in KINDS) + 1  # the last one is NULL all over
#: What a common handle can hold, as many columns as TiDB lets one have.
KEYS = [
    *("char(20)", "varchar(20)", "binary(4)", "varbinary(20)", "tinyint", "bigint unsigned", "year", "bit(64)"),
    *("decimal(20,4)", "double", "date", "datetime(6)", "timestamp", "time(6)"),
    *("enum('red','a \"b\",c','ä')", "set('a','b c','ü')"),
]
EXTENSION = {"enableTidbExtension": True, "deleteOnlyOutputHandleKeyColumns": False}
WITH_TS = {"includeCommitTs": True}
OLD = {"includeCommitTs": True, "outputOldValue": True, "outputFieldHeader": True}


@dataclass(frozen=True)
class Change:
    commit_ts: int
    old: Row | None
    new: Row | None

    @property
    def image(self) -> Row:
        """What csv shows, and canal-json's `data`."""
        image = self.old if self.new is None else self.new
        assert image is not None
        return image


@dataclass
class Model:
    """A table, and what was done to it. `handles`: what tells a row for the development cluster."""

    table: NamedTable
    kinds: dict[str, Kind]
    changes: list[Change] = field(default_factory=list)

    @property
    def key(self) -> tuple[str, ...]:
        info = self.table.info
        return (info.pk,) if info.pk else info.clustered

    def write(self, tidb: Tidb, old: Row | None, new: Row | None, rowid: int) -> None:
        """One change in a transaction of its own."""
        with tidb.begin() as txn:
            if new is None:
                assert old is not None
                members = tuple(old[name].value for name in self.key) or (rowid,)
                txn.delete(self.table, members if len(members) > 1 else members[0])
            else:
                values = {name: cell.value for name, cell in new.items()}
                row = values if self.key else {"_tidb_rowid": rowid, **values}
                (txn.insert if old is None else txn.update)(self.table, row)
        self.changes.append(Change(txn.commit_ts, old, new))


def row_of(kinds: dict[str, Kind], number: int) -> Row:
    return {name: kind.cells[number] if number < len(kind.cells) else NULL for name, kind in kinds.items()}


def new_table(tidb: Tidb, name: str, kinds: dict[str, Kind], key: dict[str, Kind]) -> Model:
    columns = [NewColumn(column, kind.sql) for column, kind in key.items()]
    columns += [NewColumn(column, kind.sql, nullable=True) for column, kind in kinds.items()]
    table = tidb.create_table("types", name, columns, pk=list(key) or None)
    return Model(table, key | kinds)


def all_types(tidb: Tidb, given: Sequence[Kind] = KINDS) -> list[Model]:
    """One table a kind of handle, empty."""
    kinds = {f"c{n}": kind for n, kind in enumerate(given)}
    by_sql = {kind.sql: kind for kind in given}
    numbers = [0, 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, *range(2, ROWS)]
    ids = tuple(plain(n, str(n), java=3 if n >> 63 else None) for n in numbers)
    int_key = {"id": Kind("bigint unsigned", "bigint unsigned", -5, ids)}
    common_key = {f"k{n}": by_sql[sql] for n, sql in enumerate(KEYS)}
    return [
        new_table(tidb, "int_handle", kinds, int_key),
        new_table(tidb, "common_handle", kinds, common_key),
        new_table(tidb, "no_handle", kinds, {}),
    ]


def change_all_types(tidb: Tidb, model: Model) -> None:
    """Each value comes, goes to another row, and leaves."""
    key = {name: kind for name, kind in model.kinds.items() if name in model.key}
    kinds = {name: kind for name, kind in model.kinds.items() if name not in model.key}
    handles = [{name: kind.cells[r % len(kind.cells)] for name, kind in key.items()} for r in range(ROWS)]
    rows = [row_of(kinds, number) for number in range(ROWS)]
    for r, handle in enumerate(handles):
        model.write(tidb, None, handle | rows[r], r + 1)
    for r, handle in enumerate(handles):
        model.write(tidb, handle | rows[r], handle | rows[r - 1], r + 1)
    for r, handle in list(enumerate(handles))[::2]:
        model.write(tidb, handle | rows[r - 1], None, r + 1)


def older_rows(tidb: Tidb) -> list[Model]:
    """Two tables with a row each that is older than all columns but the first; they are not changed yet."""
    java = {kind.mysql: kind.java for kind in KINDS}
    ids = tuple(plain(n, str(n)) for n in range(3))
    models = []
    for name in ("defaults", "zeros"):
        table = tidb.create_table("types", name, [NewColumn("id", "int")])
        kinds = {"id": Kind("int", "int", 4, ids)}
        with tidb.begin() as txn:
            for number in range(3):
                txn.insert(table, {"id": number})
        for n, one in enumerate(DEFAULTS):
            added = [NewColumn(f"z{n}", one.sql)]
            if name == "defaults":
                added = [NewColumn(f"d{n}", one.sql, default=one.default), NewColumn(f"n{n}", one.sql, nullable=True)]
            mysql = re.sub(r"\(.*\)", "", one.sql)
            for column in added:
                table = tidb.add_column(table, column)
                cell = {"d": one.cell, "n": NULL, "z": one.zero}[column.name[0]]
                kinds[column.name] = Kind(one.sql, mysql, java[mysql], 3 * (cell,))
        models.append(Model(table, kinds))
    return models


def change_older(tidb: Tidb, models: Sequence[Model]) -> None:
    """Deletes show the rows; so does an update, where it gives no new form to what it stores."""
    for model in models:
        rows = [row_of(model.kinds, number) for number in range(3)]
        model.write(tidb, rows[0], None, 0)
        if model.table.info.name == "defaults":
            changed = {"id": rows[1]["id"], "d0": plain(7, "7")}
            with tidb.begin() as txn:
                txn.update(model.table, {name: cell.value for name, cell in changed.items()})
            model.changes.append(Change(txn.commit_ts, rows[1], rows[1] | changed))


def write_everything(changefeed: Changefeed, tidb: Tidb) -> list[Model]:
    """Gives the changefeed its range: all changes of the models, and nothing else."""
    tidb.create_database("types")
    older, models = older_rows(tidb), all_types(tidb)
    changefeed.spec |= {"startTs": str(tidb.now()), "timeZone": ZONE}
    for model in models:
        change_all_types(tidb, model)
    change_older(tidb, older)
    changefeed.spec["targetTs"] = str(tidb.now())
    return models + older


# What the files are to hold.


def csv_text(model: Model, with_old: bool) -> str:
    lines = []
    if with_old:
        meta = "ticdc-meta$operation,ticdc-meta$table,ticdc-meta$schema,ticdc-meta$commit-ts,ticdc-meta$is-update"
        lines.append(",".join([meta, *model.kinds]))
    for change in model.changes:
        is_update = change.old is not None and change.new is not None
        op = "U" if is_update else "I" if change.old is None else "D"
        images: list[tuple[str, Row]] = [(op, change.image)]
        if with_old and is_update:
            assert change.old is not None
            images = [("D", change.old), ("I", change.image)]
        for letter, row in images:
            meta = f'"{letter}","{model.table.info.name}","types",{change.commit_ts}'
            meta += f",{str(is_update).lower()}" if with_old else ""
            lines.append(",".join([meta, *(row[name].csv for name in model.kinds)]))
    return "".join(f"{line}\r\n" for line in lines)


def json_object(members: Iterator[tuple[str, str]]) -> str:
    return "{" + ",".join(f'"{name}":{value}' for name, value in members) + "}"


def canal_text(model: Model) -> str:
    """With 0 for `ts`, which is the plan's time."""
    pk_names = ",".join(f'"{name}"' for name in model.kinds if name in model.key)
    mysql = json_object((name, f'"{kind.mysql}"') for name, kind in model.kinds.items())
    lines = []
    for change in model.changes:
        kind = "INSERT" if change.old is None else "DELETE" if change.new is None else "UPDATE"
        sql = json_object((name, str(change.image[name].java or k.java)) for name, k in model.kinds.items())
        old, data = (row and json_object((name, row[name].json) for name in model.kinds) for row in images_of(change))
        lines.append(
            f'{{"id":0,"database":"types","table":"{model.table.info.name}","pkNames":[{pk_names}],"isDdl":false,'
            f'"type":"{kind}","es":{change.commit_ts >> 18},"ts":0,"sql":"","sqlType":{sql},"mysqlType":{mysql},'
            f'"old":{f"[{old}]" if old else "null"},"data":[{data}],"_tidb":{{"commitTs":{change.commit_ts}}}}}\r\n'
        )
    return "".join(lines)


def images_of(change: Change) -> tuple[Row | None, Row]:
    return None if change.new is None else change.old, change.image


def same(found: str, wanted: str, what: str) -> None:
    """As `==`, with a message that fits a screen."""
    if found != wanted:
        at = next(
            (n for n, (a, b) in enumerate(zip(found, wanted, strict=False)) if a != b), min(len(found), len(wanted))
        )
        near = slice(max(0, at - 60), at + 60)
        pytest.fail(f"{what}, character {at}: {found[near]!r}, not {wanted[near]!r}")


def same_canal(found: str, model: Model) -> None:
    name = model.table.info.name
    found, count = re.subn(r'^(\{"id":0,"database":[^{}]*,"ts":)\d{13},', r"\g<1>0,", found, flags=re.MULTILINE)
    assert count == len(model.changes)
    same(found, canal_text(model), name)


# The runs.


def prepared(new_changefeed: Callable[..., Changefeed], **storage: Any) -> Changefeed:
    changefeed = new_changefeed(["types.*"])
    uri = changefeed.spec["sink"]["storage"]["uri"]
    changefeed.spec["sink"] = {"storage": {"uri": uri, "flushInterval": "200ms", **storage}}
    return changefeed


async def run_here(changefeed: Changefeed) -> None:
    outcome = await changefeed.start_here().outcome()
    assert (outcome.state, outcome.checkpoint_ts) == ("finished", int(changefeed.spec["targetTs"]))


def written(changefeed: Changefeed, model: Model) -> str:
    files = sorted((changefeed.lake / "types" / model.table.info.name).rglob("CDC0*"))
    contents = []
    for path in files:
        with pa.input_stream(path) as stream:  # decompressed as the name says
            contents.append(stream.read())
    return b"".join(contents).decode(errors="surrogateescape")


@pytest.fixture
def ministack(tmp_path: Path) -> Iterator[S3Server]:
    with running("ministack", tmp_path / "server" / "data") as server:
        yield server


def assert_verified(changefeed: Changefeed, models: Sequence[Model], *arguments: str) -> None:
    code, verdict = changefeed.verify(*arguments)
    assert code == 0, verdict
    assert verdict["rows"] == verdict["transactions"] == sum(len(model.changes) for model in models)
    remaining = 2 * (3 - 1) + 2 * (ROWS // 2)  # of the tables that have a key
    notes = ["types.no_handle has no key in its files: its changes were compared but not replayed."]
    assert (verdict["tables"], verdict["replayed"], verdict["notes"]) == (len(models), remaining, notes)


@pytest.mark.parametrize("compression", ["none", "zstd"])
async def test_every_type_in_csv(
    upstream: Upstream, new_changefeed: Callable[..., Changefeed], compression: str
) -> None:
    changefeed = prepared(new_changefeed, protocol="csv", csv=WITH_TS, compression=compression)
    models = write_everything(changefeed, upstream.tidb)
    with watching(changefeed.lake.as_uri(), csv=WITH_TS, compression=compression):
        await run_here(changefeed)
    for model in models:
        same(written(changefeed, model), csv_text(model, with_old=False), model.table.info.name)
    assert_verified(changefeed, models)


async def test_every_type_in_csv_with_old_values(upstream: Upstream, new_changefeed: Callable[..., Changefeed]) -> None:
    changefeed = prepared(new_changefeed, protocol="csv", csv=OLD)
    models = write_everything(changefeed, upstream.tidb)
    await run_here(changefeed)
    for model in models:
        same(written(changefeed, model), csv_text(model, with_old=True), model.table.info.name)


async def test_every_type_in_canal_json(upstream: Upstream, new_changefeed: Callable[..., Changefeed]) -> None:
    changefeed = prepared(new_changefeed, protocol="canal-json", canalJson=EXTENSION)
    models = write_everything(changefeed, upstream.tidb)
    with watching(changefeed.lake.as_uri(), protocol="canal-json", canalJson=EXTENSION):
        await run_here(changefeed)
    for model in models:
        same_canal(written(changefeed, model), model)
    assert_verified(changefeed, models)


def with_a_type(kind: Kind) -> Kind:
    """Without dates of which a part is 0: parquet has none."""
    is_date = kind.sql.startswith(("date", "timestamp"))
    return replace(kind, cells=tuple(cell for cell in kind.cells if not (is_date and isinstance(cell.value, str))))


async def test_every_type_in_parquet(upstream: Upstream, new_changefeed: Callable[..., Changefeed]) -> None:
    changefeed = prepared(new_changefeed, protocol="parquet", parquet={"oldValues": True})
    upstream.tidb.create_database("types")
    models = all_types(upstream.tidb, [with_a_type(kind) for kind in KINDS])
    changefeed.spec |= {"startTs": str(upstream.tidb.now()), "timeZone": ZONE}
    for model in models:
        change_all_types(upstream.tidb, model)
    changefeed.spec["targetTs"] = str(upstream.tidb.now())
    with watching(changefeed.lake.as_uri(), protocol="parquet"):
        await run_here(changefeed)
    code, verdict = changefeed.verify()
    assert code == 0, verdict
    assert verdict["rows"] == verdict["transactions"] == sum(len(model.changes) for model in models)
    assert (verdict["tables"], verdict["replayed"]) == (3, 2 * (ROWS // 2))


def broken_texts(tidb: Tidb) -> list[Model]:
    kinds = {"v": Kind("varchar(20)", "varchar", 12, BROKEN), "t": Kind("text", "text", 2005, BROKEN[::-1])}
    ids = tuple(plain(n, str(n)) for n in range(ROWS))
    return [
        new_table(tidb, "numbered", kinds, {"id": Kind("bigint", "bigint", -5, ids)}),
        new_table(tidb, "named", {"n": Kind("int", "int", 4, ids)}, {"k": Kind("char(20)", "char", 1, BROKEN)}),
    ]


@pytest.mark.parametrize("protocol", ["csv", "canal-json"])
async def test_text_that_is_not_utf8(
    upstream: Upstream, new_changefeed: Callable[..., Changefeed], protocol: str
) -> None:
    options = {"csv": WITH_TS} if protocol == "csv" else {"canalJson": EXTENSION}
    changefeed = prepared(new_changefeed, protocol=protocol, **options)
    upstream.tidb.create_database("types")
    models = broken_texts(upstream.tidb)
    changefeed.spec["startTs"] = str(upstream.tidb.now())
    for model in models:
        rows = [{name: kind.cells[n] for name, kind in model.kinds.items()} for n in range(len(BROKEN))]
        for n, row in enumerate(rows):
            model.write(upstream.tidb, None, row, n)
        for n, row in enumerate(rows):
            key = {name: row[name] for name in model.key}
            model.write(upstream.tidb, row, rows[n - 1] | key, n)
        model.write(upstream.tidb, rows[-1] | {name: rows[0][name] for name in model.key}, None, 0)
    changefeed.spec["targetTs"] = str(upstream.tidb.now())
    await run_here(changefeed)
    for model in models:
        if protocol == "csv":
            same(written(changefeed, model), csv_text(model, with_old=False), model.table.info.name)
        else:
            same_canal(written(changefeed, model), model)
    code, verdict = changefeed.verify()
    assert code == 0, verdict
    assert verdict["rows"] == sum(len(model.changes) for model in models)
    notes = sorted(note.partition(":")[0] for note in verdict["notes"])
    assert notes == (
        []
        if protocol == "csv"
        else [
            "A consumer's rows of types.named were not compared",
            "types.named has no key in its files",
            "types.named holds bytes that are not UTF-8 in k",
            "types.numbered holds bytes that are not UTF-8 in v, t",
        ]
    )


@pytest.mark.timeout(1800)  # the first run builds the server
def test_every_type_in_canal_json_on_s3(
    upstream: Upstream, new_changefeed: Callable[..., Changefeed], ministack: S3Server, tmp_path: Path
) -> None:
    """As commands, with a Secret."""
    changefeed = prepared(new_changefeed, protocol="canal-json", canalJson=EXTENSION)
    secret = write_secret(tmp_path / "secrets", "lake-writer")
    credentials = {"secretRef": {"name": secret.name}}
    changefeed.spec["state"] = {"uri": ministack.uri("state"), "credentials": credentials}
    changefeed.spec["sink"]["storage"] |= {"uri": ministack.uri("orders"), "credentials": credentials}
    changefeed.options = ["--secrets-dir", str(secret.parent)]
    models = write_everything(changefeed, upstream.tidb)
    assert changefeed.run_here() == 0
    sink = open_store(ministack.uri("orders"), secret=secret)
    for model in models:
        files = [path for path, _ in sink.list(f"types/{model.table.info.name}") if path.endswith(".json")]
        files = [path for path in files if "/meta/" not in path]
        same_canal(b"".join(bytes(sink.get(path).body) for path in sorted(files)).decode(), model)
    assert_verified(changefeed, models, *changefeed.options)
