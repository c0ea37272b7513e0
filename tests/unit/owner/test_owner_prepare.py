"""Taking a changefeed over, against a development cluster in this process: what is done in which order, or refused."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import owner_records as made
import pytest
from changefeed.errors import Conflict, Fenced, InvalidSpec, NeedsHuman, Unavailable
from changefeed.log.log import Log
from changefeed.log.records import CommitRecord, DdlRecord
from changefeed.model.position import Position
from changefeed.objectstore.local import LocalStore
from changefeed.owner.closing.undriven import hold
from changefeed.owner.preparation import prepare as prepare_module
from changefeed.owner.preparation.prepare import open_state_and_sink, prepare
from changefeed.owner.preparation.prepared import Prepared
from changefeed.spec.model import Changefeed
from changefeed.spec.parse import parse
from changefeed.upstream.tikv.client import leader
from changefeed.upstream.tikv.client.pd import PdClient
from changefeed.upstream.tikv.client.safepoint import Safepoint
from changefeed.upstream.tikv.cluster import TikvCluster
from changefeed_devcluster.pd.safepoints import GC_WORKER
from changefeed_devcluster.server import DevCluster
from changefeed_devcluster.tidb.schema import NewColumn
from changefeed_devcluster.tidb.tidb import Tidb

HOLDER = b"changefeed-default-test-local"
COLUMNS = (NewColumn("id", "bigint"), NewColumn("name", "varchar(64)", nullable=True))


@pytest.fixture(scope="module")
def cluster() -> Iterator[DevCluster]:
    with DevCluster(stores=1) as running:
        yield running


@pytest.fixture(scope="module")
def tidb(cluster: DevCluster) -> Tidb:
    made_tidb = Tidb(cluster)
    made_tidb.bootstrap()
    made_tidb.create_database("shop")
    made_tidb.create_table("shop", "orders", COLUMNS)
    made_tidb.create_table("shop", "items", COLUMNS)
    return made_tidb


@pytest.fixture
async def pd(cluster: DevCluster) -> AsyncIterator[PdClient]:
    client = await PdClient.connect([cluster.pd_address])
    yield client
    await client.close()


class Place:
    """A changefeed's folder and the takings-over in it, one after the other."""

    def __init__(self, folder: Path, cluster: DevCluster, pd: PdClient) -> None:
        self.folder = folder
        self.cluster = cluster
        self.pd = pd

    @property
    def log(self) -> Path:
        return self.folder / "state" / "default" / "test" / "local" / "log"

    @property
    def lake(self) -> Path:
        return self.folder / "lake"

    def changefeed(self, **spec: Any) -> Changefeed:
        members = {
            "upstream": {"pdAddresses": [f"http://{self.cluster.pd_address}"]},
            "filter": {"rules": ["shop.*"]},
            "state": {"uri": (self.folder / "state").as_uri()},
            "sink": {"storage": {"uri": self.lake.as_uri(), "protocol": "csv"}},
        }
        resource = {"apiVersion": "changefeed.dev/v1alpha1", "kind": "Changefeed", "metadata": {"name": "test"}}
        return parse(json.dumps(resource | {"spec": members | spec}))

    async def prepare(self, attempt: int = 0, **spec: Any) -> Prepared:
        changefeed = self.changefeed(**spec)
        state, sink = open_state_and_sink(changefeed)
        try:
            return await prepare(changefeed, TikvCluster(self.pd), state, sink, attempt=attempt)
        finally:
            state.release()
            sink.release()

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text()) for path in sorted(self.log.glob("*.json"))]

    def kinds(self) -> list[str]:
        return [record["kind"] for record in self.records()]


@pytest.fixture
def place(tmp_path: Path, cluster: DevCluster, tidb: Tidb, pd: PdClient) -> Place:
    return Place(tmp_path, cluster, pd)


async def test_first_start_writes_start_epoch_claim_and_schema_files(place: Place, tidb: Tidb) -> None:
    before = tidb.now()
    prepared = await place.prepare()
    assert place.kinds() == ["start", "epoch"]
    start, epoch = place.records()
    assert before < int(start["start_ts"]) < tidb.now()
    assert int(start["cluster_id"]) == place.cluster.cluster_id
    assert (epoch["epoch"], epoch["nonce"]) == (prepared.epoch, prepared.nonce) == (1, start["nonce"])
    assert epoch["config"]["spec"]["filter"]["rules"] == ["shop.*"]
    claimed = json.loads((place.lake / ".changefeed-owner.json").read_text())
    assert claimed == {"uid": "local", "stateUri": prepared.state_location.uri}
    assert sorted(path.parts[-3] for path in place.lake.glob("shop/*/meta/schema_*.json")) == ["items", "orders"]
    assert {table.full_name for table in prepared.tables.values()} == {"shop.orders", "shop.items"}
    assert prepared.schema.snapshot_ts == prepared.state.start_ts
    assert not prepared.finished


async def test_second_start_goes_on_from_the_checkpoint_with_a_fresh_nonce(place: Place, tidb: Tidb) -> None:
    first = await place.prepare()
    checkpoint = tidb.now()
    commit = CommitRecord(n=3, epoch=1, nonce=first.nonce, checkpoint_ts=checkpoint)
    first.log.append(commit)
    second = await place.prepare()
    assert place.kinds() == ["start", "epoch", "commit", "epoch"]
    assert (second.epoch, second.state.checkpoint_ts, second.schema.snapshot_ts) == (2, checkpoint, checkpoint)
    assert second.nonce != first.nonce
    assert second.state.start_ts == first.state.start_ts
    # Its files keep the version that they have: it is startTs, whatever the checkpoint.
    assert len(list(place.lake.glob("shop/orders/meta/schema_*.json"))) == 1


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
    place: Place, tidb: Tidb, spec: dict[str, Any], said: str
) -> None:
    storage = {"uri": place.lake.as_uri(), "protocol": "csv", "csv": {"outputFieldHeader": True}}
    wanted = {"sink": {"storage": storage | {"columnSelectors": spec.get("columnSelectors", [])}}}
    wanted["filter"] = {"rules": ["shop.*"], **spec.get("filter", {})}
    with pytest.raises(InvalidSpec, match=said):
        await place.prepare(**wanted)
    assert place.kinds() == []


async def test_the_plans_of_a_changefeed_with_conditions_name_the_parser(place: Place, tidb: Tidb) -> None:
    rule = {"matcher": ["shop.*"], "ignoreInsertValueExpr": "id > 5"}
    assert "sqlglot" in (await place.prepare(filter={"rules": ["shop.*"], "eventFilters": [rule]})).codec
    assert "sqlglot" not in (await place.prepare()).codec


async def test_rule_24_history_is_held_before_record_1(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    hold, append = Safepoint.hold, Log.append

    async def noted_hold(self: Safepoint, ts: int) -> int:
        assert place.kinds() == []
        least = await hold(self, ts)
        order.append(f"held {ts}")
        return least

    def noted_append(self: Log, record: Any) -> None:
        order.append(f"{record.kind} {record.start_ts}")
        append(self, record)

    monkeypatch.setattr(Safepoint, "hold", noted_hold)
    monkeypatch.setattr(Log, "append", noted_append)
    ts = (await place.prepare()).state.start_ts
    assert order == [f"held {ts}", f"start {ts}"]


async def test_rule_24_a_hold_that_is_refused_leaves_no_record(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    async def hold(*_: object) -> int:
        raise NeedsHuman("SnapshotLostByGC: too late.")

    monkeypatch.setattr(Safepoint, "hold", hold)
    with pytest.raises(NeedsHuman, match="SnapshotLostByGC"):
        await place.prepare()
    assert place.kinds() == []


async def test_a_first_start_right_after_a_restart_of_pd_waits_for_the_leaders(
    place: Place, tidb: Tidb, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PD hears of them one after the other, for longer than a call to it may take."""
    monkeypatch.setattr(leader, "PATIENCE", 1.5)
    place.cluster.restart_pd(heartbeat_s=4.0)
    await place.prepare()
    assert place.kinds() == ["start", "epoch"]


def held_names(place: Place) -> list[bytes]:
    living = place.cluster.safepoints.living(int(time.time()))
    return [each.service_id for each in living if each.service_id != GC_WORKER]


@pytest.mark.parametrize("with_start_ts", [False, True])
async def test_a_first_start_that_fails_removes_the_hold_that_it_has_made(
    place: Place, tidb: Tidb, with_start_ts: bool
) -> None:
    no_hold_is_left(place)
    spec: dict[str, Any] = {"startTs": str(tidb.now())} if with_start_ts else {}
    with pytest.raises(InvalidSpec, match="match no table"):
        await place.prepare(filter={"rules": ["nothing.*"]}, **spec)
    assert held_names(place) == []
    await place.prepare(**spec)
    assert held_names(place) == [HOLDER]
    with pytest.raises(InvalidSpec, match="match no table"):
        await place.prepare(filter={"rules": ["nothing.*"]}, **spec)
    assert held_names(place) == [HOLDER], "it has a log by now"


@pytest.mark.parametrize("held_by", ["changefeed hold", "the operator"])
async def test_a_first_start_that_fails_leaves_the_hold_that_was_there(place: Place, tidb: Tidb, held_by: str) -> None:
    """Who has held from startTs on before the start needs it for the next one."""
    no_hold_is_left(place)
    spec: dict[str, Any] = {"startTs": str(tidb.now()), "filter": {"rules": ["nothing.*"]}}
    if held_by == "changefeed hold":
        await hold(place.changefeed(**spec))
    with pytest.raises(InvalidSpec, match="match no table"):
        await place.prepare(attempt=0 if held_by == "changefeed hold" else 1, **spec)
    assert held_names(place) == [HOLDER]


async def test_rule_14_a_first_start_that_something_kept_from_starting_holds_for_the_next_one(
    place: Place, tidb: Tidb, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Start it again, says exit code 69: nothing is lost."""
    no_hold_is_left(place)

    async def away(*_: object) -> object:
        raise Unavailable("A store does not answer.")

    monkeypatch.setattr(TikvCluster, "schema", away)
    with pytest.raises(Unavailable):
        await place.prepare(startTs=str(tidb.now()))
    assert held_names(place) == [HOLDER]
    no_hold_is_left(place)
    with pytest.raises(Unavailable):
        await place.prepare()
    assert held_names(place) == [], "the next start begins at another ts"


async def test_a_hold_that_another_start_relies_on_by_now_is_left(
    place: Place, tidb: Tidb, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_hold_is_left(place)
    other = Place(place.folder, place.cluster, place.pd)
    spec: dict[str, Any] = {"startTs": str(tidb.now())}
    load = TikvCluster.schema

    async def overtaken(*arguments: Any) -> Any:
        monkeypatch.setattr(TikvCluster, "schema", load)
        monkeypatch.setattr(LocalStore, "hold", lambda self: None)  # as on a store without lock files
        await other.prepare(**spec)
        raise NeedsHuman("This one fails.")

    monkeypatch.setattr(TikvCluster, "schema", overtaken)
    with pytest.raises(NeedsHuman, match="This one fails"):
        await place.prepare(**spec)
    assert held_names(place) == [HOLDER]


def no_hold_is_left(place: Place) -> None:
    for name in held_names(place):
        place.cluster.safepoints.remove(name)


async def test_rule_24_the_schema_is_that_at_start_ts(place: Place, tidb: Tidb) -> None:
    tidb.create_table("shop", "late", COLUMNS)
    at_its_ddl = await place.prepare(startTs=str(tidb.last_ddl_ts))
    assert "shop.late" in {table.full_name for table in at_its_ddl.tables.values()}
    other = Place(place.folder / "other", place.cluster, place.pd)
    before_it = await other.prepare(startTs=str(tidb.last_ddl_ts - 1))
    assert "shop.late" not in {table.full_name for table in before_it.tables.values()}
    tidb.drop_table(tidb.tables["shop.late"])


async def test_rule_26_schema_files_exist_before_a_plan(place: Place) -> None:
    """A run can only plan what `planned_tables` names, and for each of it the file of that very version stands."""
    prepared = await place.prepare()
    for dispatcher, planned in prepared.planned_tables().items():
        table = prepared.tables[dispatcher]
        files = list((place.lake / "shop" / table.name / "meta").glob(f"schema_{planned.table_version}_*.json"))
        assert len(files) == 1
        assert json.loads(files[0].read_text())["Table"] == table.name


async def test_rule_6_the_epoch_is_claimed_before_any_effect_on_the_sink(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    await place.prepare()
    run = json.loads((place.log / f"{2:020}.json").read_text())
    run_folder = place.log.parent / "events" / f"{run['epoch']}-{run['nonce']}"
    run_folder.mkdir(parents=True)

    def claim_epoch(*_: object) -> None:
        assert run_folder.exists()
        raise Fenced("Somebody was faster.")

    monkeypatch.setattr(Log, "claim_epoch", claim_epoch)
    with pytest.raises(Fenced):
        await place.prepare()
    assert run_folder.exists()
    monkeypatch.undo()
    await place.prepare()
    assert not run_folder.exists()  # rule 21: a lower epoch's, after the own epoch record


async def test_rule_6_two_at_once_get_different_epochs_or_are_fenced(place: Place) -> None:
    first = await place.prepare()
    second = await place.prepare()
    commit = CommitRecord(n=first.state.n + 1, epoch=1, nonce=first.nonce, checkpoint_ts=first.state.start_ts)
    with pytest.raises(Fenced, match="epoch 2"):
        first.log.append(commit)
    assert second.epoch == 2


async def test_rule_6_a_closed_changefeed_does_not_start(place: Place) -> None:
    prepared = await place.prepare()
    prepared.log.append(made.closed(prepared.state))
    with pytest.raises(Fenced, match="was deleted"):
        await place.prepare()


async def test_rule_7_a_sink_of_another_changefeed_is_refused(place: Place) -> None:
    await place.prepare()
    other = Place(place.folder / "other", place.cluster, place.pd)
    with pytest.raises(NeedsHuman, match=r"SinkOwned.*belongs to changefeed"):
        await other.prepare(sink={"storage": {"uri": place.lake.as_uri(), "protocol": "csv"}})


async def test_rule_7_files_without_a_claim_are_refused_and_left_alone(place: Place) -> None:
    place.lake.mkdir()
    (place.lake / "metadata").write_text('{"checkpoint-ts":5}')
    with pytest.raises(NeedsHuman, match=r"SinkOwned.*metadata"):
        await place.prepare()
    assert [path.name for path in place.lake.iterdir()] == ["metadata"]


async def test_a_folder_in_use_is_refused(place: Place) -> None:
    holder = LocalStore(place.lake)
    holder.hold()
    try:
        with pytest.raises(Conflict, match="The sink of changefeed default/test is in use"):
            await place.prepare()
    finally:
        holder.release()
    await place.prepare()


async def test_start_ts_cant_change(place: Place, tidb: Tidb) -> None:
    ts = tidb.now()
    await place.prepare(startTs=str(ts))
    await place.prepare()  # left out: the recorded one
    with pytest.raises(InvalidSpec, match=f'spec.startTs: "{ts - 1}" differs from "{ts}"'):
        await place.prepare(startTs=str(ts - 1))
    assert place.kinds() == ["start", "epoch", "epoch"]


async def test_start_ts_in_the_future_is_refused(place: Place, tidb: Tidb) -> None:
    with pytest.raises(InvalidSpec, match="is in the future"):
        await place.prepare(startTs=str(tidb.now() + (3_600_000 << 18)))
    assert place.kinds() == []


async def test_the_sinks_uri_cant_change(place: Place) -> None:
    await place.prepare()
    with pytest.raises(InvalidSpec, match=r"spec\.sink\.storage\.uri: .*other differs from .*lake"):
        await place.prepare(sink={"storage": {"uri": (place.folder / "other").as_uri(), "protocol": "csv"}})
    assert place.kinds() == ["start", "epoch"]


async def test_what_decides_files_names_cant_change(place: Place) -> None:
    await place.prepare()
    lake = {"uri": (place.folder / "lake").as_uri(), "protocol": "csv"}
    for field, value, before in (
        ("useTableIdAsPath", True, "false"),
        ("protocol", "canal-json", "csv"),
        ("compression", "zstd", "none"),
        ("fileIndexWidth", 6, "20"),
    ):
        said = rf"spec\.sink\.storage\.{field}: {str(value).lower()} differs from {before}, with which"
        with pytest.raises(InvalidSpec, match=said):
            await place.prepare(sink={"storage": lake | {field: value}})
    assert place.kinds() == ["start", "epoch"]


async def test_another_cluster_is_refused(place: Place, tmp_path: Path) -> None:
    await place.prepare()
    with DevCluster(stores=1) as other:
        Tidb(other).bootstrap()
        pd = await PdClient.connect([other.pd_address])
        moved = Place(tmp_path, other, pd)
        with pytest.raises(NeedsHuman, match=f"belongs to cluster {place.cluster.cluster_id}, but PD serves"):
            await moved.prepare()
        await pd.close()
    upstream = {"pdAddresses": [f"http://{place.cluster.pd_address}"], "clusterId": "5"}
    with pytest.raises(InvalidSpec, match=r"spec\.upstream\.clusterId: 5 is wanted"):
        await place.prepare(upstream=upstream)


async def test_a_filter_that_matches_nothing_names_the_tables_there_are(place: Place) -> None:
    with pytest.raises(InvalidSpec, match=r"match no table.*shop\.items, shop\.orders"):
        await place.prepare(filter={"rules": ["sho.*"]})
    assert place.kinds() == []


async def test_rule_10_a_table_with_a_plan_to_finish_cant_leave_the_filter(place: Place, tidb: Tidb) -> None:
    """Else nobody would pull its rows, and the plan, with everything behind it, would wait for ever."""
    prepared = await place.prepare()
    orders = tidb.tables["shop.orders"].id
    entry = made.entry(prepared.state, tidb.now(), dispatcher=orders, from_ts=prepared.state.start_ts)
    entry = entry.model_copy(update={"from_": Position.end_of(prepared.state.start_ts)})
    prepared.log.append(made.plan(prepared.state, entry, resolved_ts=tidb.now()))
    with pytest.raises(InvalidSpec, match=r"spec\.filter\.rules: .*shop\.orders.*plan 3"):
        await place.prepare(filter={"rules": ["shop.items"]})
    assert place.kinds() == ["start", "epoch", "plan"]
    again = await place.prepare(filter={"rules": ["shop.orders"]})
    assert [plan for plan, _ in again.state.open_entries()] == [3]


async def test_rule_9_a_run_begins_behind_the_last_recorded_ddl(place: Place, tidb: Tidb) -> None:
    first = await place.prepare()
    late = tidb.create_table("shop", "late", COLUMNS)
    created = tidb.last_ddl_ts
    try:
        again = await place.prepare()
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
        behind = await place.prepare()
        assert behind.state.checkpoint_ts < behind.schema.snapshot_ts == created
        versions = {table.table_id: table.table_version for table in behind.planned_tables().values()}
        assert versions == {**dict.fromkeys(first.tables, first.state.start_ts), late.id: created}
        assert behind.state.flushed_ts(late.id) == created
        assert not (place.lake / "shop" / "late").exists(), "who wrote the DDL wrote its schema file"
    finally:
        tidb.drop_table(late)


async def test_rule_9_a_table_that_changed_while_no_rule_selected_it_has_a_version_of_its_own(
    place: Place, tidb: Tidb
) -> None:
    """Rows of two definitions in one directory could not be told apart."""
    late = tidb.create_table("shop", "late", COLUMNS)
    try:
        first = await place.prepare()
        info, from_ts = first.tables[late.id], first.state.start_ts
        entry = made.entry(first.state, tidb.now(), 0, late.id, from_ts, table_info=info.hash, table_version=from_ts)
        first.log.append(made.plan(first.state, entry, resolved_ts=tidb.now()))
        first.log.append(made.commit(first.log.state, tidb.now()))
        out = await place.prepare(filter={"rules": ["shop.*", "!shop.late"]})
        unchanged = await place.prepare()
        assert (out.tables.keys() & {late.id}, unchanged.table_version(late.id)) == (set(), from_ts)

        out = await place.prepare(filter={"rules": ["shop.*", "!shop.late"]})
        tidb.add_column(late, NewColumn("note", "int", nullable=True))
        out.log.append(made.commit(out.log.state, tidb.now()))
        again = await place.prepare()
        assert again.table_version(late.id) == again.schema.snapshot_ts == out.log.state.checkpoint_ts
        assert again.planned_tables()[late.id].series == f"shop/late/{again.schema.snapshot_ts}"
        assert list((place.lake / "shop" / "late" / "meta").glob(f"schema_{again.schema.snapshot_ts}_*.json"))
    finally:
        tidb.drop_table(tidb.tables["shop.late"])


async def test_nothing_here_blocks_the_event_loop(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[str] = set()
    create = LocalStore.create

    def noted(self: LocalStore, *arguments: Any) -> None:
        threads.add(threading.current_thread().name)
        create(self, *arguments)

    changefeed = place.changefeed()
    state, sink = open_state_and_sink(changefeed)
    monkeypatch.setattr(prepare_module.LocalStore, "create", noted)
    try:
        await prepare(changefeed, TikvCluster(place.pd), state, sink)
    finally:
        state.release()
        sink.release()
    assert threads
    assert "MainThread" not in threads


def restart(nonce: int, from_ts: int) -> dict[str, Any]:
    return {"nonce": nonce, "fromTs": str(from_ts)}


async def test_a_rewind_begins_beside_the_sink_with_a_claim_and_schema_files(place: Place, tidb: Tidb) -> None:
    first = await place.prepare()
    from_ts, checkpoint = tidb.now(), tidb.now()
    first.log.append(CommitRecord(n=3, epoch=1, nonce=first.nonce, checkpoint_ts=checkpoint))
    before = sorted(place.lake.rglob("*"))
    again = await place.prepare(restart=restart(1, from_ts))
    assert place.kinds() == ["start", "epoch", "commit", "epoch", "rewind"]
    beside = place.folder / "lake-gen-2"
    assert again.sink.uri == beside.as_uri()
    assert (again.state.checkpoint_ts, again.schema.snapshot_ts) == (from_ts, from_ts)
    claimed = json.loads((beside / ".changefeed-owner.json").read_text())
    assert claimed == {"uid": "local", "stateUri": again.state_location.uri, "generation": 2}
    assert sorted(path.parts[-3] for path in beside.glob("shop/*/meta/schema_*.json")) == ["items", "orders"]
    assert sorted(place.lake.rglob("*")) == before
    assert {table.series.rpartition("/")[2] for table in again.planned_tables().values()} == {str(from_ts)}
    # Done once: the next start goes on, also without it in the spec.
    for spec in ({"restart": restart(1, from_ts)}, {}):
        assert (await place.prepare(**spec)).sink.uri == beside.as_uri()
    assert place.kinds().count("rewind") == 1
    assert (await place.prepare(restart=restart(2, from_ts))).sink.uri == (place.folder / "lake-gen-3").as_uri()


async def test_what_can_not_be_rewound_is_refused_before_the_log_is_touched(place: Place, tidb: Tidb) -> None:
    first = await place.prepare()
    before = place.records()
    with pytest.raises(InvalidSpec, match=r"spec\.restart\.fromTs: .* is above the checkpoint"):
        await place.prepare(restart=restart(1, first.state.checkpoint_ts + 1))
    (place.folder / "lake-gen-2").mkdir()
    (place.folder / "lake-gen-2" / "metadata").write_text("{}")
    with pytest.raises(NeedsHuman, match="SinkOwned"):
        await place.prepare(restart=restart(1, first.state.checkpoint_ts))
    assert place.records() == before


async def test_a_new_changefeed_has_nothing_to_rewind(place: Place, tidb: Tidb) -> None:
    """Its nonce counts as done: it came with the manifest of one that is gone."""
    for _ in range(2):
        assert (await place.prepare(restart=restart(5, tidb.now()))).state.generation == 1
    assert "rewind" not in place.kinds()
