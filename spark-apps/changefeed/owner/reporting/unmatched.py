"""Rules that match nothing, as a run tells of them: once each in the log, and in the status while they are so."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import NoReturn

from changefeed.errors import ChangefeedError
from changefeed.filter.coverage import Coverage, Findings
from changefeed.schema.history import SchemaHistory
from changefeed.spec.model import Changefeed
from changefeed.upstream.contract import SchemaEvent, SchemaStep, Upstream

_LOG = logging.getLogger(__name__)


class UnmatchedRules:
    """Follows the tables of a run's upstream."""

    def __init__(self, changefeed: Changefeed, upstream: Upstream, schema: SchemaHistory) -> None:
        self._upstream, self._schema = upstream, schema
        self._coverage = Coverage(changefeed, schema.tables_at(schema.snapshot_ts))
        self._told = Findings()

    @property
    def found(self) -> Findings:
        return self._coverage.found

    def heard(self, event: SchemaEvent) -> None:
        """The schema has taken it in."""
        if isinstance(event, SchemaStep):
            self._coverage.follow(event.change, self._schema)
            self._tell()

    async def keep(self, every_s: float) -> NoReturn:
        """Looks at the tables where the schema feed does not tell of all that come and go.

        What can't be asked stays as it was: who holds the history will say that the upstream is away.
        """
        while True:
            with suppress(ChangefeedError):
                if (there := await self._upstream.tables_now()) is not None:
                    self._coverage.put_all(there)
            self._tell()
            await asyncio.sleep(every_s)

    def _tell(self) -> None:
        for finding in self.found.findings:
            if finding not in self._told.findings:
                _LOG.warning("%s", finding[1])
        self._told = self.found
