"""A slot of a PostgreSQL with all that read it, in one thread: the server's WAL, a standby that may take over, drivers,
pullers, and pullers that are left over from those that were replaced.

Simulated are the servers, the clock, the driver and the shell of a feed. The cores are the product's own: `chain`,
`subscriptions` and `timelines`. Everything is cut into steps, between which all others go on and any process can end.

What must hold: a commit has one ts, whoever reads it and however often; nobody hears that all is there who lacks a row;
the slot is not confirmed beyond what is durable, and at the end it is confirmed beyond all that is; nobody misses
history; whoever has rows that a new server lacks is told no more, and nobody else is refused; and at the end all rows
are there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter
from random import Random

from changefeed.model.tso import compose
from changefeed.upstream.postgresql.schema.news import TICKS
from changefeed.upstream.postgresql.slot.anchors import LEAD_MS, Said
from changefeed.upstream.postgresql.slot.chain import Chain
from changefeed.upstream.postgresql.slot.subscriptions import SlotSubscriptions
from changefeed.upstream.postgresql.slot.timelines import Crossing, Switch, switches
from simulated_world import Broken, Story

SLOT = "s"
_TABLES = (1, 2)
_STEPS, _LAST_STEPS = 400, 2_000
#: What goes wrong, and how often in a step.
_ODDS = {
    "clock": 0.02,
    "crash": 0.01,
    "cut": 0.02,
    "puller killed": 0.01,
    "pulled again": 0.02,
    "left over": 0.5,  # of those that are killed
    "driver killed": 0.005,
    "held": 0.01,
    "moved": 0.02,
    "others": 1.0,
    "future": 0.02,
    "promoted": 0.01,
    "unguarded": 0.5,  # a standby may lack what is read
}


@dataclass(frozen=True)
class Commit:
    """`ts`: what it has, by the oracle; 0: none. `tables`: which have a row of it."""

    lsn: int
    time_us: int
    said: Said | None
    tables: tuple[int, ...]
    ts: int


class Server:
    """The primary. `reader`: who is let in. `persisted`: of the slot's position, what a crash does not take back.

    A standby has all up to `replicated`, and the slot as it was at `copied`. `is_guarded`: no more is sent than that.
    """

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self.clock_us = 1_700_000_000_000_000
        self.wal: list[Commit] = []  # since the slot was made
        self._messages: list[Callable[[], Said]] = []  # begun, not committed
        self._lsn = self._last_ts = 0
        self.confirmed = self.persisted = 0
        self.replicated = self.copied = 0
        self.is_guarded = True
        self.timeline = 1
        self._history = ""  # of timelines, as the server sends it
        self.reader: Puller | None = None

    def commit(self, *tables: int, said: Said | None = None) -> None:
        self._lsn += self._rng.randint(1, 100)
        ts = self._ts(said)
        self.wal.append(Commit(self._lsn, self.clock_us, said, tables, ts))
        self._last_ts = ts or self._last_ts

    def _ts(self, said: Said | None) -> int:
        """As docs/design/postgresql.md has it, in other words than the product's."""
        is_believed = said is not None and said.ts <= compose(self.clock_us // 1000 + 1000)
        own = said.ts if said is not None and is_believed else compose(self.clock_us // 1000)
        if not self._last_ts:
            return own if is_believed else 0
        return max(own, self._last_ts + TICKS)

    def anchor(self, held: int = 0, slot: str = "", crossed: int = 0) -> int:
        """A message begins, which has its ts already, and others may commit before it; that ts."""
        us = self.clock_us + LEAD_MS * 1000
        ts = compose(us // 1000) + compose(us % 1000) // 1000
        self._messages.append(lambda: Said(ts, held, slot, crossed))
        return ts

    def commit_message(self, newest: bool = False) -> None:
        if self._messages:
            made = self._messages.pop(-1 if newest else self._rng.randrange(len(self._messages)))
            self.commit(said=made())

    def crash(self) -> None:
        self.reader, self.confirmed = None, self.persisted
        self._messages.clear()

    def replicate(self) -> None:
        """The standby gets some more."""
        self.replicated = self._rng.randint(self.replicated, self._lsn)
        if self.confirmed <= self.replicated:
            self.copied = self.confirmed

    def promote(self) -> None:
        """The standby takes over, with what it has."""
        lacking = next((each.lsn for each in self.wal if each.lsn > self.replicated), self._lsn + 1)
        at = self._rng.randint(self.replicated + 1, lacking)
        self._history += f"{self.timeline}\t{at >> 32:X}/{at & 0xFFFFFFFF:X}\tno recovery target specified\n"
        self.timeline += 1
        self.wal = [each for each in self.wal if each.lsn < at]
        self._lsn, self._last_ts = at - 1, max((each.ts for each in self.wal), default=0)
        self.replicated = min(self.replicated, self._lsn)
        self.persisted = self.copied
        self.crash()

    @property
    def last_ts(self) -> int:
        return self._last_ts

    def switches(self) -> list[Switch]:
        """When others have taken over, behind what is confirmed."""
        found = switches(self._history, self.timeline) if self._history else []
        return [each for each in found if each.lsn > self.confirmed]

    def from_lsn(self, lsn: int, most: int) -> list[Commit]:
        first = bisect_left(self.wal, lsn, key=attrgetter("lsn"))
        found = self.wal[first : first + most]
        return [each for each in found if each.lsn <= self.replicated] if self.is_guarded else found


@dataclass
class Subscription:
    table: int
    start_ts: int
    got: set[int] = field(default_factory=set)  # LSNs


class Puller:
    """A feed and its reader. `driver`: who hears it; a puller that is left over talks to nobody."""

    def __init__(self, world: SlotWorld, born: int) -> None:
        self._world, self._server, self.born = world, world.server, born
        self.subscriptions = SlotSubscriptions()
        self._chain: Chain | None = None  # None: it is not connected
        self._next = self._confirmed = 0
        self._crossing: Crossing | None = None  # while it looks
        self._looked_to = 0
        self._common_ts: int | None = None
        self._rows: dict[int, list[tuple[int, int]]] | None = None  # (ts, LSN) by table, to be handed on

    @property
    def read_ts(self) -> int:
        """Up to where it has rows to be handed on."""
        return (self._chain.last_ts or 0) if self._chain is not None and self._rows is not None else 0

    def step(self) -> None:
        self.subscriptions.check()
        if self._chain is None:
            self._open()
        elif self._crossing is not None:
            self._look(self._chain, self._crossing)
        elif self._rows:
            table, rows = self._rows.popitem()
            self._hand_on(table, rows)
        elif self._rows is not None:
            self._rows = None
            self._resolve()
        elif self._server.reader is not self:
            self._chain = None  # cut off
        elif self.subscriptions.settle():
            self._server.reader = self._chain = None
        elif not self.subscriptions.all_rest:
            self._read(self._chain)

    def _open(self) -> None:
        other = self._server.reader
        if other is not None and other.born > self.born:
            return
        self._server.reader, self._rows, self._common_ts = self, None, None
        points = self._server.switches()
        self._crossing = Crossing(SLOT, points) if points else None
        if self._crossing is not None:
            self._server.anchor()
            self._server.commit_message(newest=True)
            self._looked_to = self._server.wal[-1].lsn
        self._begin()
        self._world.say(f"puller {self.born} begins at {self._next}, behind it are {points}")

    def _begin(self) -> None:
        self._chain, self._confirmed, self._next = Chain(SLOT), 0, self._server.confirmed
        if self._crossing is None:
            self.subscriptions.begin()

    def _look(self, chain: Chain, crossing: Crossing) -> None:
        """As SlotReader.look."""
        if self._server.reader is not self:
            self._chain = None
            return
        for each in self._server.from_lsn(self._next, self._world.rng.randint(0, 5)):
            crossing.commit(each.lsn, chain.commit(each.lsn, each.time_us, each.said), each.said)
            self._next = each.lsn + 1
        if chain.lsn >= self._looked_to:
            self._crossing, self._common_ts = None, crossing.common_ts
            self._begin()

    def _may_go_on(self, common_ts: int, position: int | None) -> bool:
        """As SlotFeed._cross."""
        if (reached_ts := self.subscriptions.reached_ts) is None:
            return True
        if reached_ts > common_ts:
            self._chain = None
            self._world.refused(self, f"{reached_ts} is read, and the server has what was before up to {common_ts}")
            return False
        if position is not None and position > common_ts:
            self._server.anchor(0, SLOT, self._server.timeline)
            self._server.commit_message(newest=True)
            self._chain = None  # and is told of nothing until that has come back
            return False
        return True

    def _read(self, chain: Chain) -> None:
        wanted = self.subscriptions.tables()
        needed_ts = self.subscriptions.needed_ts(is_crossed=self._common_ts is None)
        rows: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        commits = self._server.from_lsn(self._next, self._world.rng.randint(0, 5))
        for each in commits:
            ts = chain.commit(each.lsn, each.time_us, each.said) or 0
            assert ts == each.ts, f"{each} has got {ts}"
            for table in set(each.tables) & wanted if ts else ():
                rows[table].append((ts, each.lsn))
            self._next = each.lsn + 1
        chain.check()
        if not commits and self._world.rng.random() < 0.3:
            self._server.anchor()
        if (position := chain.confirmable(needed_ts)) > self._confirmed:
            self._confirmed = position
            self._world.confirmed(self, position)
        for sub_id in [] if chain.first_ts is None else self.subscriptions.below(chain.first_ts):
            self.subscriptions.release(sub_id)
            self._world.lost(self, sub_id)
        if self._common_ts is None or self._may_go_on(self._common_ts, chain.last_ts):
            self._rows = dict(rows)

    def _hand_on(self, table: int, rows: list[tuple[int, int]]) -> None:
        assert self._chain is not None
        assert self._chain.last_ts is not None
        self.subscriptions.handing_on(self._chain.last_ts)
        for sub_id in self.subscriptions.takers(table):
            if (sent_ts := self.subscriptions.sent_ts(sub_id)) is not None:
                self._world.rows(self, sub_id, [row for row in rows if row[0] > sent_ts])

    def _resolve(self) -> None:
        assert self._chain is not None
        if (position := self._chain.last_ts) is None:
            return
        self.subscriptions.position = position
        for sub_id in self.subscriptions.behind(position):
            if self.subscriptions.sent(sub_id, position):
                self._world.resolved(self, sub_id, position)


class Refused(Exception):
    """The changefeed ends: a server has taken over that lacks what was read."""


class SlotWorld:
    """`trace` says what has happened in it."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.trace: list[str] = []
        self.rng = Random(f"{story.seed} slot")
        self._faults = {
            kind: odds for kind, odds in _ODDS.items() if self.rng.random() < 0.6 and kind not in story.without
        }
        self.server = Server(self.rng)
        self._born = self._sub_ids = 0
        self._left_over: list[Puller] = []
        self._is_let_go_by_others = False  # a puller that is left over has confirmed
        self.server.is_guarded = "promoted" in self._faults and not self._happens("unguarded")
        self._read_ts = 0  # by any driver
        self._lost: dict[int, dict[int, int]] = {table: {} for table in _TABLES}  # with a server: ts by LSN
        self._is_torn = self._may_be_refused = False  # what is written is not what is there; something is lost
        self._old_ts = 0  # all that may be told of what a server has brought before it was replaced
        self._end_ts: int | None = None  # nothing is written any more
        # What is durable: where it began, how far each table is, with which rows.
        self._start_ts = 0
        self._flushed: dict[int, int] = {}
        self._written: dict[int, dict[int, int]] = {table: {} for table in _TABLES}  # ts by LSN
        # What a driver knows besides.
        self._arrived: dict[int, int] = {}
        self._rows: dict[int, dict[int, int]] = {}
        self._subscribed: dict[int, Subscription] = {}
        self._puller: Puller | None = None

    def run(self) -> None:
        """Raises Broken."""
        try:
            self._begin()
            for _ in range(_STEPS):
                self._step()
                self._harm()
            self._faults.clear()
            written = [each for each in self.server.wal if each.tables]
            self._end_ts = max((each.ts for each in written), default=0)
            end_lsn = max((each.lsn for each in written if each.ts), default=-1)
            for _ in range(_LAST_STEPS):
                self._step()
                if self._checkpoint_ts >= self._end_ts and self.server.confirmed > end_lsn:
                    return
            raise AssertionError(
                f"{self._end_ts} at {end_lsn} is not reached: {self._flushed}, {self.server.confirmed}"
            )
        except Refused:
            return
        except Exception as error:
            raise Broken(self.story, error, self.trace) from error

    def say(self, what: str) -> None:
        self.trace.append(what)

    # What a driver does.

    @property
    def _checkpoint_ts(self) -> int:
        return min(self._flushed.values())

    def _begin(self) -> None:
        """As SlotLease.begin."""
        self.server.commit(*_TABLES)
        for _ in range(2):
            self._start_ts = self.server.anchor()
            self._others()
            self.server.commit_message(newest=True)
        self._flushed = dict.fromkeys(_TABLES, self._start_ts)
        self._start()

    def _start(self) -> None:
        """Another driver, that knows what is durable."""
        self.say(f"a driver begins at {self._checkpoint_ts}")
        self._arrived, self._rows = dict(self._flushed), {table: {} for table in _TABLES}
        self.server.anchor(self._checkpoint_ts, SLOT)
        self._others()
        self.server.commit_message(newest=True)
        self._replace_puller()

    def _replace_puller(self) -> None:
        if self._puller is not None and self._happens("left over"):
            self._left_over.append(self._puller)
        elif self._puller is not None and self.server.reader is self._puller:
            self.server.reader = None
        self._born += 1
        self._puller, self._subscribed = Puller(self, self._born), {}

    @property
    def _reached_ts(self) -> int:
        """By all tables; what has arrived and is not known to be complete stays, too."""
        return max(*self._arrived.values(), *(ts for rows in self._rows.values() for ts in rows.values()))

    def _subscribe(self, table: int, start_ts: int) -> None:
        assert self._puller is not None
        self._sub_ids += 1
        self._subscribed[self._sub_ids] = Subscription(table, start_ts)
        self._puller.subscriptions.subscribe(self._sub_ids, table, start_ts, reached_ts=self._reached_ts)

    def _step(self) -> None:
        server, rng = self.server, self.rng
        server.clock_us += rng.choice((0, 10, 300, 3_000, 1_000_000))
        assert self._puller is not None
        if rng.random() < (0.2 if server.is_guarded else 0.03):
            server.replicate()
        match rng.randrange(16):
            case 0 if self._end_ts is None:
                server.commit(*rng.sample(_TABLES, rng.randint(0, len(_TABLES))))
            case 1:
                server.commit_message()
            case 2 if missing := sorted(set(_TABLES) - {each.table for each in self._subscribed.values()}):
                table = rng.choice(missing)  # rows that have arrived are there, or are pulled again
                self._subscribe(table, rng.choice((self._flushed[table], self._arrived[table])))
            case 3:
                for table in rng.sample(_TABLES, rng.randint(1, len(_TABLES))):
                    self._flush(table)
            case 4:
                server.anchor(self._checkpoint_ts, SLOT)
            case 5 | 8 if self._left_over:
                rng.choice(self._left_over).step()
            case 6 if self._subscribed:
                self._puller.subscriptions.resume(rng.choice(sorted(self._subscribed)))
            case 7:
                server.persisted = server.confirmed
            case _:
                self._puller.step()

    def _flush(self, table: int) -> None:
        """What has arrived is written, though the puller that has pulled it is gone."""
        upto = self._arrived[table]
        for lsn, ts in self._rows[table].items():
            if self._flushed[table] < ts <= upto:
                self._written[table][lsn] = ts
        self._flushed[table] = upto
        self._is_torn |= bool(self._written[table].items() & self._lost[table].items())
        is_whole = self._written[table] == self._there(table, self._start_ts, upto)
        self._is_torn |= not is_whole and self._may_be_refused  # rows of the new server are at ts that had been read
        assert is_whole or self._is_torn, f"{table} is not whole up to {upto}"

    def _there(self, table: int, after: int, upto: int) -> dict[int, int]:
        return {each.lsn: each.ts for each in self.server.wal if table in each.tables and after < each.ts <= upto}

    # What goes wrong.

    def _happens(self, kind: str) -> bool:
        return self.rng.random() < self._faults.get(kind, 0.0)

    def _others(self) -> None:
        """What commits beside us: another changefeed, which holds by its own slot, and whoever likes."""
        if "others" in self._faults and self.rng.random() < 0.2:
            self.server.clock_us += self.rng.choice((0, 10, 2_000))
            self.server.anchor(compose(self.server.clock_us // 1000), "other", self.server.timeline)
            self.server.commit_message(newest=True)

    def _harm(self) -> None:
        assert self._puller is not None
        self._others()
        server, rng = self.server, self.rng
        if self._happens("clock"):
            server.clock_us += rng.choice((-5_000_000, -20_000, 2_000_000))
        if self._happens("future"):
            server.commit(said=Said(compose(server.clock_us // 1000 + rng.choice((500, 5_000, 5_000_000)))))
        if self._happens("crash"):
            self.say("the server crashes")
            server.crash()
        if self._happens("cut"):
            server.reader = None
        if server.copied and self._happens("promoted"):
            self._promote()
        if self._subscribed and self._happens("held"):
            self._puller.subscriptions.hold(rng.choice(sorted(self._subscribed)))
        if self._subscribed and self._happens("moved"):
            sub_id = rng.choice(sorted(self._subscribed))
            del self._subscribed[sub_id]
            self._puller.subscriptions.release(sub_id)
        if self._happens("puller killed"):
            self._replace_puller()
        if self._happens("pulled again"):
            self._pull_again()
        if self._happens("driver killed"):
            self._start()

    def _promote(self) -> None:
        server = self.server
        before, in_hand = server.wal, 0 if self._puller is None else self._puller.read_ts
        server.promote()
        server.clock_us += self.rng.choice((-20_000, 0, 20_000))
        self.say(f"another server takes over at {server.switches()[-1:]}, {len(before) - len(server.wal)} are lost")
        lost = before[len(server.wal) :]
        for each in lost:
            for table in each.tables:
                self._lost[table][each.lsn] = each.ts
        self._old_ts = max(server.last_ts, in_hand)
        self._may_be_refused |= max(self._read_ts, in_hand, self._reached_ts) > server.last_ts
        assert not (server.is_guarded and self._may_be_refused), "what is kept back is not read"
        is_crossing_lost = any(each.said is not None and each.said.crossed for each in lost)
        self._may_be_refused |= is_crossing_lost and not server.is_guarded
        if self.rng.random() < 0.5:
            self._start()

    def _pull_again(self) -> None:
        """What has arrived is written and let go, while another puller has yet to come that far."""
        self._replace_puller()
        assert self._puller is not None
        for table in _TABLES:
            self._subscribe(table, self._flushed[table])
            self._flush(table)
        self._puller.subscriptions.hold(self.rng.choice(sorted(self._subscribed)))
        self.server.anchor(self._checkpoint_ts, SLOT)
        self.server.commit_message(newest=True)

    # What a puller brings.

    def rows(self, puller: Puller, sub_id: int, rows: list[tuple[int, int]]) -> None:
        if puller is self._puller and (subscription := self._subscribed.get(sub_id)) is not None:
            subscription.got |= {lsn for _, lsn in rows}
            self._rows[subscription.table] |= {lsn: ts for ts, lsn in rows}

    def resolved(self, puller: Puller, sub_id: int, upto: int) -> None:
        if puller is not self._puller or (subscription := self._subscribed.get(sub_id)) is None:
            return
        self._read_ts = max(self._read_ts, upto)
        assert not self._is_torn or upto <= self._old_ts, f"{upto} is told, and what was written is lost"
        table, start_ts = subscription.table, subscription.start_ts
        if lacks := self._there(table, start_ts, upto).keys() - subscription.got:
            is_of_before = self._may_be_refused and upto <= self._old_ts  # it was in hand as its server was replaced
            assert is_of_before, f"table {table} lacks {lacks} at {upto}"
            self._is_torn = True
        self._arrived[table] = max(self._arrived[table], upto)

    def confirmed(self, puller: Puller, lsn: int) -> None:
        if self.server.reader is not puller:
            return
        ahead = [each for each in self.server.wal if each.lsn < lsn and each.ts > self._checkpoint_ts]
        assert not ahead, f"{lsn} is confirmed, and {ahead[0]} is not durable at {self._checkpoint_ts}"
        self.server.confirmed = max(self.server.confirmed, lsn)
        self._is_let_go_by_others |= puller is not self._puller

    def refused(self, puller: Puller, why: str) -> None:
        """What is left over has nobody to tell it to."""
        if puller is self._puller:
            assert self._may_be_refused, f"{why}: nothing of it is lost"
            raise Refused(why)

    def lost(self, puller: Puller, sub_id: int) -> None:
        """It may be that what is left over has let go of what is durable, and is pulled again."""
        if puller is self._puller:
            assert self._is_let_go_by_others, f"subscription {sub_id} has no history"
            self._start()
