"""The part of docs/reference/consumers.md that is about topics."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from consumers_page import said
from consumers_topic_forms import Changed, Unreadable, form_of
from consumers_topic_messages import Row, told
from consumers_topic_readers import JAVA, READINGS, Readers, Reading, flink_type
from consumers_topic_reference import shown_value
from consumers_topics import BROKEN, USUAL, ZEROS, Rows, Topics, topics

_EXAMPLES = 12
_PACKAGE = re.compile(r"(?:\w+\.)+(?=[A-Z])")
_HEAD = """
## Kafka topics

A topic of each protocol, written by the sink to a broker; its rows have values of every type, each of them in the form
that [topics.md](topics.md) says. *right*: the reader has what the message has. Values that are others in the message
already are in topics.md. By default, Flink's columns are declared as the upstream's types.

| reader | protocol | by its defaults | set | then | dates such as 0000-00-00 | bytes that are not UTF-8 |
| --- | --- | --- | --- | --- | --- | --- |
"""


def topics_section(folder: Path) -> str:
    """Written and read anew."""
    with topics(folder) as written:
        readers = Readers(folder, written)
        lines = [
            _line(readers, list(readings)) for _, readings in groupby(READINGS, lambda each: (each.tool, each.protocol))
        ]
        return _HEAD + "".join(f"{line}\n" for line in lines) + "\n" + _keys(readers)


def _line(readers: Readers, readings: Sequence[Reading]) -> str:
    first, best = readings[0], readings[-1]
    found = _read(readers, best)
    usual = [found.cell(USUAL), *(("nothing", "right") if found.cell(USUAL) == "right" else ("-", "-"))]
    if first is not best:
        refused = _read(readers, first).cell(USUAL)
        if first.lenient:
            set_, passed = _options(first.lenient), _read(readers, replace(first, options=first.lenient))
            refused += f"; with {set_}: {passed.cell(USUAL)}"
        usual = [refused, _setting(readers.topics, first, best), found.cell(USUAL)]
    return f"| {' | '.join([first.tool, first.protocol, *usual, found.cell(ZEROS), found.cell(BROKEN)])} |"


def _read(readers: Readers, reading: Reading) -> _Read:
    columns = [column for _, column, _ in readers.topics.rows.table.columns]
    rows = reading.read(readers, reading, readers.topics.messages[reading.protocol], columns)
    return _Read(readers.topics, reading, rows)


class _Read:
    """What a reader has made of a topic."""

    def __init__(self, written: Topics, reading: Reading, read: Sequence[Row | Unreadable]) -> None:
        assert len(read) == len(written.rows.table.meant)
        self._rows, self._read = written.rows, read
        self._told = told(written.rows.table, reading.protocol, {}).rows

    def cell(self, of: str) -> str:
        """Return the cell of those rows."""
        numbers = self._rows.of[of]
        refused = [read for number in numbers if isinstance(read := self._read[number], Unreadable)]
        parts = []
        if refused:
            parts.append(f"refuses {len(refused)} of {len(numbers)} messages: {said(_PACKAGE.sub('', refused[0]))}")
        wrong = list(self._wrong(numbers))
        more = [f"{len(wrong) - _EXAMPLES} more"] if len(wrong) > _EXAMPLES else []
        return "; ".join([*parts, *wrong[:_EXAMPLES], *more]) or "right"

    def _wrong(self, numbers: Sequence[int]) -> Iterator[str]:
        """A type, and one value of it that is another one here than in the message."""
        for kind, column, _ in self._rows.table.columns:
            changed, there = (_changed(self._rows, rows, column.name, numbers) for rows in (self._read, self._told))
            own = [each for each in changed if each not in there]
            if own:
                yield f"{kind.label} {shown_value(own[0].meant)} → {shown_value(own[0].found)}"


def _changed(rows: Rows, read: Sequence[Row | Unreadable], name: str, numbers: Sequence[int]) -> list[Changed]:
    """Under the form that fits all rows best."""
    (column,) = (column for _, column, _ in rows.table.columns if column.name == name)
    pairs = [
        (number, Changed(rows.table.meant[number][name], row[name]))
        for number, row in enumerate(read)
        if not isinstance(row, Unreadable)
    ]
    form = form_of(column, [pair for _, pair in pairs])
    return form.changed(column, [pair for number, pair in pairs if number in numbers])


def _setting(written: Topics, first: Reading, best: Reading) -> str:
    """Options, and types that are not declared as the upstream's."""
    declared: dict[str, list[str]] = {}
    for kind, column, _ in written.rows.table.columns:
        now = flink_type(best, column)
        if now != flink_type(first, column):
            declared.setdefault(now, []).append(kind.label)
    options = [_options(best.options)] if best.options else []
    return "; ".join([*options, *(f"{', '.join(labels)} as {flink}" for flink, labels in declared.items())])


def _options(options: Mapping[str, str]) -> str:
    return ", ".join(f"`{name} = {value}`" for name, value in options.items())


def _keys(readers: Readers) -> str:
    lines = []
    for protocol, topic in readers.topics.keyed.items():
        found = readers.partitions(topic)
        same, used = sum(ours == theirs for ours, theirs in found), len({ours for ours, _ in found})
        lines.append(f"| {JAVA} | {protocol} | {same} of {len(found)}, in {used} partitions |\n")
    head = "| reader | protocol | messages that are where its producer puts their key, with `partition: key` |\n"
    return head + "| --- | --- | --- |\n" + "".join(lines)
