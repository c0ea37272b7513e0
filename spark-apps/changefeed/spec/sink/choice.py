"""The one sink that a changefeed has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field, ValidationInfo, field_validator
from pydantic.config import JsonDict

from changefeed.spec.field.kind import rule, wrong
from changefeed.spec.field.section import Section, ruled
from changefeed.spec.sink.delta import Delta
from changefeed.spec.sink.iceberg import Iceberg
from changefeed.spec.sink.kafka import Kafka
from changefeed.spec.sink.mysql import Mysql
from changefeed.spec.sink.section import SinkSection
from changefeed.spec.sink.staying import ELSEWHERE
from changefeed.spec.sink.storage import OF_NAMES, Storage

_KINDS = ("storage", "iceberg", "delta", "mysql", "kafka", "blackhole")
_ONE_SINK = "exactly one sink, such as storage: {uri: ..., protocol: csv}"


class Blackhole(SinkSection):
    """Counts the changes and drops them."""


def _sink_rules() -> Iterator[JsonDict]:
    given = " + ".join(f"(has(self.{kind}) ? 1 : 0)" for kind in _KINDS)
    yield rule(f"{given} == 1", _ONE_SINK)
    same = " && ".join(f"has(self.{kind}) == has(oldSelf.{kind})" for kind in _KINDS)
    yield rule(same, f"the kind of sink that it was created with; {ELSEWHERE}")


class SinkSpec(Section):
    """Exactly one of its members."""

    model_config = ruled(*_sink_rules())

    iceberg: Iceberg | None = None
    """Tables of Apache Iceberg."""
    delta: Delta | None = None
    """Tables of Delta Lake."""
    mysql: Mysql | None = None
    """A MySQL, MariaDB or TiDB server."""
    kafka: Kafka | None = None
    """Topics of a Kafka cluster."""
    blackhole: Blackhole | None = None
    """Discards changes after counting them."""
    storage: Annotated[Storage | None, Field(validate_default=True)] = None
    """Files on an object store, in TiCDC's layout."""

    @field_validator("storage")
    @classmethod
    def _exactly_one(cls, storage: Storage | None, info: ValidationInfo) -> Storage | None:
        others = [info.data[kind] for kind in _KINDS if kind in info.data]  # one that is not is reported already
        if len(others) == len(_KINDS) - 1 and sum(each is not None for each in (*others, storage)) != 1:
            raise wrong(_ONE_SINK)
        return storage

    @property
    def kind(self) -> str:
        """Which one it is."""
        return next(kind for kind in _KINDS if getattr(self, kind) is not None)

    @property
    def section(self) -> SinkSection:
        """Return the section of its kind."""
        section: SinkSection = getattr(self, self.kind)
        return section

    @property
    def names(self) -> dict[str, str]:
        """Return by field the options that decide files' names, which stay as they were; other sinks have none."""
        options = self.storage.model_dump(by_alias=True, mode="json") if self.storage else {}
        return {f"spec.sink.storage.{field}": str(options[field]).lower() for field in OF_NAMES if options}

    @property
    def expiration_days(self) -> int:
        """Say how long files are kept; 0: forever."""
        return self.storage.file_expiration_days if self.storage else 0

    @property
    def syncpoint_interval_s(self) -> float | None:
        """Return the seconds between syncpoints; None: none are asked for."""
        return self.mysql.sync_point_interval if self.mysql is not None and self.mysql.enable_sync_point else None

    @property
    def uri(self) -> str:
        """Say where the changes go."""
        return str(getattr(self.section, "uri", f"{self.kind}://"))


def kind_and_options(config: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """The kind of sink that an effective resource has, and its options."""
    (kind, options), *_ = config["spec"]["sink"].items()
    return kind, options
