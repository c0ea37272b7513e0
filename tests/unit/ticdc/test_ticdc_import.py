"""From a TiCDC changefeed to a Changefeed: what becomes what, and that nothing is lost in silence."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from changefeed.cli.main import main
from changefeed.errors import InvalidSpec
from changefeed.spec.parse import parse
from changefeed.ticdc.config import Converted, TicdcSource, convert, to_yaml

CONFIG = """
case-sensitive = true
performance-mode = "throughput"
[filter]
rules = ['shop.*', '!shop.tmp_*']
[sink]
terminator = "\\n"
date-separator = "none"
file-index-digit = 10
[sink.csv]
delimiter = ";"
quote = ""
null = "NULL"
include-commit-ts = true
binary-encoding-method = "hex"
output-old-value = true
output-field-header = true
[sink.cloud-storage-config]
flush-interval = "2s"
file-size = 33554432
output-raw-change-event = true
use-table-id-as-path = true
[integrity]
integrity-check-level = "correctness"
corruption-handle-level = "error"
"""


_LARGE = "[sink.kafka-config.large-message-handle]\nlarge-message-handle-option"


def _convert(uri: str, config: str = "", **more: Any) -> Converted:
    return convert(TicdcSource(uri, tomllib.loads(config), ("http://pd:2379",), start_ts="449", **more))


def test_what_means_the_same_is_taken_over() -> None:
    converted = _convert("s3://lake/orders?protocol=csv&endpoint=http://minio:9000&region=eu-1", CONFIG)
    assert converted.notes == ()
    assert converted.resource["spec"] == {
        "upstream": {"pdAddresses": ["http://pd:2379"]},
        "startTs": "449",
        "mode": "Throughput",
        "filter": {"caseSensitive": True, "rules": ["shop.*", "!shop.tmp_*"]},
        "integrity": {"level": "Correctness", "onCorruption": "Error"},
        "sink": {
            "storage": {
                "uri": "s3://lake/orders?endpoint=http://minio:9000&region=eu-1",
                "protocol": "csv",
                "terminator": "\n",
                "dateSeparator": "none",
                "fileIndexWidth": 10,
                "flushInterval": "2s",
                "fileSize": "32Mi",
                "outputRawChangeEvent": True,
                "useTableIdAsPath": True,
                "csv": {
                    "delimiter": ";",
                    "quote": "",
                    "null": "NULL",
                    "includeCommitTs": True,
                    "binaryEncodingMethod": "hex",
                    "outputOldValue": True,
                    "outputFieldHeader": True,
                },
            }
        },
    }
    parse(to_yaml(converted))


FILTERS = """
[filter]
ignore-txn-start-ts = [449, 450]
[[filter.event-filters]]
matcher = ["shop.*"]
ignore-event = ["all ddl", "delete"]
ignore-sql = ["^drop"]
ignore-insert-value-expr = "id > 10"
ignore-update-new-value-expr = "name = 'x'"
ignore-update-old-value-expr = ""
ignore-delete-value-expr = "id IS NULL"
[[filter.event-filters]]
matcher = ["bank.*"]
ignore-update-only-columns = ["seen_at"]
ignore-events = ["delete"]
[[sink.column-selectors]]
matcher = ["shop.*"]
columns = ["*", "!secret"]
"""


def test_folders_by_id_may_be_asked_for_in_the_uri() -> None:
    converted = _convert("s3://lake/orders?protocol=csv&use-table-id-as-path=true")
    assert converted.notes == ()
    assert converted.resource["spec"]["sink"]["storage"]["useTableIdAsPath"] is True


def test_event_filters_and_column_selectors_are_taken_over() -> None:
    converted = _convert("s3://lake/x?protocol=canal-json", FILTERS)
    assert converted.resource["spec"]["filter"] == {
        "ignoreTxnStartTs": ["449", "450"],
        "eventFilters": [
            {
                "matcher": ["shop.*"],
                "ignoreEvent": ["all ddl", "delete"],
                "ignoreSql": ["^drop"],
                "ignoreInsertValueExpr": "id > 10",
                "ignoreUpdateNewValueExpr": "name = 'x'",
                "ignoreDeleteValueExpr": "id IS NULL",
            },
            {"matcher": ["bank.*"], "ignoreUpdateOnlyColumns": ["seen_at"]},
        ],
    }
    selectors = converted.resource["spec"]["sink"]["storage"]["columnSelectors"]
    assert selectors == [{"matcher": ["shop.*"], "columns": ["*", "!secret"]}]
    assert converted.notes == (
        "filter.event-filters[1].ignore-update-only-columns: TiCDC heeds it for Kafka only; "
        "here such updates are dropped for every sink",
        "unknown key filter.event-filters[1].ignore-events; did you mean filter.event-filters[1].ignore-event?",
    )
    parse(to_yaml(converted))


def test_empty_lists_of_filters_say_nothing() -> None:
    config = "[filter]\nevent-filters = []\n[sink]\ncolumn-selectors = []"
    converted = _convert("s3://lake/x?protocol=csv", config)
    assert converted.notes == ()
    assert "filter" not in converted.resource["spec"]


def test_column_selectors_of_csv_need_a_header() -> None:
    (note,) = _convert("s3://lake/x?protocol=csv", FILTERS[FILTERS.index("[[sink") :]).notes
    assert "unless csv.outputFieldHeader: true" in note


def test_the_uri_wins_over_the_configuration() -> None:
    config = '[sink]\nprotocol = "csv"\n[sink.cloud-storage-config]\nflush-interval = "9s"'
    uri = "file:///lake?protocol=canal-json&flush-interval=3s&file-size=1048576&enable-tidb-extension=true"
    storage = _convert(uri, config).resource["spec"]["sink"]["storage"]
    assert storage == {
        "uri": "file:///lake",
        "protocol": "canal-json",
        "flushInterval": "3s",
        "fileSize": "1Mi",
        "canalJson": {"enableTidbExtension": True},
    }


def test_a_default_needs_no_note_and_another_value_does() -> None:
    uri = "s3://lake/x?protocol=csv"
    assert _convert(uri, "bdr-mode = false\n[sink.cloud-storage-config]\nworker-count = 16").notes == ()
    assert _convert(uri, "bdr-mode = true\n[sink.cloud-storage-config]\nworker-count = 32").notes == (
        "bdr-mode = true: no equivalent; replication in both directions: not supported yet",
        "sink.cloud-storage-config.worker-count = 32: no equivalent; see spec.spark.executor",
    )


def test_whole_sections_without_an_equivalent_are_named_by_key() -> None:
    config = '[consistent]\nlevel = "eventual"\n[sink.kafka-config]\nsasl-password = "hunter2"\n[scheduler]\nx = 1'
    notes = _convert("s3://lake/x?protocol=csv", config).notes
    assert [note.partition(":")[0] for note in notes] == [
        'consistent.level = "eventual"',
        "sink.kafka-config.sasl-password",
        "scheduler.x = 1",
    ]


def test_an_unknown_key_is_named_with_the_nearest() -> None:
    notes = _convert("s3://lake/x?protocol=csv&flush-intervall=1s", '[sink.csv]\ndelimeter = ";"\n[zzz]\nq = 1').notes
    assert notes == (
        "sink URI: unknown key flush-intervall; did you mean flush-interval?",
        "unknown key sink.csv.delimeter; did you mean sink.csv.delimiter?",
        "unknown key zzz.q; no equivalent",
    )


def test_the_mode_has_another_word_here() -> None:
    converted = _convert("s3://lake/x?protocol=csv", 'performance-mode = "low-latency"')
    assert not converted.notes
    assert converted.resource["spec"]["mode"] == "LowLatency"
    assert _convert("s3://lake/x?protocol=csv", 'performance-mode = "fast"').notes == (
        'to fix: spec.mode: "fast"; allowed: Throughput | LowLatency',
    )


@pytest.mark.parametrize(
    ("uri", "config"),
    [
        ("s3://lake/x?protocol=csv&access-key=AK&secret-access-key=hunter2&session-token=hunter2", ""),
        ("s3://AK:hunter2@lake/x?protocol=csv", ""),
        ("azure://lake/x?protocol=csv&account-name=a&account-key=hunter2&sas-token=hunter2", ""),
        ("mysql://root:hunter2@tidb:4000/?max-txn-row=1", ""),
        ("kafka://broker:9092/t?protocol=canal-json&sasl-password=hunter2", ""),
        ("s3://lake/x?protocol=csv", '[consistent]\nstorage = "s3://x?secret-access-key=hunter2"'),
        ("s3://lake/x?protocol=csv", '[sink]\nschema-registry = "http://u:hunter2@r"'),
        *(
            ("kafka://b:9092/t?protocol=avro", f'[sink]\nschema-registry = "{registry}"')
            for registry in (
                *("http://u:hunter2@r", "http://u:1/hunter2@r", "u:hunter2@r", "http://u:hunter2@[r"),
                "http://r?token=hunter2",
            )
        ),
        *(
            ("kafka://b:9092/t?protocol=simple", f'{_LARGE} = "claim-check"\nclaim-check-storage-uri = "{store}"')
            for store in ("s3://lake/x?secret-access-key=hunter2", "s3://u:hunter2@b/x", "s3://[b?sas-token=hunter2")
        ),
        ("kafka://b:9092/t?protocol=simple&sasl-user=u&sasl-password=hunter2&key=hunter2", ""),
        ("mysql://tidb:4000/?ssl-ca=/ca&ssl-key=hunter2", ""),
        ("mysql://tidb:4000/", f'{_LARGE} = "none"\nclaim-check-storage-uri = "lake?account-key=hunter2"'),
        ("mysql://tidb:4000/?tidb-txn-mode=mysql://root:hunter2@tidb", ""),
        ("mysql://tidb:4000/", '[sink.kafka-config]\nkey = "hunter2"\nsasl-gssapi-password = "hunter2"'),
        ("s3://lake/x?protocol=csv", '[sink.mysql-config]\nssl-key = "hunter2"'),
    ],
)
def test_no_secret_comes_out(uri: str, config: str) -> None:
    converted = _convert(uri, config)
    assert "hunter2" not in to_yaml(converted)
    assert "hunter2" not in json.dumps(converted.resource)
    assert converted.notes


def test_credentials_become_a_secret_to_make() -> None:
    converted = _convert("s3://lake/x?protocol=csv&access-key=AK&secret-access-key=x", name="orders")
    assert converted.resource["spec"]["sink"]["storage"]["credentials"] == {"secretRef": {"name": "orders-sink"}}
    assert converted.notes == (
        "sink URI: access-key, secret-access-key: make a Secret orders-sink with the keys access-key-id, "
        "secret-access-key",
    )


@pytest.mark.parametrize(
    "uri",
    [
        *("pulsar://x", "s3://[x", "lake/orders", "", "kafka://a:9092,b:port/t"),
        *("mysql://root:1/hunter2@tidb:4000", "mysql://root:1?hunter2@tidb:4000", "mysql:root:hunter2@tidb"),
    ],
)
def test_a_sink_that_no_changefeed_can_have(uri: str) -> None:
    with pytest.raises(InvalidSpec, match="--sink-uri") as refused:
        _convert(uri)
    assert "hunter2" not in str(refused.value)


def test_what_the_resource_does_not_allow_is_to_mend() -> None:
    converted = _convert("s3://lake/x?protocol=csv&flush-interval=1h")
    assert converted.notes == (
        'to fix: spec.sink.storage.flushInterval: "1h"; allowed: a duration from 100ms to 10m, such as "5s"',
    )


@pytest.mark.parametrize(
    ("uri", "place"),
    [
        (
            "s3://lake/x?protocol=csv&storage-class=STANDARD_IA&sse=aws:kms&sse-kms-key-id=k",
            "s3://lake/x?storage-class=STANDARD_IA&sse=aws:kms&sse-kms-id=k",
        ),
        (
            "azblob://lake/x?protocol=csv&account-name=shop&access-tier=Cool",
            "az://lake/x?account-name=shop&storage-class=Cool",
        ),
        ("gcs://lake/x?protocol=csv&storage-class=NEARLINE", "gs://lake/x?storage-class=NEARLINE"),
    ],
)
def test_where_a_store_is_and_how_it_keeps_files_is_taken_over(uri: str, place: str) -> None:
    converted = _convert(uri)
    assert converted.notes == ()
    assert converted.resource["spec"]["sink"]["storage"]["uri"] == place


def test_what_another_api_of_a_store_is_called_by_is_said() -> None:
    (note,) = _convert("gs://lake/x?protocol=csv&endpoint=http://gcs/storage/v1").notes
    assert "endpoint; no equivalent" in note
    (note,) = _convert("azure://lake/x?protocol=csv").notes
    assert "az://container/folder?account-name=name" in note


def test_a_signature_is_not_taken_over() -> None:
    (note,) = _convert("azure://lake/x?protocol=csv&account-name=shop&sas-token=hunter2").notes
    assert "sas-token: no equivalent" in note
    assert "hunter2" not in note


def test_without_pd_and_start_it_says_what_to_write() -> None:
    converted = convert(TicdcSource("s3://lake/x?protocol=csv", {}))
    assert [note.partition(":")[0] for note in converted.notes] == ["spec.upstream.pdAddresses", "spec.startTs"]
    parse(to_yaml(converted))


def test_notes_are_comments_of_one_line_each() -> None:
    converted = Converted(_convert("s3://lake/x?protocol=csv").resource, ("a\nkind: Pod", "b"))
    text = to_yaml(converted)
    assert "# - a kind: Pod\n# - b\napiVersion:" in text
    assert yaml.safe_load(text) == converted.resource


def test_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "cf.toml"
    config.write_text("bdr-mode = true\n")
    arguments = ["import", "--sink-uri", "s3://lake/x?protocol=csv", "--config", str(config), "--name", "orders"]
    assert main([*arguments, "--pd", "http://pd:2379", "--start-ts", "1", "-n", "shop"]) == 0
    out, err = capsys.readouterr()
    assert parse(out).name == "shop/orders"
    assert err == "note: bdr-mode = true: no equivalent; replication in both directions: not supported yet\n"
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["changefeed"]["metadata"] == {"name": "orders"}


@pytest.mark.parametrize(("text", "said"), [(None, "can't read"), (b"a = ", "is not TOML"), (b"\xff", "is not TOML")])
def test_a_configuration_that_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: bytes | None, said: str
) -> None:
    config = tmp_path / "cf.toml"
    if text is not None:
        config.write_bytes(text)
    assert main(["import", "--sink-uri", "s3://lake/x", "--config", str(config)]) == 2
    assert said in capsys.readouterr().err
