"""Bugs in the matching of prewrites and commits, and in what it takes them from."""

from __future__ import annotations

from changefeed.upstream.tikv.matching import rows, slots
from changefeed.upstream.tikv.matching.matcher import Matcher
from changefeed.upstream.tikv.matching.region_events import RegionEvents
from changefeed.upstream.tikv.matching.spilled import Spilled
from mutation import Mutation

MATCHER_MUTATIONS = (
    Mutation(
        "matcher",
        "a commit decides its own key only",
        Matcher,
        "_match",
        "moved, self._pending = self._decide(slots)",
        "own = slots['key'].is_in(commits['key'].implode())\n"
        "moved, self._pending = self._decide(slots.filter(own))\n"
        "self._pending = pl.concat([self._pending, slots.filter(~own)])",
        rule=18,
    ),
    Mutation(
        "matcher",
        "a heartbeat's copy, which has no value, replaces the row",
        slots,
        "newest",
        "sure=is_told & ~may_be_a_heartbeat",
        "sure=is_told",
    ),
    Mutation(
        "matcher",
        "a repeated lock without the old value counts, and a delete becomes one of nothing",
        slots,
        "newest",
        'old_value.filter(old_value != b"").first().fill_null(b"")',
        "old_value.last()",
    ),
    Mutation(
        "matcher",
        "what commits in one phase during a scan is left to the scan",
        Matcher,
        "feed",
        "committed = only(rows, rows['type'].to_numpy() == COMMITTED)",
        "committed = only(rows, rows['type'].to_numpy() == COMMITTED)\n"
        "committed = committed.filter(pl.Series(self._initialized[committed['reg'].to_numpy()]))",
    ),
    Mutation(
        "matcher",
        "one scan's end forgets the rows of the other scans",
        Matcher,
        "_admit",
        "self._early = [] if ready.all() else [only(early, ~ready)]",
        "self._early = []",
    ),
    Mutation(
        "matcher",
        "what was handed out before its own commit is not remembered",
        Matcher,
        "_match",
        "without(self._moved, before_moved).vstack(without(moved, now_moved)[_MOVED.names()])",
        "without(self._moved, before_moved)",
    ),
    Mutation(
        "matcher",
        "what an unfinished scan has brought outlives its registration",
        Matcher,
        "_forget_closed",
        "map(self._of_open, (self._pending, self._moved, self._unclear))",
        "self._pending, *map(self._of_open, (self._moved, self._unclear))",
    ),
    Mutation(
        "matcher",
        "when a registration is over, the scans of all others lose what they have brought",
        Matcher,
        "_forget_closed",
        "self._early = [frame for frame in map(self._of_open, self._early) if frame.height]",
        "self._early = []\nself._pending = only(self._pending, self._initialized[self._pending['reg'].to_numpy()])",
        story="A region's stream breaks while the scans of two others are half done.",
    ),
    Mutation(
        "matcher",
        "when a registration is over, nobody knows what others have handed out before its commit",
        Matcher,
        "_forget_closed",
        "map(self._of_open, (self._pending, self._moved, self._unclear))",
        "self._of_open(self._pending), self._moved.clear(), self._of_open(self._unclear)",
        rule=18,
        story="The first commit in a region has moved its whole transaction; before the second one comes, another "
        "region's stream breaks. The second is taken for one that was never prewritten.",
    ),
    Mutation(
        "matcher",
        "nobody tells it that a registration is over",
        RegionEvents,
        "_close",
        "self._matcher.close(registration.reg)",
        "pass",
    ),
    Mutation(
        "matcher",
        "every put is an insert",
        rows,
        "shape",
        "np.where(inserted, OP_INSERT, OP_UPDATE)",
        "np.where(inserted, OP_INSERT, OP_INSERT)",
    ),
    Mutation(
        "matcher",
        "what was handed on before the registration began breaks the protocol",
        Matcher,
        "open",
        "checkpoint_ts, checkpoint_ts, True",
        "0, checkpoint_ts, True",
        rule=18,
        story="The resolved-ts passes a large transaction with its first commit in the region, and the stream breaks "
        "before the others come. They come to the next registration, which began above them.",
    ),
    Mutation(
        "matcher",
        "who has begun below the resolved-ts will not commit any more",
        Matcher,
        "advance",
        "self._resolved[reg] = resolved_ts",
        "self._resolved[reg] = resolved_ts\n"
        "others = self._pending['reg'] != reg\n"
        "self._pending = self._pending.filter(others | (self._pending['start_ts'] > resolved_ts))",
        rule=18,
        story="A large transaction promises to commit late, and the resolved-ts passes its start.",
    ),
    Mutation(
        "matcher",
        "the prewrite that comes last counts, though it is the scan's",
        slots,
        "newest",
        'copies.sort(~pl.col("scanned"), maintain_order=True)',
        "copies",
        story="A key is flushed again while the scan, which has the first value, is on its way.",
    ),
    Mutation(
        "matcher",
        "the first flush of a key counts",
        slots,
        "newest",
        "pl.exclude(*_SLOT_COLUMNS, 'old_value').last()",
        "pl.exclude(*_SLOT_COLUMNS, 'old_value').first()",
    ),
    Mutation(
        "matcher",
        "of two prewrites that differ before INITIALIZED the one that comes last counts",
        slots,
        "newest",
        'pl.col("late").last() | pl.col("scanned").any()',
        "pl.lit(True)",
        story="A large transaction flushes a key again while the region's scan, which has the first value, waits in "
        "the store; more of the scan follows, so nothing shows that the row is the scan's, and it is handed out.",
    ),
    Mutation(
        "matcher",
        "all that comes before INITIALIZED is the scan's",
        RegionEvents,
        "_rows",
        "last == INITIALIZED",
        "last > 0",
    ),
    Mutation(
        "matcher",
        "what is unclear is handed out with its transaction",
        Matcher,
        "_unclear_and_decided",
        "fate > self._floor[regs]",
        "fate < self._floor[regs]",
    ),
    Mutation(
        "matcher",
        "a region that is to be registered again, as nobody can tell what it brought, is left alone",
        RegionEvents,
        "process",
        "*((reg, self._unclear(reg, what)) for reg, what in matched.unclear.items())",
        "",
    ),
    Mutation(
        "matcher",
        "a put without a value is no row",
        Matcher,
        "_admit",
        "np.isin(types, [PREWRITE, COMMIT, ROLLBACK])",
        'np.isin(types, [PREWRITE, COMMIT, ROLLBACK]) & ~((types == PREWRITE) & (rows["op_type"].to_numpy() == 1)'
        ' & (rows["value"].bin.size() == 0).to_numpy())',
    ),
    Mutation(
        "matcher",
        "what is flushed again stays in the scratch as well",
        Spilled,
        "take_back",
        "piece.bits[at] = 0",
        "pass",
    ),
    Mutation(
        "matcher",
        "a rollback leaves its row",
        Matcher,
        "_slots",
        "if rollbacks.height:",
        "if False:",
    ),
    Mutation(
        "matcher",
        "a rollback leaves a row that is spilled",
        Spilled,
        "roll_back",
        "piece.bits[at[(piece.bits[at] & PENDING) > 0]] = 0",
        "pass",
    ),
    Mutation(
        "matcher",
        "of a spilled row that is given out before its own commit nothing is remembered",
        Spilled,
        "decide",
        "np.where(wanted, DUE | UNCONFIRMED, UNCONFIRMED)",
        "np.where(wanted, DUE, 0)",
    ),
    Mutation(
        "matcher",
        "spilled rows outlive their registration",
        Spilled,
        "forget_closed",
        "piece.bits[over[piece.stretch_of_each]] = 0",
        "pass",
    ),
    Mutation(
        "matcher",
        "of a spilled transaction one batch is given out",
        Spilled,
        "due",
        "yield piece.rows(batch, where[wanted])",
        "yield piece.rows(batch, where[wanted])\nbreak",
    ),
    Mutation(
        "matcher",
        "what is read back of a region that the store has ended is dropped",
        RegionEvents,
        "_more",
        "for rows in parts:\n    yield list(self._split(rows))",
        "for registration in over:\n    self._close(registration)\n"
        "for rows in parts:\n    yield list(self._split(rows))",
        story="One chunk brings the commit of a spilled transaction, a resolved-ts above it, and the region's end.",
    ),
)
