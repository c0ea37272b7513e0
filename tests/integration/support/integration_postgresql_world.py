"""A changefeed of `bank.*` in a PostgreSQL, into csv files: in this process, with folders for Secrets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from changefeed.owner.driver import Outcome, RunOptions
from changefeed.spec.model import Changefeed
from changefeed.spec.parse import parse
from changefeed.upstream import choice
from integration_inprocess import InProcessExecution, Run, resource
from integration_postgresql import Postgresql

USER, PASSWORD = "keeper", "p@ss/word"


class World:
    """`database`: another one, once a standby has taken over."""

    def __init__(self, database: Postgresql, folder: Path) -> None:
        self.database, self.folder, self.lake = database, folder, folder / "lake"
        self.secrets = folder / "secrets"
        (self.secrets / "reader").mkdir(parents=True)
        for key, value in (("username", USER), ("password", PASSWORD)):
            (self.secrets / "reader" / key).write_text(value)

    def resource(self, **spec: Any) -> dict[str, Any]:
        reader = {"secretRef": {"name": "reader"}}
        upstream = {"host": "127.0.0.1", "port": self.database.port, "database": "postgres", "credentials": reader}
        spec = {"upstream": {"postgresql": upstream}, "filter": {"rules": ["bank.*"]}} | spec
        made = resource("", 0, self.folder, **spec)
        del made["spec"]["startTs"]
        return made

    def changefeed(self, **spec: Any) -> Changefeed:
        return parse(json.dumps(self.resource(**spec)))

    def run(self, **spec: Any) -> Run:
        options = RunOptions(metrics_port=0, secrets_dir=self.secrets)
        return Run(self.changefeed(**spec), InProcessExecution(), options).start()

    async def now(self) -> int:
        upstream = await choice.access_of(self.changefeed(), self.secrets).connect()
        try:
            return await upstream.now()
        finally:
            await upstream.close()

    async def to_now(self, run: Run) -> None:
        """Until what has been committed by now is written."""
        now = await self.now()
        await run.until(lambda: run.driver is not None and run.driver.owner.state.checkpoint_ts > now, "all is written")

    async def to_the_end(self, **spec: Any) -> Outcome:
        return await self.run(targetTs=str(await self.now()), **spec).outcome()

    def slots(self) -> list[str]:
        return [name for (name,) in self.database.query("SELECT slot_name FROM pg_replication_slots")]
