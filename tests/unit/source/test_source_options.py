"""What a Spark job may say, and what each mistake is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from changefeed.errors import InvalidSpec
from changefeed.model.tso import MAX_LOGICAL, compose
from changefeed.source.options import SourceOptions, TableName

GIVEN = {"pdAddresses": "http://pd-0:2379,pd-1:2379", "tables": "shop.orders"}


def parsed(**more: str) -> SourceOptions:
    return SourceOptions.parse(GIVEN | more)


def refused(**more: str) -> str:
    with pytest.raises(InvalidSpec) as error:
        parsed(**more)
    return str(error.value)


def test_what_is_left_out_has_a_default() -> None:
    options = parsed()
    assert options.access.pd_addresses == ("http://pd-0:2379", "pd-1:2379")
    assert (options.table, options.from_ts, options.to_ts) == (TableName("shop", "orders"), None, None)
    assert (options.max_rows, options.max_bytes, options.safepoint_ttl_s) == (None, 256 << 20, 86_400)
    assert options.location("a").uri.startswith("file:///")
    assert options.location("a").uri.endswith("/spark-source/a")


def test_spark_gives_names_in_small_letters() -> None:
    assert SourceOptions.parse({name.lower(): value for name, value in GIVEN.items()}) == parsed()


def test_versions_are_included_as_deltas_are() -> None:
    """What is pulled lies above a ts."""
    options = parsed(startingVersion="100", endingVersion="200")
    assert (options.from_ts, options.to_ts) == (99, 200)


def test_a_time_is_from_its_first_ts_to_its_last() -> None:
    moment = "1970-01-01T00:00:01Z"
    options = parsed(startingVersion=moment, endingVersion=moment)
    assert (options.from_ts, options.to_ts) == (compose(1000) - 1, compose(1000, MAX_LOGICAL))
    assert parsed(startingVersion="latest").from_ts is None


def test_secrets_are_folders(tmp_path: Path) -> None:
    tls = parsed(pdAddresses="https://pd-0:2379", tlsDir=str(tmp_path)).access.tls
    assert tls is not None
    assert tls.folder == tmp_path
    options = parsed(eventStore="s3://bucket/folder", eventStoreSecretDir=str(tmp_path))
    assert (options.location("a").uri, options.location("a").secret) == ("s3://bucket/folder/a", tmp_path)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"pdAddresses": " "}, "pdAddresses: missing"),
        ({"pdAddresses": "pd-0"}, "'pd-0' is not an address"),
        ({"pdAddresses": "http://me:secret@pd-0:2379"}, "an address with credentials"),
        ({"pdAddresses": "https://pd-0:2379"}, "tlsDir and https:// must be used together"),
        ({"tlsDir": "/certificates"}, "tlsDir and https:// must be used together"),
        (
            {"pdAddresses": "https://pd-0:2379", "tlsDir": "certificates"},
            "tlsDir: 'certificates' is not an absolute path",
        ),
        ({"tables": "orders"}, "tables: 'orders' is not one table"),
        ({"tables": "shop.a,shop.b"}, "start a stream for each"),
        ({"startingVersion": "yesterday"}, "startingVersion: 'yesterday' is not a time"),
        ({"startingVersion": "2026-01-31T12:00:00"}, "has no time zone"),
        ({"startingVersion": "200", "endingVersion": "100"}, "endingVersion: 100 is below startingVersion 200"),
        ({"maxRowsPerTrigger": "0"}, "maxRowsPerTrigger: '0' is not a row count"),
        ({"maxBytesPerTrigger": "many"}, "maxBytesPerTrigger: 'many' is not a size"),
        ({"safepointTtl": "5m"}, "safepointTtl: '5m' is not a duration of at least 10m"),
        ({"eventStore": "ftp://there"}, "eventStore: scheme 'ftp'"),
        ({"eventStoreSecretDir": "/secrets", "eventStore": "file:///here"}, "eventStore is not a bucket"),
        ({"startVersion": "100"}, "startversion: is not an option of the changefeed source"),
    ],
)
def test_a_mistake_is_named(given: dict[str, str], said: str) -> None:
    assert said in refused(**given)


def test_no_message_has_what_may_be_a_secret() -> None:
    assert "secret" not in refused(pdAddresses="http://me:secret@pd-0:2379")
