"""How fast, and for how much CPU: one run of N rows and one of 2N, whose difference is what the rows alone take."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from baselines import cat, receive
from cases import TABLES, Case
from measured import Cluster, Run, bench_cluster, changefeed_run, memory_in_use
from meter import Cpu
from results import Result

_START_S, _WRITE_S = 120.0, 600.0


@dataclass(frozen=True)
class Once:
    """One run; `wall_s`: from its first segment to its last file."""

    run: Run
    rows: int
    target_ts: str
    wall_s: float
    bytes_out: int
    files: int
    cpu: Cpu
    stages: dict[str, float]
    cluster_cpu_s: float
    verified: bool | None = None
    baselines: dict[str, dict[str, float]] | None = None


def throughput(case: Case, verify: bool) -> Result:
    half = _once(case, case.rows, False, with_baselines=False)
    return compared(case, half, _once(case, 2 * case.rows, verify, with_baselines=True))


def compared(case: Case, half: Once, whole: Once) -> Result:
    """`whole`: of twice the rows."""
    marginal = _marginal(half, whole)
    millions = whole.rows / 1e6
    return Result(
        name=case.name,
        kind="throughput",
        verified=whole.verified,
        rows=whole.rows,
        wall_s=round(whole.wall_s, 3),
        rows_per_s=round(whole.rows / whole.wall_s),
        bytes_out=whole.bytes_out,
        mb_per_s=round(whole.bytes_out / whole.wall_s / 1e6, 1),
        files=whole.files,
        cpu_s_per_mrow=round(sum(whole.cpu) / millions, 2),
        stages={stage: round(seconds / millions, 3) for stage, seconds in whole.stages.items()},
        marginal=marginal,
        cluster_cpu_s_per_mrow=round(whole.cluster_cpu_s / millions, 2),
        baselines={name: _compared(figures, marginal) for name, figures in (whole.baselines or {}).items()},
        peak_rss_bytes=whole.run.meter.peak_rss,
        peak_memory_bytes=whole.run.meter.peak_memory._asdict(),
        peak_anonymous_bytes=whole.run.meter.peak_anonymous,
    )


def _marginal(half: Once, whole: Once) -> dict[str, Any]:
    """CPU seconds a million rows."""
    millions = (whole.rows - half.rows) / 1e6
    user = (whole.cpu.user - half.cpu.user) / millions
    kernel = (whole.cpu.kernel - half.cpu.kernel) / millions
    stages = {
        stage: round((seconds - half.stages.get(stage, 0.0)) / millions, 3) for stage, seconds in whole.stages.items()
    }
    return {
        "cpu_s_per_mrow": round(user + kernel, 2),
        "user": round(user, 2),
        "kernel": round(kernel, 2),
        "stages": stages,
    }


def _once(case: Case, rows: int, verify: bool, with_baselines: bool) -> Once:
    options = [*case.upstream(rows), f"--write-rows={rows}", "--min-ts-interval=0.2"]
    with (
        tempfile.TemporaryDirectory(prefix="changefeed-bench-") as name,
        bench_cluster(options, None if case.core is None else case.core + 1) as upstream,
    ):
        folder = Path(name)
        with memory_in_use():
            once = (_written if case.how == "written" else _there)(case, upstream, folder)
        verified = once.run.verify() if verify else None
        baselines = _baselines(case, upstream, once) if with_baselines else None
    return replace(once, verified=verified, baselines=baselines)


def _there(case: Case, upstream: Cluster, folder: Path) -> Once:
    """All rows are committed when the run starts, and it ends behind the last one."""
    end = upstream.next_line()
    served = upstream.cpu_s()
    spec: dict[str, Any] = {"targetTs": end["ts"]}
    if case.how == "copy":  # nothing changes afterwards
        spec = {"initialCopy": True, "startTs": end["ts"], "targetTs": str(int(end["ts"]) + 1)}
    if case.protocol in TABLES:
        spec["sink"] = case.lake(folder)
    with changefeed_run(upstream, folder, case.storage, core=case.core, **spec) as run:
        run.wait()
    if run.meter.first_segment is None:
        raise SystemExit(f"{case.name}: the run ended before a sample was taken: give it more rows")
    return ended(run, end, run.meter.first_segment, upstream.cpu_s() - served)


def _written(case: Case, upstream: Cluster, folder: Path) -> Once:
    """The rows are written while they are watched, as fast as the upstream can."""
    with changefeed_run(upstream, folder, case.storage, core=case.core) as run:
        run.until(lambda: run.meter.metric("changefeed_owner_state_info", "Normal"), "it is Normal", _START_S)
        served, began = upstream.cpu_s(), time.time()
        upstream.begin_workload()
        end = upstream.next_line()
        run.until_published((int(end["ts"]) >> 18) + 1, "all rows are in the sink", _WRITE_S)
        run.meter.sample()
        cluster_cpu_s = upstream.cpu_s() - served
        run.drain()
    return ended(run, end, began, cluster_cpu_s)


def ended(run: Run, end: dict[str, Any], began: float, cluster_cpu_s: float) -> Once:
    """`end`: what the upstream said of all its rows."""
    files = [path.stat() for path in run.data_files()]
    return Once(
        run=run,
        rows=end["rows"],
        target_ts=end["ts"],
        wall_s=max(file.st_mtime for file in files) - began,
        bytes_out=sum(file.st_size for file in files),
        files=len(files),
        cpu=run.meter.total(),
        stages=run.meter.stages(),
        cluster_cpu_s=cluster_cpu_s,
    )


def _baselines(case: Case, upstream: Cluster, once: Once) -> dict[str, dict[str, float]]:
    found = {"cat": cat(once.run.data_files(), once.run.folder / "copy", once.rows)}
    if case.how == "scan":  # the same events, once more
        ready = upstream.ready
        found["receive"] = receive(ready["pd"], ready["startTs"], once.target_ts, once.rows)
    return found


def _compared(baseline: dict[str, float], marginal: dict[str, Any]) -> dict[str, float]:
    """With `times`: how much CPU a row takes, in rows of the baseline."""
    return {**baseline, "times": round(marginal["cpu_s_per_mrow"] / max(baseline["cpu_s_per_mrow"], 1e-9), 1)}
