"""What makes several plans open at a time in a driven run (integration_driven), and loses it a pipeline task.

A plan has room for two entries of a step, and the last of them is written only once a later plan is in the log. So the
entry before it is committed alone, a plan follows while another is open, and the log is folded then; in every run.
The task is lost with a file in hand that is not put, or with an entry that stands in a database and was not told of.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from changefeed.errors import Transient
from changefeed.objectstore.once import create_once as put
from changefeed.objectstore.patience import Patience
from changefeed.owner import driver as driver_module
from changefeed.owner import owner as owner_module
from changefeed.owner.owner import Owner
from changefeed.owner.planning.planner import Planner
from changefeed.sink import file_sink
from changefeed.sink.contract import Entry, EntryId, Surroundings, Written
from changefeed.sink.lanes import EntryWriter, Lanes
from changefeed.sink.records import Records

#: Raw bytes: between those of a step's two transactions of a table (integration_standing), some 1850 and 1100, of which
#: only the first makes a file of its own; and a little more than those of two files.
_FILE_BYTES, PLAN_BYTES = 1500, 4000
_DEADLINE_S = 20.0
_LOOK_S = 0.002


def install(owners: list[Owner]) -> None:
    """From now on in this process. `owners`: the last one is that of the run."""
    driver_module.Planner = partial(Planner, entry_raw_cap=_FILE_BYTES)  # type: ignore[assignment,attr-defined]
    owner_module.COMMIT_INTERVAL_S = 0.0
    lost: list[str] = []

    def lose(name: str) -> None:
        if not lost:
            lost.append(name)
            raise Transient("The machine of this task is gone.")

    def hold(name: str, patience: Patience) -> None:
        until = time.monotonic() + _DEADLINE_S
        while is_held(owners[-1], name) and not patience.ending.wait(_LOOK_S):
            assert time.monotonic() < until, f"{name} is held, and no plan comes"

    def create_once(sink: Any, path: str, body: Any, digest: str, patience: Patience) -> None:
        lose(path)
        hold(path, patience)
        put(sink, path, body, digest, patience)

    class Held:
        """Implements EntryWriter."""

        def __init__(self, writer: EntryWriter, patience: Patience) -> None:
            self._writer, self._patience, self.close = writer, patience, writer.close

        def write(self, entry: Entry, chunks: Iterator[Records]) -> Written | None:
            hold(_named(entry.id, entry.output), self._patience)
            written = self._writer.write(entry, chunks)
            lose(_named(entry.id, entry.output))
            return written

    init = Lanes.__init__

    def init_(self: Lanes, writer: EntryWriter, around: Surroundings) -> None:
        init(self, Held(writer, around.patience), around)

    file_sink.create_once = create_once  # type: ignore[attr-defined,assignment]
    Lanes.__init__ = init_  # type: ignore[method-assign]


def _named(id_: EntryId, output: Mapping[str, Any]) -> str:
    """By its file, which the storage sink puts, or by its number where it has none."""
    return str(output.get("path", id_))


def is_held(owner: Owner, name: str) -> bool:
    """Whether it is the last entry of the newest open plan, and rows of another table come before it is written."""
    plans = owner.state.plans
    if not plans:
        return False
    last = plans[-1].plan.entries[-1]
    is_last = name == _named(EntryId(plans[-1].plan.n, last.entry), last.output)
    return is_last and _comes_another(owner, last.dispatcher)


def _comes_another(owner: Owner, dispatcher: int) -> bool:
    others = [each for each in list(owner.dispatchers) if each != dispatcher]
    first = {each: owner.planner.first_unplanned_ts(each) for each in others}
    return any(ts is not None and ts <= owner.barrier.limit(each) for each, ts in first.items())
