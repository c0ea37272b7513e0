"""This module reads changefeeds' logs for the web page: how far each driver had got when it last wrote."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from changefeed.errors import ChangefeedError
from changefeed.log.log import LOG, Log
from changefeed.log.state import State
from changefeed.objectstore import Location
from changefeed.objectstore.open import below, open_store
from changefeed.spec.driver_status import TABLES_MAX, TableStatus
from changefeed.spec.upstream_address import upstream_address
from changefeed.ui.view import ChangefeedView

_READ_S = 5.0  # between two looks at the logs
_LIST_S = 60.0  # between two looks for more of them
_STATE = "--state"


class Logs:
    """Reads the logs of the changefeeds in `folders`, and of all below `roots`."""

    def __init__(self, folders: Sequence[Location], roots: Sequence[Location]) -> None:
        self._folders = folders
        self._roots = roots
        self._below: list[Location] = []
        self._listed_at = float("-inf")
        waits = ["The logs are being read."] if folders or roots else []
        self._known: tuple[list[ChangefeedView], list[str]] = [], waits

    @property
    def known(self) -> tuple[list[ChangefeedView], list[str]]:
        """Return what the last look saw, and what could not be read then; at once, from any thread."""
        return self._known

    def keep_looking(self) -> NoReturn:
        """Look again and again, in a thread of its own: a store that is away is waited for."""
        while True:
            self.look()
            time.sleep(_READ_S)

    def look(self) -> None:
        """Blocks on stores; one caller at a time."""
        found, problems = list[ChangefeedView](), list[str]()
        if time.monotonic() - self._listed_at >= _LIST_S:
            self._below, self._listed_at = [], time.monotonic()
            for root in self._roots:
                try:
                    self._below += _folders(root)
                except ChangefeedError as error:
                    problems.append(str(error))
                    self._listed_at = float("-inf")
        for location in (*self._folders, *self._below):
            try:
                state = Log(open_store(location.uri, _STATE, location.secret)).read()
            except ChangefeedError as error:
                problems.append(str(error))
                continue
            if state.n:
                found.append(of_log(state, int(time.time() * 1000)))
            else:
                problems.append(f"There is no log at {location.uri} yet: the changefeed has not run.")
        self._known = found, problems


def _folders(root: Location) -> list[Location]:
    """Every changefeed's at or below a state URI."""
    paths = [f"/{path}" for path, _ in open_store(root.uri, _STATE, root.secret).list()]
    folders = sorted({path.split(f"/{LOG}/")[0].strip("/") for path in paths if f"/{LOG}/" in path})
    return [Location(below(root.uri, *folder.split("/"), field=_STATE), root.secret) for folder in folders]


def of_log(state: State, now_ms: int) -> ChangefeedView:
    """Describe the changefeed as its log has it; `now_ms`: this machine's clock."""
    config = state.epoch.config
    namespace, _, name = state.epoch.name.partition("/")
    word = "Closed" if state.closed else "Finished" if state.finished else "Not running"
    return ChangefeedView(
        namespace=namespace or "default",
        name=name,
        state=word,
        now_ms=now_ms,
        checkpoint_ts=state.checkpoint_ts,
        facts=tuple(_facts(config, state)),
        table_count=len(state.dispatchers),
        tables=_tables(state),
    )


def _facts(config: Mapping[str, Any], state: State) -> Iterator[tuple[str, str]]:
    spec = config.get("spec", {})
    yield "Upstream", upstream_address(spec)
    for kind, sink in spec.get("sink", {}).items():
        if isinstance(sink, dict):
            yield "Sink", f"{kind} {sink.get('uri', '')}".strip()
    yield "Rows written", f"{state.rows:,}"
    if state.last_statement:
        yield "Last DDL", state.last_statement
    yield "Driver", f"epoch {state.epoch.number}"


def _tables(state: State) -> tuple[TableStatus, ...]:
    """Return those that the log knows, furthest behind first."""
    reached = sorted((state.flushed_ts(dispatcher), dispatcher) for dispatcher in state.dispatchers)[:TABLES_MAX]
    return tuple(TableStatus(name=_name(state, each), dispatcher=each, written_ts=ts) for ts, each in reached)


def _name(state: State, dispatcher: int) -> str:
    known = state.dispatchers[dispatcher]
    stored = state.table_infos.get(known.table_info or known.definition, {})
    return f"{stored['schema_name']}.{stored['name']}" if stored else str(dispatcher)
