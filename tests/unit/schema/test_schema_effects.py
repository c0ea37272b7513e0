"""When DDL jobs take effect: the numbered scenarios of upstream.tikv.tidb.effects."""

from __future__ import annotations

import copy
import json
from functools import partial

import pytest
from changefeed.errors import ChangefeedError, NeedsHuman
from changefeed.schema.ddl.actions import Action
from changefeed.upstream.tikv.tidb import effects, keys, snapshot
from changefeed.upstream.tikv.tidb.effects import Effects
from changefeed.upstream.tikv.tidb.job import SubJob, parse_job
from changefeed.upstream.tikv.tidb.snapshot import load_schema
from mutation import Edit
from schema_fixtures import column, encode_row, job_json, table_json

SHOP, SYSTEM, ARCHIVE = 1, 2, 3
QUEUEING, RUNNING, ROLLING_BACK, ROLLED_BACK, DONE = 8, 1, 2, 3, 4
DELETE_ONLY, WRITE_ONLY, PUBLIC = 1, 2, 5
START = 100

ID = column(1, "id", 3, 3)
JOB_TABLE = [column(1, "job_id", 8, 3), column(5, "job_meta", 251, charset="binary")]


def a(id_: int = 2, tp: int = 3, **more):
    return column(id_, "a", tp, **more)


class Upstream:
    """Meta keys and the job table through time."""

    def __init__(self, *columns) -> None:
        self.pairs: dict[bytes, bytes] = {}
        self.by_ts: list[tuple[int, dict[bytes, bytes]]] = []
        self.ts = START - 10
        for id_, name in ((SHOP, "shop"), (SYSTEM, "mysql"), (ARCHIVE, "archive")):
            self.pairs[keys.database_key(id_)] = json.dumps({"id": id_, "db_name": {"O": name}, "state": 5}).encode()
        self._put(SYSTEM, table_json(keys.DDL_JOB_TABLE_ID, "tidb_ddl_job", JOB_TABLE))
        self.define(ID, *(columns or (a(),)))
        self.step()
        self.ts = START

    def define(self, *columns, database=SHOP, name="t", id_=10, **more) -> None:
        self._put(database, table_json(id_, name, columns, **more))

    def _put(self, database, info) -> None:
        self.pairs[keys.table_key(database, info["id"])] = json.dumps(info).encode()

    def forget(self, database=SHOP, id_=10) -> None:
        del self.pairs[keys.table_key(database, id_)]

    def step(self, job=None) -> int:
        """What was changed is committed, with the job's row."""
        self.ts += 10
        if job is not None:
            row = encode_row({5: json.dumps(job).encode()}, large=True)
            self.pairs[keys.table_prefix(keys.DDL_JOB_TABLE_ID) + keys.RECORD + b"%08d" % job["id"]] = row
        self.by_ts.append((self.ts, copy.copy(self.pairs)))
        return self.ts

    def at(self, ts: int) -> Reader:
        return Reader(next(pairs for at, pairs in reversed(self.by_ts) if at <= ts))


class Reader:
    def __init__(self, pairs: dict[bytes, bytes]) -> None:
        self.pairs = pairs

    async def get(self, key):
        return self.pairs.get(key)

    async def scan(self, start, end):
        for key in sorted(self.pairs):
            if start <= key < end:
                yield key, self.pairs[key]


class Follower:
    """A run that begins at the upstream's ts."""

    def __init__(self, upstream: Upstream) -> None:
        self.upstream = upstream

    async def begin(self, ts: int = START) -> Follower:
        self.schema = await load_schema(self.upstream.at(ts), ts)
        self.effects = Effects(self.schema, self.upstream.at)
        return self

    async def row(self, job, ts: int) -> bool:
        """Whether the job takes effect with this state."""
        found = await self.effects.of(parse_job(job), ts)
        if found is not None:
            self.schema.apply(found, ts)
        return found is not None

    def columns(self, ts: int) -> list[tuple[int, str, int]]:
        table = self.schema.table(10, ts)
        return [(c.id, c.name, c.type) for c in table.columns]


def job(type_: Action, state: int = RUNNING, schema_state: int = 0, **more):
    return job_json(7, type_, table_id=10, state=state, schema_state=schema_state, **more)


def done(type_: Action, *columns, name="t", **more):
    return job(type_, DONE, PUBLIC, table=table_json(10, name, columns), **more)


def modified() -> tuple[Upstream, list[tuple[int, dict]]]:
    """Column a, an INT, becomes a VARCHAR online: the states with their ts."""
    upstream, new = Upstream(), a(3, 15)
    rows = [(upstream.step(job(Action.MODIFY_COLUMN, QUEUEING)), job(Action.MODIFY_COLUMN, QUEUEING))]

    def state(schema_state, *columns) -> None:
        upstream.define(ID, *columns)
        said = job(Action.MODIFY_COLUMN, RUNNING, schema_state)
        rows.append((upstream.step(said), said))

    for schema_state in (DELETE_ONLY, WRITE_ONLY, 3):
        changing = column(3, "_Col$_a_0", 15, state=schema_state)
        # A flag of the old column says that no NULL may be written any more.
        state(schema_state, a(flag=1 << 20), changing)
    state(PUBLIC, a(3, 15, offset=1), column(2, "_Tombstone$_a", 3, state=WRITE_ONLY, offset=2))
    state(PUBLIC, a(3, 15, offset=1), column(2, "_Tombstone$_a", 3, state=DELETE_ONLY, offset=2))
    upstream.define(ID, a(3, 15, offset=1))
    end = done(Action.MODIFY_COLUMN, ID, new | {"offset": 1})
    rows.append((upstream.step(end), end))
    return upstream, rows


OLD, NEW = [(1, "id", 3), (2, "a", 3)], [(1, "id", 3), (3, "a", 15)]


async def test_1_most_jobs_take_effect_when_they_are_done():
    upstream = Upstream()
    run = await Follower(upstream).begin()
    for said in (job(Action.ADD_COLUMN, QUEUEING), job(Action.ADD_COLUMN, RUNNING, WRITE_ONLY)):
        assert not await run.row(said, upstream.step(said))
    end = done(Action.ADD_COLUMN, ID, a(), column(3, "b", 3))
    assert await run.row(end, upstream.step(end))


async def test_1_a_column_that_is_modified_without_rewriting_it_is_other_when_the_job_is_done():
    """TiDB's older sequence, and what changes no bytes."""
    upstream = Upstream()
    run = await Follower(upstream).begin()
    for schema_state in (DELETE_ONLY, WRITE_ONLY, 3):
        upstream.define(ID, a(flag=1 << 20), column(3, "_Col$_a_0", 15, state=schema_state))
        said = job(Action.MODIFY_COLUMN, RUNNING, schema_state)
        assert not await run.row(said, upstream.step(said))
    end = done(Action.MODIFY_COLUMN, ID, a(3, 15))
    upstream.define(ID, a(3, 15))
    assert await run.row(end, upstream.step(end))
    assert run.columns(upstream.ts) == NEW


async def test_2_and_6_a_column_that_is_modified_online_is_the_new_one_from_the_state_on_that_shows_it():
    upstream, rows = modified()
    run = await Follower(upstream).begin()
    took = [await run.row(said, ts) for ts, said in rows]
    assert took == [False, False, False, False, True, False, False]
    shown = rows[4][0]
    assert (run.columns(shown - 1), run.columns(shown)) == (OLD, NEW)


async def test_3_a_column_that_is_dropped_is_gone_before_the_job_is_done():
    upstream = Upstream()
    run = await Follower(upstream).begin()
    took = []
    for schema_state in (PUBLIC, WRITE_ONLY, DELETE_ONLY, 4):
        upstream.define(ID, a(state=schema_state))
        said = job(Action.DROP_COLUMN, RUNNING, schema_state)
        took.append(await run.row(said, upstream.step(said)))
    end = done(Action.DROP_COLUMN, ID)
    took.append(await run.row(end, upstream.step(end)))
    assert took == [False, True, False, False, False]
    assert run.columns(upstream.ts) == [(1, "id", 3)]


def several(*states: tuple[int, int]):
    """ADD COLUMN b, DROP COLUMN a: (state, schema state) of each."""
    kinds = (Action.ADD_COLUMN, Action.DROP_COLUMN)
    sub_jobs = [{"type": int(kind), "state": s, "schema_state": t} for kind, (s, t) in zip(kinds, states, strict=True)]
    return job(Action.MULTI_SCHEMA_CHANGE, multi_schema_info={"sub_jobs": sub_jobs, "revertible": False})


async def test_4_several_changes_take_effect_in_the_step_that_shows_them_all():
    upstream, b = Upstream(), column(3, "b", 3)
    run = await Follower(upstream).begin()
    upstream.define(ID, a(), b | {"state": 3})
    waits = several((RUNNING, 3), (QUEUEING, PUBLIC))
    assert not await run.row(waits, upstream.step(waits))
    upstream.define(ID, b | {"offset": 1}, a(state=WRITE_ONLY, offset=2))
    shows = several((DONE, PUBLIC), (RUNNING, WRITE_ONLY))
    assert await run.row(shows, upstream.step(shows))
    between = upstream.ts
    assert run.columns(between) == [(1, "id", 3), (3, "b", 3)]
    again = await Follower(upstream).begin(between)
    upstream.define(ID, b | {"offset": 1})
    end = done(Action.MULTI_SCHEMA_CHANGE, ID, b | {"offset": 1})
    upstream.step(end)
    for each in (run, again):
        assert not await each.row(end, upstream.ts)


@pytest.mark.parametrize("renamed", [(ARCHIVE, "archive", "Old"), (ARCHIVE, "archive", "t"), (SHOP, "shop", "Old")])
async def test_5_a_table_has_its_new_name_and_database_before_the_job_is_done(renamed):
    database, schema_name, name = renamed
    upstream = Upstream()
    run = await Follower(upstream).begin()
    waits = job(Action.RENAME_TABLE, schema_id=database)
    assert not await run.row(waits, upstream.step(waits)), "it is not there yet"
    upstream.forget()
    upstream.define(ID, a(), database=database, name=name)
    shows = job(Action.RENAME_TABLE, RUNNING, PUBLIC, schema_id=database)
    assert await run.row(shows, upstream.step(shows))
    again = await Follower(upstream).begin(upstream.ts)
    end = done(Action.RENAME_TABLE, ID, a(), name=name, schema_id=database)
    upstream.step(end)
    for each in (run, again):
        assert not await each.row(end, upstream.ts)
        assert each.schema.table(10, upstream.ts).full_name == f"{schema_name}.{name}"


@pytest.mark.parametrize("state", ["column", "type", "database", "name", "out of a system database"])
async def test_a_definition_that_is_another_counts_also_where_the_jobs_row_does_not_say_so(state):
    """As in a TiDB that is newer than this."""
    upstream = Upstream()
    upstream.define(ID, database=SYSTEM, name="hidden", id_=11)
    upstream.step()
    run = await Follower(upstream).begin(upstream.ts)
    said = job(Action.RENAME_TABLE)
    match state:
        case "column" | "type":
            upstream.define(ID, a(3) if state == "column" else a(2, 8))
            said = job(Action.MODIFY_COLUMN)
        case "database":
            upstream.forget()
            upstream.define(ID, a(), database=ARCHIVE)
            said = job(Action.RENAME_TABLE, schema_id=ARCHIVE)
        case "name":
            upstream.define(ID, a(), name="Old")
        case _:
            upstream.forget(SYSTEM, 11)
            upstream.define(ID, name="shown", id_=11)
            said = job_json(7, Action.RENAME_TABLE, table_id=11, state=RUNNING, schema_state=0)
    assert await run.row(said, upstream.step(said))


@pytest.mark.parametrize("version", [1, 2])
async def test_5_several_tables_have_their_new_names_before_the_job_is_done(version):
    upstream = Upstream()
    upstream.define(ID, name="u", id_=11)
    upstream.step()
    run = await Follower(upstream).begin(upstream.ts)
    infos = [{"new_schema_id": ARCHIVE, "table_id": 10}, {"new_schema_id": SHOP, "table_id": 11}]
    args = {"rename_table_infos": infos} if version == 2 else [[SHOP] * 2, [ARCHIVE, SHOP], [], [10, 11], [], None]
    more = {"raw_args": args, "version": version, "schema_id": SHOP}
    assert not await run.row(job(Action.RENAME_TABLES, **more), upstream.step())
    upstream.forget()
    upstream.define(ID, a(), database=ARCHIVE, name="one")
    upstream.define(ID, name="two", id_=11)
    assert await run.row(job(Action.RENAME_TABLES, RUNNING, PUBLIC, **more), upstream.step())
    assert [table.full_name for table in run.schema.tables_at(upstream.ts)] == ["archive.one", "shop.two"]


@pytest.mark.parametrize("version", [1, 2])
async def test_5_two_tables_of_two_databases_have_each_other_s_names_before_the_job_is_done(version):
    upstream = Upstream()
    upstream.define(ID, database=ARCHIVE, name="u", id_=11)
    upstream.step()
    run = await Follower(upstream).begin(upstream.ts)
    through, ids = [SHOP, SHOP, ARCHIVE], [10, 11, 10]
    infos = [{"new_schema_id": schema, "table_id": id_} for schema, id_ in zip(through, ids, strict=True)]
    args = {"rename_table_infos": infos} if version == 2 else [[SHOP, ARCHIVE, SHOP], through, [], ids, [], None]
    more = {"raw_args": args, "version": version, "schema_id": ARCHIVE}
    assert not await run.row(job(Action.RENAME_TABLES, **more), upstream.step())
    upstream.forget()
    upstream.forget(ARCHIVE, 11)
    upstream.define(ID, a(), database=ARCHIVE, name="u")
    upstream.define(ID, name="t", id_=11)
    assert await run.row(job(Action.RENAME_TABLES, RUNNING, PUBLIC, **more), upstream.step())
    assert [table.full_name for table in run.schema.tables_at(upstream.ts)] == ["archive.u", "shop.t"]


async def test_5_a_table_comes_out_of_a_system_database_with_the_state_that_shows_it():
    upstream = Upstream()
    upstream.define(ID, database=SYSTEM, name="hidden", id_=11)
    upstream.step()
    run = await Follower(upstream).begin(upstream.ts)
    moves = job_json(7, Action.RENAME_TABLE, table_id=11, state=RUNNING, schema_state=0)
    assert not await run.row(moves, upstream.step(moves))
    upstream.forget(SYSTEM, 11)
    upstream.define(ID, name="shown", id_=11)
    assert await run.row(moves | {"schema_state": PUBLIC}, upstream.step(moves))
    assert run.schema.table(11, upstream.ts).full_name == "shop.shown"


async def test_6_columns_that_are_others_in_the_end_stop_the_run():
    upstream, rows = modified()
    run = await Follower(upstream).begin()
    for ts, said in rows[:-1]:
        await run.row(said, ts)
    wide = done(Action.MODIFY_COLUMN, ID, a(4, 8))
    with pytest.raises(NeedsHuman, match=r"DDL job 7 .*gives shop\.t other columns when it is done"):
        await run.row(wide, upstream.step(wide))


async def test_7_a_job_that_is_rolled_back_has_done_nothing():
    upstream, rows = modified()
    run = await Follower(upstream).begin()
    for ts, said in rows[:4]:
        await run.row(said, ts)
    upstream.define(ID, a())
    for state in (ROLLING_BACK, ROLLED_BACK):
        assert not await run.row(job(Action.MODIFY_COLUMN, state), upstream.step())
    assert run.columns(upstream.ts) == OLD


async def test_7_a_job_that_is_rolled_back_after_it_took_effect_stops_the_run():
    upstream, rows = modified()
    run = await Follower(upstream).begin()
    for ts, said in rows[:5]:
        await run.row(said, ts)
    with pytest.raises(NeedsHuman, match=r"DDL job 7 .*is rolled back at"):
        await run.row(job(Action.MODIFY_COLUMN, ROLLING_BACK, PUBLIC), upstream.step())


@pytest.mark.parametrize("begin", range(7))
async def test_8_whoever_begins_in_the_middle_applies_it_once_and_ends_alike(begin):
    upstream, rows = modified()
    run = await Follower(upstream).begin(rows[begin][0])
    took = [await run.row(said, ts) for ts, said in rows[begin + 1 :]]
    assert took.count(True) == (1 if begin < 4 else 0)
    assert run.columns(rows[begin][0]) == (OLD if begin < 4 else NEW)
    assert run.columns(rows[-1][0]) == NEW


@pytest.mark.parametrize("begin", range(5))
async def test_8_whoever_begins_while_a_column_is_dropped_applies_it_once(begin):
    upstream, rows = Upstream(), []
    for schema_state in (PUBLIC, WRITE_ONLY, DELETE_ONLY, 4):
        upstream.define(ID, a(state=schema_state))
        said = job(Action.DROP_COLUMN, RUNNING, schema_state)
        rows.append((upstream.step(said), said))
    end = done(Action.DROP_COLUMN, ID)
    rows.append((upstream.step(end), end))
    run = await Follower(upstream).begin(rows[begin][0])
    took = [await run.row(said, ts) for ts, said in rows[begin + 1 :]]
    assert took.count(True) == (begin == 0)


@pytest.mark.parametrize("other", [Action.ADD_COLUMN, Action.MODIFY_COLUMN, Action.ADD_INDEX])
async def test_8_whoever_begins_while_only_an_index_is_left_to_drop_has_the_other_changes(other):
    """Two of the changes leave the columns as they were."""
    upstream = Upstream()
    before = await Follower(upstream).begin()
    more = [column(3, "b", 3)] if other == Action.ADD_COLUMN else []
    parts = [
        {"type": int(other), "state": DONE, "schema_state": PUBLIC},
        {"type": int(Action.DROP_INDEX), "state": RUNNING, "schema_state": WRITE_ONLY},
    ]
    upstream.define(ID, a(), *more)
    said = job(Action.MULTI_SCHEMA_CHANGE, multi_schema_info={"sub_jobs": parts, "revertible": False})
    run = await Follower(upstream).begin(upstream.step(said))
    assert await before.row(said, upstream.ts)
    end = done(Action.MULTI_SCHEMA_CHANGE, ID, a(), *more)
    upstream.step(end)
    for each in (run, before):
        assert not await each.row(end, upstream.ts)


async def test_8_a_change_that_leaves_columns_alone_is_told_to_whoever_begins_in_the_middle():
    """A comment, or NULL to NOT NULL: the definition that the run reads does not say whether it is a part of it."""
    upstream = Upstream()
    said = job(Action.MODIFY_COLUMN)
    upstream.define(ID, a(flag=1 << 20))
    run = await Follower(upstream).begin(upstream.step(said))
    end = done(Action.MODIFY_COLUMN, ID, a(flag=1))
    assert await run.row(end, upstream.step(end))


@pytest.mark.parametrize("state", [WRITE_ONLY, DELETE_ONLY])
async def test_9_a_table_that_is_being_dropped_is_there_until_the_job_is_done(state):
    upstream = Upstream()
    upstream.define(ID, a(), state=state)
    run = await Follower(upstream).begin(upstream.step(job(Action.DROP_TABLE, RUNNING, state)))
    assert [table.full_name for table in run.schema.tables_at(upstream.ts)] == ["shop.t"]
    assert run.schema.table(10, upstream.ts) == (await Follower(upstream).begin(START)).schema.table(10, START)
    upstream.forget()
    end = job(Action.DROP_TABLE, DONE)
    assert await run.row(end, upstream.step(end))
    assert run.schema.tables_at(upstream.ts) == []


async def test_9_a_database_that_is_being_dropped_is_there_until_the_job_is_done():
    upstream = Upstream()
    shop = {"id": SHOP, "db_name": {"O": "shop"}, "state": DELETE_ONLY}
    upstream.pairs[keys.database_key(SHOP)] = json.dumps(shop).encode()
    said = job_json(7, Action.DROP_SCHEMA, state=RUNNING, schema_state=DELETE_ONLY)
    run = await Follower(upstream).begin(upstream.step(said))
    assert [table.full_name for table in run.schema.tables_at(upstream.ts)] == ["shop.t"]
    end = said | {"state": DONE, "schema_state": 0}
    assert await run.row(end, upstream.step(end))
    assert run.schema.tables_at(upstream.ts) == []


async def test_10_rows_that_come_again_change_nothing():
    upstream, rows = modified()
    run = await Follower(upstream).begin()
    for ts, said in rows:
        await run.row(said, ts)
    assert [await run.row(said, ts) for ts, said in rows] == [False] * len(rows)
    assert run.columns(rows[-1][0]) == NEW


def scenarios():
    """All of the above, one for each set of parameters."""
    for name, scenario in sorted(globals().items()):
        if name.startswith("test_") and not name.startswith("test_a_scenario"):
            marks = getattr(scenario, "pytestmark", [])
            given = [dict.fromkeys([mark.args[0]], value) for mark in marks for value in mark.args[1]]
            yield from (partial(scenario, **each) for each in given or [{}])


_ANY_NEW = "any(map(self._is_new, tables, (database for database, _ in keys)))"
_DIFFERS = "(known.schema_name, *_shape(known)) != (name, *_shape(table))"
#: What is taken out: owner, function, syntax, syntax in its place.
MUTATIONS = {
    "a job takes effect when it is done": (Effects, "of", "job.type not in EARLY", "True"),
    "a job takes effect again when it is done": (Effects, "of", "None if is_known else job", "job"),
    "other columns in the end are not seen": (Effects, "_check", "_columns(known) != _columns(table)", "False"),
    "a rollback after the effect is not seen": (Effects, "of", "if job.is_undone and is_known:", "if False:"),
    "definitions are those of the state before": (Effects, "_shown", "self._at(ts)", "self._at(ts - 1)"),
    "what a row says of itself does not count": (Effects, "_shown", f"job.is_shown or {_ANY_NEW}", _ANY_NEW),
    "columns do not count": (Effects, "_is_new", f"known is None or {_DIFFERS}", f"known is None and {_DIFFERS}"),
    "one state is shown after another": (Effects, "of", "is_known or job.type not in EARLY", "job.type not in EARLY"),
    "flags of states on the way count": (effects, "_columns", "c.flag & FLAG_UNSIGNED", "c.flag"),
    "types do not count": (effects, "_columns", "c.type", ""),
    "ids of columns do not count": (effects, "_columns", "c.id", ""),
    "names do not count": (effects, "_shape", "table.name", ""),
    "databases do not count": (Effects, "_is_new", "known.schema_name", "name"),
    "what comes out of a system database is not seen": (
        Effects,
        "_is_new",
        f"known is None or {_DIFFERS}",
        f"known is not None and {_DIFFERS}",
    ),
    "one table of several is enough": (Effects, "_shown", "len(tables) < len(keys)", "not tables"),
    "a run does not know what its schema has": (
        snapshot,
        "load_schema",
        "(job.id for job in jobs if job.is_shown)",
        "()",
    ),
    "a dropped column is not told from one that stays": (SubJob, "is_shown", "_WRITE_ONLY", ""),
    "parts that are done do not count": (SubJob, "is_shown", "self.state == STATE_DONE", "False"),
    "a table that is being dropped is gone": (snapshot, "_tables", 'info.get("id") in dropped', "False"),
    "a database that is being dropped is gone": (
        snapshot,
        "load_schema",
        "database.state == STATE_PUBLIC or database.id in going",
        "database.state == STATE_PUBLIC",
    ),
}


@pytest.mark.parametrize("mutation", MUTATIONS.values(), ids=MUTATIONS)
async def test_a_scenario_sees_what_is_taken_out(mutation, monkeypatch):
    Edit(*mutation).apply(monkeypatch)
    for scenario in scenarios():
        try:
            await scenario()
        except (AssertionError, ChangefeedError, pytest.fail.Exception):
            return
    pytest.fail("all scenarios pass without it")
