"""docs/reference/events.md, made from the table of reasons: what the operator says, and what to do."""

from __future__ import annotations

from collections.abc import Iterator

from changefeed.spec.reasons import Held, Policy, Reason, Shown

_HEAD = """# Events, reasons and failures

Made from `spark-apps/changefeed/spec/reasons.py` by `make generate`; don't edit.

What the operator says about a changefeed, and what to do. `status.message` holds the sentence for the present moment;
the same sentence stands in the conditions and in the events. The lists here are closed.

## Events

Sent on the Changefeed when something changes, and once for each change: `kubectl describe changefeed NAME`.

| Reason | Means | What to do |
|---|---|---|
"""
_REASONS = """
## Reasons of Ready, Reconciling and Stalled

One reason stands in all three conditions. kstatus reads them as: `Current` when Ready, `InProgress` while
Reconciling, `Failed` when Stalled. A driver that stopped for a person gives the class of its error as the reason,
such as `SinkOwned` or `SnapshotLostByGC`, in the place of `Stalled`.

| Reason | Ready | kstatus | State | Means |
|---|---|---|---|---|
"""
_HELD = """
## Reasons of HistoryHeld

Whether GC spares what the changefeed still has to read. `status.hold` has the ts, the end and the last error.

| Reason | Status | Means |
|---|---|---|
"""
_FAILURES = """
## Failures and their budgets

`status.restarts.failures` counts failures in a row by class; `status.restarts.total` counts all there ever were. The
count starts anew when the changefeed has been healthy for ten minutes, when its spec changes, and when it is paused.
Waits double, give or take a fifth.

What comes from outside has no budget: the Spark operator, a registry, a webhook, a quota or a node heals without a
person at the changefeed, and the next attempt finds it so within ten minutes. Nor has a crash: no exit code tells a
bug from a node that breaks. Memory alone has one, because nobody but a person raises the limit in the spec: one
failure more than the budget and the changefeed is Stalled.

| Class | Budget | Wait | Means |
|---|---|---|---|
"""
_FOOT = """
What a driver says needs a person (exit 2, or exit 1 with `NeedsHuman`, `OutputConflict`, `SinkOwned`,
`SnapshotLostByGC`, `Superseded` and the like) has no budget: the changefeed is Stalled at once. Giving
`spec.restartNonce` another value, any other edit of the spec that takes a restart, or a pause and its end starts it
again.
"""


def events_reference() -> str:
    """The page, Markdown."""
    return "".join([_HEAD, *_events(), _REASONS, *_reasons(), _HELD, *_holds(), _FAILURES, *_failures(), _FOOT])


def _events() -> Iterator[str]:
    for reason in Reason:
        if sent := reason.sent:
            yield _row(f"`{reason}`", sent.means, sent.todo)


def _reasons() -> Iterator[str]:
    for reason in Reason:
        if shown := reason.shown:
            state = (
                f"{shown.state}; Warning while the last valid spec runs"
                if reason is Reason.INVALID_SPEC
                else shown.state
            )
            yield _row(f"`{reason}`", _ready(shown), _kstatus(shown), state, shown.means)


def _ready(shown: Shown) -> str:
    return "False; True while the checkpoint follows all the same" if shown.beside else str(shown.is_ready)


def _kstatus(shown: Shown) -> str:
    word = "Current" if shown.is_ready else "Failed" if shown.is_stalled else "InProgress"
    return f"{word}; Current" if shown.beside else word


def _holds() -> Iterator[str]:
    for reason in Held:
        yield _row(f"`{reason}`", reason.status, reason.means)


def _failures() -> Iterator[str]:
    for reason in Reason:
        if policy := reason.policy:
            yield _row(f"`{reason}`", _budget(policy), f"{policy.first_s:g} s to {policy.most_s:g} s", policy.means)


def _budget(policy: Policy) -> str:
    return "none" if policy.budget is None else str(policy.budget)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |\n"
