"""TiCDC's keys, and their equivalents here: the same, a Secret's key, or none and why."""

from __future__ import annotations

STORES = {"file": "file", "s3": "s3", "gs": "gs", "gcs": "gs", "azure": "az", "azblob": "az"}
#: A sink URI's scheme -> the kind of sink.
KINDS = {
    **dict.fromkeys(STORES, "storage"),
    **dict.fromkeys(("mysql", "tidb"), "mysql"),
    "kafka": "kafka",
    **dict.fromkeys(("blackhole", "noop"), "blackhole"),
}
LATER = "not supported yet"
_OWN = "the data plane does this by itself"
_MYSQL = "sink.mysql-config"
_KAFKA = "sink.kafka-config"
_CODEC = f"{_KAFKA}.codec-config"
_LARGE = f"{_KAFKA}.large-message-handle"
_GSSAPI = [
    "auth-type",
    "keytab-path",
    "kerberos-config-path",
    "service-name",
    "user",
    "password",
    "realm",
    "disable-pafxfast",
]
_OAUTH = ["client-id", "client-secret", "token-url", "scopes", "grant-type", "audience"]

#: TiCDC's key -> the resource's field, for what means the same whatever the sink.
SAME = {
    "case-sensitive": "spec.filter.caseSensitive",
    "performance-mode": "spec.mode",
    "filter.rules": "spec.filter.rules",
    "filter.ignore-txn-start-ts": "spec.filter.ignoreTxnStartTs",
    "filter.event-filters": "spec.filter.eventFilters",
    "integrity.integrity-check-level": "spec.integrity.level",
    "integrity.corruption-handle-level": "spec.integrity.onCorruption",
}
EXTENSION = f"{_CODEC}.enable-tidb-extension"
_CANAL = {
    EXTENSION: "canalJson.enableTidbExtension",
    "sink.only-output-updated-columns": "canalJson.onlyOutputUpdatedColumns",
    "sink.delete-only-output-handle-key-columns": "canalJson.deleteOnlyOutputHandleKeyColumns",
    "sink.content-compatible": "canalJson.contentCompatible",
}
_AVRO = {
    f"{_CODEC}.avro-decimal-handling-mode": "avro.decimalHandlingMode",
    f"{_CODEC}.avro-bigint-unsigned-handling-mode": "avro.bigintUnsignedHandlingMode",
}
#: Of each kind of sink: TiCDC's key -> the field of that sink.
SAME_OF = {
    "storage": {
        "sink.protocol": "protocol",
        "sink.terminator": "terminator",
        "sink.date-separator": "dateSeparator",
        "sink.file-index-digit": "fileIndexWidth",
        "sink.column-selectors": "columnSelectors",
        **_CANAL,
        "sink.csv.delimiter": "csv.delimiter",
        "sink.csv.quote": "csv.quote",
        "sink.csv.null": "csv.null",
        "sink.csv.include-commit-ts": "csv.includeCommitTs",
        "sink.csv.binary-encoding-method": "csv.binaryEncodingMethod",
        "sink.csv.output-old-value": "csv.outputOldValue",
        "sink.csv.output-field-header": "csv.outputFieldHeader",
        "sink.cloud-storage-config.flush-interval": "flushInterval",
        "sink.cloud-storage-config.file-size": "fileSize",
        "sink.cloud-storage-config.output-raw-change-event": "outputRawChangeEvent",
        "sink.cloud-storage-config.use-table-id-as-path": "useTableIdAsPath",
        "sink.cloud-storage-config.file-expiration-days": "fileExpirationDays",
    },
    "mysql": {
        "sink.safe-mode": "safeMode",
        "sink.transaction-atomicity": "transactionAtomicity",
        f"{_MYSQL}.worker-count": "workerCount",
        f"{_MYSQL}.max-txn-row": "maxTxnRow",
        "enable-sync-point": "enableSyncPoint",
        "sync-point-interval": "syncPointInterval",
        "sync-point-retention": "syncPointRetention",
    },
    "kafka": {
        "sink.protocol": "protocol",
        "sink.dispatchers": "dispatchers",
        "sink.schema-registry": "schemaRegistry",
        **_CANAL,
        **_AVRO,
        f"{_KAFKA}.partition-num": "partitionNum",
        f"{_KAFKA}.replication-factor": "replicationFactor",
        f"{_KAFKA}.max-message-bytes": "maxMessageBytes",
        f"{_KAFKA}.compression": "compression",
        f"{_KAFKA}.sasl-mechanism": "saslMechanism",
        f"{_KAFKA}.output-raw-change-event": "outputRawChangeEvent",
        f"{_LARGE}.large-message-handle-option": "largeMessages.option",
        f"{_LARGE}.claim-check-storage-uri": "largeMessages.claimCheckUri",
    },
    "blackhole": {},
}
#: The protocols that heed a key here.
PROTOCOLS = {
    **dict.fromkeys(_CANAL, ("canal-json",)),
    EXTENSION: ("canal-json", "avro"),
    **dict.fromkeys(_AVRO, ("avro",)),
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
    "sink.dispatchers": {
        "matcher": "matcher",
        "topic": "topic",
        "dispatcher": "partition",  # its name before
        "partition": "partition",
        "index": "index",
        "columns": "columns",
    },
}
#: TiCDC's other words for what decides a partition.
PARTITIONS = {"default": "table", "rowid": "index-value"}
#: Members that mean more here than in TiCDC, unless the sink is Kafka.
WIDER = {"ignore-update-only-columns": "TiCDC heeds it for Kafka only; here such updates are dropped for every sink"}
#: TiCDC's key -> its default, which needs no equivalent, and why any other value has none.
WITHOUT: dict[str, tuple[object, str]] = {
    "memory-quota": (1 << 30, "see spec.spark.pullers.memoryQuota and spec.eventStore"),
    "force-replicate": (False, "tables without a key are followed as any other"),
    "ignore-ineligible-table": (False, "no table is left out for want of a key"),
    "check-gc-safe-point": (True, "the upstream's history is always held"),
    "enable-sync-point": (False, "of MySQL sinks only, in TiCDC as well"),
    "sync-point-interval": ("10m", "of MySQL sinks only, in TiCDC as well"),
    "sync-point-retention": ("24h", "of MySQL sinks only, in TiCDC as well"),
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
    "sink.dispatchers.target-schema": ("", f"other names for tables: {LATER}"),
    "sink.dispatchers.target-table": ("", f"other names for tables: {LATER}"),
    "sink.column-selectors": ([], f"{LATER} for this kind of sink"),
    "sink.encoder-concurrency": (32, "see spec.spark.executor"),
    "sink.enable-partition-separator": (True, "a partition always has its own folder"),
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
    f"{_MYSQL}.time-zone": ("UTC", "connections are in UTC; a TIMESTAMP is the same moment in any zone"),
    f"{_MYSQL}.max-multi-update-row": (40, _OWN),
    f"{_MYSQL}.max-multi-update-row-size": (1024, _OWN),
    f"{_MYSQL}.tidb-txn-mode": ("optimistic", "the server's own mode is used"),
    f"{_MYSQL}.read-timeout": ("2m", _OWN),
    f"{_MYSQL}.write-timeout": ("2m", _OWN),
    f"{_MYSQL}.timeout": ("2m", _OWN),
    f"{_MYSQL}.enable-batch-dml": (True, _OWN),
    f"{_MYSQL}.enable-multi-statement": (True, _OWN),
    f"{_MYSQL}.enable-cache-prepared-statement": (True, _OWN),
    f"{_MYSQL}.enable-ddl-ts": (True, "see spec.sink.mysql.progressDatabase"),
    f"{_MYSQL}.has-vector-type": (False, _OWN),
    f"{_KAFKA}.kafka-version": ("2.4.0", "the brokers say which version they are"),
    f"{_KAFKA}.kafka-client-id": ("", "clients have no name of their own"),
    f"{_KAFKA}.auto-create-topic": (True, "a topic that is missing is always made"),
    f"{_KAFKA}.dial-timeout": ("10s", _OWN),
    f"{_KAFKA}.write-timeout": ("10s", _OWN),
    f"{_KAFKA}.read-timeout": ("10s", _OWN),
    f"{_KAFKA}.max-retry": (5, _OWN),
    f"{_KAFKA}.required-acks": (-1, "all replicas in sync always acknowledge"),
    f"{_KAFKA}.insecure-skip-verify": (False, "a broker's certificate is always verified"),
    **{f"{_KAFKA}.sasl-gssapi-{name}": (None, f"GSSAPI: {LATER}") for name in _GSSAPI},
    **{f"{_KAFKA}.sasl-oauth-{name}": (None, f"OAUTHBEARER: {LATER}") for name in _OAUTH},
    f"{_KAFKA}.glue-schema-registry-config": (None, LATER),
    f"{_CODEC}.max-batch-size": (16, _OWN),
    f"{_CODEC}.avro-enable-watermark": (False, LATER),
    f"{_CODEC}.encoding-format": ("json", LATER),
    f"{_CODEC}.output-row-key": (False, LATER),
    f"{_LARGE}.large-message-handle-compression": ("none", "see spec.sink.kafka.compression"),
    f"{_LARGE}.claim-check-raw-value": (False, "a message is kept with its key"),
    "sink.csv.output-handle-key": (False, "TiCDC ignores it, too"),
    "sink.cloud-storage-config.worker-count": (16, "see spec.spark.executor"),
    "sink.cloud-storage-config.flush-concurrency": (1, _OWN),
    "sink.cloud-storage-config.output-column-id": (False, LATER),
    "sink.cloud-storage-config.file-cleanup-cron-spec": ("0 0 2 * * *", "files expire as the checkpoint passes a day"),
    "sink.cloud-storage-config.spool-disk-quota": (10 << 30, _OWN),
    "sink.cloud-storage-config.spool-base-dir": ("", _OWN),
    "consistent": (None, f"redo logs: {LATER}; the files themselves are exactly once"),
    "scheduler": (None, _OWN),
}
#: Of each kind of sink: the section that names a Secret -> TiCDC's keys that are in it, under its own.
SECRETS = {
    "mysql": {
        "tls": {f"{_MYSQL}.ssl-ca": "ca.crt", f"{_MYSQL}.ssl-cert": "tls.crt", f"{_MYSQL}.ssl-key": "tls.key"},
    },
    "kafka": {
        "credentials": {f"{_KAFKA}.sasl-user": "username", f"{_KAFKA}.sasl-password": "password"},
        "tls": {
            f"{_KAFKA}.enable-tls": "ca.crt",  # TiCDC takes the system's CAs, if it names none
            f"{_KAFKA}.ca": "ca.crt",
            f"{_KAFKA}.cert": "tls.crt",
            f"{_KAFKA}.key": "tls.key",
        },
    },
}
_SECRET_KEYS = [key for sections in SECRETS.values() for keys in sections.values() for key in keys]
#: Keys that have an equivalent for some kind of sink.
OF_SINKS = (*_SECRET_KEYS, *(key for fields in SAME_OF.values() for key in fields))
#: Keys whose value is a URI, and who we are there.
WHO = {
    "sink.schema-registry": "name a Secret with username and password in spec.sink.kafka.schemaRegistryCredentials",
    f"{_LARGE}.claim-check-storage-uri": "the pods' environment must have the credentials",
}
#: Of an object store, by its scheme here: parameters of its URI, and what they are in ours. Google's endpoint is of
#: another API there, and Azure's has the account in it.
LOCATION_PARAMETERS = {
    "s3": {
        **{name: name for name in ("endpoint", "region", "force-path-style", "storage-class", "sse")},
        "sse-kms-key-id": "sse-kms-id",
    },
    "az": {"account-name": "account-name", "access-tier": "storage-class"},
    "gs": {"storage-class": "storage-class"},
}
STORE_SECRETS = {
    "access-key": "access-key-id",
    "secret-access-key": "secret-access-key",
    "session-token": "session-token",
    "account-key": "account-key",
    "credentials-file": "service-account.json",
}


def _under(section: str, *names: str) -> dict[str, str]:
    return {name: f"{section}.{name}" for name in names}


def _all_under(section: str) -> dict[str, str]:
    """Every key of the section but output-raw-change-event, which TiCDC takes from the file only."""
    sections_and_names = [key.rpartition(".") for key in [*OF_SINKS, *WITHOUT]]
    names = [name for of, _, name in sections_and_names if of == section and name != "output-raw-change-event"]
    return _under(section, *names)


_ANY_SINK = _under("sink", "protocol", "transaction-atomicity")
#: Of each kind of sink: parameters of its URI that are keys of the configuration too; the URI's win.
PARAMETERS = {
    "storage": {
        **_ANY_SINK,
        **_under("sink", "terminator", "date-separator", "only-output-updated-columns", "content-compatible"),
        **_under(_CODEC, "enable-tidb-extension"),
        **_under("sink.cloud-storage-config", "flush-interval", "file-size", "worker-count", "use-table-id-as-path"),
        **_under("sink.cloud-storage-config", "spool-disk-quota", "spool-base-dir"),
    },
    "mysql": {
        **_ANY_SINK,
        **_under("sink", "safe-mode"),
        "batch-dml-enable": f"{_MYSQL}.enable-batch-dml",
        "multi-stmt-enable": f"{_MYSQL}.enable-multi-statement",
        "cache-prep-stmts": f"{_MYSQL}.enable-cache-prepared-statement",
        **_all_under(_MYSQL),
    },
    "kafka": {
        **_ANY_SINK,
        **_under("sink", "schema-registry", "only-output-updated-columns", "content-compatible"),
        **_under("sink", "debezium-disable-schema"),
        **_all_under(_KAFKA),
        **_all_under(_CODEC),
    },
    "blackhole": _ANY_SINK,
}
#: Keys whose value in a URI is true or false.
FLAGS = frozenset(
    {
        *("sink.safe-mode", "sink.only-output-updated-columns", "sink.content-compatible"),
        *(f"{_CODEC}.enable-tidb-extension", f"{_KAFKA}.enable-tls"),
        "sink.cloud-storage-config.use-table-id-as-path",
        *(key for key, (default, _) in WITHOUT.items() if isinstance(default, bool)),
    }
)
