"""What one measurement came to: one shape for all cases, and the median of several."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Result:
    """docs/design/layouts.md, Benchmark results. None: the case does not have it.

    CPU is of all processes of the run, without the upstream: `_s_per_mrow` seconds a million rows, `_cores` seconds a
    second. `marginal` is of the rows alone: what twice the rows took longer, so that the start is not in it.
    `peak_memory_bytes` is of all processes when they had most: `own` and `shared` (the realtime buffer), and what is
    `mapped` of files, which the kernel can drop. `lag_ms` is the checkpoint's in the sink, `file_lag_ms` is each row's
    from its commit to its file.
    """

    name: str
    kind: str
    verified: bool | None
    rows: int
    wall_s: float
    rows_per_s: float
    peak_rss_bytes: int
    peak_memory_bytes: dict[str, int]
    repeats: int = 1
    bytes_out: int | None = None
    mb_per_s: float | None = None
    files: int | None = None
    cpu_s_per_mrow: float | None = None
    stages: dict[str, float] | None = None
    marginal: dict[str, Any] | None = None
    cluster_cpu_s_per_mrow: float | None = None
    baselines: dict[str, dict[str, float]] | None = None
    peak_anonymous_bytes: dict[str, int] | None = None
    cpu_cores: float | None = None
    kernel_cpu_cores: float | None = None
    stages_cpu_cores: dict[str, float] | None = None
    cluster_cpu_cores: float | None = None
    made_per_s: dict[str, float] | None = None
    lag_ms: dict[str, int] | None = None
    resolved_lag_ms: dict[str, int] | None = None
    file_lag_ms: dict[str, int] | None = None
    seconds: dict[str, float] | None = None
    live_multiple: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Leave out what the case does not have; `verified` is always there."""
        return {name: value for name, value in asdict(self).items() if value is not None or name == "verified"}


def median(results: Sequence[Result]) -> Result:
    """Take the median of each figure by itself; verified when all are."""
    if len(results) == 1:
        return results[0]
    merged = _median([asdict(result) for result in results])
    return Result(**{**merged, "repeats": len(results)})


def _median(values: Sequence[Any]) -> Any:
    first = values[0]
    if isinstance(first, dict):
        names = [name for name in first if all(name in value for value in values)]
        return {name: _median([value[name] for value in values]) for name in names}
    if isinstance(first, bool):
        return all(values)
    if isinstance(first, int):
        return round(statistics.median(values))
    return statistics.median(values) if isinstance(first, float) else first
