"""The codec that `sink.kafka` of an effective resource names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import polars as pl
import pyarrow as pa

from changefeed.sink.kafka.codec.avro.codec import Avro
from changefeed.sink.kafka.codec.avro.schema import AvroTypes
from changefeed.sink.kafka.codec.canal import CanalJson
from changefeed.sink.kafka.codec.debezium.codec import Debezium
from changefeed.sink.kafka.codec.message import MessageCodec
from changefeed.sink.kafka.codec.open_protocol import OpenProtocol
from changefeed.sink.kafka.codec.simple import Simple
from changefeed.sink.text.canal_json import CanalJsonFormat

_CLUSTER = "default"  # TiCDC's name for a cluster that has none
_VERSIONS = {"avro": 2}  # of those that are not 1


def message_codec(options: Mapping[str, Any], time_zone: str, number_of: Callable[[str, str], int]) -> MessageCodec:
    """`time_zone`: in which rows are mounted. `number_of`: see `Avro`.

    Plans of older versions lack options that were added later.
    """
    canal = options["canalJson"]
    match options["protocol"]:
        case "canal-json":
            fmt = CanalJsonFormat.from_config({**options, "terminator": ""})
            return CanalJson(fmt, time_zone, ddls=canal.get("ddls", False))
        case "open-protocol":
            return OpenProtocol(time_zone=time_zone)
        case "simple":
            return Simple(time_zone)
        case "debezium":
            return Debezium(_CLUSTER, **options.get("debezium", {}))
        case _:
            modes = options.get("avro", {})
            types = AvroTypes(
                bigint_unsigned_as_text=modes.get("bigintUnsignedHandlingMode") == "string",
                decimal_as_text=modes.get("decimalHandlingMode") == "string",
                time_zone=time_zone,
            )
            return Avro(number_of, _CLUSTER, canal["enableTidbExtension"], types)


def fingerprint(options: Mapping[str, Any]) -> str:
    protocol = options["protocol"]
    return f"kafka-{protocol}-{_VERSIONS.get(protocol, 1)} pyarrow-{pa.__version__} polars-{pl.__version__}"
