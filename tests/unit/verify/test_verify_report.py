"""Verify holds for a right sink, and finds and names every wrong that is done to one."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from changefeed.log.log import Log
from changefeed.log.records import CommitRecord
from changefeed.log.state import State
from changefeed.objectstore.open import open_store
from changefeed.reading.failures import NotVerifiable
from changefeed.reading.layout import files
from changefeed.verify.comparison import table
from changefeed.verify.storage import report
from changefeed.verify.storage.report import verify
from changefeed.verify.upstream.history import read_history
from changefeed_devcluster.pd.safepoints import GC_WORKER, NEVER, ServiceSafePoint
from changefeed_devcluster.server import DevCluster
from verify_harm import (
    HARMS,
    ITEM,
    ITEMS,
    Harm,
    change_a_commit_ts,
    double_a_line_in_another_file,
    drop_a_line,
    rewrite_a_schema,
)
from verify_sink import HandSink, Shop, write_sink


async def test_a_right_sink_holds(shop: Shop, sink: HandSink) -> None:
    result = await verify(sink.uri, shop.pd, "amount")
    assert result.first_problem is None
    assert result.ok
    assert (result.tables, result.files, result.transactions) == (2, 8, 4)
    assert result.rows == 5 + 5 + 1 + 1 + 1 + 2  # a split update is two
    assert (result.missing, result.duplicate, result.unexpected, result.out_of_order) == (0, 0, 0, 0)
    assert result.conserved == "107.5"
    assert result.replayed == 8 + 3
    assert result.notes == []
    assert result.checkpoint_ts == str(shop.checkpoint_ts)


@pytest.mark.parametrize(
    "options",
    [
        {"csv": {"outputFieldHeader": True}},
        {"csv": {"null": ""}},
        {"csv": {"delimiter": "\t", "outputFieldHeader": True}},
        {"outputRawChangeEvent": True},
    ],
    ids=str,
)
async def test_a_right_sink_of_another_format_holds(shop: Shop, tmp_path: Path, options: dict[str, Any]) -> None:
    result = await verify(write_sink(tmp_path, shop, **options).uri, shop.pd)
    assert result.first_problem is None


async def test_a_sink_whose_log_0_1_0_has_written_holds(shop: Shop, sink: HandSink) -> None:
    """Its entries had the names of files as members; without them nobody knows which config a file is of."""
    plans = 0
    for path in (sink.state / "log").iterdir():
        record = json.loads(path.read_text())
        for entry in record.get("entries", ()):
            entry |= entry.pop("output")
            plans += 1
        path.write_text(json.dumps(record))
    assert plans
    result = await verify(sink.uri, shop.pd)
    assert result.first_problem is None
    index = sink.file(ITEMS, -1).parent / "meta" / "CDC.index"
    index.write_text(f"CDC{1:020}.csv\n")
    assert (await verify(sink.uri, shop.pd)).first_problem is not None


async def test_files_that_are_not_published_yet_are_nobodys(shop: Shop, sink: HandSink) -> None:
    last = sink.file(ITEMS, -1)
    last.with_name(f"CDC{3:020}.csv").write_bytes(b"half a li")
    shutil.copytree(last.parents[1] / "2026-01-02", last.parents[1] / "2026-01-03")
    (last.parents[1] / "2026-01-03" / "meta" / "CDC.index").unlink()
    assert (await verify(sink.uri, shop.pd)).first_problem is None


@pytest.mark.parametrize("adopted", [True, False])
async def test_rule_7_what_ticdc_wrote_before_an_adoption_is_left_out(
    shop: Shop, tmp_path: Path, adopted: bool
) -> None:
    sink = write_sink(tmp_path, shop, adopted=adopted)
    old = shop.start_ts - 1
    day = sink.lake / ITEMS / str(old) / "2025-12-31"
    (day / "meta").mkdir(parents=True)
    (sink.lake / "shop" / "meta").mkdir()
    for number in (1, 3):  # the index names the first one
        (day / f"CDC{number:020}.csv").write_text("another's")
    (day / "meta" / "CDC.index").write_text(f"CDC{1:020}.csv\n")
    for folder in (sink.lake / ITEMS, sink.lake / "shop"):
        (folder / "meta" / f"schema_{old}_0000000000.json").write_text("another's")
    result = await verify(sink.uri, shop.pd)
    assert result.ok is adopted, result.first_problem
    if adopted:
        assert (result.files, result.rows) == (8, 15)
        (note,) = result.notes
        assert note.startswith("2 files are of table versions below startTs: TiCDC wrote them")


async def test_an_adopted_sink_without_its_files_is_found(shop: Shop, tmp_path: Path) -> None:
    sink = write_sink(tmp_path, shop, adopted=True)
    drop_a_line(sink, shop)
    result = await verify(sink.uri, shop.pd)
    assert (result.missing, result.notes) == (1, [])


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)
async def test_harm_is_found_and_named(shop: Shop, sink: HandSink, harm: Harm) -> None:
    expected = harm(sink, shop)
    result = await verify(sink.uri, shop.pd)
    assert not result.ok
    assert result.first_problem is not None
    for part in expected:
        assert part in result.first_problem


async def test_harm_is_counted(shop: Shop, sink: HandSink) -> None:
    drop_a_line(sink, shop)
    double_a_line_in_another_file(sink, shop)
    change_a_commit_ts(sink, shop)
    result = await verify(sink.uri, shop.pd)
    assert (result.missing, result.duplicate, result.unexpected, result.out_of_order) == (2, 1, 1, 0)


async def test_a_header_that_is_gone_or_wrong_is_named(shop: Shop, tmp_path: Path) -> None:
    sink = write_sink(tmp_path, shop, csv={"outputFieldHeader": True})
    file = sink.file(ITEMS, 0)
    sink.put(file, sink.lines(file)[1:])
    problem = (await verify(sink.uri, shop.pd)).first_problem
    assert problem is not None
    assert problem.startswith(f"{sink.name(file)} does not begin with the header")


async def test_tables_without_a_key_are_added_up_too(
    shop: Shop, sink: HandSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "key_indexes", lambda *_: [])
    result = await verify(sink.uri, shop.pd, "amount")
    assert result.ok, result.first_problem
    assert (result.conserved, result.replayed, len(result.notes)) == ("107.5", 0, 2)


async def test_a_transaction_that_does_not_conserve_is_named(shop: Shop, sink: HandSink) -> None:
    file = sink.file(ITEM, 0)
    file.write_bytes(file.read_bytes().replace(b",17\r\n", b",18\r\n"))
    result = await verify(sink.uri, shop.pd, "amount")
    assert not result.ok
    assert result.conserved == "107.5"


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("metadata", None, "nothing is published there yet"),
        ("metadata", b"", "holds no checkpoint: b''"),
        ("metadata", b'{"checkpoint-ts": "12"}', "holds no checkpoint"),
        ("metadata", b"\xff", "holds no checkpoint"),
        (".changefeed-owner.json", None, "belongs to no changefeed"),
        (".changefeed-owner.json", b"[]", "is not a claim"),
        (".changefeed-owner.json", b'{"uid": "local", "stateUri": "file:///nowhere/at/all"}', "log is not at"),
    ],
)
async def test_what_is_no_sink_is_not_verifiable(
    shop: Shop, sink: HandSink, path: str, body: bytes | None, said: str
) -> None:
    if body is None:
        (sink.lake / path).unlink()
    else:
        (sink.lake / path).write_bytes(body)
    with pytest.raises(NotVerifiable, match=said) as caught:
        await verify(sink.uri, shop.pd)
    assert caught.value.exit_code == 3
    assert caught.value.next_step


async def test_a_sink_of_another_changefeed_is_not_verifiable(shop: Shop, sink: HandSink) -> None:
    claim = sink.lake / ".changefeed-owner.json"
    claim.write_text(claim.read_text().replace("local", "other"))
    with pytest.raises(NotVerifiable, match="belongs to changefeed 'other'"):
        await verify(sink.uri, shop.pd)


@pytest.mark.parametrize("csv", [{"includeCommitTs": False}, {"quote": ""}, {"outputOldValue": True}], ids=str)
async def test_formats_that_cannot_be_read_back(shop: Shop, tmp_path: Path, csv: dict[str, Any]) -> None:
    with pytest.raises(NotVerifiable, match=next(iter(csv)) if "quote" in csv or "outputOldValue" in csv else "ts"):
        await verify(write_sink(tmp_path, shop, csv=csv).uri, shop.pd)


@pytest.mark.parametrize(("column", "said"), [("nothing", "No selected table"), ("note", "shop.items.note holds")])
async def test_a_column_that_cannot_be_added_up(shop: Shop, sink: HandSink, column: str, said: str) -> None:
    with pytest.raises(NotVerifiable, match=said):
        await verify(sink.uri, shop.pd, column)


def collect_garbage(shop: Shop) -> None:
    """Every hold lapses, and GC goes past startTs."""
    safepoints, now = shop.cluster.safepoints, int(time.time())
    for hold in safepoints.living(now):
        safepoints.update(hold.service_id, 0, 0, now)
    safepoints.restore(ServiceSafePoint(GC_WORKER, NEVER, shop.start_ts))


@pytest.fixture
def garbage(shop: Shop) -> Iterator[None]:
    """GC begins anew after the test."""
    yield
    shop.cluster.safepoints.restore(ServiceSafePoint(GC_WORKER, NEVER, 0))


@pytest.mark.usefixtures("garbage")
async def test_rule_23_history_that_is_gone_is_not_verifiable(shop: Shop, sink: HandSink) -> None:
    collect_garbage(shop)
    with pytest.raises(NotVerifiable, match=f"collection may have gone up to {shop.start_ts}"):
        await verify(sink.uri, shop.pd)


@pytest.mark.usefixtures("garbage")
async def test_rule_23_history_that_goes_while_it_is_read_is_not_verifiable(
    shop: Shop, sink: HandSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def slow(*arguments: Any, **named: Any) -> None:
        collect_garbage(shop)
        await read_history(*arguments, **named)

    monkeypatch.setattr(table, "read_history", slow)
    with pytest.raises(NotVerifiable, match="collection may have gone up to"):
        await verify(sink.uri, shop.pd)


async def test_rule_23_history_is_held_while_it_is_read_and_then_let_go(
    shop: Shop, sink: HandSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = []

    async def watched(*arguments: Any, **named: Any) -> None:
        held.append(shop.cluster.safepoints.lowest(int(time.time())).safe_point)
        await read_history(*arguments, **named)

    # Else GC's own safepoint, 0, is the lowest.
    shop.cluster.safepoints.restore(ServiceSafePoint(GC_WORKER, NEVER, shop.start_ts - 1))
    monkeypatch.setattr(table, "read_history", watched)
    assert (await verify(sink.uri, shop.pd)).ok
    assert held == [shop.start_ts - 1] * 2
    assert [hold.service_id for hold in shop.cluster.safepoints.living(int(time.time()))] == [GC_WORKER]


async def test_the_pd_of_another_cluster_is_not_verifiable(sink: HandSink) -> None:
    with DevCluster(stores=1) as other, pytest.raises(NotVerifiable, match=f"PD is of cluster {other.cluster_id}"):
        await verify(sink.uri, [other.pd_address])


async def test_a_checkpoint_that_moves_while_it_is_read_is_no_break(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver appends and publishes between verify's two reads."""
    sink = write_sink(tmp_path, shop)
    log = Log(open_store(sink.state.as_uri()))
    log.read()

    class Meanwhile(Log):
        def read(self) -> State:
            log.append(CommitRecord(n=log.state.n + 1, epoch=1, nonce="a", checkpoint_ts=shop.last_ts))
            sink.metadata(shop.last_ts)
            return super().read()

    monkeypatch.setattr(report, "Log", Meanwhile)
    result = await verify(sink.uri, shop.pd)
    assert result.first_problem is None
    assert result.checkpoint_ts == str(shop.checkpoint_ts)


# Harms that the comparison of the changes alone (O1, O3, O7) does not find.


def hide(monkeypatch: pytest.MonkeyPatch, wanted: Callable[[pa.Table], pa.Array]) -> None:
    """The upstream's change feed lacks versions: the changefeed could not know of them, nor can O3."""

    async def lacking(*arguments: Any, into: Any) -> None:
        real = into.add

        async def add(versions: pa.Table) -> None:
            await real(versions.filter(wanted(versions)))

        monkeypatch.setattr(into, "add", add)
        await read_history(*arguments, into=into)

    monkeypatch.setattr(table, "read_history", lacking)


async def test_o4_a_change_that_the_feed_never_sent_is_found_in_the_table(
    shop: Shop, sink: HandSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = sink.file(ITEMS, 0)
    sink.put(file, [line for line in sink.lines(file) if b",5," not in line])
    hide(monkeypatch, lambda versions: pc.invert(pc.ends_with(versions["key"], b"\x80" + bytes(6) + b"\x05")))
    result = await verify(sink.uri, shop.pd)
    assert (result.missing, result.unexpected, result.out_of_order) == (0, 0, 0)
    assert (result.replay_missing, result.replay_extra, result.replay_different) == (1, 0, 0)
    assert result.first_problem == (
        "The files of shop.items, replayed up to the checkpoint, give no such row; the upstream has id='5', code='5', "
        "note='say \"hi\", you', amount=None. In total, 1 rows are missing, 0 are extra and 0 differ."
    )


async def test_o4_an_update_and_a_delete_that_the_feed_never_sent(
    shop: Shop, sink: HandSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, last = sink.file(ITEM, 0), sink.file(ITEM, -1)
    kept = [line for line in sink.lines(last) if int(line.split(b",")[3]) <= shop.checkpoint_ts]
    sink.put(first, [])
    sink.put(last, kept)
    hide(monkeypatch, lambda versions: pc.is_null(versions["old_value"]))
    for path in sorted((sink.lake / ITEMS).rglob("CDC*.csv")):
        sink.put(path, [line for line in sink.lines(path) if line.startswith(b'"I"') and b",20," not in line])
    result = await verify(sink.uri, shop.pd)
    assert (result.missing, result.unexpected, result.out_of_order) == (0, 0, 0)
    assert (result.replay_missing, result.replay_extra, result.replay_different) == (0, 0, 3)
    assert result.first_problem is not None
    assert "give id='1', amount='7' (as at startTs); the upstream has id='1', amount='17'" in result.first_problem


async def test_o4_null_is_not_the_text_that_stands_for_it(
    shop: Shop, sink: HandSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The decoder of the change feed's rows takes NULL for a text; the table's rows are right."""
    real = table.images
    sink.put(file := sink.file(ITEMS, 0), [line.replace(b",7,\\N,", b',7,"\\N",') for line in sink.lines(file)])

    def odd(*arguments: Any) -> Any:
        found = real(*arguments)
        if "c2" not in found.columns:
            return found
        return found.with_columns(c2=pl.when(pl.col("c0") == 7).then(pl.lit("\\N")).otherwise(pl.col("c2")))

    monkeypatch.setattr(table, "images", odd)
    result = await verify(sink.uri, shop.pd)
    assert (result.missing, result.unexpected, result.replay_different) == (0, 0, 1)
    assert result.first_problem is not None
    assert "note='\\\\N'" in result.first_problem
    assert "the upstream has id='7', code='7', note=None" in result.first_problem


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda sink, shop: sink.metadata(shop.checkpoint_ts - 1), "`metadata` went back"),
        (lambda sink, shop: publish_late(sink, shop.checkpoint_ts), "appeared with a row of commit ts"),
        (lambda sink, shop: sink.file(ITEM, 0).write_bytes(b""), "and has 0 now"),
    ],
    ids=["checkpoint back", "late row", "changed file"],
)
async def test_o2_what_changes_after_it_was_published_is_found(
    shop: Shop,
    sink: HandSink,
    monkeypatch: pytest.MonkeyPatch,
    harm: Callable[[HandSink, Shop], object],
    said: str,
) -> None:
    """It happens after verify has read the files, so no other oracle can see it."""
    real, reads = files.read_layout, 0

    def meanwhile(store: Any, checkpoint_ts: int) -> files.SinkFiles:
        nonlocal reads
        reads += 1
        return real(store, checkpoint_ts)

    async def harmed(*arguments: Any) -> None:
        await real_replay(*arguments)
        harm(sink, shop)

    real_replay = report.replay
    monkeypatch.setattr(report, "replay", harmed)
    monkeypatch.setattr(files, "read_layout", meanwhile)
    result = await verify(sink.uri, shop.pd)
    assert reads == 2
    assert (result.missing, result.unexpected, result.out_of_order, result.replay_different) == (0, 0, 0, 0)
    assert result.first_problem is not None
    assert said in result.first_problem


def publish_late(sink: HandSink, ts: int) -> None:
    """One more file, with a row that its checkpoint had said was there."""
    last = sink.file(ITEM, -1)
    late = last.with_name(f"CDC{3:020}.csv")
    late.write_bytes(b'"I","item","shop",%d,77,1\r\n' % ts)
    (last.parent / "meta" / "CDC.index").write_text(f"{late.name}\n")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda content: content["TableColumns"][1].update(ColumnType="VARCHAR"),
            "says amount VARCHAR(20) NOT NULL: the upstream has",
        ),
        (
            lambda content: content["TableColumns"][0].update(ColumnType="BIGINT"),
            "says id BIGINT(20) NOT NULL PRIMARY KEY: the upstream",
        ),
        (lambda content: content.update(Table="items"), "of shop.items, unlike its own name"),
        (lambda content: content.update(TableVersion=1), "has version 1"),
        (lambda content: content["TableColumns"][1].update(ColumnName="sum"), "does not name the columns"),
        (lambda content: content["TableColumns"][1].update(ColumnPrecision="19"), "says amount BIGINT(19) NOT NULL: "),
        (lambda content: content["TableColumns"][1].pop("ColumnNullable"), "says amount BIGINT(20): the upstream has"),
        (lambda content: content["TableColumns"][0].pop("ColumnIsPk"), "says id BIGINT UNSIGNED(20) NOT NULL: the"),
        (lambda content: content.update(TableColumns=[{"ColumnName": "id"}]), "is not a schema file"),
        (lambda content: content.update(TableColumns=None), "has 0 columns, but says 2"),
    ],
    ids=["type", "unsigned", "table", "version", "columns", "precision", "nullable", "key", "column", "nothing"],
)
async def test_o6_a_schema_file_that_does_not_say_what_the_rows_are(
    shop: Shop, sink: HandSink, change: Callable[[dict[str, Any]], object], said: str
) -> None:
    name, said = rewrite_a_schema(change, said)(sink, shop)
    result = await verify(sink.uri, shop.pd)
    assert (result.missing, result.unexpected, result.out_of_order) == (0, 0, 0)
    assert result.first_problem is not None
    assert result.first_problem.startswith(name)
    assert said in result.first_problem


async def test_stages_are_told(shop: Shop, sink: HandSink) -> None:
    class Told:
        def __init__(self) -> None:
            self.stages: dict[str, tuple[int | None, int]] = {}
            self.last = ""

        def stage(self, name: str, total: int | None = None) -> None:
            self.last = name
            self.stages[name] = (total, 0)

        def advance(self, count: int) -> None:
            total, done = self.stages[self.last]
            self.stages[self.last] = (total, done + count)

    told = Told()
    await verify(sink.uri, shop.pd, progress=told)
    assert told.stages["shop.items: the files"] == (4, 4)
    assert told.stages["shop.items: its rows at end"] == (None, 8)
    assert told.last == "the sink once more"
