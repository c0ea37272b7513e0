"""TiCDC's syncpoint table, read by sync-diff-inspector and others: which upstream ts the downstream equals.

Pure: `ddl` runs the statements.
"""

from __future__ import annotations

from dataclasses import dataclass

from changefeed.sink.mysql.rows.literals import bytes_literal

DATABASE = b"`tidb_cdc`"
_TABLE = DATABASE + b".`syncpoint_v1`"
#: Of TiDB, within a transaction: a snapshot of the downstream at this ts equals that of the upstream.
SNAPSHOT_TS = b"SELECT @@tidb_current_ts"


@dataclass(frozen=True)
class SyncpointStatements:
    """The statements for a changefeed's rows, which are kept for `retention_s`."""

    changefeed: str
    retention_s: int

    def create(self) -> list[bytes]:
        """As TiCDC makes them; theirs serve as well. The names are in ASCII, so that a key of MySQL 5.6 takes them."""
        return [
            b"CREATE DATABASE IF NOT EXISTS " + DATABASE,
            b"CREATE TABLE IF NOT EXISTS " + _TABLE + b" (`ticdc_cluster_id` VARCHAR(255), `changefeed` VARCHAR(255), "
            b"`primary_ts` VARCHAR(18), `secondary_ts` VARCHAR(18), "
            b"`created_at` TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP, "
            b"INDEX (`created_at`), PRIMARY KEY (`changefeed`, `primary_ts`)) "
            b"DEFAULT CHARACTER SET `ascii` COLLATE `ascii_bin`",
        ]

    def add(self, primary_ts: int, secondary_ts: int) -> bytes:
        """One that is there stays: nothing was written since."""
        values = b"%s, %s, '%d', '%d'" % (bytes_literal(b"default"), self._name, primary_ts, secondary_ts)
        columns = b"(`ticdc_cluster_id`, `changefeed`, `primary_ts`, `secondary_ts`)"
        return b"INSERT IGNORE INTO " + _TABLE + b" " + columns + b" VALUES (" + values + b")"

    def remove_old(self) -> bytes:
        old = b"`created_at` < NOW() - INTERVAL %d SECOND" % self.retention_s
        return b"DELETE FROM " + _TABLE + b" WHERE `changefeed`=" + self._name + b" AND " + old

    @property
    def _name(self) -> bytes:
        return bytes_literal(self.changefeed.encode())
