"""What Argo CD is told not to look at: what a driver writes every ten seconds, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import yaml
from changefeed.owner.reporting.snapshot import RunSnapshot
from changefeed.owner.reporting.status import Status
from changefeed.spec.driver_status import StageRate
from changefeed.upstream.contract import HeldUntil

ARGO = Path(__file__).parents[3] / "examples" / "gitops" / "argocd" / "argocd-cm.yaml"
_MS = 1 << 18  # in a ts


def test_argo_cd_does_not_look_at_what_moves_by_itself() -> None:
    now = 1_800_000_000_000
    before = RunSnapshot(at_ms=now, epoch=1, cluster_id=73, start_ts=5, published_ts=now * _MS, resolved_ts=now * _MS)
    before = replace(before, table_count=4, rows=100, stages=(StageRate(name="puller", rows=100),), complete=True)
    before = replace(before, history=HeldUntil(now * _MS, now + 1000), copied="1 of 9 tables")
    later = now + 10_000
    after = replace(before, at_ms=later, published_ts=(later - 3000) * _MS, resolved_ts=later * _MS, rows=200)
    after = replace(after, stages=(StageRate(name="puller", rows=200),))
    after = replace(after, history=HeldUntil(later * _MS, later + 1000), copied="2 of 9 tables")
    status = Status(60.0)
    one, other = status.last(0.0, before), status.last(10.0, after)
    moved = {f"/status/{name}" for name in other if one.get(name) != other[name]}

    data = yaml.safe_load(ARGO.read_text())["data"]
    ignored = yaml.safe_load(data["resource.customizations.ignoreResourceUpdates.changefeed.dev_Changefeed"])
    assert set(ignored["jsonPointers"]) == moved
    assert data["resource.ignoreResourceUpdatesEnabled"] == "true"
