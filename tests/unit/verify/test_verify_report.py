"""Verify holds for a right sink, and finds and names every wrong that is done to one."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from changefeed.model.record import CommitRecord
from changefeed.objectstore.open import open_store
from changefeed.owner.transaction_log.log import Log
from changefeed.owner.transaction_log.state import State
from changefeed.verify import report
from changefeed.verify.comparison import table
from changefeed.verify.report import verify
from changefeed.verify.result import NotVerifiable
from changefeed.verify.sink import files
from changefeed.verify.upstream.history import read_history
from changefeed_devcluster.pd.safepoints import GC_WORKER, NEVER, Hold
from changefeed_devcluster.server import DevCluster
from verify_sink import EOL, HandSink, Shop, write_schema, write_sink

ITEMS = "shop/items"
ITEM = "shop/item"


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


async def test_files_that_are_not_published_yet_are_nobodys(shop: Shop, sink: HandSink) -> None:
    last = sink.file(ITEMS, -1)
    last.with_name(f"CDC{3:020}.csv").write_bytes(b"half a li")
    shutil.copytree(last.parents[1] / "2026-01-02", last.parents[1] / "2026-01-03")
    (last.parents[1] / "2026-01-03" / "meta" / "CDC.index").unlink()
    assert (await verify(sink.uri, shop.pd)).first_problem is None


Harm = Callable[[HandSink, Shop], tuple[str, ...]]


def drop_a_line(sink: HandSink, shop: Shop) -> tuple[str, ...]:
    file = sink.file(ITEMS, 0)
    lines = sink.lines(file)
    sink.put(file, [*lines[:2], *lines[3:]])
    return "A change of shop.items is in no file: I,", "id='5'", "it belongs before"


def drop_a_line_in_the_middle(sink: HandSink, shop: Shop) -> tuple[str, ...]:
    file = sink.file(ITEMS, -1)
    sink.put(file, sink.lines(file)[1:])
    return "is in no file: U,", "amount='90.50'", f"it belongs after {sink.name(sink.file(ITEMS, 2))}, row 5"


def double_a_line(sink: HandSink, shop: Shop) -> tuple[str, ...]:
    file = sink.file(ITEMS, 0)
    lines = sink.lines(file)
    sink.put(file, [*lines[:3], *lines[2:]])
    return f"{sink.name(file)}, row 4: ", "stands there again", "id='5'"


def double_a_line_in_another_file(sink: HandSink, shop: Shop) -> tuple[str, ...]:
    file = sink.file(ITEMS, 1)
    sink.put(file, sink.lines(sink.file(ITEMS, 0))[-1:])
    return f"{sink.name(file)}, row 1: ", "stands there again", "note=None"


def swap(number: int, first: int) -> Harm:
    def harm(sink: HandSink, shop: Shop) -> tuple[str, ...]:
        file = sink.file(ITEMS, number)
        lines = sink.lines(file)
        lines[first : first + 2] = reversed(lines[first : first + 2])
        sink.put(file, lines)
        return f"{sink.name(file)}, row {first + 2}: ", "stands behind a later one"

    return harm


def swap_the_halves_of_a_split_update(sink: HandSink, shop: Shop) -> tuple[str, ...]:
    file = sink.file(ITEMS, 2)
    lines = sink.lines(file)
    assert [line[1:2] for line in lines] == [b"D", b"D", b"U", b"I", b"I"]
    lines[0], lines[3] = lines[3], lines[0]
    sink.put(file, lines)
    return f"{sink.name(file)}, row 2: ", "stands behind a later one"


def change(old: bytes, new: bytes, *said: str) -> Harm:
    def harm(sink: HandSink, shop: Shop) -> tuple[str, ...]:
        file, body = next(
            (path, path.read_bytes()) for path in sorted(sink.lake.rglob("CDC*.csv")) if old in path.read_bytes()
        )
        file.write_bytes(body.replace(old, new, 1))
        return (f"{sink.name(file)}, row ", "the upstream has no such change", *said)

    return harm


def change_a_commit_ts(sink: HandSink, shop: Shop) -> tuple[str, ...]:
    file = sink.file(ITEM, 0)
    (line,) = sink.lines(file)
    ts = line.split(b",")[3]
    sink.put(file, [line.replace(ts, b"%d" % (int(ts) + 1))])
    return f"{sink.name(file)}, row 1: ", f"commit ts {int(ts) + 1}", f"it has U, commit ts {int(ts)}"


def move_a_commit_ts_above_the_checkpoint(sink: HandSink, shop: Shop) -> tuple[str, ...]:
    file = sink.file(ITEM, 0)
    (line,) = sink.lines(file)
    sink.put(file, [line.replace(line.split(b",")[3], b"%d" % shop.last_ts)])
    return "A change of shop.item is in no file: U,", "amount='17'"


def delete_file(number: int) -> Harm:
    def harm(sink: HandSink, shop: Shop) -> tuple[str, ...]:
        file = sink.file(ITEMS, number)
        file.unlink()
        return sink.name(file), "is missing", "publishes 2 files"

    return harm


def set_the_index_back(sink: HandSink, shop: Shop) -> tuple[str, ...]:
    index = sink.file(ITEMS, -1).parent / "meta" / "CDC.index"
    index.write_text(f"CDC{1:020}.csv\n")
    return sink.name(index), "publishes 1 files, but 2 are committed"


def delete_the_index(sink: HandSink, shop: Shop) -> tuple[str, ...]:
    index = sink.file(ITEMS, -1).parent / "meta" / "CDC.index"
    index.unlink()
    return sink.name(index), "publishes 0 files, but 2 are committed", "deleted"


def delete_an_older_index(sink: HandSink, shop: Shop) -> tuple[str, ...]:
    (sink.file(ITEMS, 0).parent / "meta" / "CDC.index").unlink()
    return "A change of shop.items is in no file: I,", "id='3'"


def set_the_index_forward(sink: HandSink, shop: Shop) -> tuple[str, ...]:
    directory = sink.file(ITEMS, -1).parent
    (directory / "meta" / "CDC.index").write_text(f"CDC{10**18:020}.csv\n")
    return f"{sink.name(directory)}/CDC{3:020}.csv is missing", "meta/CDC.index"


def write_nonsense_into_the_index(sink: HandSink, shop: Shop) -> tuple[str, ...]:
    index = sink.file(ITEMS, -1).parent / "meta" / "CDC.index"
    index.write_bytes(b"\xff../CDC1.csv")
    return sink.name(index), "which is no data file"


def move_the_checkpoint_over_rows(sink: HandSink, shop: Shop) -> tuple[str, ...]:
    sink.metadata(shop.last_ts)
    return (f"`metadata` publishes checkpoint {shop.last_ts}, above {shop.checkpoint_ts}",)


def move_the_checkpoint_over_nothing(sink: HandSink, shop: Shop) -> tuple[str, ...]:
    sink.metadata(shop.checkpoint_ts + 1)
    return (f"`metadata` publishes checkpoint {shop.checkpoint_ts + 1}, above {shop.checkpoint_ts}",)


def move_the_checkpoint_below_the_start(sink: HandSink, shop: Shop) -> tuple[str, ...]:
    sink.metadata(shop.start_ts - 1)
    return "below startTs", "gone back"


def put_a_foreign_tables_rows_into_a_file(sink: HandSink, shop: Shop) -> tuple[str, ...]:
    file = sink.file(ITEMS, 1)
    file.write_bytes(b'"I","things","other",%d,1,1,"x",\\N\r\n' % shop.checkpoint_ts)
    return (f"{sink.name(file)}, row 1: a row of other.things stands in a file of shop.items",)


def put_a_foreign_tables_directory(sink: HandSink, shop: Shop) -> tuple[str, ...]:
    shutil.copytree(sink.lake / ITEM, sink.lake / "other" / "things")
    return "other/things/", "no table that the changefeed selects"


def put_a_directory_beside_the_versions(sink: HandSink, shop: Shop) -> tuple[str, ...]:
    shutil.copytree(sink.file(ITEM, 0).parent, sink.lake / ITEM / "backup")
    return "shop/item/backup", "no table that the changefeed selects"


def put_a_file_of_another_name(sink: HandSink, shop: Shop) -> tuple[str, ...]:
    file = sink.file(ITEM, 0)
    shutil.copy(file, file.with_name("CDC000001.csv"))
    return ("CDC000001.csv is not named as the files of its directory are",)


def put_a_stray_file(sink: HandSink, shop: Shop) -> tuple[str, ...]:
    shutil.copy(sink.file(ITEM, 0), sink.lake / "shop" / "item.csv")
    return ("shop/item.csv is no file of a changefeed",)


def truncate(keep: int, *said: str) -> Harm:
    def harm(sink: HandSink, shop: Shop) -> tuple[str, ...]:
        file = sink.file(ITEMS, 0)
        file.write_bytes(file.read_bytes()[:keep])
        return said or (sink.name(file), "is cut off")

    return harm


def insert_a_blank_line(sink: HandSink, shop: Shop) -> tuple[str, ...]:
    file = sink.file(ITEMS, 0)
    file.write_bytes(file.read_bytes() + EOL)
    return sink.name(file), "can't be decoded", "invalid value ''"


def write_bytes_that_are_no_text(sink: HandSink, shop: Shop) -> tuple[str, ...]:
    file = sink.file(ITEMS, 0)
    file.write_bytes(file.read_bytes().replace(b"two", b"\xff\xfe\xfd"))
    return sink.name(file), "the upstream has no such change", r"\\xff\\xfe\\xfd", "note='two"


def delete_a_schema_file(sink: HandSink, shop: Shop) -> tuple[str, ...]:
    next((sink.lake / ITEM / "meta").iterdir()).unlink()
    return ("has no schema file shop/item/meta/schema_",)


def put_back_in_time(file: Path, text: str) -> None:
    """As if it had been written so at first."""
    times = file.stat().st_mtime
    file.write_text(text)
    os.utime(file, (times, times))


def change_a_schema_file(sink: HandSink, shop: Shop) -> tuple[str, ...]:
    file = next((sink.lake / ITEM / "meta").iterdir())
    put_back_in_time(file, file.read_text().replace("amount", "sum"))
    return sink.name(file), "has another content than its name says"


def rewrite_a_schema(change: Callable[[dict[str, Any]], object], *said: str) -> Harm:
    """Under the name that the changed content asks for."""

    def harm(sink: HandSink, shop: Shop) -> tuple[str, ...]:
        file = next((sink.lake / ITEM / "meta").iterdir())
        content = json.loads(file.read_text())
        file.unlink()
        change(content)
        times = file.parent.stat().st_mtime
        path = write_schema(file.parent, shop.start_ts, content)
        os.utime(path, (times - 3600, times - 3600))
        return sink.name(path), *said

    return harm


def change_a_schema_behind_its_checksum(sink: HandSink, shop: Shop) -> tuple[str, ...]:
    file = next((sink.lake / ITEM / "meta").iterdir())
    put_back_in_time(file, file.read_text().replace('"BIGINT"', '"INT"'))
    return sink.name(file), "has another content than its name says"


def write_a_schema_file_after_its_data(sink: HandSink, shop: Shop) -> tuple[str, ...]:
    file = next((sink.lake / ITEM / "meta").iterdir())
    data = sink.file(ITEM, 0)
    os.utime(file, (data.stat().st_mtime + 1, data.stat().st_mtime + 1))
    return (f"{sink.name(data)} was written before the schema file",)


HARMS: dict[str, Harm] = {
    harm.__name__: harm
    for harm in (
        drop_a_line,
        drop_a_line_in_the_middle,
        double_a_line,
        double_a_line_in_another_file,
        swap_the_halves_of_a_split_update,
        change_a_commit_ts,
        move_a_commit_ts_above_the_checkpoint,
        set_the_index_back,
        delete_the_index,
        delete_an_older_index,
        set_the_index_forward,
        write_nonsense_into_the_index,
        move_the_checkpoint_over_rows,
        move_the_checkpoint_over_nothing,
        move_the_checkpoint_below_the_start,
        put_a_foreign_tables_rows_into_a_file,
        put_a_foreign_tables_directory,
        put_a_directory_beside_the_versions,
        put_a_file_of_another_name,
        put_a_stray_file,
        insert_a_blank_line,
        write_bytes_that_are_no_text,
        delete_a_schema_file,
        change_a_schema_file,
        change_a_schema_behind_its_checksum,
        write_a_schema_file_after_its_data,
    )
} | {
    "swap lines of two transactions": swap(-1, 0),
    "swap lines of one transaction": swap(2, 1),
    "swap lines of one operation": swap(0, 0),
    "swap the rows above the checkpoint": swap(-1, 1),
    "change a value": change(b'"back"', b'"bock"', "note='bock'", "it has I,", "note='back'"),
    "NULL to text": change(b",7,\\N,", b',7,"\\N",', "note='\\\\N'", "note=None"),
    "text to NULL": change(b'"\\N"', b"\\N", "note=None", "note='\\\\N'"),
    "empty text to NULL": change(b',3,"",', b",3,\\N,", "note=None", "note=''"),
    "change an operation": change(b'"U","item"', b'"I","item"', ": I, commit ts", "it has U, commit ts"),
    "delete the first file": delete_file(0),
    "delete an empty file": delete_file(1),
    "delete the last file": delete_file(-1),
    "truncate in a line": truncate(-10),
    "truncate in a value of two lines": truncate(-60),
    "truncate the end of the last line": truncate(-1),
    "truncate to nothing": truncate(0, "A change of shop.items is in no file: I,", "id='3'"),
}


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
    monkeypatch.setattr(table, "key_of", lambda *_: [])
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
        (".changefeed-owner.json", b"[]", "is no claim"),
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
    safepoints.restore(Hold(GC_WORKER, NEVER, shop.start_ts))


@pytest.fixture
def garbage(shop: Shop) -> Iterator[None]:
    """GC begins anew after the test."""
    yield
    shop.cluster.safepoints.restore(Hold(GC_WORKER, NEVER, 0))


@pytest.mark.usefixtures("garbage")
async def test_rule_23_history_that_is_gone_is_not_verifiable(shop: Shop, sink: HandSink) -> None:
    collect_garbage(shop)
    with pytest.raises(NotVerifiable, match=f"collected its history up to {shop.start_ts}"):
        await verify(sink.uri, shop.pd)


@pytest.mark.usefixtures("garbage")
async def test_rule_23_history_that_goes_while_it_is_read_is_not_verifiable(
    shop: Shop, sink: HandSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def slow(*arguments: Any, **named: Any) -> None:
        collect_garbage(shop)
        await read_history(*arguments, **named)

    monkeypatch.setattr(table, "read_history", slow)
    with pytest.raises(NotVerifiable, match="collected its history"):
        await verify(sink.uri, shop.pd)


async def test_rule_23_history_is_held_while_it_is_read_and_then_let_go(
    shop: Shop, sink: HandSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = []

    async def watched(*arguments: Any, **named: Any) -> None:
        held.append(shop.cluster.safepoints.lowest(int(time.time())).safe_point)
        await read_history(*arguments, **named)

    # Else GC's own safepoint, 0, is the lowest.
    shop.cluster.safepoints.restore(Hold(GC_WORKER, NEVER, shop.start_ts - 1))
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
    log = Log(open_store(sink.state.as_uri()), "log")
    log.read()

    class Meanwhile(Log):
        def read(self) -> State:
            log.append(CommitRecord(n=log.state.n + 1, epoch=1, nonce="a", plan=None, checkpoint_ts=shop.last_ts))
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
        "note='say \"hi\", you', amount=None. In all 1 rows are missing, 0 too many, 0 different."
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

    def meanwhile(store: Any, checkpoint_ts: int) -> files.Sink:
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
        (lambda content: content.update(Table="items"), "of shop.items: its name is another"),
        (lambda content: content.update(TableVersion=1), "is of version 1"),
        (lambda content: content["TableColumns"][1].update(ColumnName="sum"), "does not name the columns"),
        (lambda content: content["TableColumns"][1].update(ColumnPrecision="19"), "says amount BIGINT(19) NOT NULL: "),
        (lambda content: content["TableColumns"][1].pop("ColumnNullable"), "says amount BIGINT(20): the upstream has"),
        (lambda content: content["TableColumns"][0].pop("ColumnIsPk"), "says id BIGINT UNSIGNED(20) NOT NULL: the"),
        (lambda content: content.update(TableColumns=[{"ColumnName": "id"}]), "is no schema file"),
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
