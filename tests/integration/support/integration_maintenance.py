"""What other people do to a table of ours with Spark: maintenance, and what they should rather not do."""

from __future__ import annotations

import json
import os
import random
import re
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any

from integration_iceberg import local
from integration_spark_sql import SparkFailed, SparkSql
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

LONG_AGO_S = 3 * 86_400
_BESIDE, _ATTEMPTS = 3, 6
_IN_BETWEEN = ("CommitFailedException", "current snapshot changed")


@dataclass(frozen=True)
class Stops:
    """The changefeed stops and says `why`; `mend` does what the message says besides."""

    why: str
    mend: Callable[[str], None]


@dataclass(frozen=True)
class Maintained:
    """A table, by its name in `spark`'s catalog and in `catalog`, which are the same."""

    spark: SparkSql
    catalog: Catalog
    lake: str
    namespace: str
    name: str
    rng: random.Random
    quiet: Lock  # nobody writes upstream while it is held

    @property
    def qualified(self) -> str:
        return f"{self.namespace}.{self.name}"

    @property
    def there(self) -> str:
        """In a statement."""
        return f"{self.lake}.{self.qualified}"

    def table(self) -> Table:
        return self.catalog.load_table(self.qualified)

    def sql(self, statement: str) -> list[list[Any]]:
        """Again when commits of the changefeed's have come in between: at last while it has nothing to commit."""
        for attempt in range(_ATTEMPTS):
            with nullcontext() if attempt < _BESIDE else self.quiet:
                try:
                    return self.spark(statement)
                except SparkFailed as error:
                    if not any(each in str(error) for each in _IN_BETWEEN):
                        raise
                    last = error
        raise last

    def alter(self, what: str) -> None:
        self.sql(f"ALTER TABLE {self.there} {what}")

    def call(self, procedure: str, **arguments: str) -> list[list[Any]]:
        given = ", ".join(f"{name} => {value}" for name, value in {"table": f"'{self.qualified}'", **arguments}.items())
        return self.sql(f"CALL {self.lake}.system.{procedure}({given})")

    def register(self, fits: Callable[[dict[str, Any]], bool]) -> None:
        """The last metadata file that fits, under the table's name; the table is dropped, and not purged."""
        table = self.table()
        files = [entry.metadata_file for entry in reversed(table.metadata.metadata_log)]
        last = next(file for file in files if fits(json.loads(local(file).read_text())))
        self.sql(f"DROP TABLE {self.there}")
        self.call("register_table", metadata_file=f"'{last}'")


def bin_pack(at: Maintained) -> None:
    options = "map('min-input-files', '2', 'delete-file-threshold', '1', 'remove-dangling-deletes', 'true')"
    at.call("rewrite_data_files", options=options)


def sort(at: Maintained) -> None:
    at.call("rewrite_data_files", strategy="'sort'", sort_order="'id DESC'", options="map('rewrite-all', 'true')")


def rewrite_all(at: Maintained) -> None:
    at.call("rewrite_data_files", options="map('rewrite-all', 'true')")


def expire(at: Maintained) -> None:
    now = datetime.now(UTC).isoformat(" ", "milliseconds").removesuffix("+00:00")
    at.call("expire_snapshots", older_than=f"TIMESTAMP '{now}'", retain_last="1")


def compact_and_expire(at: Maintained) -> None:
    rewrite_all(at)
    expire(at)


def rewrite_manifests(at: Maintained) -> None:
    at.call("rewrite_manifests")


def forgotten(at: Maintained) -> Path:
    """A file that nobody knows; it looks old, and so does all that is referenced."""
    table = at.table()
    data = local(table.location()) / "data"
    data.mkdir(exist_ok=True)
    orphan = data / f"orphan-{at.rng.getrandbits(32)}.parquet"
    orphan.write_bytes(b"PAR1")
    snapshot = table.current_snapshot()
    files = [orphan, local(table.metadata_location)]
    for manifest in snapshot.manifests(table.io) if snapshot else ():
        files.append(local(manifest.manifest_path))
        files += [local(entry.data_file.file_path) for entry in manifest.fetch_manifest_entry(table.io)]
    then = time.time() - LONG_AGO_S
    for file in files:
        os.utime(file, (then, then))
    return orphan


def remove_orphans(at: Maintained) -> None:
    orphan = forgotten(at)
    before = datetime.fromtimestamp(time.time() - LONG_AGO_S / 2, UTC).strftime("%F %T")
    gone = at.call("remove_orphan_files", older_than=f"TIMESTAMP '{before}'")
    assert [local(row[0]) for row in gone] == [orphan]


def partition(at: Maintained) -> None:
    field = at.rng.choice(("bucket(4, id)", "truncate(2, id)", "owner"))
    names = {"bucket(4, id)": "id_bucket_4", "truncate(2, id)": "id_trunc_2", "owner": "owner"}
    there = {each.name for each in at.table().spec().fields}
    for name in there & set(names.values()):
        at.alter(f"DROP PARTITION FIELD {name}")
    if not there:
        at.alter(f"ADD PARTITION FIELD {field} AS {names[field]}")
        rewrite_all(at)


def add_column(at: Maintained) -> None:
    foreign = [name for name in at.table().schema().column_names if name.startswith("theirs_")]
    if len(foreign) > 1:
        at.alter(f"DROP COLUMN {foreign[0]}")
    at.alter(f"ADD COLUMN theirs_{at.rng.getrandbits(32)} string")


def orc(at: Maintained) -> None:
    """From now on others' files are ORC, or Parquet again."""
    is_orc = at.table().properties.get("write.format.default") == "orc"
    at.alter(f"SET TBLPROPERTIES('write.format.default' = '{'parquet' if is_orc else 'orc'}')")
    rewrite_all(at)


def as_parquet(at: Maintained) -> None:
    """All files."""
    at.alter("SET TBLPROPERTIES('write.format.default' = 'parquet')")
    rewrite_all(at)


def tag(at: Maintained) -> None:
    at.alter(f"CREATE TAG t{at.rng.getrandbits(32)}")


def branch(at: Maintained) -> None:
    name = f"b{at.rng.getrandbits(32)}"
    at.alter(f"CREATE BRANCH {name}")
    at.sql(f"DELETE FROM {at.there}.branch_{name}")


def order(at: Maintained) -> None:
    at.alter(at.rng.choice(("WRITE ORDERED BY id", "WRITE LOCALLY ORDERED BY owner DESC", "WRITE UNORDERED")))


def roll_back(at: Maintained) -> Stops:
    """To before the last snapshot of the changefeed's."""
    table = at.table()
    ours = int(table.properties["changefeed.snapshot"].partition("/")[0])
    snapshot = table.snapshot_by_id(ours)
    before = snapshot and snapshot.parent_snapshot_id
    if before is None or table.snapshot_by_id(before) is None:
        raise NotYet("what it would be rolled back to has expired")
    at.call("rollback_to_snapshot", snapshot_id=str(before))

    def mend(said: str) -> None:
        found = re.search(r"set_current_snapshot\('\S+', \d+\)", said)
        assert found is not None, said
        at.sql(f"CALL {at.lake}.system.{found[0]}")

    return Stops("was rolled back", mend)


def version_3(at: Maintained) -> Stops:
    at.alter("SET TBLPROPERTIES('format-version' = '3')")
    return Stops("has format version 3", lambda _: at.register(lambda metadata: metadata["format-version"] == 2))


def drop_column(at: Maintained) -> Stops:
    at.alter("DROP COLUMN balance")

    def has_it(metadata: dict[str, Any]) -> bool:
        (schema,) = [each for each in metadata["schemas"] if each["schema-id"] == metadata["current-schema-id"]]
        return any(field["name"] == "balance" for field in schema["fields"])

    return Stops("lacks columns that its rows have", lambda _: at.register(has_it))


class NotYet(Exception):
    """What the action needs is not there: another one is drawn."""


#: Beside which the changefeed goes on, or stops.
ACTIONS: tuple[Callable[[Maintained], Stops | None], ...] = (
    bin_pack,
    sort,
    rewrite_all,
    expire,
    compact_and_expire,
    rewrite_manifests,
    remove_orphans,
    partition,
    add_column,
    orc,
    tag,
    branch,
    order,
    roll_back,
    version_3,
    drop_column,
)
