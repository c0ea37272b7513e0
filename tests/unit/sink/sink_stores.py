"""What the sink tests share: a table and a store that fails as it is told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from changefeed.objectstore import FileRange, Object
from changefeed.objectstore.local import LocalStore
from changefeed.schema.table_info import TableInfo, parse_table_info


def column(name: str, tp: int, flag: int = 0, default: object = None, **field_type: Any) -> dict[str, Any]:
    """ColumnInfo JSON; `field_type` are members of `type`, None = left at the type's default."""
    given = {member: value for member, value in field_type.items() if value is not None}
    return {"id": 1, "name": {"O": name}, "type": {"Tp": tp, "Flag": flag} | given, "state": 5, "default": default}


def make_table(schema: str, name: str, *columns: dict[str, Any]) -> TableInfo:
    return parse_table_info({"id": 7, "name": {"O": name}, "cols": list(columns), "state": 5}, schema)


class FaultyStore:
    """A store whose creates fail by script: an error is raised before or after the object is written."""

    def __init__(self, inner: LocalStore, *script: tuple[str, Exception]) -> None:
        self.inner = inner
        self.uri = inner.uri
        self.script = list(script)
        self.creates = 0

    def create(self, path: str, body: bytes | tuple[FileRange, ...]) -> None:
        self.creates += 1
        when, error = self.script.pop(0) if self.script else ("", None)
        if when != "before":
            self.inner.create(path, body)
        if error is not None:
            raise error

    def get(self, path: str) -> Object:
        return self.inner.get(path)

    def chunks(self, path: str, size: int = 8 << 20) -> Iterator[bytes]:
        return self.inner.chunks(path, size)

    def swap(self, path: str, body: bytes, etag: str | None) -> str:
        return self.inner.swap(path, body, etag)

    def list(self, prefix: str = "") -> list[tuple[str, int]]:
        return self.inner.list(prefix)

    def delete(self, path: str) -> None:
        self.inner.delete(path)
