"""What the driver says in the resource's status, told in testdata/status/*.txt.

Times are of one day.

    at TIME                        PD's clock; a second on it is one on the monotonic clock
    checkpoint TIME | resolved TIME | pulled ROWS | blocked [TABLE STARTED TTL] | held SPANS | complete
    sink-fails WHY | sink-away WHY | sink-refuses WHY | sink-works | pd-fails WHY | pd-works
    tikv-refuses WHY | tikv-sends
    due                            what is to be written now: the lag, and each condition with its last transition
    say TYPE                       a condition's message, as last written
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, time
from pathlib import Path
from typing import Any

import datadriven
import pytest
from changefeed.filter.coverage import Findings, Why
from changefeed.model.tso import compose, from_datetime, physical_ms
from changefeed.owner.reporting.driver_status import driver_status
from changefeed.owner.reporting.snapshot import RunSnapshot
from changefeed.owner.reporting.status import Status
from changefeed.owner.reporting.troubles import Trouble, Troubles
from changefeed.spec.driver_status import OpenTransaction, StageRate
from changefeed.spec.parse import parse
from changefeed.upstream.contract import HeldUntil, KeptLog

RESOURCE = """
apiVersion: changefeed.dev/v1alpha1
kind: Changefeed
metadata: {name: orders, namespace: shop}
spec:
  upstream: {pdAddresses: ["http://127.0.0.1:2379"]}
  sink: {storage: {uri: "s3://lake/orders", protocol: csv}}
"""
STORIES = sorted((Path(__file__).parent / "testdata" / "status").glob("*.txt"))
START = RunSnapshot(
    epoch=4,
    cluster_id=7,
    start_ts=compose(1),
    published_ts=compose(1),
    resolved_ts=compose(1),
    table_count=2,
)


def _ts(clock: str) -> int:
    return from_datetime(datetime.combine(datetime(2026, 11, 21), time.fromisoformat(clock), UTC))


class Teller:
    def __init__(self) -> None:
        self.status = Status("0.1.0")
        self.seen = START
        self.troubles = Troubles()
        self.said: dict[str, dict[str, str]] = {}

    def run(self, command: str) -> str:
        name, _, rest = command.partition(" ")
        method = getattr(self, "do_" + name.replace("-", "_"))
        return str(method(rest) or "")

    def do_at(self, clock: str) -> None:
        self.seen = replace(self.seen, at_ms=physical_ms(_ts(clock)))

    def do_checkpoint(self, clock: str) -> None:
        self.seen = replace(self.seen, published_ts=_ts(clock))

    def do_resolved(self, clock: str) -> None:
        self.seen = replace(self.seen, resolved_ts=_ts(clock))

    def do_pulled(self, rows: str) -> None:
        self.seen = replace(self.seen, stages=(StageRate(name="puller", rows=int(rows)),))

    def do_blocked(self, by: str) -> None:
        table, started, seconds = by.split() if by else ("", "", "")
        ttl_ms = int(seconds) * 1000 if by else 0
        blocked = (OpenTransaction(table=table, start_ts=_ts(started), ttl_ms=ttl_ms),) if by else ()
        self.seen = replace(self.seen, transactions=blocked)

    def do_held(self, spans: str) -> None:
        self.seen = replace(self.seen, held=int(spans))

    def do_complete(self, _: str) -> None:
        self.seen = replace(self.seen, complete=True)

    def do_sink_fails(self, why: str) -> None:
        self.troubles.store_failed("files", self.seen.at_ms, why)

    def do_sink_away(self, why: str) -> None:
        self.troubles.store_failed("files", self.seen.at_ms, why, answered=False)

    def do_sink_refuses(self, why: str) -> None:
        self.troubles.store_failed("files", self.seen.at_ms, why, answered=True)

    def do_sink_works(self, _: str) -> None:
        self.troubles.store_works("files")

    def do_pd_fails(self, why: str) -> None:
        self.troubles.upstream_failed(self.seen.at_ms, why)

    def do_pd_works(self, _: str) -> None:
        self.troubles.upstream_answered(self.seen.at_ms)

    def do_tikv_refuses(self, why: str) -> None:
        self.troubles.tikv_stopped("puller-0", self.seen.at_ms, "TikvRefuses", why)

    def do_tikv_sends(self, _: str) -> None:
        self.troubles.tikv_sends("puller-0")

    def do_due(self, _: str) -> str:
        body = self.status.due(self.seen.at_ms / 1000, self._now())
        if body is None:
            return "nothing"
        self.said = {each["type"]: each for each in body["conditions"]}
        return "\n".join([f"lag {body['lagSeconds']}", *map(_short, body["conditions"])])

    def do_say(self, kind: str) -> str:
        return self.said[kind]["message"]

    def _now(self) -> RunSnapshot:
        return replace(self.seen, sink=self.troubles.sink, upstream=self.troubles.upstream, tikv=self.troubles.tikv)


def _short(condition: dict[str, str]) -> str:
    since = condition["lastTransitionTime"].removeprefix("2026-11-21T").removesuffix("Z")
    return f"{condition['type']} {condition['status']} {condition['reason']} since {since}"


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.stem)
def test_story(story: Path, rewrite: bool) -> None:
    datadriven.play(story, datadriven.each(Teller().run), rewrite)


def test_the_fields_are_the_resources() -> None:
    teller = Teller()
    for command in ("at 12:00:00", "checkpoint 11:59:57", "resolved 11:59:58", "complete"):
        teller.run(command)
    body: dict[str, Any] = teller.status.last(0.0, replace(teller._now(), rows=9))
    assert "hold" not in body, "nothing is held yet"
    held = HeldUntil(_ts("11:59:57"), physical_ms(_ts("13:00:00")))
    ddl = (_ts("11:59:56"), "DROP TABLE `a`")
    body = teller.status.last(0.0, replace(teller._now(), rows=9, history=held, ddl=ddl))
    conditions = body.pop("conditions")
    assert body == {
        "hold": {"ts": str(_ts("11:59:57")), "until": "2026-11-21T13:00:00Z"},
        "clusterId": "7",
        "startTs": str(compose(1)),
        "checkpointTs": str(_ts("11:59:57")),
        "checkpointTime": "2026-11-21T11:59:57Z",
        "resolvedTs": str(_ts("11:59:58")),
        "lagSeconds": 3,
        "epoch": 4,
        "tables": 2,
        "rows": 9,
        "lastDdl": {"ts": str(ddl[0]), "time": "2026-11-21T11:59:56Z", "statement": "DROP TABLE `a`"},
        "version": "0.1.0",
        "appliedSettings": {},
    }
    assert [each["type"] for each in conditions] == ["SinkAvailable", "UpstreamAvailable", "WithinLag"]
    assert {tuple(each) for each in conditions} == {("type", "status", "reason", "message", "lastTransitionTime")}


def test_another_setting_is_told_at_once_and_the_lag_is_judged_by_it() -> None:
    teller = Teller()
    for command in ("at 12:00:00", "checkpoint 11:59:30", "resolved 11:59:30", "complete"):
        teller.run(command)
    assert teller.status.due(0.0, teller._now()) is not None
    assert teller.status.due(2.0, teller._now()) is None
    strict = replace(teller._now(), lag_threshold=20.0, settings={"lagThreshold": "20s"})
    body = teller.status.due(3.0, strict)
    assert body is not None
    assert body["appliedSettings"] == {"lagThreshold": "20s"}
    (lag,) = [each for each in body["conditions"] if each["type"] == "WithinLag"]
    assert (lag["status"], lag["message"]) == (
        "False",
        "The lag is above lagThreshold, 20 s. Changes are being pulled.",
    )
    assert teller.status.due(6.0, strict) is None
    lenient = replace(strict, settings={"lagThreshold": "20s", "drainTimeout": "5s"})
    assert teller.status.due(6.0, lenient) is not None, "though no condition is another"


def test_what_the_spec_says_to_no_effect_is_a_condition_of_its_own() -> None:
    def rules(found: Findings) -> tuple[str, str, str]:
        seen = replace(START, at_ms=1, complete=True, rules=found)
        *others, told = Status("0.1.0").last(0.0, seen)["conditions"]
        assert [each["type"] for each in others] == ["SinkAvailable", "UpstreamAvailable", "WithinLag"]
        return told["type"], told["status"], told["reason"]

    assert rules(Findings()) == ("RulesMatch", "True", "AllMatch")
    findings = ((Why.TABLE_MISSING, "No shop.a."), (Why.HIDDEN, "Hidden."))
    assert rules(Findings(findings)) == ("RulesMatch", "False", "TableMissing")
    status = driver_status(parse(RESOURCE), replace(START, rules=Findings(findings)), "0.1.0")
    assert status.findings == ("No shop.a.", "Hidden.")


@pytest.mark.parametrize(("server", "reason"), [("PD", "PdUnavailable"), ("PostgreSQL", "PostgresqlUnavailable")])
def test_the_condition_names_the_server_that_is_asked(server: str, reason: str) -> None:
    def upstream(seen: RunSnapshot) -> tuple[str, str]:
        said = Status("0.1.0").last(0.0, replace(seen, server=server))["conditions"]
        (found,) = [each for each in said if each["type"] == "UpstreamAvailable"]
        return found["reason"], found["message"]

    well = replace(START, complete=True)
    assert upstream(well) == ("Available", f"{server} answers and the pullers receive changes.")
    away = replace(well, upstream=Trouble(0, "It does not answer."))
    said, message = upstream(away)
    assert said == reason
    assert message.startswith(f"{server} has not answered since ")
    assert message.endswith(f"It does not answer. Check {server} and the network to it.")
    late = Status("0.1.0").last(0.0, replace(away, server=server, at_ms=well.at_ms + 600_000))["conditions"]
    assert any(f"{server} has not answered since" in each["message"] for each in late if each["type"] == "WithinLag")


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        (None, {}),
        (KeptLog(7), {"keptBytes": 7, "mostBytes": 0, "walStatus": "", "goneAt": "", "warning": ""}),
        (
            KeptLog(7, "extended", 9, 1_800_000_000_000, "Much."),
            {
                "keptBytes": 7,
                "mostBytes": 9,
                "walStatus": "extended",
                "goneAt": "2027-01-15T08:00:00Z",
                "warning": "Much.",
            },
        ),
    ],
    ids=["TiKV", "no bound", "a bound"],
)
def test_what_is_kept_is_said_whole(kept: KeptLog | None, said: dict[str, Any]) -> None:
    held = replace(START, history=HeldUntil(7, 1_800_000_000_000, kept))
    assert Status("0.1.0").last(0.0, held)["hold"] == {"ts": "7", "until": "2027-01-15T08:00:00Z", **said}


def test_what_sends_nothing_is_named_as_it_is() -> None:
    status, seen = Status("0.1.0"), replace(START, at_ms=1_000, complete=True, source="PostgreSQL and all")
    status.last(0.0, seen)
    said = status.last(0.0, replace(seen, at_ms=seen.at_ms + 61_000))["conditions"]
    (found,) = [each for each in said if each["type"] == "UpstreamAvailable"]
    assert found["reason"] == "ResolvedTsStuck"
    assert found["message"].endswith("Check PostgreSQL and all.")
