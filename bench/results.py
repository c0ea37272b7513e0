"""What one measurement came to: one shape for all cases, the median of several, and the report that has them.

bench/measuring.md has the form of a report (The form of results); `read` accepts no other.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, TypeAdapter

_STRICT = ConfigDict(extra="forbid", strict=True)


@dataclass(frozen=True)
class Result:
    """docs/design/layouts.md, Benchmark results. None: the case does not have it.

    CPU is of all processes of the run, without the upstream: `_s_per_mrow` seconds a million rows, `_cores` seconds a
    second. `marginal` is of the rows alone: what twice the rows took longer, so that the start is not in it.
    `peak_memory_bytes` is of all processes when they had most: `own` and `shared` (the realtime buffer), and what is
    `mapped` of files, which the kernel can drop. `lag_ms` is the checkpoint's in the sink; `file_lag_ms` is each row's
    from its commit to its file, `consumer_lag_ms` to a consumer of its topic. `own_*`: of these, what came after the
    upstream's resolved-ts that let the row, or the checkpoint, pass. `commit`, `cpu`: what was measured, and on what.
    """

    __pydantic_config__ = _STRICT

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
    consumer_lag_ms: dict[str, int] | None = None
    own_row_lag_ms: dict[str, int] | None = None
    own_lag_ms: dict[str, int] | None = None
    resolved_every_s: float | None = None
    seconds: dict[str, float] | None = None
    live_multiple: float | None = None
    commit: str | None = None
    cpu: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Leave out what the case does not have; `verified` is always there."""
        return {name: value for name, value in asdict(self).items() if value is not None or name == "verified"}


@dataclass(frozen=True)
class Machine:
    """Where the report was written, and by which versions."""

    __pydantic_config__ = _STRICT

    cpu: str
    cores: int
    mem_bytes: int
    python: str
    java: str
    spark: str


@dataclass(frozen=True)
class Report:
    """What bench/bench.py writes."""

    __pydantic_config__ = _STRICT

    schema: Literal[1]
    commit: str
    machine: Machine
    runs: list[Result]


def read(report: Path) -> Report:
    """Raises pydantic.ValidationError, which names what is missing, unknown, or of another type."""
    return TypeAdapter(Report).validate_json(report.read_bytes())


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
