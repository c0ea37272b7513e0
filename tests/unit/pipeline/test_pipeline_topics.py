"""docs/reference/topics.md is what the encoders write: another form of a value, or another value, makes this red."""

from __future__ import annotations

from pathlib import Path

import pytest
from consumers_topic_messages import AVRO, PROTOCOLS, told
from consumers_topic_reference import reference
from consumers_topic_rows import EVERY, table_of

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "topics.md"


def test_the_page_says_what_the_encoders_write() -> None:
    assert PAGE.read_text() == reference(), "run make generate"


@pytest.mark.parametrize("protocol", [protocol for protocol in PROTOCOLS if protocol != AVRO])
def test_a_row_before_an_update_is_told_as_the_row_after_it(protocol: str) -> None:
    """avro tells none."""
    every = table_of(EVERY)
    assert told(every, protocol, {}, updates=True).rows == told(every, protocol, {}).rows
