"""How each file was written: by the config of the epoch that planned it (docs/design/rules.md, Rule 10).

The log says which epoch that was, until it folds the plan away; then the newest config with which a file can be read is
assumed, and the caller has to report that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from changefeed.errors import NotFound
from changefeed.log.log import LOG
from changefeed.objectstore import ObjectStore
from changefeed.reading.failures import NotVerifiable
from changefeed.schema.table_info import BLOBS, ColumnInfo

_BINARY = {"canal-json": "latin-1", "parquet": ""}
_RECORD = re.compile(r".*/\d{20}\.json")


@dataclass(frozen=True)
class Format:
    """The members of the effective spec that decide how rows stand in a file."""

    protocol: str
    delimiter: str
    quote: str
    null: str
    terminator: str
    header: bool
    binary: str  # "base64", "hex"; "latin-1" in canal-json; "" in parquet
    split_updates: bool
    time_zone: str
    left_out: str = ""  # of rows and columns, by which members of the spec
    topics: str = ""  # by which members of the spec
    compression: str = "none"  # or "gzip", "zstd", of the whole file
    may_repeat: bool = False  # a change may stand there more than once

    @property
    def choice(self) -> str:
        """What stands for a value of ENUM or SET: its "text", or the "number" that is stored."""
        return "text" if self.protocol in ("csv", "parquet") else "number"

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> Format:
        """Raises NotVerifiable for what can't be read back without doubt."""
        sink = spec["sink"]
        return cls._of_topics(spec, sink["kafka"]) if "kafka" in sink else cls._of_files(spec, sink["storage"])

    @classmethod
    def _of_files(cls, spec: Mapping[str, Any], storage: Mapping[str, Any]) -> Format:
        csv, protocol = storage["csv"], storage["protocol"]
        if protocol == "csv":
            _check_csv(csv)
        elif protocol == "canal-json":
            _check_canal_json("storage", storage["canalJson"])
        elif protocol != "parquet":
            raise NotVerifiable(f"Files of protocol {protocol!r} can't be read back by verify yet.", "Use csv.")
        return cls(
            protocol=protocol,
            delimiter=csv["delimiter"],
            quote=csv["quote"],
            null=csv["null"],
            terminator=storage["terminator"],
            header=csv["outputFieldHeader"],
            binary=_BINARY.get(protocol, csv["binaryEncodingMethod"]),
            split_updates=not storage["outputRawChangeEvent"],
            time_zone="UTC" if protocol == "parquet" else spec["timeZone"],
            left_out=_left_out(spec, storage),
            compression=storage.get("compression", "none"),
        )

    @classmethod
    def _of_topics(cls, spec: Mapping[str, Any], kafka: Mapping[str, Any]) -> Format:
        protocol = kafka["protocol"]
        if protocol == "canal-json":
            _check_canal_json("kafka", kafka["canalJson"])
        elif protocol != "open-protocol":
            raise NotVerifiable(
                f"Messages of protocol {protocol!r} can't be read back by verify yet.",
                "Use open-protocol, avro, or canal-json with enableTidbExtension to verify a changefeed.",
            )
        if kafka["largeMessages"]["option"] != "none":
            raise NotVerifiable(
                f"Rows that {kafka['largeMessages']['option']} keeps out of their messages can't be read back yet.",
                "Leave out spec.sink.kafka.largeMessages for changefeeds that are to be verified.",
            )
        return cls(
            protocol=protocol,
            delimiter="",
            quote="",
            null="",
            terminator="\n",
            header=False,
            binary="latin-1",
            split_updates=not kafka["outputRawChangeEvent"],
            time_zone=spec["timeZone"],
            left_out=_left_out(spec, kafka),
            topics=json.dumps([[each["matcher"], each["topic"]] for each in kafka["dispatchers"]]),
            may_repeat=kafka["delivery"] != "exactly-once",
        )

    def replaces(self, column: ColumnInfo) -> bool:
        """Whether U+FFFD stands for a byte of its text that is not UTF-8."""
        return self.protocol == "canal-json" or (self.protocol == "open-protocol" and column.type not in BLOBS)


def _left_out(spec: Mapping[str, Any], sink: Mapping[str, Any]) -> str:
    filter_ = spec.get("filter", {})
    members = [filter_.get(name) for name in ("eventFilters", "ignoreTxnStartTs")]
    return json.dumps([each or None for each in (*members, sink.get("columnSelectors"))])


def _check_csv(csv: Mapping[str, Any]) -> None:
    if not csv["includeCommitTs"]:
        raise NotVerifiable(
            "The files carry no commit ts, so their order and completeness can't be checked.",
            "Set spec.sink.storage.csv.includeCommitTs: true for changefeeds that are to be verified.",
        )
    for name, odd in (
        ("delimiter", len(csv["delimiter"].encode()) != 1),
        ("quote", len(csv["quote"].encode()) != 1),
        ("outputOldValue", csv["outputOldValue"]),
    ):
        if odd:
            raise NotVerifiable(
                f"Files written with spec.sink.storage.csv.{name}: {csv[name]!r} can't be read back by verify yet.",
                "Use the option's default for changefeeds that are to be verified.",
            )


def _check_canal_json(kind: str, options: Mapping[str, Any]) -> None:
    if not options["enableTidbExtension"]:
        raise NotVerifiable(
            "Without the extension canal-json carries no commit ts: order and completeness can't be checked.",
            f"Set spec.sink.{kind}.canalJson.enableTidbExtension: true for changefeeds that are to be verified.",
        )
    if options["deleteOnlyOutputHandleKeyColumns"]:
        raise NotVerifiable(
            "Only the keys of deleted rows are written, so deletes can't be compared.",
            f"Leave out spec.sink.{kind}.canalJson.deleteOnlyOutputHandleKeyColumns to verify a changefeed.",
        )


class Formats:
    """The formats of a sink's files, by path."""

    def __init__(self, planned: Mapping[str, Format], epochs: list[Format]) -> None:
        """`planned`: by path; `epochs`: of all epochs, newest first."""
        self._planned = planned
        self._epochs = list(dict.fromkeys(epochs))
        for name, values in (
            ("outputRawChangeEvent of the sink", {one.split_updates for one in epochs}),
            ("The sink's protocol", {one.protocol for one in epochs}),
            ("The sink's compression", {one.compression for one in epochs}),
            ("spec.sink.kafka.dispatchers", {one.topics for one in epochs}),
            ("spec.timeZone", {one.time_zone for one in epochs}),
            ("Event filters or column selectors", {one.left_out for one in epochs}),
        ):
            if len(values) > 1:
                raise NotVerifiable(
                    f"{name} was changed while the changefeed ran: what each file is to hold can't be told any more.",
                    "Verify changefeeds that keep the option.",
                )

    @property
    def newest(self) -> Format:
        return self._epochs[0]

    @property
    def may_repeat(self) -> bool:
        return any(one.may_repeat for one in self._epochs)

    def of(self, path: str) -> list[Format]:
        """Those that the file may have, the likeliest first; more than one: nobody knows."""
        known = self._planned.get(path)
        return [known] if known else self._epochs


def read_formats(store: ObjectStore, current: Mapping[str, Any]) -> Formats:
    """From the records that are left in the log below `store`; `current`: the newest effective spec."""
    configs: dict[int, Format] = {}
    epochs_of: dict[str, int] = {}
    for path, _ in store.list(LOG):
        if not _RECORD.fullmatch(path):
            continue
        try:
            record = json.loads(store.get(path).body)
        except NotFound:
            continue  # folded since it was listed
        if record["kind"] == "epoch":
            configs[record["epoch"]] = Format.of(record["config"]["spec"])
        elif record["kind"] == "plan":
            outputs = (entry.get("output", entry) for entry in record["entries"])  # 0.1.0 had its members in the entry
            epochs_of.update((output.get("path", ""), record["epoch"]) for output in outputs)
    newest = Format.of(current)
    planned = {path: configs.get(epoch, newest) for path, epoch in epochs_of.items()}
    return Formats(planned, [newest, *(configs[epoch] for epoch in sorted(configs, reverse=True))])
