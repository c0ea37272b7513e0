"""Taking a changefeed over, against a development cluster in this process: what is done in which order, or refused."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import owner_records as made
import pytest
from changefeed.errors import Conflict, Fenced, InvalidSpec, NeedsHuman
from changefeed.log.log import Log
from changefeed.log.records import CommitRecord, DdlRecord
from changefeed.model.position import Position
from changefeed.objectstore.local import LocalStore
from changefeed.owner.preparation import prepare as prepare_module
from changefeed.owner.preparation.prepare import open_state_and_sink, prepare
from changefeed.upstream.tikv.client.pd import PdClient
from changefeed.upstream.tikv.cluster import TikvCluster
from changefeed_devcluster.server import DevCluster
from changefeed_devcluster.tidb.schema import NewColumn
from changefeed_devcluster.tidb.tidb import Tidb
from owner_home import COLUMNS, Home


async def test_first_start_writes_start_epoch_claim_and_schema_files(home: Home, tidb: Tidb) -> None:
    before = tidb.now()
    prepared = await home.prepare()
    assert home.kinds() == ["start", "epoch"]
    start, epoch = home.records()
    assert before < int(start["start_ts"]) < tidb.now()
    assert int(start["cluster_id"]) == home.cluster.cluster_id
    assert (epoch["epoch"], epoch["nonce"]) == (prepared.epoch, prepared.nonce) == (1, start["nonce"])
    assert epoch["config"]["spec"]["filter"]["rules"] == ["shop.*"]
    claimed = json.loads((home.lake / ".changefeed-owner.json").read_text())
    assert claimed == {"uid": "local", "stateUri": prepared.state_location.uri}
    assert sorted(path.parts[-3] for path in home.lake.glob("shop/*/meta/schema_*.json")) == ["items", "orders"]
    assert {table.full_name for table in prepared.tables.values()} == {"shop.orders", "shop.items"}
    assert prepared.schema.snapshot_ts == prepared.state.start_ts
    assert not prepared.finished


async def test_second_start_goes_on_from_the_checkpoint_with_a_fresh_nonce(home: Home, tidb: Tidb) -> None:
    first = await home.prepare()
    checkpoint = tidb.now()
    commit = CommitRecord(n=3, epoch=1, nonce=first.nonce, checkpoint_ts=checkpoint)
    first.log.append(commit)
    second = await home.prepare()
    assert home.kinds() == ["start", "epoch", "commit", "epoch"]
    assert (second.epoch, second.state.checkpoint_ts, second.schema.snapshot_ts) == (2, checkpoint, checkpoint)
    assert second.nonce != first.nonce
    assert second.state.start_ts == first.state.start_ts
    # Its files keep the version that they have: it is startTs, whatever the checkpoint.
    assert len(list(home.lake.glob("shop/orders/meta/schema_*.json"))) == 1


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (
            {"filter": {"eventFilters": [{"matcher": ["shop.items"], "ignoreInsertValueExpr": "zip = 1"}]}},
            r"eventFilters\[0\].ignoreInsertValueExpr: for table shop.items: there is no column zip",
        ),
        (
            {"filter": {"eventFilters": [{"matcher": ["shop.*"], "ignoreDeleteValueExpr": "SLEEP(1) = 0"}]}},
            "for table shop.orders: the function SLEEP is not supported",
        ),
        (
            {"columnSelectors": [{"matcher": ["shop.items"], "columns": ["name"]}]},
            "leave no key of table shop.items",
        ),
    ],
)
async def test_what_a_table_does_not_allow_is_refused_at_start(
    home: Home, tidb: Tidb, spec: dict[str, Any], said: str
) -> None:
    storage = {"uri": home.lake.as_uri(), "protocol": "csv", "csv": {"outputFieldHeader": True}}
    wanted = {"sink": {"storage": storage | {"columnSelectors": spec.get("columnSelectors", [])}}}
    wanted["filter"] = {"rules": ["shop.*"], **spec.get("filter", {})}
    with pytest.raises(InvalidSpec, match=said):
        await home.prepare(**wanted)
    assert home.kinds() == []


async def test_the_plans_of_a_changefeed_with_conditions_name_the_parser(home: Home, tidb: Tidb) -> None:
    rule = {"matcher": ["shop.*"], "ignoreInsertValueExpr": "id > 5"}
    assert "sqlglot" in (await home.prepare(filter={"rules": ["shop.*"], "eventFilters": [rule]})).codec
    assert "sqlglot" not in (await home.prepare()).codec


async def test_rule_24_the_schema_is_that_at_start_ts(home: Home, tidb: Tidb) -> None:
    tidb.create_table("shop", "late", COLUMNS)
    at_its_ddl = await home.prepare(startTs=str(tidb.last_ddl_ts))
    assert "shop.late" in {table.full_name for table in at_its_ddl.tables.values()}
    other = Home(home.folder / "other", home.cluster, home.pd)
    before_it = await other.prepare(startTs=str(tidb.last_ddl_ts - 1))
    assert "shop.late" not in {table.full_name for table in before_it.tables.values()}
    tidb.drop_table(tidb.tables["shop.late"])


async def test_rule_26_schema_files_exist_before_a_plan(home: Home) -> None:
    """A run can only plan what `planned_tables` names, and for each of it the file of that very version stands."""
    prepared = await home.prepare()
    for dispatcher, planned in prepared.planned_tables().items():
        table = prepared.tables[dispatcher]
        files = list((home.lake / "shop" / table.name / "meta").glob(f"schema_{planned.table_version}_*.json"))
        assert len(files) == 1
        assert json.loads(files[0].read_text())["Table"] == table.name


async def test_rule_6_the_epoch_is_claimed_before_any_effect_on_the_sink(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    await home.prepare()
    run = json.loads((home.log / f"{2:020}.json").read_text())
    run_folder = home.log.parent / "events" / f"{run['epoch']}-{run['nonce']}"
    run_folder.mkdir(parents=True)

    def claim_epoch(*_: object) -> None:
        assert run_folder.exists()
        raise Fenced("Somebody was faster.")

    monkeypatch.setattr(Log, "claim_epoch", claim_epoch)
    with pytest.raises(Fenced):
        await home.prepare()
    assert run_folder.exists()
    monkeypatch.undo()
    await home.prepare()
    assert not run_folder.exists()  # rule 21: a lower epoch's, after the own epoch record


async def test_rule_6_two_at_once_get_different_epochs_or_are_fenced(home: Home) -> None:
    first = await home.prepare()
    second = await home.prepare()
    commit = CommitRecord(n=first.state.n + 1, epoch=1, nonce=first.nonce, checkpoint_ts=first.state.start_ts)
    with pytest.raises(Fenced, match="epoch 2"):
        first.log.append(commit)
    assert second.epoch == 2


async def test_rule_6_a_closed_changefeed_does_not_start(home: Home) -> None:
    prepared = await home.prepare()
    prepared.log.append(made.closed(prepared.state))
    with pytest.raises(Fenced, match="was deleted"):
        await home.prepare()


async def test_rule_7_a_sink_of_another_changefeed_is_refused(home: Home) -> None:
    await home.prepare()
    other = Home(home.folder / "other", home.cluster, home.pd)
    with pytest.raises(NeedsHuman, match=r"SinkOwned.*belongs to changefeed"):
        await other.prepare(sink={"storage": {"uri": home.lake.as_uri(), "protocol": "csv"}})


async def test_rule_7_files_without_a_claim_are_refused_and_left_alone(home: Home) -> None:
    home.lake.mkdir()
    (home.lake / "metadata").write_text('{"checkpoint-ts":5}')
    with pytest.raises(NeedsHuman, match=r"SinkOwned.*metadata"):
        await home.prepare()
    assert [path.name for path in home.lake.iterdir()] == ["metadata"]


async def test_a_folder_in_use_is_refused(home: Home) -> None:
    holder = LocalStore(home.lake)
    holder.hold()
    try:
        with pytest.raises(Conflict, match="The sink of changefeed default/test is in use"):
            await home.prepare()
    finally:
        holder.release()
    await home.prepare()


async def test_start_ts_cant_change(home: Home, tidb: Tidb) -> None:
    ts = tidb.now()
    await home.prepare(startTs=str(ts))
    await home.prepare()  # left out: the recorded one
    with pytest.raises(InvalidSpec, match=f'spec.startTs: "{ts - 1}" differs from "{ts}"'):
        await home.prepare(startTs=str(ts - 1))
    assert home.kinds() == ["start", "epoch", "epoch"]


async def test_start_ts_in_the_future_is_refused(home: Home, tidb: Tidb) -> None:
    with pytest.raises(InvalidSpec, match="is in the future"):
        await home.prepare(startTs=str(tidb.now() + (3_600_000 << 18)))
    assert home.kinds() == []


async def test_the_sinks_uri_cant_change(home: Home) -> None:
    await home.prepare()
    with pytest.raises(InvalidSpec, match=r"spec\.sink\.storage\.uri: .*other differs from .*lake"):
        await home.prepare(sink={"storage": {"uri": (home.folder / "other").as_uri(), "protocol": "csv"}})
    assert home.kinds() == ["start", "epoch"]


async def test_what_decides_files_names_cant_change(home: Home) -> None:
    await home.prepare()
    lake = {"uri": (home.folder / "lake").as_uri(), "protocol": "csv"}
    for field, value, before in (
        ("useTableIdAsPath", True, "false"),
        ("protocol", "canal-json", "csv"),
        ("compression", "zstd", "none"),
        ("fileIndexWidth", 6, "20"),
    ):
        said = rf"spec\.sink\.storage\.{field}: {str(value).lower()} differs from {before}, with which"
        with pytest.raises(InvalidSpec, match=said):
            await home.prepare(sink={"storage": lake | {field: value}})
    assert home.kinds() == ["start", "epoch"]


async def test_another_cluster_is_refused(home: Home, tmp_path: Path) -> None:
    await home.prepare()
    with DevCluster(stores=1) as other:
        Tidb(other).bootstrap()
        pd = await PdClient.connect([other.pd_address])
        moved = Home(tmp_path, other, pd)
        with pytest.raises(NeedsHuman, match=f"belongs to cluster {home.cluster.cluster_id}, but spec.upstream is"):
            await moved.prepare()
        await pd.close()
    upstream = {"pdAddresses": [f"http://{home.cluster.pd_address}"], "clusterId": "5"}
    with pytest.raises(InvalidSpec, match=r"spec\.upstream\.clusterId: 5 is wanted"):
        await home.prepare(upstream=upstream)


async def test_a_filter_that_matches_nothing_names_the_tables_there_are(home: Home) -> None:
    with pytest.raises(InvalidSpec, match=r"match no table.*shop\.items, shop\.orders"):
        await home.prepare(filter={"rules": ["sho.*"]})
    assert home.kinds() == []


async def test_rule_10_a_table_with_a_plan_to_finish_cant_leave_the_filter(home: Home, tidb: Tidb) -> None:
    """Else nobody would pull its rows, and the plan, with everything behind it, would wait for ever."""
    prepared = await home.prepare()
    orders = tidb.tables["shop.orders"].id
    entry = made.entry(prepared.state, tidb.now(), dispatcher=orders, from_ts=prepared.state.start_ts)
    entry = entry.model_copy(update={"from_": Position.end_of(prepared.state.start_ts)})
    prepared.log.append(made.plan(prepared.state, entry, resolved_ts=tidb.now()))
    with pytest.raises(InvalidSpec, match=r"spec\.filter\.rules: .*shop\.orders.*plan 3"):
        await home.prepare(filter={"rules": ["shop.items"]})
    assert home.kinds() == ["start", "epoch", "plan"]
    again = await home.prepare(filter={"rules": ["shop.orders"]})
    assert [plan for plan, _ in again.state.open_entries()] == [3]


async def test_rule_9_a_run_begins_behind_the_last_recorded_ddl(home: Home, tidb: Tidb) -> None:
    first = await home.prepare()
    late = tidb.create_table("shop", "late", COLUMNS)
    created = tidb.last_ddl_ts
    try:
        again = await home.prepare()
        assert late.id not in again.tables, "its DDL is above the checkpoint"
        again.log.append(
            DdlRecord(
                n=again.log.state.n + 1,
                epoch=again.epoch,
                nonce=again.nonce,
                ts=created,
                job_id=1,
                query="CREATE TABLE late",
                dispatchers=(late.id,),
            )
        )
        behind = await home.prepare()
        assert behind.state.checkpoint_ts < behind.schema.snapshot_ts == created
        versions = {table.table_id: table.table_version for table in behind.planned_tables().values()}
        assert versions == {**dict.fromkeys(first.tables, first.state.start_ts), late.id: created}
        assert behind.state.flushed_ts(late.id) == created
        assert not (home.lake / "shop" / "late").exists(), "who wrote the DDL wrote its schema file"
    finally:
        tidb.drop_table(late)


async def test_rule_9_a_table_that_changed_while_no_rule_selected_it_has_a_version_of_its_own(
    home: Home, tidb: Tidb
) -> None:
    """Rows of two definitions in one directory could not be told apart."""
    late = tidb.create_table("shop", "late", COLUMNS)
    try:
        first = await home.prepare()
        info, from_ts = first.tables[late.id], first.state.start_ts
        entry = made.entry(first.state, tidb.now(), 0, late.id, from_ts, table_info=info.hash, table_version=from_ts)
        first.log.append(made.plan(first.state, entry, resolved_ts=tidb.now()))
        first.log.append(made.commit(first.log.state, tidb.now()))
        out = await home.prepare(filter={"rules": ["shop.*", "!shop.late"]})
        unchanged = await home.prepare()
        assert (out.tables.keys() & {late.id}, unchanged.table_version(late.id)) == (set(), from_ts)

        out = await home.prepare(filter={"rules": ["shop.*", "!shop.late"]})
        tidb.add_column(late, NewColumn("note", "int", nullable=True))
        out.log.append(made.commit(out.log.state, tidb.now()))
        again = await home.prepare()
        assert again.table_version(late.id) == again.schema.snapshot_ts == out.log.state.checkpoint_ts
        assert again.planned_tables()[late.id].series == f"shop/late/{again.schema.snapshot_ts}"
        assert list((home.lake / "shop" / "late" / "meta").glob(f"schema_{again.schema.snapshot_ts}_*.json"))
    finally:
        tidb.drop_table(tidb.tables["shop.late"])


async def test_nothing_here_blocks_the_event_loop(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[str] = set()
    create = LocalStore.create

    def noted(self: LocalStore, *arguments: Any) -> None:
        threads.add(threading.current_thread().name)
        create(self, *arguments)

    changefeed = home.changefeed()
    state, sink = open_state_and_sink(changefeed)
    monkeypatch.setattr(prepare_module.LocalStore, "create", noted)
    try:
        await prepare(changefeed, TikvCluster(home.pd), state, sink)
    finally:
        state.release()
        sink.release()
    assert threads
    assert "MainThread" not in threads


def restart(nonce: int, from_ts: int) -> dict[str, Any]:
    return {"nonce": nonce, "fromTs": str(from_ts)}


async def test_a_rewind_begins_beside_the_sink_with_a_claim_and_schema_files(home: Home, tidb: Tidb) -> None:
    first = await home.prepare()
    from_ts, checkpoint = tidb.now(), tidb.now()
    first.log.append(CommitRecord(n=3, epoch=1, nonce=first.nonce, checkpoint_ts=checkpoint))
    before = sorted(home.lake.rglob("*"))
    again = await home.prepare(restart=restart(1, from_ts))
    assert home.kinds() == ["start", "epoch", "commit", "epoch", "rewind"]
    beside = home.folder / "lake-gen-2"
    assert again.sink.uri == beside.as_uri()
    assert (again.state.checkpoint_ts, again.schema.snapshot_ts) == (from_ts, from_ts)
    claimed = json.loads((beside / ".changefeed-owner.json").read_text())
    assert claimed == {"uid": "local", "stateUri": again.state_location.uri, "generation": 2}
    assert sorted(path.parts[-3] for path in beside.glob("shop/*/meta/schema_*.json")) == ["items", "orders"]
    assert sorted(home.lake.rglob("*")) == before
    assert {table.series.rpartition("/")[2] for table in again.planned_tables().values()} == {str(from_ts)}
    # Done once: the next start goes on, also without it in the spec.
    for spec in ({"restart": restart(1, from_ts)}, {}):
        assert (await home.prepare(**spec)).sink.uri == beside.as_uri()
    assert home.kinds().count("rewind") == 1
    assert (await home.prepare(restart=restart(2, from_ts))).sink.uri == (home.folder / "lake-gen-3").as_uri()


async def test_what_can_not_be_rewound_is_refused_before_the_log_is_touched(home: Home, tidb: Tidb) -> None:
    first = await home.prepare()
    before = home.records()
    with pytest.raises(InvalidSpec, match=r"spec\.restart\.fromTs: .* is above the checkpoint"):
        await home.prepare(restart=restart(1, first.state.checkpoint_ts + 1))
    (home.folder / "lake-gen-2").mkdir()
    (home.folder / "lake-gen-2" / "metadata").write_text("{}")
    with pytest.raises(NeedsHuman, match="SinkOwned"):
        await home.prepare(restart=restart(1, first.state.checkpoint_ts))
    assert home.records() == before


async def test_a_new_changefeed_has_nothing_to_rewind(home: Home, tidb: Tidb) -> None:
    """Its nonce counts as done: it came with the manifest of one that is gone."""
    for _ in range(2):
        assert (await home.prepare(restart=restart(5, tidb.now()))).state.generation == 1
    assert "rewind" not in home.kinds()
