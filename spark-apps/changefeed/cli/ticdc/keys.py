"""TiCDC's keys, and what each is here: the same, a Secret's key, or nothing and why (facts 1.1)."""

from __future__ import annotations

STORAGE = "spec.sink.storage"
CANAL = f"{STORAGE}.canalJson"
STORES = {"file": "file", "s3": "s3", "gs": "gs", "gcs": "gs", "azure": "azure", "azblob": "azure"}
LATER = "not supported yet"
_OWN = "the data plane does this by itself"

#: TiCDC's key -> the resource's field, for what means the same.
SAME = {
    "case-sensitive": "spec.filter.caseSensitive",
    "performance-mode": "spec.mode",
    "filter.rules": "spec.filter.rules",
    "filter.ignore-txn-start-ts": "spec.filter.ignoreTxnStartTs",
    "filter.event-filters": "spec.filter.eventFilters",
    "integrity.integrity-check-level": "spec.integrity.level",
    "integrity.corruption-handle-level": "spec.integrity.onCorruption",
    "sink.protocol": f"{STORAGE}.protocol",
    "sink.terminator": f"{STORAGE}.terminator",
    "sink.date-separator": f"{STORAGE}.dateSeparator",
    "sink.file-index-digit": f"{STORAGE}.fileIndexWidth",
    "sink.column-selectors": f"{STORAGE}.columnSelectors",
    "sink.only-output-updated-columns": f"{CANAL}.onlyOutputUpdatedColumns",
    "sink.delete-only-output-handle-key-columns": f"{CANAL}.deleteOnlyOutputHandleKeyColumns",
    "sink.content-compatible": f"{CANAL}.contentCompatible",
    "sink.csv.delimiter": f"{STORAGE}.csv.delimiter",
    "sink.csv.quote": f"{STORAGE}.csv.quote",
    "sink.csv.null": f"{STORAGE}.csv.null",
    "sink.csv.include-commit-ts": f"{STORAGE}.csv.includeCommitTs",
    "sink.csv.binary-encoding-method": f"{STORAGE}.csv.binaryEncodingMethod",
    "sink.csv.output-old-value": f"{STORAGE}.csv.outputOldValue",
    "sink.csv.output-field-header": f"{STORAGE}.csv.outputFieldHeader",
    "sink.cloud-storage-config.flush-interval": f"{STORAGE}.flushInterval",
    "sink.cloud-storage-config.file-size": f"{STORAGE}.fileSize",
    "sink.cloud-storage-config.output-raw-change-event": f"{STORAGE}.outputRawChangeEvent",
}
#: Of the keys whose value is a list of tables: the members of one.
MEMBERS = {
    "filter.event-filters": {
        "matcher": "matcher",
        "ignore-event": "ignoreEvent",
        "ignore-sql": "ignoreSql",
        "ignore-insert-value-expr": "ignoreInsertValueExpr",
        "ignore-update-new-value-expr": "ignoreUpdateNewValueExpr",
        "ignore-update-old-value-expr": "ignoreUpdateOldValueExpr",
        "ignore-delete-value-expr": "ignoreDeleteValueExpr",
        "ignore-update-only-columns": "ignoreUpdateOnlyColumns",
    },
    "sink.column-selectors": {"matcher": "matcher", "columns": "columns"},
}
#: Members that mean more here than in TiCDC.
WIDER = {"ignore-update-only-columns": "TiCDC heeds it for Kafka only; here such updates are dropped for every sink"}
#: TiCDC's key -> its default, which needs no equivalent, and why any other value has none.
WITHOUT: dict[str, tuple[object, str]] = {
    "memory-quota": (1 << 30, "see spec.spark.pullers.memoryQuota and spec.eventStore"),
    "force-replicate": (False, "tables without a key are followed as any other"),
    "ignore-ineligible-table": (False, "no table is left out for want of a key"),
    "check-gc-safe-point": (True, "the upstream's history is always held"),
    "enable-sync-point": (False, f"sync points: {LATER}"),
    "sync-point-interval": ("10m", f"sync points: {LATER}"),
    "sync-point-retention": ("24h", f"sync points: {LATER}"),
    "enable-table-monitor": (False, "see docs/reference/metrics.md"),
    "bdr-mode": (False, f"replication in both directions: {LATER}"),
    "enable-active-active": (False, f"replication in both directions: {LATER}"),
    "active-active-progress-interval": ("30m", f"replication in both directions: {LATER}"),
    "active-active-sync-stats-interval": ("1m", f"replication in both directions: {LATER}"),
    "changefeed-error-stuck-duration": ("30m", "the operator has its own budget of restarts"),
    "synced-status.synced-check-interval": (300, "see the condition WithinLag"),
    "synced-status.checkpoint-interval": (15, "see the condition WithinLag"),
    "mounter.worker-num": (16, "see spec.spark.executor"),
    "event-collector-batch-count": (None, _OWN),
    "event-collector-batch-bytes": (None, _OWN),
    "sql-mode": (None, "TiCDC has given it up"),
    "sink.transaction-atomicity": ("none", "a transaction is never split"),
    "sink.dispatchers": ([], f"routing: {LATER}"),
    "sink.schema-registry": ("", LATER),
    "sink.encoder-concurrency": (32, "see spec.spark.executor"),
    "sink.enable-partition-separator": (True, "a partition always has its own folder"),
    "sink.safe-mode": (False, LATER),
    "sink.advance-timeout-in-sec": (150, "TiCDC has given it up"),
    "sink.send-bootstrap-interval-in-sec": (120, LATER),
    "sink.send-bootstrap-in-msg-count": (10000, LATER),
    "sink.send-bootstrap-to-all-partition": (True, LATER),
    "sink.send-all-bootstrap-at-start": (False, LATER),
    "sink.debezium-disable-schema": (False, LATER),
    "sink.debezium.output-old-value": (True, LATER),
    "sink.debezium.include-start-ts": (False, LATER),
    "sink.open.output-old-value": (True, LATER),
    "sink.enable-kafka-sink-v2": (False, "TiCDC has given it up"),
    "sink.kafka-config": (None, LATER),
    "sink.mysql-config": (None, LATER),
    "sink.csv.output-handle-key": (False, "TiCDC ignores it, too"),
    "sink.cloud-storage-config.worker-count": (16, "see spec.spark.executor"),
    "sink.cloud-storage-config.flush-concurrency": (1, _OWN),
    "sink.cloud-storage-config.output-column-id": (False, LATER),
    "sink.cloud-storage-config.file-expiration-days": (0, "let the store expire old files"),
    "sink.cloud-storage-config.file-cleanup-cron-spec": ("0 0 2 * * *", "let the store expire old files"),
    "sink.cloud-storage-config.use-table-id-as-path": (False, LATER),
    "sink.cloud-storage-config.spool-disk-quota": (10 << 30, _OWN),
    "sink.cloud-storage-config.spool-base-dir": ("", _OWN),
    "consistent": (None, f"redo logs: {LATER}; the files themselves are exactly once"),
    "scheduler": (None, _OWN),
}
#: Parameters of a sink URI that are keys of the configuration too; the URI's win.
URI_KEYS = {
    "protocol": "sink.protocol",
    "terminator": "sink.terminator",
    "date-separator": "sink.date-separator",
    "transaction-atomicity": "sink.transaction-atomicity",
    **{
        name: f"sink.cloud-storage-config.{name}"
        for name in ("flush-interval", "file-size", "worker-count", "use-table-id-as-path", "spool-disk-quota")
    },
    "spool-base-dir": "sink.cloud-storage-config.spool-base-dir",
}
PLACE_PARAMETERS = ("endpoint", "region", "force-path-style")
SECRETS = {
    "access-key": "access-key-id",
    "secret-access-key": "secret-access-key",
    "session-token": "session-token",
    "account-name": "account-name",
    "account-key": "account-key",
    "sas-token": "sas",
    "credentials-file": "service-account.json",
}
