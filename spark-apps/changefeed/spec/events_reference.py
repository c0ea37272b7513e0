"""docs/reference/events.md, generated from the table of reasons: what the operator reports, and what to do."""

from __future__ import annotations

from collections.abc import Iterator

from changefeed.errors import stopping
from changefeed.spec.reasons import HeldReason, Policy, Reason, Shown

_HEAD = """# Events, reasons and failures

Generated from `spark-apps/changefeed/spec/reasons.py` by `make generate`; don't edit.

What the operator reports about a changefeed, and what to do about it. `status.message` describes the current
situation; conditions and events carry the same text. The operator uses no reasons other than those listed here.

## Events

Sent on the Changefeed, once per change; see `kubectl describe changefeed NAME`.

| Reason | Means | What to do |
|---|---|---|
"""
_REASONS = """
## Reasons of Ready, Reconciling and Stalled

All three conditions carry the same reason. kstatus reads them as `Current` when Ready, `InProgress` while
Reconciling, and `Failed` when Stalled. When the driver stopped with an error that requires manual intervention, the
reason is [the class of that error](#errors-that-require-manual-intervention) instead of `Stalled`.

| Reason | Ready | kstatus | State | Means | What to do |
|---|---|---|---|---|---|
"""
_HELD = """
## Reasons of HistoryHeld

Whether the history the changefeed still has to read is protected from TiDB's GC, or kept by PostgreSQL's slot.
`status.hold` has the ts, the expiry, what PostgreSQL keeps, and the last error.

| Reason | Status | Means |
|---|---|---|
"""
_FAILURES = """
## Failures and their budgets

`status.restarts.failures` counts consecutive failures by class; `status.restarts.total` counts all failures since the
changefeed was created. The consecutive counts reset once the changefeed has been healthy for ten minutes, when an edit
of the spec takes a restart, and when it is paused. The wait doubles with each failure, with 20 % jitter.

External failures have no budget: when the Spark operator, the registry, the webhook, the quota or the node recovers,
the next attempt succeeds, without anyone touching the changefeed; attempts are never much more than ten minutes apart.
Crashes have none either, because an exit code can't tell a bug from a failing node. Only running out of memory has
one, because someone has to raise the limit in the spec: when the budget is exceeded, the changefeed is Stalled.

| Class | Budget | Wait | Means |
|---|---|---|---|
"""
_FOOT = """
## Errors that require manual intervention

These are not retried: the changefeed is Stalled at once, with the error's class as the reason. To start it again, do
what the message ends with, then change `spec.restartNonce` or anything else in the spec that takes a restart, or pause
and resume it. A driver whose error has one of the classes below exits with the code beside it; codes of other errors
are in [running.md](../running.md#exit-codes).

| Class | Exit code | Means |
|---|---|---|
"""


def events_reference() -> str:
    """The page, Markdown."""
    return "".join(
        [_HEAD, *_events(), _REASONS, *_reasons(), _HELD, *_holds(), _FAILURES, *_failures(), _FOOT, *_errors()]
    )


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
            todo = reason.sent.todo if reason.sent else shown.todo
            yield _row(f"`{reason}`", _ready(shown), _kstatus(shown), state, shown.means, todo)


def _ready(shown: Shown) -> str:
    return "False; True while the checkpoint keeps advancing" if shown.beside else str(shown.is_ready)


def _kstatus(shown: Shown) -> str:
    word = "Current" if shown.is_ready else "Failed" if shown.is_stalled else "InProgress"
    return f"{word}; Current" if shown.beside else word


def _holds() -> Iterator[str]:
    for reason in HeldReason:
        yield _row(f"`{reason}`", reason.status, reason.means)


def _failures() -> Iterator[str]:
    for reason in Reason:
        if policy := reason.policy:
            yield _row(f"`{reason}`", _budget(policy), f"{policy.first_s:g} s to {policy.most_s:g} s", policy.means)


def _errors() -> Iterator[str]:
    for name, error in stopping().items():
        yield _row(f"`{name}`", str(error.exit_code), " ".join((error.__doc__ or "").split()))


def _budget(policy: Policy) -> str:
    return "none" if policy.budget is None else str(policy.budget)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |\n"
