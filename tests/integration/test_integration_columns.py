"""Columns that are dropped, renamed and masked, in files and in tables; nothing that leaves has what they hide."""

from __future__ import annotations

import csv
import hmac
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import integration_iceberg as iceberg
import pyarrow.parquet as pq
import pytest
from changefeed.errors import InvalidSpec, NeedsHuman, Refused
from changefeed.objectstore.open import open_store
from changefeed.owner.driver import RunOptions
from changefeed.reading.progress import NoProgress
from changefeed.restore.flashback import flashback
from changefeed.restore.folder import Folder
from changefeed.restore.restore import restore
from changefeed.restore.source import RestoreSource
from changefeed.upstream.tikv.access import TikvAccess
from changefeed.upstream.written_rows import MaskKeys
from changefeed.verify.choice import verify_sink
from changefeed.verify.storage.report import StoredSink, verify
from changefeed_devcluster.ddl.columns import drop_column, modify_column
from changefeed_devcluster.ddl.running import last
from changefeed_devcluster.tidb.schema import NamedTable, NewColumn
from integration_inprocess import InProcessExecution, Run, World, new_world
from integration_mariadb import MariaDb

KEY = b"integration-tests-mask-with-this"
HASH = {"hash": {"secretRef": {"name": "masking"}}}
#: What no reader may see: each is in a column of every row.
SECRETS = ("hush-mail", "hush-phone", "hush-street", "hush-note", "hush-iban", "hush-code", "hush-tmp", "hush-default")
PEOPLE = (
    NewColumn("code", "varchar(40)"),
    NewColumn("mail", "varchar(64)", nullable=True),
    NewColumn("phone", "varchar(64)", nullable=True),
    NewColumn("street", "varchar(64)", nullable=True),
    NewColumn("note", "varchar(64)"),
    NewColumn("iban", "varchar(64)", nullable=True),
    NewColumn("visits", "int", nullable=True),
)
COLUMNS: list[dict[str, Any]] = [
    {"match": ["shop.people"], "columns": ["code", "mail"], **HASH},
    {"match": ["shop.people"], "columns": ["mail"], "rename": "{column}_hash"},
    {"match": ["shop.*"], "columns": ["phone"], "truncate": 2},
    {"match": ["shop.*"], "columns": ["street"], "setNull": True},
    {"match": ["shop.*"], "columns": ["note"], "constant": "hidden"},
    {"match": ["shop.*"], "columns": ["iban", "tmp_*"], "drop": True},
]
HEADER = ["code", "mail_hash", "phone", "street", "note", "visits"]


def hashed(value: str, of: bytes = KEY) -> str:
    return hmac.new(of, value.encode(), "sha256").hexdigest()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with new_world(tmp_path) as made:
        folder = tmp_path / "secrets" / "masking"
        folder.mkdir(parents=True)
        (folder / "key").write_bytes(KEY + b"\n")
        yield made


def row(number: int, **more: Any) -> dict[str, Any]:
    said = {name: f"hush-{name}-{number}" for name in ("code", "mail", "phone", "street", "note", "iban")}
    return said | {"visits": number, **more}


def masked(number: int, **more: Any) -> dict[str, Any]:
    """What is written of `row`."""
    shown = {"code": hashed(f"hush-code-{number}"), "mail_hash": hashed(f"hush-mail-{number}"), "phone": "hu"}
    return shown | {"street": None, "note": "hidden", "visits": number, **more}


def history(world: World) -> tuple[NamedTable, list[dict[str, Any]]]:
    """The table as it is at the end, and its rows as they are written."""
    tidb = world.tidb
    people = tidb.create_table("shop", "people", PEOPLE, pk="code")
    with tidb.begin() as txn:
        for number in range(1, 6):
            txn.insert(people, row(number))
        txn.insert(people, row(6, mail=None, phone=None, visits=None))
    with tidb.begin() as txn:
        txn.update(people, row(1, visits=10))
        txn.update(people, row(2, mail="hush-mail-new"))
        txn.delete(people, row(3)["code"])
    people = tidb.add_column(people, NewColumn("tmp_a", "varchar(20)", default="hush-default"))
    people = tidb.add_column(people, NewColumn("late", "int", nullable=True))
    people = last(drop_column(tidb, people, "iban"))
    with tidb.begin() as txn:
        given = row(7) | {"tmp_a": "hush-tmp", "late": 7}
        txn.insert(people, {name: value for name, value in given.items() if name != "iban"})
    rows = [
        masked(1, visits=10, late=None),
        masked(2, mail_hash=hashed("hush-mail-new"), late=None),
        masked(4, late=None),
        masked(5, late=None),
        masked(6, mail_hash=None, phone=None, visits=None, late=None),
        masked(7, late=7),
    ]
    return people, rows


def run_of(world: World, **spec: Any) -> Run:
    options = RunOptions(metrics_port=0, secrets_dir=world.folder / "secrets")
    return Run(world.changefeed(**{"columns": COLUMNS, **spec}), InProcessExecution(), options).start()


async def written(world: World, **spec: Any) -> Any:
    """All that was written until now is in the sink; gives the changefeed, which can go on."""
    run, end = run_of(world, **spec), world.tidb.now()
    await run.until(lambda: run.driver is not None and run.driver.owner.state.checkpoint_ts > end, "all is written")
    await run.drained()
    said = "\n".join(f"{each!r}" for each in run.view.progress)
    assert not any(secret in said for secret in SECRETS)
    return run.changefeed


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def leaks(folder: Path) -> list[Path]:
    """Files that have what is hidden, or the key."""
    hidden = [*(secret.encode() for secret in SECRETS), KEY]
    return [path for path in files(folder) if any(each in path.read_bytes() for each in hidden)]


def latest(changes: list[tuple[int, str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """The rows that changes leave: (commit ts, op, row)."""
    left: dict[str, dict[str, Any]] = {}
    for _, op, found in sorted(changes, key=lambda each: (each[0], each[1] != "D")):
        left.pop(found["code"], None)
        if op != "D":
            left[found["code"]] = found
    return list(left.values())


def sorted_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(({name: value for name, value in each.items() if value is not None} for each in rows), key=str)


def read_csv(lake: Path) -> list[tuple[int, str, dict[str, Any]]]:
    found = []
    for path in sorted((lake / "shop" / "people").rglob("CDC*.csv")):
        with path.open(newline="") as file:
            for line in csv.DictReader(file):
                columns = list(line.values())
                shown = {name: None if value == "\\N" else value for name, value in list(line.items())[4:]}
                shown |= {name: int(shown[name]) for name in ("visits", "late") if shown.get(name) is not None}
                found.append((int(columns[3]), columns[0], shown))
    return found


def read_canal(lake: Path) -> list[tuple[int, str, dict[str, Any]]]:
    found = []
    for path in sorted((lake / "shop" / "people").rglob("CDC*.json")):
        for line in path.read_text().splitlines():
            said = json.loads(line)
            assert set(said["mysqlType"]) == set(said["data"][0])
            assert said["mysqlType"]["code"].startswith("varchar")
            (data,) = said["data"]
            data |= {name: int(data[name]) for name in ("visits", "late") if data.get(name) is not None}
            found.append((said["_tidb"]["commitTs"], said["type"][0], data))
    return found


def read_parquet(lake: Path) -> list[tuple[int, str, dict[str, Any]]]:
    found = []
    for path in sorted((lake / "shop" / "people").rglob("CDC*.parquet")):
        for line in pq.read_table(path).to_pylist():
            shown = {name: value for name, value in line.items() if name in {*HEADER, "late"}}
            assert set(line) - shown.keys() == {name for name in line if name.startswith("_")}
            op, ts = line["_op"], line["_commit_ts"]
            found.append((int(ts), op, shown))
    return found


@pytest.mark.parametrize("protocol", ["csv", "canal-json", "parquet"])
async def test_files_have_masked_columns_alone(
    world: World, tmp_path: Path, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    _, expected = history(world)
    options: dict[str, dict[str, Any]] = {
        "csv": {"csv": {"includeCommitTs": True, "outputFieldHeader": True}},
        "canal-json": {"canalJson": {"enableTidbExtension": True}},
        "parquet": {},
    }
    storage = {"uri": world.lake.as_uri(), "protocol": protocol, "flushInterval": "100ms", **options[protocol]}
    changefeed = await written(world, sink={"storage": storage})
    read = {"csv": read_csv, "canal-json": read_canal, "parquet": read_parquet}[protocol]
    assert sorted_rows(latest(read(world.lake))) == sorted_rows(expected)
    assert leaks(world.lake) == []
    assert not [path for path in files(tmp_path / "state") if KEY in path.read_bytes()]
    assert not any(secret in caplog.text for secret in (*SECRETS, KEY.decode()))
    schemas = "".join(path.read_text() for path in world.lake.rglob("schema_*.json"))
    assert not any(name in schemas for name in ("iban", "tmp_a", '"mail"', "hush"))
    secrets_dir = tmp_path / "secrets"
    result = await verify_sink(changefeed, secrets_dir, None, NoProgress())
    assert result.ok, result
    (tmp_path / "secrets" / "masking" / "key").write_bytes(b"another-key-of-enough-bytes")
    assert not (await verify_sink(changefeed, secrets_dir, None, NoProgress())).ok
    if protocol == "csv":
        with pytest.raises(InvalidSpec, match=r"spec.columns names Secret masking"):
            await verify(world.lake.as_uri(), [world.cluster.pd_address])
        sink = StoredSink(world.lake.as_uri(), mask_keys=MaskKeys(secrets_dir))
        assert not (await verify(sink, TikvAccess((f"http://{world.cluster.pd_address}",)))).ok
        source, folder = RestoreSource(open_store(world.lake.as_uri())), Folder(tmp_path / "restored")
        restore(source, world.checkpoint(), lambda *name: True, lambda tables: folder, NoProgress())
        found = pq.read_table(tmp_path / "restored" / "shop" / "people.parquet").to_pylist()
        assert sorted_rows(found) == sorted_rows(expected)
        chosen = lambda schema, table: table == "people"  # noqa: E731
        report, is_applied = flashback(source, world.checkpoint(), chosen, None, NoProgress())
        assert not is_applied
        assert "spec.columns" in report.left[0].why


async def test_a_database_has_masked_columns_and_their_ddls(world: World, mariadb: MariaDb) -> None:
    mariadb.query("DROP DATABASE IF EXISTS shop", "CREATE DATABASE shop")
    mariadb.query("CREATE TABLE shop.orders (id BIGINT PRIMARY KEY, name VARCHAR(64))")
    people, expected = history(world)
    sink = {"mysql": {"uri": f"mysql://127.0.0.1:{mariadb.port}"}}
    changefeed = await written(world, sink=sink)
    result = await verify_sink(changefeed, world.folder / "secrets", None, NoProgress())
    assert result.ok, result
    names = [name.decode() for (name, *_) in mariadb.query("SHOW COLUMNS FROM shop.people")]
    assert names == [*HEADER, "late"]
    rows = [dict(zip(names, line, strict=True)) for line in mariadb.query("SELECT * FROM shop.people")]
    shown = [{name: None if value is None else value.decode() for name, value in each.items()} for each in rows]
    numbers = [{name: None if value is None else str(value) for name, value in each.items()} for each in expected]
    assert sorted_rows(shown) == sorted_rows(numbers)
    mariadb.query("UPDATE shop.people SET mail_hash = 'x' WHERE visits = 10")
    assert not (await verify_sink(changefeed, world.folder / "secrets", None, NoProgress())).ok
    last(modify_column(world.tidb, people, "mail", NewColumn("contact", "varchar(64)", nullable=True)))
    with pytest.raises(NeedsHuman, match="leaves column contact written as contact, but until then mail is hashed"):
        await run_of(world, sink=sink).outcome()
    covered = [*COLUMNS, {"match": ["shop.people"], "columns": ["contact"], **HASH}]
    await written(world, sink=sink, columns=covered)
    assert b"contact" in [name for (name, *_) in mariadb.query("SHOW COLUMNS FROM shop.people")]


@pytest.mark.parametrize("mode", ["append", "upsert"])
async def test_a_lake_has_masked_columns(world: World, tmp_path: Path, mode: str) -> None:
    _, expected = history(world)
    changefeed = await written(world, sink=iceberg.sink(tmp_path, mode))
    table = iceberg.catalog_of(tmp_path).load_table("shop.people")
    found = (iceberg.replayed if mode == "append" else iceberg.state)(table, "code")
    assert sorted_rows(list(found.values())) == sorted_rows(expected)
    assert leaks(tmp_path / "warehouse") == []
    result = await verify_sink(changefeed, tmp_path / "secrets", None, NoProgress())
    assert result.ok, result


async def test_what_can_not_be_written_so_is_refused_before_a_row_is(world: World) -> None:
    history(world)
    world.start_ts = world.tidb.now()
    entry = {"match": ["shop.people"], "columns": ["code"], "setNull": True}
    with pytest.raises(InvalidSpec, match=r"column code of shop.people is in the key"):
        await run_of(world, columns=[entry]).outcome()
    (world.folder / "secrets" / "masking" / "key").write_text("short")
    with pytest.raises(Refused, match="The key of Secret masking has 5 bytes"):
        await run_of(world).outcome()
    assert not world.log.exists() or not list(world.log.glob("*.json"))
    assert not list(world.lake.rglob("CDC*"))


async def test_what_is_written_stays(world: World) -> None:
    history(world)
    await written(world)
    with pytest.raises(InvalidSpec, match=r"shop.people is written already, and its column tmp_a is dropped, but"):
        await run_of(world, columns=COLUMNS[:-1]).outcome()
    await written(world, columns=[*COLUMNS, {"match": ["shop.*"], "columns": ["later_*"], **HASH}])
