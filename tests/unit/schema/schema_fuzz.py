"""Rows, keys and DDL jobs with bytes that are wrong: each is decoded, or refused by an error that a person can act on.

`python tests/unit/schema/schema_fuzz.py 1000000` tries so many; what fails is printed with its seed. `--seed N` tries
that one again.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import resource
import struct
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from changefeed.errors import NeedsHuman
from changefeed.schema import table_info as parsed
from changefeed.schema.history import SchemaHistory
from changefeed.schema.table_info import DatabaseInfo, parse_table_info
from changefeed.schema.values import as_bytes
from changefeed.upstream.tikv.row.checksums import wrong_rows
from changefeed.upstream.tikv.row.rowv2 import check_supported, decode_rows
from changefeed.upstream.tikv.tidb.job import parse_job
from changefeed_devcluster import keys
from changefeed_devcluster.ddl.jobs import DdlJob, JobState, JobType
from changefeed_devcluster.tidb import rows
from changefeed_devcluster.tidb import schema as upstream
from changefeed_devcluster.tidb.field_types import INTEGERS
from changefeed_devcluster.tidb.partitions import TidbPartition
from changefeed_devcluster.tidb.schema import DbInfo, NewColumn, TidbTable, make_table
from changefeed_devcluster.workload.random_values import value
from schema_fuzz_odd import RIGHT, odd_row, odd_table

TYPES = (
    *("tinyint", "smallint unsigned", "mediumint", "int unsigned", "bigint", "bigint unsigned", "float", "double"),
    *("decimal(18,4)", "decimal(65,30)", "bit(12)", "year", "date", "datetime(3)", "timestamp", "time(6)"),
    *("char(8)", "varchar(24)", "varbinary(16)", "enum('a','b,c','it')", "set('x','y','z')"),
)
KEYS = ("bigint", "int unsigned", "varchar(24)", "varbinary(16)", "decimal(18,4)", "double", "datetime(3)", "time(6)")
_MOST_BYTES = 512 << 20  # that a million tries may add to this process
_DB = DbInfo(3, "shop")


def tables() -> list[TidbTable]:
    """One for each type, one of all types, and some with clustered keys."""
    every = [NewColumn(f"c{n}", sql, nullable=True) for n, sql in enumerate(TYPES)]
    single = [make_table(10 + n, "one", [NewColumn("id", "bigint"), c], "id") for n, c in enumerate(every)]
    clustered = [
        make_table(
            50 + n, "clustered", [NewColumn("a", sql), NewColumn("b", "varchar(9)"), NewColumn("c", "int")], ("a", "b")
        )
        for n, sql in enumerate(KEYS)
    ]
    return [*single, make_table(99, "all", [NewColumn("id", "bigint"), *every], "id"), *clustered]


def spoilt(rng: random.Random, given: bytes) -> bytes:
    """One to three changes, each of a kind that happens: a bit, a length, a piece that is missing or there twice."""
    found = bytearray(given)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(found) + 1)
        match rng.randrange(6):
            case 0 if found:
                found[rng.randrange(len(found))] ^= 1 << rng.randrange(8)
            case 1 if found:
                found[rng.randrange(len(found))] = rng.choice((0, 1, 0x7F, 0x80, 0xFE, 0xFF))
            case 2:
                del found[at:]
            case 3:
                del found[at : at + rng.randint(1, 8)]
            case 4:
                found[at:at] = found[at : at + rng.randint(1, 8)]
            case _:
                found[at : at + 4] = rng.choice((b"\xff\xff\xff\xff", b"\xff\xff", bytes(4), b"\0\0\0\x80"))
    return bytes(found)


def spoilt_json(rng: random.Random, given: Any) -> Any:
    """One member, somewhere, is missing or another value."""
    found = copy.deepcopy(given)
    place, parent, step = found, None, None
    while isinstance(place, (dict, list)) and place and (parent is None or rng.random() < 0.85):
        parent, step = place, rng.choice(list(place) if isinstance(place, dict) else range(len(place)))
        place = place[step]
    if parent is None:
        return rng.choice((None, 1, [], "x"))
    if isinstance(parent, dict) and rng.random() < 0.3:
        del parent[step]
    else:
        parent[step] = rng.choice((None, 0, -1, 1 << 70, 1.5, True, "", "x", "5", [], [1], {}, {"O": 1}))
    return found


def decoded(info: parsed.TableInfo, *found: tuple[bytes, bytes]) -> list[pa.Array]:
    arrays = decode_rows(info, *_columns(found), "Asia/Shanghai")
    for array in arrays:
        assert len(array) == len(found)
        array.validate(full=True)  # a pa.string() is UTF-8, too
    return arrays


def _columns(found: Sequence[tuple[bytes, bytes]]) -> tuple[pa.Array, pa.Array]:
    return pa.array([key for key, _ in found], pa.binary()), pa.array([value for _, value in found], pa.binary())


def _wrong(info: parsed.TableInfo, *found: tuple[bytes, bytes]) -> list[int]:
    """The rows whose checksum is not that of their content; an empty value is none."""
    there = [(key, value) for key, value in found if value]
    return wrong_rows(info, *_columns(there)).tolist()


def _shown(arrays: list[pa.Array]) -> list[Any]:
    """The first row; text as bytes, as a neighbour decides which it is."""
    return [as_bytes(array)[0].as_py() for array in arrays]


class Fuzz:
    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self._tables = tables()
        self._odd = odd_table()
        self._infos = {info.id: parse_table_info(info.to_json(), "shop") for info in self._tables}

    def attempt(self, seed: int) -> None:
        """Raises whatever is no clear error."""
        rng = random.Random(seed)
        kinds = (("value", self._value), ("key", self._key), ("odd", self._odd_row), ("job", self._job))
        name, kind = rng.choice(kinds)
        try:
            kind(rng)
        except NeedsHuman:
            self.outcomes[f"{name} refused"] += 1
        else:
            self.outcomes[f"{name} decoded"] += 1

    def _row(self, rng: random.Random, table: TidbTable) -> tuple[bytes, bytes]:
        row = {
            column.name: None if column.nullable and rng.random() < 0.2 else value(rng, column.type)
            for column in table.columns
        }
        return keys.record_key(table.id, rows.handle_of(table, row)), rows.encode_row(table, row)

    def _value(self, rng: random.Random) -> None:
        table = rng.choice(self._tables)
        key, stored = self._row(rng, table)
        stored = spoilt(rng, stored)
        self._check(table, stored, decoded(self._infos[table.id], (key, stored)))

    def _odd_row(self, rng: random.Random) -> None:
        """Behind a right row of the same batch, which must stay what it is."""
        _, good_key, good = odd_row(rng)
        form, key, stored = odd_row(rng)
        try:
            alone = _shown(decoded(self._odd, (good_key, good)))
            assert form not in RIGHT or not _wrong(self._odd, (key, stored)), f"{form}: {stored.hex()}"
        except NeedsHuman as error:
            raise AssertionError(f"a right row is refused: {error}") from error
        both = (good_key, good), (key, spoilt(rng, stored))
        assert _shown(decoded(self._odd, *both)) == alone
        _wrong(self._odd, *both)

    def _key(self, rng: random.Random) -> None:
        table = rng.choice(self._tables)
        key, stored = self._row(rng, table)
        key = key[: keys.PREFIX] + spoilt(rng, key[keys.PREFIX :])  # another table's rows come to no decoder
        decoded(self._infos[table.id], (key, stored))

    def _check(self, table: TidbTable, stored: bytes, arrays: list[pa.Array]) -> None:
        """What can be compared is what the other decoder, which is lenient, finds in the same bytes."""
        try:
            other = rows.decode_row(table, stored)
        except (ArithmeticError, LookupError, ValueError, struct.error):  # it was not made for such rows
            return
        for column, array in zip(table.columns, arrays, strict=True):
            if column.type.tp in INTEGERS and column.name in other and not table.clustered:
                assert array[0].as_py() == other[column.name], (column, stored.hex())

    def _job(self, rng: random.Random) -> None:
        job = spoilt_json(rng, self._jobs(rng).to_json())
        if rng.random() < 0.3:
            job = json.loads(_text(rng, job))
        history = SchemaHistory(
            5, [DatabaseInfo(3, "shop", "utf8mb4", "utf8mb4_bin", 5)], self._infos.values(), self._infos[99]
        )
        parsed = parse_job(job)
        if parsed.is_done:
            history.apply(parsed, 10)
            for table in history.tables_at(10):
                check_supported(table)

    def _jobs(self, rng: random.Random) -> DdlJob:
        table = rng.choice(self._tables)
        if table.pk == "id" and rng.random() < 0.3:
            table = replace(table, partitions=(TidbPartition(500, "p0", 10), TidbPartition(501, "p1", None)))
        kind = rng.choice(list(JobType))
        renames = [{"old_schema_id": 3, "new_schema_id": 3, "table_id": table.id}]
        exchange = {"partition_id": 500, "pt_schema_id": 3, "pt_table_id": 99, "partition_name": "p0"}
        args = {**exchange, "with_validation": True, "rename_table_infos": renames}
        several = (table,) if kind in (JobType.CREATE_TABLES, JobType.RENAME_TABLES) else ()
        return DdlJob(7, kind, _DB, table.id, table.name, "ALTER …", args, 6, JobState.DONE, 9, table, several)


def _text(rng: random.Random, job: Any) -> str:
    """Other members in another order, as another version of TiDB may write them."""
    if not isinstance(job, dict):
        return json.dumps(job)
    members = list(job.items())
    rng.shuffle(members)
    return upstream.dump({**dict(members), "something_new": {"a": [1]}}).decode()


def run(seeds: range, told: Callable[[str], object]) -> Counter[str]:
    """Raises AssertionError at the first seed that is neither decoded nor refused."""
    fuzz, before = Fuzz(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for done, seed in enumerate(seeds):
        try:
            fuzz.attempt(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
        if done % 100_000 == 99_999:
            told(f"{done + 1}: {dict(fuzz.outcomes)}\n")
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    assert grown < _MOST_BYTES, f"{grown >> 20} MiB more than before"
    return fuzz.outcomes


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("count", type=int, nargs="?", default=1)
    arguments.add_argument("--seed", type=int, default=0, help="the first")
    given = arguments.parse_args()
    found = run(range(given.seed, given.seed + given.count), sys.stdout.write)
    sys.stdout.write(f"{dict(sorted(found.items()))}\n")


if __name__ == "__main__":
    main()
