"""The codec that `sink.kafka` of an effective resource names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import polars as pl
import pyarrow as pa

from changefeed.pipeline.codec.canal_json import CanalJsonFormat
from changefeed.pipeline.codec.kafka.avro.codec import Avro
from changefeed.pipeline.codec.kafka.canal import CanalJson
from changefeed.pipeline.codec.kafka.debezium.codec import Debezium
from changefeed.pipeline.codec.kafka.message import Codec
from changefeed.pipeline.codec.kafka.open_protocol import OpenProtocol
from changefeed.pipeline.codec.kafka.simple import Simple

_CLUSTER = "default"  # TiCDC's name for a cluster that has none
_VERSION = 1


def codec_of(options: Mapping[str, Any], time_zone: str, number_of: Callable[[str, str], int]) -> Codec:
    """`time_zone`: in which rows are mounted. `number_of`: see `Avro`."""
    canal = options["canalJson"]
    match options["protocol"]:
        case "canal-json":
            return CanalJson(CanalJsonFormat.from_config({**options, "terminator": ""}), time_zone)
        case "open-protocol":
            return OpenProtocol(time_zone=time_zone)
        case "simple":
            return Simple(time_zone)
        case "debezium":
            return Debezium(_CLUSTER)
        case _:
            return Avro(number_of, _CLUSTER, canal["enableTidbExtension"], time_zone)


def fingerprint(options: Mapping[str, Any]) -> str:
    return f"kafka-{options['protocol']}-{_VERSION} pyarrow-{pa.__version__} polars-{pl.__version__}"
