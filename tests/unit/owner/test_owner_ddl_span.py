"""The DDL span against a development cluster: a DDL reaches the barrier before the resolved-ts that covers it, and in
its order.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest
from changefeed.errors import ChangefeedError, NeedsHuman, ProtocolViolation, Transient, Unavailable
from changefeed.owner.planning.barrier import Barrier
from changefeed.owner.planning.ddls import Ddls
from changefeed.owner.planning.timeline import Timeline
from changefeed.schema.history import SchemaHistory
from changefeed.sink.contract import Ddl
from changefeed.sink.storage.schema_file import files_of
from changefeed.upstream.contract import Data, FeedEvent, Resolved, SubscriptionFailed
from changefeed.upstream.tikv import ddl_span as ddl_span_module
from changefeed.upstream.tikv.client.kv import Snapshot
from changefeed.upstream.tikv.client.pd import PdClient
from changefeed.upstream.tikv.ddl_span import SUB_ID, DdlSpan
from changefeed.upstream.tikv.tidb.effects import Effects
from changefeed.upstream.tikv.tidb.job import Job
from changefeed.upstream.tikv.tidb.snapshot import load_schema
from changefeed_devcluster.ddl import columns, tables
from changefeed_devcluster.ddl.running import last
from changefeed_devcluster.server import DevCluster
from changefeed_devcluster.tidb.schema import NewColumn
from changefeed_devcluster.tidb.tidb import Tidb

DEADLINE = 20.0
COLUMNS = (NewColumn("id", "bigint"),)


@pytest.fixture
def tidb() -> Iterator[Tidb]:
    with DevCluster(stores=1, min_ts_interval=0.05) as cluster:
        made = Tidb(cluster)
        made.bootstrap()
        for database in ("shop", "other"):
            made.create_database(database)
            made.create_table(database, "orders", COLUMNS)
        yield made


@pytest.fixture
async def pd(tidb: Tidb) -> AsyncIterator[PdClient]:
    client = await PdClient.connect([tidb.cluster.pd_address])  # type: ignore[attr-defined]
    yield client
    await client.close()


class Following:
    """A DDL span from now on, of a changefeed of `shop.*`."""

    def __init__(self, pd: PdClient, schema: SchemaHistory) -> None:
        self.limits: list[int] = []  # after each event
        self.schema = schema
        self.barrier = Barrier(schema.snapshot_ts)
        there = [table.id for table in schema.tables_at(schema.snapshot_ts) if table.schema_name == "shop"]
        timeline = Timeline(lambda name, _: name == "shop", lambda name: name == "shop", lambda *_: False, there)
        self.errors: list[ChangefeedError] = []
        self.changed = asyncio.Event()
        ddls = Ddls(schema, timeline, self.barrier, self._changed, self.errors.append)
        self.span = DdlSpan(pd, schema, ddls.take)

    def _changed(self) -> None:
        self.limits.append(self.barrier.checkpoint_limit())
        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


@asynccontextmanager
async def following(tidb: Tidb, pd: PdClient) -> AsyncIterator[Following]:
    ts = tidb.now()
    followed = Following(pd, await load_schema(Snapshot(pd, ts), ts))
    async with followed.span:
        yield followed


async def test_rule_1_nothing_is_let_past_a_ddl_of_a_selected_table(tidb: Tidb, pd: PdClient) -> None:
    async with following(tidb, pd) as followed:
        tidb.add_column(tidb.tables["shop.orders"], NewColumn("note", "varchar(8)", nullable=True))
        finish_ts = tidb.last_ddl_ts
        later = tidb.now()
        await followed.until(lambda: followed.barrier.resolved_ts >= later)
        orders = tidb.tables["shop.orders"].id
        assert followed.barrier.limit(orders) == finish_ts
        assert followed.barrier.limit(tidb.tables["other.orders"].id) >= later
        ddl = followed.barrier.due(lambda _: finish_ts)
        assert ddl is not None
        assert (ddl.ts, ddl.description[:44]) == (finish_ts, "ADD_COLUMN of shop.orders: ALTER TABLE `shop")
        assert (ddl.involved, ddl.left, ddl.tables.keys()) == ({orders}, frozenset(), {orders})
        assert [column.name for column in ddl.tables[orders].columns] == ["id", "note"]
        assert [(file.path.rpartition("_")[0], file.query[:11], file.type) for file in files_of(ddl)] == [
            (f"shop/orders/meta/schema_{finish_ts}", "ALTER TABLE", 5)
        ]
        assert followed.schema.table(orders, finish_ts) == ddl.tables[orders]
        assert followed.errors == []


async def test_rule_1_the_limit_never_passes_a_ddl_that_is_not_yet_seen(tidb: Tidb, pd: PdClient) -> None:
    """Looked at after every event: a limit above a finish ts would file rows under the old schema."""
    async with following(tidb, pd) as followed:
        for number in range(3):
            await asyncio.to_thread(tidb.create_table, "other", f"t{number}", COLUMNS)
        await asyncio.to_thread(tidb.create_table, "shop", "items", COLUMNS)
        finish_ts = tidb.last_ddl_ts
        later = tidb.now()
        await followed.until(lambda: followed.barrier.resolved_ts >= later)
    assert max(followed.limits) == followed.limits[-1] == finish_ts - 1


async def test_a_ddl_of_other_tables_is_followed_and_stops_nothing(tidb: Tidb, pd: PdClient) -> None:
    async with following(tidb, pd) as followed:
        created = tidb.create_table("other", "new", COLUMNS)
        tidb.drop_table(tidb.tables["other.orders"])
        later = tidb.now()
        await followed.until(lambda: followed.barrier.resolved_ts >= later)
        assert followed.barrier.checkpoint_limit() >= later
        assert followed.schema.table(created.id, later) is not None


async def test_ddls_up_to_the_start_are_part_of_the_snapshot(tidb: Tidb, pd: PdClient) -> None:
    tidb.add_column(tidb.tables["shop.orders"], NewColumn("note", "varchar(8)", nullable=True))
    async with following(tidb, pd) as followed:
        later = tidb.now()
        await followed.until(lambda: followed.barrier.resolved_ts >= later)
        assert followed.barrier.checkpoint_limit() >= later


async def test_rule_9_an_event_waits_while_definitions_of_the_one_before_are_read(
    tidb: Tidb, pd: PdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else two would take the same row, and the second resolved-ts could pass a DDL that is not followed yet."""
    entered, may_end, effect = asyncio.Event(), asyncio.Event(), Effects.of
    at_once = [0]

    async def slow(self: Effects, job: Job, ts: int) -> Job | None:
        at_once.append(at_once[-1] + 1)
        entered.set()
        await may_end.wait()
        try:
            return await effect(self, job, ts)
        finally:
            at_once.append(at_once[-1] - 1)

    monkeypatch.setattr(Effects, "of", slow)
    async with following(tidb, pd) as followed:
        await asyncio.to_thread(tidb.add_column, tidb.tables["shop.orders"], NewColumn("note", "varchar(8)", True))
        later = tidb.now()
        await asyncio.wait_for(entered.wait(), DEADLINE)
        other = asyncio.create_task(followed.span.on_event(Resolved(SUB_ID, later)))
        for _ in range(3):
            await asyncio.sleep(0)
        may_end.set()
        await other
        assert (max(at_once), followed.errors) == (1, [])
        assert followed.barrier.resolved_ts >= later
        assert followed.barrier.limit(tidb.tables["shop.orders"].id) == tidb.last_ddl_ts


async def test_rule_29_nothing_counts_behind_a_job_that_cant_be_followed(
    tidb: Tidb, pd: PdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def apply(*_: object) -> None:
        raise NeedsHuman("DDL job 7 cannot be followed.")

    async with following(tidb, pd) as followed:
        monkeypatch.setattr(SchemaHistory, "apply", apply)
        tidb.create_table("other", "new", COLUMNS)
        finish_ts = tidb.last_ddl_ts
        await followed.until(lambda: bool(followed.errors))
        await followed.span.on_event(Resolved(SUB_ID, tidb.now()))
        assert followed.barrier.ceiling() < finish_ts
        assert [str(error) for error in followed.errors] == ["DDL job 7 cannot be followed."]


async def test_rule_29_a_job_that_cant_be_read_is_not_skipped(
    tidb: Tidb, pd: PdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decode_job(*_: object) -> None:
        raise NeedsHuman("a row of mysql.tidb_ddl_job cannot be read")

    monkeypatch.setattr(ddl_span_module, "decode_job", decode_job)
    async with following(tidb, pd) as followed:
        tidb.create_table("other", "new", COLUMNS)
        await followed.until(lambda: bool(followed.errors))
        assert followed.barrier.ceiling() < tidb.last_ddl_ts


async def test_a_span_that_cant_be_pulled_fails(tidb: Tidb, pd: PdClient) -> None:
    async with following(tidb, pd) as followed:
        await followed.span.on_event(
            SubscriptionFailed(SUB_ID, Unavailable("A TiKV store asks for a client of version 9."))
        )
        assert [type(error) for error in followed.errors] == [Unavailable]
        before = followed.barrier.resolved_ts
        await followed.span.on_event(Resolved(SUB_ID, tidb.now()))
        assert followed.barrier.resolved_ts == before


async def ddls_of(tidb: Tidb, pd: PdClient, do: Callable[[], object]) -> list[Ddl]:
    """All that the changefeed is told of what `do` does."""
    async with following(tidb, pd) as followed:
        await asyncio.to_thread(do)
        later = tidb.now()
        await followed.until(lambda: followed.barrier.resolved_ts >= later or bool(followed.errors))
        assert followed.errors == []
        return followed.barrier.known()


async def test_a_ddl_comes_at_the_ts_from_which_on_rows_have_what_it_leads_to(tidb: Tidb, pd: PdClient) -> None:
    """Not when its job is done: in each of these sessions use it before."""
    orders = tidb.add_column(tidb.tables["shop.orders"], NewColumn("n", "int"))
    shown: list[int] = []

    def all_of_them() -> None:
        text = last(columns.modify_column(tidb, orders, "n", NewColumn("n", "varchar(24)")))
        shown.append(tidb.last_ddl_ts)
        both = last(columns.change_several(tidb, text, NewColumn("late", "int", default=1), "n"))
        shown.append(tidb.last_ddl_ts)
        one = last(columns.drop_column(tidb, both, "late"))
        shown.append(tidb.last_ddl_ts)
        tables.rename_table(tidb, one, one.db, "Sales")
        shown.append(tidb.last_ddl_ts)

    ddls = await ddls_of(tidb, pd, all_of_them)
    assert [ddl.ts for ddl in ddls] == shown
    kinds = [ddl.description.partition(":")[0] for ddl in ddls]
    assert kinds == [
        "MODIFY_COLUMN of shop.orders",
        "MULTI_SCHEMA_CHANGE of shop.orders",
        "DROP_COLUMN of shop.orders",
        "RENAME_TABLE of shop.Sales",
    ]
    assert [[column.name for column in ddl.tables[orders.id].columns] for ddl in ddls] == [
        ["id", "n"],
        ["id", "late"],
        ["id"],
        ["id"],
    ]


async def test_a_run_that_begins_between_a_ddls_effect_and_its_end_has_it_already(tidb: Tidb, pd: PdClient) -> None:
    orders = tidb.add_column(tidb.tables["shop.orders"], NewColumn("n", "int"))
    states = columns.drop_column(tidb, orders, "n")
    next(states)
    async with following(tidb, pd) as followed:
        await asyncio.to_thread(last, states)
        later = tidb.now()
        await followed.until(lambda: followed.barrier.resolved_ts >= later)
        assert [column.name for column in followed.schema.table(orders.id, later).columns] == ["id"]
        assert (followed.barrier.known(), followed.errors) == ([], [])


async def test_a_definition_that_cant_be_read_now_is_read_with_the_next_resolved_ts(
    tidb: Tidb, pd: PdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing passes meanwhile."""
    orders = tidb.add_column(tidb.tables["shop.orders"], NewColumn("n", "int"))
    of, failures, resolved = Effects.of, [Transient("PD is away.")] * 3, list[int]()

    async def away(effects: Effects, job: Job, ts: int) -> Job | None:
        resolved.append(followed.barrier.resolved_ts)
        if failures:
            raise failures.pop()
        return await of(effects, job, ts)

    monkeypatch.setattr(Effects, "of", away)
    async with following(tidb, pd) as followed:
        await asyncio.to_thread(last, columns.drop_column(tidb, orders, "n"))
        later = tidb.now()
        await followed.until(lambda: followed.barrier.resolved_ts >= later)
        assert max(resolved) < tidb.last_ddl_ts
        assert ([ddl.ts for ddl in followed.barrier.known()], followed.errors) == ([tidb.last_ddl_ts], [])


async def test_rows_that_come_again_are_no_ddls_again(
    tidb: Tidb, pd: PdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a store's death: the span is pulled from below."""
    orders = tidb.add_column(tidb.tables["shop.orders"], NewColumn("n", "int"))
    taken: list[Data] = []
    on_event = DdlSpan.on_event

    async def remember(span: DdlSpan, event: FeedEvent) -> None:
        if isinstance(event, Data):
            taken.append(event)
        await on_event(span, event)

    monkeypatch.setattr(DdlSpan, "on_event", remember)
    async with following(tidb, pd) as followed:
        await asyncio.to_thread(last, columns.modify_column(tidb, orders, "n", NewColumn("n", "varchar(9)")))
        later = tidb.now()
        await followed.until(lambda: followed.barrier.resolved_ts >= later)
        assert taken
        for event in tuple(taken):
            await followed.span.on_event(event)
        await followed.span.on_event(Resolved(SUB_ID, tidb.now()))
        assert ([ddl.ts for ddl in followed.barrier.known()], followed.errors) == ([tidb.last_ddl_ts], [])


async def test_no_puller_tells_of_ddls(tidb: Tidb, pd: PdClient) -> None:
    """A span of its own has them."""
    async with following(tidb, pd) as followed:
        with pytest.raises(ProtocolViolation, match=r"A puller tells of a change of schema at 7, which this upstream"):
            followed.span.hear(7, b"")
