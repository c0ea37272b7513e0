"""Which folders of TiCDC's a changefeed can go on in: paths as in docs/sink-files.md."""

from __future__ import annotations

import pytest
from changefeed.errors import InvalidSpec, NeedsHuman
from changefeed.schema.table_info import TableInfo, parse_table_info
from changefeed.sink.storage.layout import Layout
from changefeed.ticdc.folder import check_fits

START_TS = 449_000_000_000_000_000
V = START_TS - 5
DAILY = Layout("day", 20, ".csv")
FIRST = f"CDC{1:020}.csv"


def table(name: str, partitions: tuple[int, ...] = ()) -> TableInfo:
    return parse_table_info(
        {
            "id": 80,
            "name": {"O": name, "L": name},
            "cols": [],
            "partition": {"enable": True, "definitions": [{"id": each} for each in partitions]} if partitions else None,
        },
        "shop",
    )


def fits(
    *paths: str, layout: Layout = DAILY, tables: tuple[TableInfo, ...] = (table("orders"),), start_ts: int = START_TS
) -> tuple[int, int]:
    return check_fits("file:///lake", ["metadata", *paths], layout, start_ts, tables)


def test_rule_7_a_folder_of_the_same_layout_is_gone_on_with() -> None:
    day = f"shop/orders/{V}/2026-11-26"
    gone = f"shop/gone/{V - 9}/2026-11-25"
    paths = [
        f"shop/meta/schema_{V - 9}_0000000001.json",
        f"shop/orders/meta/schema_{V}_0123456789.json",
        f"{day}/{FIRST}",
        f"{day}/CDC{2:020}.csv",
        f"{day}/meta/CDC.index",
        f"{gone}/{FIRST}",
        f"{gone}/meta/CDC.index",
        "notes/by somebody.txt",
    ]
    assert fits(*paths) == (3, 2)
    assert fits() == (0, 0)


@pytest.mark.parametrize(
    ("separator", "date"), [("none", ""), ("year", "/2026"), ("month", "/2026-11"), ("day", "/2026-11-26")]
)
@pytest.mark.parametrize("partition", ["", "/115"])
def test_rule_7_dates_and_partitions_are_as_the_spec_has_them(separator: str, date: str, partition: str) -> None:
    path = f"shop/orders/{V}{partition}{date}/CDC000001.json"
    now = (table("orders", (115, 116) if partition else ()),)
    layout = Layout(separator, 6, ".json")
    assert fits(path, layout=layout, tables=now) == (1, 1)
    for other in {"none", "year", "month", "day"} - {separator}:
        with pytest.raises(InvalidSpec, match=r"spec\.sink\.storage\.dateSeparator"):
            fits(path, layout=Layout(other, 6, ".json"), tables=now)


@pytest.mark.parametrize(("partition", "now"), [("", (115,)), ("/115", ())])
def test_rule_7_partitions_stand_where_the_upstreams_table_has_them(partition: str, now: tuple[int, ...]) -> None:
    path = f"shop/orders/{V}{partition}/2026-11-26/{FIRST}"
    with pytest.raises(InvalidSpec, match="enable-partition-separator"):
        fits(path, tables=(table("orders", now),))
    # A later version of the table got, or lost, its partitions.
    assert fits(path, f"shop/orders/meta/schema_{V + 1}_0123456789.json", tables=(table("orders", now),)) == (1, 1)


@pytest.mark.parametrize(
    "path",
    [
        f"shop/orders/{V}/2026-11-26/CDC{1:020}.json",  # another protocol
        f"shop/orders/{V}/2026-11-26/CDC{1:06}.csv",  # another width
        f"shop/orders/{V}/2026-11-26/CDC{1:020}.csv.gz",  # compressed
        f"shop/orders/{V}/2026-11-26/CDC_1f3c_{1:020}.csv",  # enable-table-across-nodes
        f"shop/orders/{V}/2026-11-26/meta/CDC_1f3c.index",
    ],
)
def test_rule_7_files_of_other_names_are_refused(path: str) -> None:
    with pytest.raises(InvalidSpec, match=r"would be named shop/orders/.* but file:///lake has shop/orders/"):
        fits(path)


@pytest.mark.parametrize(
    "path",
    [
        f"80/{V}/2026-11-26/{FIRST}",  # use-table-id-as-path
        f"sub/shop/orders/{V}/2026-11-26/{FIRST}",
        f"shop/orders/{V}/x/2026-11-26/{FIRST}",
        f"shop/orders/{V}/115/7/2026-11-26/{FIRST}",
        f"shop/{FIRST}",
    ],
)
def test_rule_7_files_in_other_places_are_refused(path: str) -> None:
    with pytest.raises(InvalidSpec, match="use-table-id-as-path"):
        fits(path)


@pytest.mark.parametrize(
    "path",
    [
        f"shop/orders/{START_TS}/2026-11-26/{FIRST}",
        f"shop/orders/{START_TS + 1}/2026-11-26/meta/CDC.index",
        f"shop/orders/meta/schema_{START_TS}_0123456789.json",
        f"shop/meta/schema_{START_TS + 7}_0123456789.json",
    ],
)
def test_rule_7_and_15_what_the_changefeed_would_write_into_itself_is_refused(path: str) -> None:
    with pytest.raises(NeedsHuman, match="its `metadata` does not cover") as refused:
        fits(path)
    assert "spec.startTs" in refused.value.next_step
    assert fits(path, start_ts=START_TS + 8)
