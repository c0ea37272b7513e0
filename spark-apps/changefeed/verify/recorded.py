"""Finds a changefeed's log by its resource: for sinks that don't name their owner's state."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from changefeed.errors import Conflict, StateInUse
from changefeed.filter.ddl import ignores_ddl
from changefeed.log.log import Log
from changefeed.log.state import State
from changefeed.model.tso import physical_ms
from changefeed.objectstore.open import Store, open_store
from changefeed.owner.alive import Alive
from changefeed.owner.locations import STATE_FIELD, state_location
from changefeed.reading.failures import NotVerifiable
from changefeed.routing.routes import Routes
from changefeed.schema.table_info import TableInfo
from changefeed.spec.filter.filters import Filter
from changefeed.spec.model import Changefeed
from changefeed.upstream import choice
from changefeed.upstream.contract import Upstream
from changefeed.upstream.tikv.client.pd import PdClient
from changefeed.upstream.tikv.cluster import TikvCluster
from changefeed.verify.result import Verdict
from changefeed.verify.upstream.lives import Lives, read_lives


@dataclass(frozen=True)
class StateLog:
    """`store`: of the state."""

    store: Store

    @classmethod
    def of(cls, changefeed: Changefeed, secrets_dir: Path | None) -> StateLog:
        location = state_location(changefeed, secrets_dir)
        return cls(open_store(location.uri, STATE_FIELD, location.secret))

    def read(self) -> State:
        """Raises NotVerifiable when nothing has run."""
        state = Log(self.store).read()
        if state.epoch.number == 0:
            raise NotVerifiable(
                f"The changefeed's log is not at {self.store.uri}.",
                "Run verify where the state can be read, after the changefeed has run and before it is deleted.",
            )
        return state

    @contextlib.asynccontextmanager
    async def at_rest(self, pd: PdClient) -> AsyncIterator[State]:
        """What the log says, while no driver runs. Raises NotVerifiable when one does, or did meanwhile."""
        state = self.read()  # before a store that is not there is made
        try:
            self.store.hold()
            Alive(self.store).check(physical_ms(await pd.tso()))
        except (Conflict, StateInUse) as running:
            raise NotVerifiable(
                f"The changefeed must not run while its rows are compared. {running.message}",
                "Pause it, or wait until it is finished, then verify again.",
            ) from None
        try:
            yield state
            if self.read().n != state.n:
                raise NotVerifiable(
                    f"The changefeed has run meanwhile: its log at {self.store.uri} has grown.",
                    "Pause it, then verify again.",
                )
        finally:
            self.store.release()


@contextlib.asynccontextmanager
async def upstream_of(changefeed: Changefeed, secrets_dir: Path | None) -> AsyncIterator[PdClient]:
    """Its PD."""
    upstream = await choice.access_of(changefeed, secrets_dir).connect()
    try:
        yield pd_of(upstream)
    finally:
        await upstream.close()


def pd_of(upstream: Upstream) -> PdClient:
    """Return the client of a TiKV cluster, whose history is read key by key."""
    if not isinstance(upstream, TikvCluster):
        raise NotVerifiable(
            "The changefeed's upstream is no TiKV cluster, and its sink no folder of files.",
            "Compare the sink's rows with it by hand.",
        )
    return upstream.pd


def check_cluster(pd: PdClient, state: State) -> None:
    """Raises NotVerifiable when PD is of another cluster than the changefeed."""
    if pd.cluster_id != state.cluster_id:
        raise NotVerifiable(
            f"The sink is of cluster {state.cluster_id}, but PD is of cluster {pd.cluster_id}.",
            "Give the PD of the changefeed's upstream.",
        )


def check_settled(state: State) -> None:
    """Raises NotVerifiable when some of what is planned, or of a copy, is not known to be written."""
    check_copied(state, state.checkpoint_ts)
    if any(state.open_entries()):
        raise NotVerifiable(
            "The changefeed was killed while it wrote: some rows above its checkpoint stand downstream, some do not.",
            "Let it run, then pause it or stop it with Ctrl-C, and verify again.",
        )


def check_copied(state: State, upto_ts: int) -> None:
    """Raises NotVerifiable when a table is copied in part."""
    for copy in state.copies().values():
        if copy.is_under_way(upto_ts):
            raise NotVerifiable(
                f"Tables are being copied: at the checkpoint {upto_ts} a part of their rows is there.",
                f"Verify again once the checkpoint is {copy.ts} or later.",
            )


def routes_of(state: State) -> Routes:
    """Which tables it is about, and as what they are written."""
    return Routes.of(state.epoch.config)


async def lives_of(state: State, pd: PdClient, upto_ts: int) -> Lives:
    """Read the lives of the tables that the changefeed writes, from where its sink begins.

    Raises NotVerifiable for half a copy.
    """
    check_copied(state, upto_ts)
    copies = state.copies() if state.initial_copy else None
    routes, ignores = routes_of(state), partial(ignores_ddl, _filter(state))

    def selects(table: TableInfo) -> bool:
        return routes.selects(*table.upstream_name)

    return await read_lives(pd, selects, ignores, state.from_ts, upto_ts, by_id(state), copies, routes.routed)


def say_unexplained(lives: Lives, result: Verdict) -> None:
    """The changefeed has missed a DDL, and so would verify, which finds its end in the same jobs."""
    for table in lives.unexplained:
        result.problem(f"TiDB's sessions see another {table.full_name} than the finished DDLs have made.")


def by_id(state: State) -> bool:
    """Whether folders have tables' ids for names."""
    return bool(state.epoch.config["spec"]["sink"].get("storage", {}).get("useTableIdAsPath", False))


def _filter(state: State) -> Filter:
    return Filter.model_validate(state.epoch.config["spec"]["filter"])
