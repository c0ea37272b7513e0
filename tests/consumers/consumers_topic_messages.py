"""Messages of each Kafka protocol, by the product's encoders, and what ordinary decoders find in them."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import fastavro
from changefeed.sink.kafka.codec.avro.codec import Avro
from changefeed.sink.kafka.codec.choice import message_codec
from changefeed.sink.kafka.codec.message import Source
from consumers_topic_forms import Unreadable
from consumers_topic_rows import TABLE_ID, Tested
from integration_types import ZONE

CANAL, OPEN, SIMPLE, DEBEZIUM, AVRO = "canal-json", "open-protocol", "simple", "debezium", "avro"
PROTOCOLS = (CANAL, OPEN, SIMPLE, DEBEZIUM, AVRO)
BUILD_MS = 1_700_000_000_000
SOURCE = Source(TABLE_ID, 400, "types")
_CANAL_OPTIONS = {
    "enableTidbExtension": False,
    "contentCompatible": False,
    "onlyOutputUpdatedColumns": False,
    "deleteOnlyOutputHandleKeyColumns": False,
}
_PARAMETERS = "connect.parameters"
_CONFLUENT = 5  # a zero byte and the schema's number

Row = dict[str, Any]


class Told(NamedTuple):
    """`rows`: of each message, or why it can't be read; `doubles`: by a decoder that has all numbers as doubles.
    `wire`: what its schema says that a column is, if it has one.
    `types`: what is said of the upstream's type, by column and by index; of each message that says it.
    """

    rows: list[Row | Unreadable]
    wire: dict[str, str]
    types: list[dict[str, tuple[str, ...]]]
    doubles: list[Row | Unreadable]


class Schemas:
    """In the place of a registry."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def number_of(self, subject: str, text: str) -> int:
        if text not in self.texts:
            self.texts.append(text)
        return self.texts.index(text)

    def of(self, number: int) -> Any:
        return json.loads(self.texts[number])


def options_of(protocol: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """What a codec is to know. `options`: members of `sink.kafka` that are not as by default."""
    return {"protocol": protocol, **options, "canalJson": _CANAL_OPTIONS | options.get("canalJson", {})}


def told(tested: Tested, protocol: str, options: Mapping[str, Any], *, updates: bool = False) -> Told:
    """`updates`: what is told of the row before."""
    schemas = Schemas()
    chosen = message_codec(options_of(protocol, options), ZONE, schemas.number_of)
    messages = chosen.rows(tested.records(chosen.time_zone, updates=updates), SOURCE, BUILD_MS)
    if isinstance(chosen, Avro):
        return avro(messages.values.to_pylist(), schemas.of)
    values = [json.loads(value) for value in messages.values.to_pylist()]
    doubles = [json.loads(value, parse_int=float) for value in messages.values.to_pylist()]
    bootstrap = chosen.bootstrap(tested.table, SOURCE.table_version, BUILD_MS)
    definition = json.loads(bootstrap.value or b"") if bootstrap is not None else {}
    read = _JSON[protocol]
    return read(values, updates, definition)._replace(doubles=read(doubles, updates, definition).rows)


def _canal(values: list[Any], updates: bool, definition: Any) -> Told:
    rows = [value["old" if updates else "data"][0] for value in values]
    types = [
        {name: (kind, str(value["sqlType"][name])) for name, kind in value["mysqlType"].items()} for value in values
    ]
    return Told(rows, {}, types, rows)


def _open(values: list[Any], updates: bool, definition: Any) -> Told:
    sides = [value["p" if updates else "u"] for value in values]
    types = {name: (str(int(cell["t"])), str(int(cell["f"]))) for name, cell in sides[0].items()}
    rows = [{name: cell["v"] for name, cell in side.items()} for side in sides]
    return Told(rows, {}, [types], rows)


def _simple(values: list[Any], updates: bool, definition: Any) -> Told:
    kinds = {column["name"]: column["dataType"] for column in definition["tableSchema"]["columns"]}
    words = ("unsigned", "zerofill", "elements")
    types = {name: (", ".join([kind["mysqlType"], *(w for w in words if w in kind)]),) for name, kind in kinds.items()}
    rows = [value["old" if updates else "data"] for value in values]
    return Told(rows, {}, [types], rows)


def _debezium(values: list[Any], updates: bool, definition: Any) -> Told:
    side = "before" if updates else "after"
    (fields,) = (field["fields"] for field in values[0]["schema"]["fields"] if field["field"] == side)
    wire = {field["field"]: ", ".join(filter(None, (field["type"], field.get("name")))) for field in fields}
    rows = [value["payload"][side] for value in values]
    return Told(rows, wire, [], rows)


def avro(values: Sequence[bytes], schema_of: Callable[[int], Any]) -> Told:
    """`schema_of`: what the registry has by a number."""
    rows: list[Row | Unreadable] = []
    schema: Any = {}
    for raw in values:
        schema = schema_of(int.from_bytes(raw[1:_CONFLUENT], "big"))
        body = io.BytesIO(raw[_CONFLUENT:])
        try:
            rows.append(fastavro.schemaless_reader(body, fastavro.parse_schema(schema)))
        except UnicodeDecodeError as error:
            rows.append(Unreadable(type(error).__name__))
        else:
            assert not body.read(), "bytes are left behind the record"
    kinds = {field["name"]: _without_null(field["type"]) for field in schema["fields"]}
    wire = {name: _said(kind) for name, kind in kinds.items()}
    types = {name: (kind[_PARAMETERS]["tidb_type"],) for name, kind in kinds.items() if _PARAMETERS in kind}
    return Told(rows, wire, [types], rows)


def _without_null(kind: Any) -> dict[str, Any]:
    (found,) = [each for each in kind if each != "null"] if isinstance(kind, list) else [kind]
    return found if isinstance(found, dict) else {"type": found}


def _said(kind: Mapping[str, Any]) -> str:
    logical = kind.get("logicalType")
    return f"{kind['type']}, {logical}({kind['precision']}, {kind['scale']})" if logical else str(kind["type"])


_JSON: dict[str, Callable[[list[Any], bool, Any], Told]] = {
    CANAL: _canal,
    OPEN: _open,
    SIMPLE: _simple,
    DEBEZIUM: _debezium,
}
