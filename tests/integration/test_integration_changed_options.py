"""Rule 10: options that change over a restart. The files of both runs can be read, or the change is refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from changefeed.errors import InvalidSpec
from changefeed.reading.failures import NotVerifiable
from changefeed.verify.storage.report import verify
from integration_inprocess import World, insert, new_world

CSV = {"protocol": "csv", "csv": {"includeCommitTs": True}}
CANAL_JSON = {"protocol": "canal-json", "canalJson": {"enableTidbExtension": True}}
PARQUET = {"protocol": "parquet"}
NAMES = (None, "", "a,b;c", '"quoted"', "\\N", "two\nlines", "naïve")

#: By protocol: what changes from run to run, one after the other.
CHANGES: dict[str, tuple[dict[str, Any], tuple[dict[str, Any], ...]]] = {
    "csv": (
        CSV,
        (
            {"flushInterval": "200ms"},
            {"fileSize": "1Mi"},
            {"dateSeparator": "none"},
            {"dateSeparator": "month"},
            {"terminator": "\n"},
            {"csv": {"delimiter": ";"}},
            {"csv": {"quote": "'"}},
            {"csv": {"null": "NULL"}},
            {"csv": {"binaryEncodingMethod": "hex"}},
            {"csv": {"outputFieldHeader": True}},
        ),
    ),
    "canal-json": (
        CANAL_JSON,
        (
            {"dateSeparator": "year"},
            {"terminator": "\n"},
            {"canalJson": {"contentCompatible": True}},
            {"canalJson": {"onlyOutputUpdatedColumns": True}},
        ),
    ),
    "parquet": (PARQUET, ({"parquet": {"oldValues": True}}, {"parquet": {"compression": "snappy"}})),
}
REFUSED = {"protocol": "parquet", "compression": "gzip", "fileIndexWidth": 6, "useTableIdAsPath": True}
NOT_TOLD_APART = {
    "outputRawChangeEvent": ({"outputRawChangeEvent": True}, "outputRawChangeEvent of the sink was changed"),
    "columnSelectors": (
        {"csv": {"outputFieldHeader": True}, "columnSelectors": [{"matcher": ["shop.*"], "columns": ["id"]}]},
        "column selectors was changed",
    ),
    "csv.includeCommitTs": ({"csv": {"includeCommitTs": False}}, "csv.includeCommitTs"),
    "csv.outputOldValue": ({"csv": {"outputOldValue": True}}, "csv.outputOldValue"),
}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with new_world(tmp_path) as made:
        yield made


def changed(options: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """A section that changes keeps its other options."""
    sections = {
        name: {**options.get(name, {}), **value} if isinstance(value, dict) else value for name, value in change.items()
    }
    return {**options, **sections}


async def written(world: World, options: dict[str, Any], first: int) -> int:
    """A run that writes a row for each of NAMES, with ids from `first` on, and is drained; gives the next id."""
    storage = {"uri": world.lake.as_uri(), "flushInterval": "100ms", **options}
    run = world.run(sink={"storage": storage})
    for number, name in enumerate(NAMES):
        insert(world, world.orders, [first + number], name=name)
    with world.tidb.begin() as txn:
        txn.update(world.orders, {"id": first, "name": "changed"})
    after = world.tidb.now()
    await run.until(lambda: world.checkpoint() >= after, "what was written is published")
    await run.drained()
    return first + len(NAMES)


@pytest.mark.parametrize(("options", "changes"), CHANGES.values(), ids=CHANGES)
async def test_rule_10_files_of_each_run_can_be_read(
    world: World, options: dict[str, Any], changes: tuple[dict[str, Any], ...]
) -> None:
    runs, next_id = 1, await written(world, options, 1)
    for change in changes:
        options = changed(options, change)
        next_id, runs = await written(world, options, next_id), runs + 1
        result = await verify(world.lake.as_uri(), [world.cluster.pd_address])
        assert result.ok, (change, result)
        assert result.rows == runs * (len(NAMES) + 1), change


async def test_what_decides_files_names_is_refused_by_name(world: World) -> None:
    next_id = await written(world, CSV, 1)
    for field, value in REFUSED.items():
        options = {name: each for name, each in CSV.items() if field != "protocol" or name != "csv"} | {field: value}
        with pytest.raises(InvalidSpec, match=rf"spec\.sink\.storage\.{field}: .* differs from"):
            await world.run(sink={"storage": {"uri": world.lake.as_uri(), **options}}).outcome()
    await written(world, CSV, next_id)
    assert (await verify(world.lake.as_uri(), [world.cluster.pd_address])).ok


@pytest.mark.parametrize(("change", "says"), NOT_TOLD_APART.values(), ids=NOT_TOLD_APART)
async def test_what_decides_which_rows_and_values_there_are_is_named_by_verify(
    world: World, change: dict[str, Any], says: str
) -> None:
    """The changefeed goes on; which file was to hold what is not known for ever, so nobody says that all is right."""
    next_id = await written(world, CSV, 1)
    await written(world, changed(CSV, change), next_id)
    with pytest.raises(NotVerifiable, match=says):
        await verify(world.lake.as_uri(), [world.cluster.pd_address])
