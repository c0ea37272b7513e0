"""What runs in Spark, simulated: pullers that report honestly but late and in no order; the query that writes files."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from changefeed.errors import OutcomeUnknown, Transient
from changefeed.model.record import FileCommitted, Work, WorkEntry
from changefeed.objectstore.digest import Digest
from changefeed.objectstore.once import create_once
from changefeed.owner.spans import AWAY_S
from changefeed.wire import owner_pb2 as pb
from simulated_oracles import Row, file_body
from simulated_store import Process

if TYPE_CHECKING:
    from simulated_world import Driver


_MOST_WAITING = 8  # rows and reports


@dataclass
class Subscription:
    span_id: int
    todo: list[Row]  # not yet pulled, in order
    pulled: list[Row] = field(default_factory=list)
    segments: list[tuple[int, int]] = field(default_factory=list)  # (seq, its lowest commit ts)
    told_ts: int = 0


class Puller:
    """Honest, slow and in no order: rows, segments and resolved-ts of one stream after the other."""

    def __init__(self, driver: Driver, number: int) -> None:
        self.driver = driver
        self.world = driver.world
        self.number = number
        self.joined = False
        self.back_at = driver.world.now + driver.world.rng.choice((0.0, 0.0, 0.0, 2 * AWAY_S))
        self.incarnation = 0
        self.subscriptions: dict[int, Subscription] = {}
        self.buffer: list[tuple[int, Row]] = []
        self.outbox: deque[pb.Report] = deque()
        self.stale: list[pb.Report] = []  # of earlier streams
        self.seq = 0
        self.most_in_flight = 0  # bytes, so far: what a hold finds on its way

    def step(self) -> None:
        rng, faults = self.world.rng, self.world.faults
        if not self.joined:
            if self.world.now >= self.back_at:
                self._join()
        elif self.world.happens(faults.leave):
            self._leave()
        elif self.stale and self.world.happens(0.1):
            self.driver.require_owner().report(self.world.now, self.number, self.stale.pop())
        else:
            rng.choice((self._pull, self._pull, self._cut, self._claim, self._deliver, self._deliver))()

    def _join(self) -> None:
        self.joined, self.seq, self.incarnation = True, 0, self.incarnation + 1
        for command in self.driver.require_owner().puller_joined(self.world.now, self.number):
            self.obey(command)
        self.world.say(f"{self.driver.name} puller {self.number} joins: {list(self.subscriptions)}")

    def obey(self, command: pb.Command) -> None:
        """A command that finds the puller gone is lost with its stream."""
        if not self.joined:
            return
        if command.HasField("release"):
            del self.subscriptions[command.release.sub_id]
            self.buffer = [(sub_id, row) for sub_id, row in self.buffer if sub_id != command.release.sub_id]
            return
        asked = command.subscribe
        rows = self.world.upstream.rows[asked.span_id]
        first = bisect_right(rows, Row.end_of(asked.start_ts))
        before = rows[max(0, first - 2) : first]
        self.subscriptions[asked.sub_id] = Subscription(asked.span_id, rows[first:], before)

    def _leave(self) -> None:
        rng = self.world.rng
        self.back_at = self.world.now + (rng.uniform(0.0, 4 * AWAY_S) if rng.random() < 0.3 else 0.0)
        self.world.say(f"{self.driver.name} puller {self.number} leaves until {self.back_at:.1f}")
        self.joined = False
        self.stale += self.outbox
        self.subscriptions.clear()
        self.buffer.clear()
        self.outbox.clear()
        if rng.random() < 0.5:  # else the owner hears of it by the next stream
            self.driver.require_owner().puller_left(self.world.now, self.number)

    def _pull(self) -> None:
        rng = self.world.rng
        if len(self.buffer) + len(self.outbox) > _MOST_WAITING:
            return
        for sub_id, subscription in self.subscriptions.items():
            visible = bisect_right(subscription.todo, Row.end_of(self.world.upstream.now_ts))
            for _ in range(min(visible, rng.randint(0, 5))):
                row = subscription.todo.pop(rng.randrange(min(visible, 4)))
                visible -= 1
                subscription.pulled.append(row)
                self.buffer.append((sub_id, row))
            if subscription.pulled and rng.random() < 0.1:
                self.buffer.append((sub_id, rng.choice(subscription.pulled)))  # TiKV sends it again
        written = sum(meta.bytes for report in self.outbox for meta in report.segments)
        self.most_in_flight = max(self.most_in_flight, written + 10 * len(self.buffer))

    def _cut(self) -> None:
        rng = self.world.rng
        if not self.buffer:
            return
        self.seq += 1
        count = rng.randint(1, len(self.buffer))
        rng.shuffle(self.buffer)
        taken, self.buffer = self.buffer[:count], self.buffer[count:]
        uri = f"events/{self.driver.run.name}/{self.number}.{self.incarnation}/{self.seq}"
        batches: list[list[Row]] = []
        shares = []
        for sub_id, subscription in self.subscriptions.items():
            if rows := sorted(row for owner, row in taken if owner == sub_id):
                size = rng.randint(1, 3)
                first = len(batches)
                batches += [rows[i : i + size] for i in range(0, len(rows), size)]
                shares.append(_share(sub_id, subscription.span_id, rows, first, len(batches), rng.randint(1, 6)))
                subscription.segments.append((self.seq, rows[0].commit_ts))
        self.world.segments[uri] = batches
        meta = pb.SegmentMeta(uri=uri, seq=self.seq, bytes=10 * count, spans=shares)
        self._report(pb.Report(puller=self.number, segments=[meta]))

    def _report(self, report: pb.Report) -> None:
        """In no order: a segment may come after the next one, a resolved-ts before its segments."""
        early = self.world.rng.choice((0, 0, 2, 6))
        self.outbox.insert(max(0, len(self.outbox) - early), report)

    def _claim(self) -> None:
        """A resolved-ts for each subscription that has one: all rows <= it stand in segments."""
        claims = []
        for sub_id, subscription in self.subscriptions.items():
            missing = [row.commit_ts for owner, row in self.buffer if owner == sub_id]
            missing += [row.commit_ts for row in subscription.todo[:1]]
            ts = min([self.world.upstream.now_ts, *(ts - 1 for ts in missing)])
            if ts > subscription.told_ts:
                subscription.told_ts = ts
                seqs = [seq for seq, lowest in subscription.segments if lowest <= ts]
                last = max(seqs, default=0)
                first = min(seqs, default=0)
                claims.append(pb.Resolved(sub_id=sub_id, ts=ts, first_segment=first, last_segment=last))
        if claims:
            self._report(pb.Report(puller=self.number, resolved=claims))

    def _deliver(self) -> None:
        if self.outbox:
            report = self.outbox.popleft()
            for _ in range(1 + self.world.happens(0.1)):  # sent again
                self.driver.require_owner().report(self.world.now, self.number, report)


def _share(sub_id: int, span_id: int, rows: list[Row], first: int, end: int, point_every: int) -> pb.SegmentSpan:
    """Each row weighs 10 bytes."""
    places = [pb.Position(commit_ts=row.commit_ts, start_ts=row.start_ts, op=row.op, key=row.key) for row in rows]
    points = [i for i in range(1, len(rows) + 1) if i % point_every == 0 or i == len(rows)]
    return pb.SegmentSpan(
        span_id=span_id,
        sub_id=sub_id,
        rows=len(rows),
        bytes=10 * len(rows),
        min=places[0],
        max=places[-1],
        first_batch=first,
        end_batch=end,
        curve=[pb.CurvePoint(position=places[i - 1], bytes=10 * i) for i in points],
    )


class Executor(Process):
    """The streaming query of one driver; it outlives its driver for a while and writes on."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver.world, f"{driver.name}'s executor")
        self.driver = driver
        self.batch = 0
        self.stalled_until = 0.0  # the sink stands still
        self.work: Work | None = None
        self.tasks: list[WorkEntry] = []
        self.outbox: list[FileCommitted] = []
        self.sent: list[tuple[int, str, FileCommitted]] = []

    def step(self) -> None:
        rng, faults = self.world.rng, self.world.faults
        if self.world.happens(faults.stall):
            self.stalled_until = self.world.now + rng.uniform(2.0, 30.0)
        if self.world.now < self.stalled_until:
            return
        if self.tasks and (not self.outbox or rng.random() < 0.5):
            self._write(self.tasks.pop(rng.randrange(len(self.tasks))))
        elif not self.driver.alive:
            self.end("ends: its driver is gone")
        elif self.outbox:
            self._send()
        elif self.world.happens(faults.executor * 0.1):
            self.batch, self.work = 0, None  # the query starts anew
        elif self.sent and self.world.happens(faults.executor):
            record, nonce, done = rng.choice(self.sent)  # it comes twice, or is another run's of the plan to be done
            plan = self.driver.require_owner().state.plan
            if plan is not None and rng.random() < 0.3:
                record, nonce = plan.n, "another run"
            self.driver.require_owner().file_done(record, nonce, done)
        else:
            self._next_batch()

    def _next_batch(self) -> None:
        owner = self.driver.require_owner()
        if (latest := owner.latest()) > self.batch:
            self.batch, self.work = latest, owner.work(latest)
            self.tasks = list(self.work.entries)

    def _write(self, task: WorkEntry) -> None:
        assert self.work is not None
        entry = task.plan_entry
        if self.world.happens(self.world.faults.executor):
            self.tasks.append(task)  # failed, to be tried again
            return
        rows: set[Row] = set()
        for part in task.segments:
            if part.uri not in self.world.segments:
                state = self.world.oracles.state
                needed = state.plan is not None and (state.plan.n, state.epoch.nonce) == (self.batch, self.work.nonce)
                assert not (needed and self.driver.alive), f"{part.uri} was deleted; {entry.path} needs it"
                # Of a committed plan, or of a run that has a successor: Spark tries a few times, then the query fails.
                self.end(f"misses {part.uri}")
                if self.driver.alive:
                    self.driver.end("ends with its query")
                return
            batches = self.world.segments[part.uri][part.first_batch : part.end_batch]
            rows.update(row for batch in batches for row in batch if entry.from_ < row <= entry.to)
        info = self.work.table_infos[entry.table_info]
        body = file_body(self.work.config, self.work.pd_ms, info, sorted(rows))
        digest = Digest(body).hexdigest()
        try:
            create_once(self.store, entry.path, body, digest, self.world.sleeper(self))
        except (OutcomeUnknown, Transient):
            self.tasks.append(task)
            return
        count = len(rows)
        done = FileCommitted(
            entry=entry.entry, rows=count, raw_rows=count, filtered_rows=0, bytes=len(body), hash=digest
        )
        self.outbox.append(done)

    def _send(self) -> None:
        assert self.work is not None
        rng, faults = self.world.rng, self.world.faults
        done = self.outbox.pop(rng.randrange(len(self.outbox)))
        if self.world.happens(faults.executor):
            self.tasks += [task for task in self.work.entries if task.plan_entry.entry == done.entry]  # lost
            return
        self.sent.append((self.batch, self.driver.run.nonce, done))
        self.driver.require_owner().file_done(self.batch, self.driver.run.nonce, done)
