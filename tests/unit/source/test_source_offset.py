"""Spark's checkpoint keeps an offset as text, and compares the text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from changefeed.errors import NeedsHuman
from changefeed.source.offset import Offset

OFFSET = Offset(
    ts=449_000_000_000_000_001, from_ts=449_000_000_000_000_000, table_id=77, cluster_id=(1 << 63) + 1, stream="0af3"
)


def test_an_offset_that_spark_gives_back_is_the_same_text() -> None:
    text = json.dumps(OFFSET.to_json())
    assert Offset.from_json(json.loads(text)) == OFFSET
    assert json.dumps(Offset.from_json(json.loads(text)).to_json()) == text


def test_the_checkpoint_of_others_is_known_by_what_is_kept() -> None:
    """Checkpoints outlive versions: this form must stay readable."""
    stored = (
        '{"v": 1, "ts": "449000000000000001", "from": "449000000000000000", "table": 77, '
        '"cluster": "9223372036854775809", "stream": "0af3"}'
    )
    assert Offset.from_json(json.loads(stored)) == OFFSET


def test_it_knows_where_its_stream_began() -> None:
    assert OFFSET.at(OFFSET.ts + 7).first == OFFSET.at(OFFSET.from_ts)


@pytest.mark.parametrize("stored", [{}, {"v": 2}, {**OFFSET.to_json(), "v": 2}, {**OFFSET.to_json(), "ts": 5}])
def test_what_is_no_offset_is_refused(stored: dict[str, Any]) -> None:
    with pytest.raises(NeedsHuman, match="checkpointLocation"):
        Offset.from_json(stored)
