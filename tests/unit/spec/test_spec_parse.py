"""What the resource may say, what it means when it says nothing, and what a person reads when it is wrong."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
import yaml
from changefeed.errors import ChangefeedError, InvalidSpec
from changefeed.spec.parse import effective, from_effective, parse
from changefeed.spec.problem import InvalidResource

MINIMAL = """
apiVersion: changefeed.dev/v1alpha1
kind: Changefeed
metadata: {name: orders}
spec:
  upstream: {pdAddresses: ["http://127.0.0.1:2379"]}
  sink: {storage: {uri: file:///lake/orders, protocol: csv}}
"""

DEFAULTS = {
    "apiVersion": "changefeed.dev/v1alpha1",
    "kind": "Changefeed",
    "metadata": {"name": "orders", "namespace": "default", "uid": "local"},
    "spec": {
        "initialCopy": False,
        "paused": False,
        "restartNonce": 0,
        "mode": "Throughput",
        "upstream": {"pdAddresses": ["http://127.0.0.1:2379"], "safepointTtl": "24h"},
        "timeZone": "UTC",
        "filter": {"caseSensitive": False, "rules": ["*.*"], "eventFilters": [], "ignoreTxnStartTs": []},
        "integrity": {"level": "None", "onCorruption": "Warn"},
        "state": {},
        "eventStore": {"quota": "20Gi", "bufferSize": "640Mi"},
        "sink": {
            "storage": {
                "uri": "file:///lake/orders",
                "protocol": "csv",
                "flushInterval": "5s",
                "fileSize": "64Mi",
                "dateSeparator": "day",
                "fileIndexWidth": 20,
                "fileExpirationDays": 0,
                "useTableIdAsPath": False,
                "compression": "none",
                "terminator": "\r\n",
                "outputRawChangeEvent": False,
                "csv": {
                    "quote": '"',
                    "delimiter": ",",
                    "null": "\\N",
                    "includeCommitTs": False,
                    "binaryEncodingMethod": "base64",
                    "outputOldValue": False,
                    "outputFieldHeader": False,
                },
                "canalJson": {
                    "enableTidbExtension": False,
                    "contentCompatible": False,
                    "onlyOutputUpdatedColumns": False,
                    "deleteOnlyOutputHandleKeyColumns": False,
                },
                "parquet": {"oldValues": False, "compression": "zstd"},
                "columnSelectors": [],
            }
        },
        "lagThreshold": "1m",
        "drainTimeout": "1m",
        "deletionPolicy": "Close",
        "spark": {
            "image": "",
            "pullers": {"count": 2, "memoryQuota": "1Gi"},
            "driver": {"cores": 1, "memory": "2Gi", "template": {}},
            "executor": {"instances": 2, "cores": 2, "memory": "4Gi", "template": {}},
            "serviceAccount": {"annotations": {}},
        },
    },
}


def _with(path: str, value: object) -> str:
    """The minimal resource with one field set."""
    document: Any = yaml.safe_load(MINIMAL)
    section = document
    *parents, name = path.split(".")
    for parent in parents:
        section = section.setdefault(parent, {})
    section[name] = value
    return json.dumps(document)


def _problems(text: str) -> list[str]:
    with pytest.raises(InvalidResource) as caught:
        parse(text)
    return [problem.line for problem in caught.value.problems]


def test_every_default() -> None:
    assert effective(parse(MINIMAL)) == DEFAULTS


def test_numbers_have_the_units_of_their_attributes() -> None:
    spec = parse(_with("spec.startTs", "449000000000000001")).spec
    assert spec.start_ts == 449000000000000001
    assert spec.sink.storage is not None
    assert (spec.sink.storage.flush_interval, spec.sink.storage.file_size) == (5.0, 64 << 20)
    assert spec.upstream.safepoint_ttl == 86_400.0
    assert spec.spark.executor.slots == 4


def test_the_effective_config_gives_the_same_changefeed_again() -> None:
    changefeed = parse(_with("spec.sink.storage.csv", {"null": "", "delimiter": "||", "quote": ""}))
    config = json.loads(json.dumps(effective(changefeed)))
    assert from_effective(config) == changefeed
    assert json.dumps(effective(from_effective(config))) == json.dumps(effective(changefeed))


def test_a_log_of_before_event_filters_is_read() -> None:
    changefeed = parse(MINIMAL)
    config = effective(changefeed)
    before = {"caseSensitive": False, "rules": ["*.*"], "events": [], "ignoreTxnStartTs": []}
    assert from_effective({**config, "spec": {**config["spec"], "filter": before}}) == changefeed


EVENT_FILTER = {
    "matcher": ["shop.*", "!shop.tmp_*"],
    "ignoreEvent": ["delete", "all ddl"],
    "ignoreSql": ["^drop", r"\balter\b"],
    "ignoreInsertValueExpr": "id > 10 AND name = 'x'",
    "ignoreUpdateNewValueExpr": "id > 10",
    "ignoreUpdateOldValueExpr": "id < 10",
    "ignoreDeleteValueExpr": "id IS NULL",
    "ignoreUpdateOnlyColumns": ["seen_at"],
}


def test_event_filters_are_taken_and_written_out_again() -> None:
    changefeed = parse(_with("spec.filter", {"eventFilters": [EVENT_FILTER], "ignoreTxnStartTs": ["449"]}))
    assert effective(changefeed)["spec"]["filter"]["eventFilters"] == [EVENT_FILTER]
    assert changefeed.spec.filter.ignore_txn_start_ts == (449,)
    assert from_effective(effective(changefeed)) == changefeed


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"matcher": []}, "spec.filter.eventFilters[0].matcher: []; allowed: 1 to 64 table-filter rules"),
        ({"matcher": ["shop"]}, "a table-filter rule such as shop.*"),
        (
            {"ignoreEvent": ["DELETE"]},
            'spec.filter.eventFilters[0].ignoreEvent[0]: "DELETE"; allowed: all dml | insert',
        ),
        (
            {"ignoreSql": ["a("]},
            'spec.filter.eventFilters[0].ignoreSql[0]: "a("; allowed: a regular expression; invalid',
        ),
        ({"ignoreInsertValueExpr": " "}, 'eventFilters[0].ignoreInsertValueExpr: " "; allowed: a SQL condition'),
        ({"ignoreEvents": []}, "unknown field spec.filter.eventFilters[0].ignoreEvents; did you mean ignoreEvent?"),
    ],
)
def test_a_wrong_event_filter_is_refused_by_field(change: dict[str, Any], line: str) -> None:
    (found,) = _problems(_with("spec.filter.eventFilters", [EVENT_FILTER | change]))
    assert line in found


def test_a_column_selector_takes_rules_of_columns() -> None:
    selector = {"matcher": ["shop.*"], "columns": ["*", "!secret_*"]}
    storage = {"uri": "file:///lake", "protocol": "canal-json", "columnSelectors": [selector]}
    assert parse(_with("spec.sink.storage", storage)).storage.column_selectors
    (found,) = _problems(_with("spec.sink.storage.columnSelectors", [selector | {"columns": ["a.b"]}]))
    assert 'columnSelectors[0].columns[0]: "a.b"; allowed: a column rule such as * or !secret_*; column 2' in found


def test_canal_json_has_its_own_options() -> None:
    storage = {"uri": "file:///lake/orders", "protocol": "canal-json", "canalJson": {"contentCompatible": True}}
    changefeed = parse(_with("spec.sink.storage", storage))
    assert changefeed.storage.canal_json.content_compatible
    assert not changefeed.storage.canal_json.enable_tidb_extension
    assert from_effective(effective(changefeed)) == changefeed


def test_equal_resources_have_equal_effective_configs() -> None:
    one = effective(parse(_with("spec.lagThreshold", "60s")))
    assert json.dumps(one) == json.dumps(effective(parse(_with("spec.lagThreshold", "1m"))))


def test_an_effective_config_of_another_version_is_refused_by_field() -> None:
    config = effective(parse(MINIMAL))
    config["spec"]["futureOption"] = 1
    with pytest.raises(InvalidResource, match=r"unknown field spec\.futureOption"):
        from_effective(config)


def test_what_kubernetes_adds_is_taken() -> None:
    document = yaml.safe_load(MINIMAL)
    document["metadata"] |= {"uid": "0a-1", "resourceVersion": "7", "labels": {"a": "b"}, "managedFields": []}
    document["status"] = {"state": "Normal", "whatever": 1}
    changefeed = parse(yaml.safe_dump(document))
    assert changefeed.metadata.uid == "0a-1"
    assert "status" not in effective(changefeed)


def test_all_problems_at_once_each_with_field_value_and_what_is_allowed() -> None:
    text = """
apiVersion: changefeed.dev/v1alpha1
kind: Changefeed
metadata: {name: Orders_}
spec:
  pausd: true
  upstream: {pdAddresses: ["127.0.0.1:2379"], clusterId: 7}
  startTs: 449
  filter: {rules: ["shop.*", "shop"], eventFilters: [{}]}
  sink:
    storage: {uri: gcs://lake/orders, protocol: avro, flushIntervall: 5s, fileSize: 4Gi, csv: {delimiter: '"'}}
  spark: {pullers: {count: 4}, driver: []}
  lagThreshold: 60
"""
    assert _problems(text) == [
        'metadata.name: "Orders_"; allowed: 1 to 45 characters: lower-case letters, digits, - inside; a letter first',
        'spec.upstream.pdAddresses[0]: "127.0.0.1:2379"; allowed: an address such as "http://127.0.0.1:2379"',
        "spec.upstream.clusterId: 7; allowed: the cluster id that PD gives: a string of 1 to 20 digits, in quotes",
        "spec.startTs: 449; allowed: a ts: a string of 1 to 20 digits, in quotes, below 2^64",
        'spec.filter.rules[1]: "shop"; allowed: a table-filter rule such as shop.* or !shop.tmp_*; '
        "column 5: missing '.' between schema and table",
        "spec.filter.eventFilters[0].matcher: missing",
        'spec.sink.storage.uri: "gcs://lake/orders"; allowed: ' + STORES,
        'spec.sink.storage.protocol: "avro"; allowed: csv | canal-json | parquet',
        'spec.sink.storage.fileSize: "4Gi"; allowed: a size from 1Mi to 512Mi, such as "64Mi"',
        'spec.sink.storage.csv.delimiter: "\\""; allowed: 1 to 3 characters, without the quote',
        "unknown field spec.sink.storage.flushIntervall; did you mean flushInterval?",
        'spec.lagThreshold: 60; allowed: a duration from 1s to 24h, such as "5s"',
        "spec.spark.driver: []; allowed: a mapping",
        'spec.spark.executor: {"instances": 2, "cores": 2, "memory": "4Gi", "template": {}}; '
        "allowed: instances x cores above pullers.count (4): each puller occupies one permanently",
        "unknown field spec.pausd; did you mean paused?",
    ]


ONE_SINK = "exactly one sink, such as storage: {uri: ..., protocol: csv}"
STORES = "file:///absolute/path, file://./relative/path, s3://bucket/folder, az://container/folder?account-name=name or gs://bucket/folder"
WRONG: list[tuple[str, object, str]] = [
    ("spec.paused", "yes", 'spec.paused: "yes"; allowed: true | false'),
    ("spec.restartNonce", True, "spec.restartNonce: true; allowed: a whole number from 0 to 2147483647"),
    (
        "spec.startTs",
        "1" * 21,
        f'spec.startTs: "{"1" * 21}"; allowed: a ts: a string of 1 to 20 digits, in quotes, below 2^64',
    ),
    ("spec.upstream.pdAddresses", [], "spec.upstream.pdAddresses: []; allowed: 1 to 16 addresses of PD"),
    ("spec.upstream.pdAddresses", "http://a:1", 'spec.upstream.pdAddresses: "http://a:1"; allowed: a list'),
    ("spec.filter.rules", [], 'spec.filter.rules: []; allowed: 1 to 1024 rules; ["*.*"] selects every table'),
    (
        "spec.sink.storage.flushInterval",
        "99ms",
        'spec.sink.storage.flushInterval: "99ms"; allowed: a duration from 100ms to 10m, such as "5s"',
    ),
    (
        "spec.sink.storage",
        {"uri": "file:///lake", "protocol": "csv", "dateSeparator": "month", "fileExpirationDays": 7},
        "spec.sink.storage.fileExpirationDays: 7; allowed: 0 unless dateSeparator: day, as files expire by the day of "
        "their folder",
    ),
    (
        "spec.sink.storage.fileIndexWidth",
        5,
        "spec.sink.storage.fileIndexWidth: 5; allowed: a whole number from 6 to 20",
    ),
    (
        "spec.sink.storage.dateSeparator",
        "hour",
        'spec.sink.storage.dateSeparator: "hour"; allowed: none | year | month | day',
    ),
    (
        "spec.sink.storage.terminator",
        "\r",
        'spec.sink.storage.terminator: "\\r"; allowed: "\\r\\n" or "\\n", in double quotes',
    ),
    (
        "spec.sink.storage.csv.binaryEncodingMethod",
        "hexx",
        'spec.sink.storage.csv.binaryEncodingMethod: "hexx"; allowed: base64 | hex',
    ),
    (
        "spec.sink.storage.uri",
        "file://lake/x",
        'spec.sink.storage.uri: "file://lake/x"; allowed: ' + STORES,
    ),
    (
        "spec.sink.storage.uri",
        "file:///",
        'spec.sink.storage.uri: "file:///"; allowed: ' + STORES,
    ),
    (
        "spec.sink.storage.uri",
        "file://./../x",
        'spec.sink.storage.uri: "file://./../x"; allowed: ' + STORES,
    ),
    ("spec.sink", {"kafka": {}}, "spec.sink.kafka.uri: missing"),
    ("spec.sink", {"mysql": {}}, "spec.sink.mysql.uri: missing"),
    ("spec.sink", {"iceberg": {"catalog": {"uri": "https://c"}}}, "spec.sink.iceberg.warehouse: missing"),
    (
        "spec.sink",
        {"iceberg": {"warehouse": "s3://lake", "catalog": {"uri": "mysql://me:x@db/lake"}}},
        "spec.sink.iceberg.catalog.uri: allowed: a URI without credentials; "
        "name a Secret instead: credentials: {secretRef: {name: ...}}",
    ),
    (
        "spec.sink",
        {"iceberg": {"warehouse": "s3://lake", "catalog": {"uri": "oracle://db/lake"}}},
        'spec.sink.iceberg.catalog.uri: "oracle://db/lake"; allowed: https://host:port/path, '
        "postgresql://host:port/database, mysql://host:port/database or sqlite:///path",
    ),
    ("spec.sink", {}, f"spec.sink.storage: null; allowed: {ONE_SINK}"),
    ("spec.sink.storage", {"protocol": "csv"}, "spec.sink.storage.uri: missing"),
    (
        "spec.sink.storage.canalJson",
        {"enableTidbExtension": True},
        'spec.sink.storage.canalJson: {"enableTidbExtension": true}; '
        "allowed: none of its options, which have a meaning for protocol: canal-json only",
    ),
    (
        "spec.sink.storage",
        {"uri": "file:///lake/orders", "protocol": "canal-json", "csv": {"includeCommitTs": True}},
        'spec.sink.storage.csv: {"includeCommitTs": true}; '
        "allowed: none of its options, which have a meaning for protocol: csv only",
    ),
    (
        "spec.upstream.tls",
        {"secretRef": {"name": "x"}},
        "spec.upstream.tls: allowed: upstream.tls and https:// for all of pdAddresses, or neither",
    ),
    (
        "spec.upstream",
        {"pdAddresses": ["https://pd:2379"]},
        "spec.upstream.tls: allowed: upstream.tls and https:// for all of pdAddresses, or neither",
    ),
    (
        "spec.upstream",
        {"pdAddresses": ["https://pd:2379", "http://pd:2379"], "tls": {"secretRef": {"name": "x"}}},
        "spec.upstream.tls: allowed: upstream.tls and https:// for all of pdAddresses, or neither",
    ),
    ("spec.sink.storage.credentials", {}, "spec.sink.storage.credentials.secretRef: missing"),
    (
        "metadata.name",
        "a" * 46,
        f'metadata.name: "{"a" * 46}"; allowed: '
        "1 to 45 characters: lower-case letters, digits, - inside; a letter first",
    ),
    (
        "metadata.name",
        "a\n",
        'metadata.name: "a\\n"; allowed: 1 to 45 characters: lower-case letters, digits, - inside; a letter first',
    ),
    (
        "spec.spark.executor",
        {"cores": 1},
        "spec.spark.executor: "
        '{"cores": 1}; '
        "allowed: instances x cores above pullers.count (2): each puller occupies one permanently",
    ),
]


@pytest.mark.parametrize(("path", "value", "line"), WRONG)
def test_a_wrong_value(path: str, value: object, line: str) -> None:
    assert _problems(_with(path, value))[0] == line


def test_the_target_must_come_after_the_start() -> None:
    document = yaml.safe_load(MINIMAL)
    document["spec"] |= {"startTs": "100", "targetTs": "101"}
    assert parse(json.dumps(document)).spec.target_ts == 101
    document["spec"]["targetTs"] = "100"
    assert _problems(json.dumps(document)) == ['spec.targetTs: "100"; allowed: a ts above startTs ("100")']


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec.sink.storage.uri", "s3://AKIA:hunter2@lake/orders"),
        ("spec.sink.storage.uri", "s3://lake/orders?secret-access-key=hunter2"),
        ("spec.state.uri", "azure://state/x?sas-token=hunter2"),
        ("spec.upstream.pdAddresses", ["http://root:hunter2@pd:2379"]),
        ("spec.sink.storage.uri", "s3://[hunter2"),
        ("spec.sink.storage.credentials", "hunter2"),
        ("spec.sink.storage.credentials", {"secretRef": "hunter2"}),
        ("spec.sink.storage.secretAccessKey", "hunter2"),
        ("spec.upstream.tls", {"secretRef": {"name": "hunter2 "}}),
    ],
)
def test_no_secret_reaches_a_message(path: str, value: object) -> None:
    with pytest.raises(InvalidResource) as caught:
        parse(_with(path, value))
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in json.dumps([problem.as_json() for problem in caught.value.problems])


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "a: [1",
            "line 1, column 6: not YAML while parsing a flow sequence: expected ',' or ']', but got '<stream end>'",
        ),
        ("a: 1\nb:\n  c: 1\n  c: 2", "line 4, column 3: not YAML: c appears a second time"),
        ("csv:\n  null: x", 'line 2, column 3: not YAML: write the name "null" in quotes'),
        ("a: \x01", "not YAML: unacceptable character #x0001: special characters are not allowed"),
        ("", "the file holds nothing; allowed: one Changefeed"),
        (MINIMAL + "---" + MINIMAL, "the file holds 2 documents; allowed: one Changefeed"),
        ("- 1", "the file holds a list; allowed: one Changefeed, a YAML mapping"),
        ("hello", 'the file holds only "hello"; allowed: one Changefeed, a YAML mapping'),
        ("kind: Changefeed", "apiVersion: missing; allowed: changefeed.dev/v1alpha1"),
        (MINIMAL.replace("kind: Changefeed", "kind: Pod"), 'kind: "Pod"; allowed: Changefeed'),
        (MINIMAL.replace("v1alpha1", "v1"), 'apiVersion: "changefeed.dev/v1"; allowed: changefeed.dev/v1alpha1'),
    ],
)
def test_what_is_no_changefeed_at_all(text: str, line: str) -> None:
    assert _problems(text) == [line]


def test_empty_documents_around_it_do_not_count() -> None:
    assert parse("---" + MINIMAL + "---\n").metadata.name == "orders"


def test_an_unknown_field_near_nothing_lists_the_known_ones() -> None:
    assert _problems(_with("spec.eventStore.xyz", 1)) == [
        "unknown field spec.eventStore.xyz; allowed: quota, bufferSize"
    ]


def test_the_error_says_how_many_and_what_to_do() -> None:
    with pytest.raises(InvalidSpec) as caught:
        parse(_with("spec.xyz", 1))
    error = caught.value
    assert error.exit_code == 2
    assert error.message.startswith("The resource has 1 problem:\n- unknown field spec.xyz;")
    assert "changefeed validate" in error.next_step
    copy = pickle.loads(pickle.dumps(error))
    assert isinstance(copy, ChangefeedError)
    assert (str(copy), copy.problems) == (str(error), error.problems)  # type: ignore[attr-defined]
