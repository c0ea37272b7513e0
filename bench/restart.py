"""What a changefeed that was away takes to be where it would be: after a start, a pause and a kill."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from cases import Case
from measured import Run, bench_cluster, changefeed_run
from readers import FileReader
from results import Result
from steady import Watch

_DEADLINE_S = 600.0
_PULLED = "changefeed_puller_events_total"


def catch_up(case: Case, verify: bool) -> Result:
    """`seconds` of the workload are written while nothing runs; how fast that is made good, beside what goes on."""
    with (
        tempfile.TemporaryDirectory(prefix="changefeed-bench-") as name,
        bench_cluster([*case.upstream(case.rows), f"--rate={case.rate}"]) as upstream,
    ):
        folder = Path(name)
        with changefeed_run(upstream, folder, case.storage, mode=case.mode) as run:
            Watch(run, upstream, FileReader(run)).until_caught_up()
            upstream.begin_workload()
            Watch(run, upstream, FileReader(run)).until_caught_up()
            run.drain()
            left_ms = run.checkpoint_ms()
        time.sleep(case.seconds)  # the backlog is as long as this
        started_ms = time.time() * 1000
        with changefeed_run(upstream, folder, case.storage, mode=case.mode) as run:
            run.until(lambda: _has_pulled(run), "rows are pulled", _DEADLINE_S)
            pulled_ms = time.time() * 1000
            run.until_published(started_ms, "the backlog is in the sink", _DEADLINE_S)
            caught_up_ms = time.time() * 1000
            upstream.end_workload()
            run.drain()
        verified = run.verify() if verify else None
    backlog_ms, took_ms = started_ms - left_ms, caught_up_ms - pulled_ms
    rows = round(case.rate * backlog_ms / 1000)
    return Result(
        name=case.name,
        kind=case.kind,
        verified=verified,
        rows=rows,
        wall_s=round(took_ms / 1000, 2),
        rows_per_s=round(rows / took_ms * 1000),
        live_multiple=round(backlog_ms / took_ms, 2),
        seconds={
            "backlog": round(backlog_ms / 1000, 1),
            "from the start until the backlog is in the sink": round((caught_up_ms - started_ms) / 1000, 2),
        },
        peak_rss_bytes=run.meter.peak_rss,
        peak_memory_bytes=run.meter.peak_memory._asdict(),
    )


def _has_pulled(run: Run) -> bool:
    """Asked for now: the meter's own samples are too far apart for the beginning of a time that is measured."""
    run.meter.sample()
    return any(name == _PULLED and count > 0 for (name, _), count in list(run.meter.metrics.items()))


def recovery(case: Case, verify: bool) -> Result:
    """Seconds from a start, or a kill of the driver with a start at once, until all committed before is in the sink."""
    with (
        tempfile.TemporaryDirectory(prefix="changefeed-bench-") as name,
        bench_cluster([*case.upstream(case.rows), f"--rate={case.rate}"]) as upstream,
    ):
        folder = Path(name)
        upstream.begin_workload()
        began_ms = time.time() * 1000
        with changefeed_run(upstream, folder, case.storage, mode=case.mode) as run:
            run.until_published(began_ms, "it has started", _DEADLINE_S)
            started_ms = time.time() * 1000
            Watch(run, upstream, FileReader(run)).until_caught_up()
            killed_ms = time.time() * 1000
            run.process.kill()
            run.process.wait()
        with changefeed_run(upstream, folder, case.storage, mode=case.mode) as run:
            run.until_published(killed_ms, "it has recovered", _DEADLINE_S)
            recovered_ms = time.time() * 1000
            rows = upstream.end_workload()["rows"]
            run.drain()
        verified = run.verify() if verify else None
    wall_s = (recovered_ms - began_ms) / 1000
    return Result(
        name=case.name,
        kind=case.kind,
        verified=verified,
        rows=rows,
        wall_s=round(wall_s, 2),
        rows_per_s=case.rate,
        seconds={
            "start": round((started_ms - began_ms) / 1000, 2),
            "recovery after SIGKILL": round((recovered_ms - killed_ms) / 1000, 2),
        },
        peak_rss_bytes=run.meter.peak_rss,
        peak_memory_bytes=run.meter.peak_memory._asdict(),
    )
