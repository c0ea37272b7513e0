"""From a TiCDC changefeed's sink to ours: each option of MySQL and Kafka, and what has no equivalent."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from typing import Any

import pytest
from changefeed.spec.crd import crd
from changefeed.spec.parse import parse
from changefeed.ticdc.config import Converted, TicdcSource, convert, to_yaml
from changefeed.ticdc.keys import KINDS, SAME, SAME_OF, SECRETS, WITHOUT

_LARGE = "[sink.kafka-config.large-message-handle]\nlarge-message-handle-option"


def _convert(uri: str, config: str = "", name: str = "imported") -> Converted:
    return convert(TicdcSource(uri, tomllib.loads(config), ("http://pd:2379",), start_ts="449", name=name))


@pytest.mark.parametrize(
    ("uri", "sink"),
    [
        ("mysql://tidb:4000/", {"mysql": {"uri": "mysql://tidb:4000"}}),
        ("tidb+ssl://tidb:4000/", {"mysql": {"uri": "mysql://tidb:4000"}}),
        (
            "kafka://b:9092/t?protocol=open-protocol",
            {"kafka": {"uri": "kafka://b:9092/t", "protocol": "open-protocol"}},
        ),
        (
            "kafka://a:9092,b:9093/t?protocol=simple",
            {"kafka": {"uri": "kafka://a:9092,b:9093/t", "protocol": "simple"}},
        ),
        (
            "kafka+ssl://[::1]:9092,[::2]:9092/t?protocol=simple",
            {"kafka": {"uri": "kafka://[::1]:9092,[::2]:9092/t", "protocol": "simple"}},
        ),
        ("blackhole://", {"blackhole": {}}),
    ],
)
def test_each_kind_of_sink(uri: str, sink: dict[str, Any]) -> None:
    converted = _convert(uri)
    assert converted.resource["spec"]["sink"] == sink
    assert not converted.notes
    parse(to_yaml(converted))


@pytest.mark.parametrize(
    ("parameter", "config", "fields"),
    [
        ("worker-count=32", "[sink.mysql-config]\nworker-count = 32", {"workerCount": 32}),
        ("max-txn-row=512", "[sink.mysql-config]\nmax-txn-row = 512", {"maxTxnRow": 512}),
        ("safe-mode=true", "[sink]\nsafe-mode = true", {"safeMode": True}),
        ("safe-mode=0", "[sink]\nsafe-mode = false", {"safeMode": False}),
        ("transaction-atomicity=table", '[sink]\ntransaction-atomicity = "table"', {"transactionAtomicity": "table"}),
        ("transaction-atomicity=", '[sink]\ntransaction-atomicity = ""', {}),
        ("time-zone=UTC", '[sink.mysql-config]\ntime-zone = "UTC"', {}),
        ("time-zone=", '[sink.mysql-config]\ntime-zone = ""', {}),
        ("batch-dml-enable=true", "[sink.mysql-config]\nenable-batch-dml = true", {}),
    ],
)
def test_an_option_of_mysql_in_the_uri_and_in_the_file(parameter: str, config: str, fields: dict[str, Any]) -> None:
    for converted in (_convert(f"mysql://tidb:4000/?{parameter}"), _convert("mysql://tidb:4000/", config)):
        assert converted.resource["spec"]["sink"] == {"mysql": {"uri": "mysql://tidb:4000", **fields}}
        assert not converted.notes
        parse(to_yaml(converted))


def _of_kafka(converted: Converted) -> dict[str, Any]:
    """What stands there beside where it is, in which format, and what is told beside rows."""
    kafka: dict[str, Any] = converted.resource["spec"]["sink"]["kafka"]
    fields = {name: value for name, value in kafka.items() if name not in ("uri", "protocol", "debezium")}
    canal = {name: value for name, value in fields.pop("canalJson", {}).items() if name != "ddls"}
    return fields | ({"canalJson": canal} if canal else {})


@pytest.mark.parametrize(
    ("protocol", "told"),
    [
        ("canal-json", {"canalJson": {"ddls": True}}),
        ("canal-json&enable-tidb-extension=true", {"canalJson": {"enableTidbExtension": True}}),
        ("debezium", {"debezium": {"watermarks": True, "ddls": True}}),
        ("simple", {}),
    ],
)
def test_consumers_are_told_what_ticdc_tells_them(protocol: str, told: dict[str, Any]) -> None:
    kafka = _convert(f"kafka://b:9092/t?protocol={protocol}").resource["spec"]["sink"]["kafka"]
    assert {name: value for name, value in kafka.items() if name not in ("uri", "protocol")} == told


@pytest.mark.parametrize(
    ("parameter", "config", "fields"),
    [
        ("partition-num=6", "partition-num = 6", {"partitionNum": 6}),
        ("replication-factor=3", "replication-factor = 3", {"replicationFactor": 3}),
        ("max-message-bytes=67108864", "max-message-bytes = 67108864", {"maxMessageBytes": "64Mi"}),
        ("max-message-bytes=1048588", "max-message-bytes = 1048588", {"maxMessageBytes": "1048588"}),
        ("compression=lz4", 'compression = "lz4"', {"compression": "lz4"}),
        ("sasl-mechanism=scram-sha-512", 'sasl-mechanism = "scram-sha-512"', {"saslMechanism": "SCRAM-SHA-512"}),
        ("enable-tls=false", "enable-tls = false", {}),
        ("auto-create-topic=1", "auto-create-topic = true", {}),
        ("required-acks=-1", "required-acks = -1", {}),
        (
            "enable-tidb-extension=true",
            "codec-config.enable-tidb-extension = true",
            {"canalJson": {"enableTidbExtension": True}},
        ),
    ],
)
def test_an_option_of_kafka_in_the_uri_and_in_the_file(parameter: str, config: str, fields: dict[str, Any]) -> None:
    uri = "kafka://b:9092/t?protocol=canal-json"
    for converted in (_convert(f"{uri}&{parameter}"), _convert(uri, f"[sink.kafka-config]\n{config}")):
        assert _of_kafka(converted) == fields
        assert not converted.notes
        parse(to_yaml(converted))


@pytest.mark.parametrize(
    ("protocol", "config", "fields"),
    [
        (
            "canal-json",
            "[sink]\nonly-output-updated-columns = true\ncontent-compatible = true\n"
            "delete-only-output-handle-key-columns = true",
            {
                "canalJson": {
                    "onlyOutputUpdatedColumns": True,
                    "contentCompatible": True,
                    "deleteOnlyOutputHandleKeyColumns": True,
                }
            },
        ),
        ("avro", '[sink]\nschema-registry = "http://r:8081"', {"schemaRegistry": "http://r:8081"}),
        (
            "avro",
            "[sink.kafka-config.codec-config]\nenable-tidb-extension = true",
            {"canalJson": {"enableTidbExtension": True}},
        ),
        (
            "avro",
            "[sink.kafka-config.codec-config]\navro-decimal-handling-mode = 'string'\n"
            "avro-bigint-unsigned-handling-mode = 'string'",
            {"avro": {"decimalHandlingMode": "string", "bigintUnsignedHandlingMode": "string"}},
        ),
        (
            "simple",
            "[sink.kafka-config]\noutput-raw-change-event = true",
            {"outputRawChangeEvent": True},
        ),
        ("simple", f'{_LARGE} = "none"', {"largeMessages": {"option": "none"}}),
        ("simple", f'{_LARGE} = "handle-key-only"', {"largeMessages": {"option": "handle-key-only"}}),
        (
            "simple",
            f'{_LARGE} = "claim-check"\nclaim-check-storage-uri = "s3://lake/large?region=eu-1"\n'
            'claim-check-raw-value = false\nlarge-message-handle-compression = ""',
            {"largeMessages": {"option": "claim-check", "claimCheckUri": "s3://lake/large?region=eu-1"}},
        ),
        (
            "debezium",
            '[[filter.event-filters]]\nmatcher = ["shop.*"]\nignore-update-only-columns = ["seen_at"]',
            {},
        ),
    ],
)
def test_an_option_of_kafka_in_the_file(protocol: str, config: str, fields: dict[str, Any]) -> None:
    converted = _convert(f"kafka://b:9092/t?protocol={protocol}", config)
    assert _of_kafka(converted) == fields
    assert not converted.notes
    parse(to_yaml(converted))


DISPATCHERS = """
[sink]
dispatchers = [
    { matcher = ["a.*"], topic = "{schema}_{table}", partition = "default" },
    { matcher = ["b.*"], dispatcher = "table" },
    { matcher = ["c.*"], partition = "TS" },
    { matcher = ["d.*"], partition = "index-value", index = "by_name" },
    { matcher = ["e.*"], partition = "columns", columns = ["x", "y"], topic = "", index = "" },
    { matcher = ["f.*"], dispatcher = "rowid", target-schema = "" },
]
"""


def test_dispatchers_are_taken_over_under_our_words() -> None:
    converted = _convert("kafka://b:9092/t?protocol=canal-json", DISPATCHERS)
    assert _of_kafka(converted) == {
        "dispatchers": [
            {"matcher": ["a.*"], "topic": "{schema}_{table}", "partition": "table"},
            {"matcher": ["b.*"], "partition": "table"},
            {"matcher": ["c.*"], "partition": "ts"},
            {"matcher": ["d.*"], "partition": "index-value", "index": "by_name"},
            {"matcher": ["e.*"], "partition": "columns", "columns": ["x", "y"]},
            {"matcher": ["f.*"], "partition": "index-value"},
        ]
    }
    assert not converted.notes
    parse(to_yaml(converted))


_KAFKA_SECRETS = """
[sink.kafka-config]
sasl-user = "hunter2"
sasl-password = "hunter2"
ca = "/ca.pem"
cert = "/cert.pem"
key = "/key.pem"
"""


@pytest.mark.parametrize(
    ("uri", "config", "named", "notes"),
    [
        (
            "mysql://root:hunter2@tidb:4000/",
            "",
            {"credentials": "orders-sink"},
            ["sink URI: its user: make a Secret orders-sink with the keys username, password"],
        ),
        (
            "mysql://tidb:4000/?ssl-ca=/ca.pem&ssl-cert=/cert.pem&ssl-key=/key.pem",
            "",
            {"tls": "orders-sink-tls"},
            [
                "sink.mysql-config.ssl-ca, sink.mysql-config.ssl-cert, sink.mysql-config.ssl-key: "
                "make a Secret orders-sink-tls with the keys ca.crt, tls.crt, tls.key"
            ],
        ),
        (
            "mysql://tidb:4000/",
            '[sink.mysql-config]\nssl-ca = "/ca.pem"\nssl-key = ""',
            {"tls": "orders-sink-tls"},
            ["sink.mysql-config.ssl-ca: make a Secret orders-sink-tls with the keys ca.crt"],
        ),
        (
            "kafka://b:9092/t?protocol=canal-json&enable-tls=true",
            "",
            {"tls": "orders-sink-tls"},
            ["sink.kafka-config.enable-tls: make a Secret orders-sink-tls with the keys ca.crt"],
        ),
        (
            "kafka://b:9092/t?protocol=canal-json",
            _KAFKA_SECRETS,
            {"credentials": "orders-sink", "tls": "orders-sink-tls"},
            [
                "sink.kafka-config.sasl-user, sink.kafka-config.sasl-password: "
                "make a Secret orders-sink with the keys username, password",
                "sink.kafka-config.ca, sink.kafka-config.cert, sink.kafka-config.key: "
                "make a Secret orders-sink-tls with the keys ca.crt, tls.crt, tls.key",
            ],
        ),
    ],
)
def test_users_and_certificates_become_secrets_to_make(
    uri: str, config: str, named: dict[str, str], notes: list[str]
) -> None:
    converted = _convert(uri, config, name="orders")
    ((_, sink),) = converted.resource["spec"]["sink"].items()
    found = {section: sink[section]["secretRef"]["name"] for section in ("credentials", "tls") if section in sink}
    assert found == named
    assert list(converted.notes) == notes
    parse(to_yaml(converted))


_CANAL_JSON = "kafka://b:9092/t?protocol=canal-json"


@pytest.mark.parametrize(
    ("uri", "config", "note"),
    [
        (
            "mysql://tidb:4000/?time-zone=Asia/Shanghai",
            "",
            'sink.mysql-config.time-zone = "Asia/Shanghai": no equivalent; '
            "connections are in UTC; a TIMESTAMP is the same moment in any zone",
        ),
        (
            "mysql://tidb:4000/?enable-ddl-ts=false",
            "",
            "sink.mysql-config.enable-ddl-ts = false: no equivalent; see spec.sink.mysql.progressDatabase",
        ),
        ("mysql://tidb:4000/?worker-cont=1", "", "sink URI: unknown key worker-cont; did you mean worker-count?"),
        (
            "mysql://tidb:4000/",
            '[sink.csv]\ndelimiter = ";"\nquote = ""',
            'sink.csv.delimiter = ";": of another kind of sink',
        ),
        (
            _CANAL_JSON,
            '[sink]\ndispatchers = [{ matcher = ["a.*"], target-schema = "b" }]',
            'sink.dispatchers[0].target-schema = "b": no equivalent; other names for tables: not supported yet',
        ),
        (
            _CANAL_JSON,
            '[[sink.column-selectors]]\nmatcher = ["a.*"]\ncolumns = ["x"]',
            'sink.column-selectors = [{"matcher": ["a.*"], "columns": ["x"]}]: no equivalent; '
            "not supported yet for this kind of sink",
        ),
        (
            "kafka://b:9092/t?protocol=open-protocol&only-output-updated-columns=true",
            "",
            "sink.only-output-updated-columns = true: no equivalent for protocol: open-protocol",
        ),
        (
            f"{_CANAL_JSON}&insecure-skip-verify=true",
            "",
            "sink.kafka-config.insecure-skip-verify = true: no equivalent; a broker's certificate is always verified",
        ),
        ("kafka://u:hunter2@b:9092/t?protocol=canal-json", "", "sink URI: its user: no equivalent"),
        (
            f"{_CANAL_JSON}&output-raw-change-event=true",  # TiCDC takes it from the file only
            "",
            "sink URI: unknown key output-raw-change-event; no equivalent",
        ),
        (
            _CANAL_JSON,
            '[sink]\nschema-registry = "r:8081"',
            "sink.schema-registry: no URI, or a password in it is not percent-encoded",
        ),
        (
            _CANAL_JSON,
            '[sink]\nschema-registry = "http://u:hunter2@r:8081?x=hunter2"',
            "sink.schema-registry: its user, x: no equivalent; "
            "name a Secret with username and password in spec.sink.kafka.schemaRegistryCredentials",
        ),
        (
            _CANAL_JSON,
            f'{_LARGE} = "claim-check"\nclaim-check-storage-uri = "s3://lake/x?access-key=hunter2"',
            "sink.kafka-config.large-message-handle.claim-check-storage-uri: access-key: no equivalent; "
            "the pods' environment must have the credentials",
        ),
        ("blackhole://?protocol=canal-json", "", 'sink.protocol = "canal-json": of another kind of sink'),
    ],
)
def test_what_a_sink_has_no_equivalent_of_is_named(uri: str, config: str, note: str) -> None:
    converted = _convert(uri, config)
    assert converted.notes == (note,)
    parse(to_yaml(converted))


@pytest.mark.parametrize(
    ("uri", "config", "field"),
    [
        ("mysql://tidb:4000/?worker-count=1024", "", "workerCount: 1024; allowed: a whole number from 1 to 256"),
        ("mysql://tidb:4000/?safe-mode=yes", "", 'safeMode: "yes"; allowed: true | false'),
        (f"{_CANAL_JSON}&sasl-mechanism=gssapi", "", 'saslMechanism: "GSSAPI"; allowed: PLAIN | '),
        ("kafka://b:9092/t", "", "protocol: missing"),
        (
            _CANAL_JSON,
            '[sink]\ndispatchers = [{ matcher = ["a.*"], partition = "some key" }]',
            'dispatchers[0].partition: "some key"; allowed: table | index-value | columns | ts',
        ),
        (_CANAL_JSON, '[sink]\ndispatchers = ["a.*"]', 'dispatchers[0]: "a.*"; allowed: a mapping'),
        (_CANAL_JSON, f'{_LARGE} = "claim-check"', "largeMessages: "),
    ],
)
def test_a_wrong_value_of_a_sink_is_to_fix(uri: str, config: str, field: str) -> None:
    (note,) = _convert(uri, config).notes
    kind = uri.partition(":")[0]
    assert note.startswith(f"to fix: spec.sink.{kind}.{field}")


def _nested(key: str, value: object) -> dict[str, Any]:
    for name in reversed(key.split(".")):
        value = {name: value}
    assert isinstance(value, dict)
    return value


@pytest.mark.parametrize("uri", ["s3://lake/x?protocol=csv", "mysql://tidb:4000/", _CANAL_JSON, "blackhole://"])
def test_of_each_key_without_an_equivalent_only_the_default_needs_no_note(uri: str) -> None:
    for key in WITHOUT.keys() - SAME_OF[KINDS[uri.partition(":")[0]]].keys():
        default, why = WITHOUT[key]
        known = TicdcSource(uri, _nested(key, default), ("http://pd:2379",), start_ts="449")
        other = replace(known, config=_nested(key, ["another"]))
        assert not convert(known).notes or default is None, key
        (note,) = convert(other).notes
        assert note.startswith(key)
        assert note.endswith(f": no equivalent; {why}")


def test_every_target_is_a_field_of_the_resource() -> None:
    root = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    sinks = [(f"spec.sink.{kind}", field) for kind, fields in SAME_OF.items() for field in fields.values()]
    secrets = [(f"spec.sink.{kind}", section) for kind, sections in SECRETS.items() for section in sections]
    for path in [*SAME.values(), *(f"{sink}.{field}" for sink, field in [*sinks, *secrets])]:
        section = root
        for name in path.split("."):
            section = section["properties"][name]
    assert not SAME.keys() & WITHOUT.keys()
