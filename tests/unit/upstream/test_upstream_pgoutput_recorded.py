"""What a real PostgreSQL has sent (record_pgoutput.py), read by the product and by a slow reader."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pgoutput_reader as slow
import pytest

SCENARIOS = ("types", "identities", "netted", "definitions")


@cache
def recorded(name: str) -> tuple[bytes, dict[str, list[dict[str, str | None]]]]:
    """The stream, and the tables at its end."""
    text = gzip.decompress((Path(__file__).parent / "pgoutput" / f"{name}.json.gz").read_bytes())
    found = json.loads(text)
    return bytes.fromhex(found["stream"]), found["tables"]


def primary_key(relation: Any) -> tuple[str, ...]:
    """Name the key of tables with the replica identity FULL."""
    return ("id",)


def expected(stream: bytes) -> list[tuple[int, slow.Nets]]:
    return [(found.lsn, slow.net(found, primary_key)) for found in slow.transactions(stream)]


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("piece", [1 << 30, 997, 211])
def test_the_changes_of_a_stream_are_those_that_a_slow_reader_finds(name: str, piece: int) -> None:
    stream, _ = recorded(name)
    found = slow.read(stream, list(range(piece, len(stream), piece)), primary_key)
    assert found == expected(stream)


@pytest.mark.parametrize("name", ["types", "identities", "netted"])
def test_changes_lead_to_what_the_tables_contain(name: str) -> None:
    stream, tables = recorded(name)
    rows: dict[Any, slow.Row] = {}
    for _, nets in slow.read(stream, [], primary_key):
        for key, (op, new, _) in nets.items():
            assert (key in rows) == (op != "insert"), key
            if new is None:
                del rows[key]
            else:
                before = rows.get(key, new)
                rows[key] = [
                    was if cell is slow.UNCHANGED else cell for cell, was in zip_longest(new, before[: len(new)])
                ]
    for table, wanted in tables.items():
        found = [row for (name, _), row in rows.items() if name == f"public.{table}"]
        width = max(map(len, found), default=0)  # rows from before a column was added lack it, where it is NULL
        found = [[*row, *[None] * (width - len(row))] for row in found]
        assert sorted(map(repr, found)) == sorted(repr(list(row.values())) for row in wanted), table


def test_the_streams_have_what_they_were_recorded_for() -> None:
    kinds = {name: Counter(chr(body[0]) for body in slow.payloads(recorded(name)[0])) for name in SCENARIOS}
    assert {"B", "C", "R", "I", "U", "D"} <= kinds["identities"].keys()
    assert {"T", "M"} <= kinds["definitions"].keys()
    marks = [
        cell for found in slow.transactions(recorded("netted")[0]) for step in found.steps for cell in step.new or ()
    ]
    assert slow.UNCHANGED in marks
