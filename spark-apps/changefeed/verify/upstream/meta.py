"""Reads what the upstream's meta keys say of databases and tables, write by write (docs/design/tidb.md, Meta keys).

TiDB's sessions decode rows by these keys, so they are the definitions that were in force, states on the way included.
No DDL job and nothing of the changefeed's own schema history takes part.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from changefeed.reading.failures import NotVerifiable
from changefeed.upstream.tikv.client.kv import Snapshot
from changefeed.upstream.tikv.client.pd import PdClient
from changefeed.upstream.tikv.tidb.keys import DATABASES, decode_meta_hash_key
from changefeed.verify.upstream.history import Collected, read_history

#: All names of hashes that begin with "DB": of the databases, and of the tables of each.
_START, _END = b"mDB", b"mDC"


@dataclass(frozen=True)
class MetaWrite:
    """What a transaction that committed at `ts` left of a definition; `json` None: it is gone.

    `table_id` 0: of the database itself.
    """

    ts: int
    database_id: int
    table_id: int
    json: Mapping[str, Any] | None


async def read_meta(pd: PdClient, from_ts: int, upto_ts: int) -> list[MetaWrite]:
    """All definitions as they stood at `from_ts`, then every write in `(from_ts, upto_ts]`, by ts.

    Raises NotVerifiable for a definition that is no JSON.
    """
    found = [(from_ts, key, value) async for key, value in Snapshot(pd, from_ts).scan(_START, _END)]
    if upto_ts > from_ts:
        later = Collected()
        await read_history(pd, _START, _END, from_ts, upto_ts, into=later)
        rows = later.table().select(["commit_ts", "key", "delete", "value"]).sort_by("commit_ts").to_pylist()
        found += [(row["commit_ts"], row["key"], b"" if row["delete"] else row["value"]) for row in rows]
    return list(_parsed(found))


def _parsed(found: list[tuple[int, bytes, bytes]]) -> Iterator[MetaWrite]:
    for ts, key, value in found:
        if (ids := _ids(key)) is not None:
            yield MetaWrite(ts, *ids, _json(key, value) if value else None)


def _ids(key: bytes) -> tuple[int, int] | None:
    """(database, table) of a definition's key; None for any other, a counter's for example."""
    try:
        name, field = decode_meta_hash_key(key)
    except ValueError:
        return None  # older TiDBs keep the number of a hash's fields beside them
    if name == DATABASES:
        return (_number(field, b"DB:"), 0) if field.startswith(b"DB:") else None
    return (_number(name, b"DB:"), _number(field, b"Table:")) if field.startswith(b"Table:") else None


def _number(text: bytes, prefix: bytes) -> int:
    return int(text.removeprefix(prefix))


def _json(key: bytes, value: bytes) -> Mapping[str, Any]:
    try:
        definition = json.loads(value)
    except ValueError as error:
        raise NotVerifiable(
            f"The upstream's meta key {key.hex()} holds no JSON ({error}).", "Report the TiDB version and the key."
        ) from error
    if not isinstance(definition, Mapping):
        raise NotVerifiable(f"The upstream's meta key {key.hex()} holds no definition.", "Report the TiDB version.")
    return definition
