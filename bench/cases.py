"""What is measured: a case is declared here and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

Kind = Literal["throughput", "steady", "catch-up", "recovery", "slot", "slot-lag"]
How = Literal["scan", "live", "one", "copy", "written"]
Protocol = Literal["csv", "canal-json", "parquet", "iceberg", "delta"]
Mode = Literal["Throughput", "LowLatency"]
Store = Literal["disk", "s3", "kafka"]

_PROTOCOLS: tuple[Protocol, ...] = ("csv", "canal-json", "parquet")
_COPIED: tuple[Protocol, ...] = (*_PROTOCOLS, "iceberg")  # of it, a changelog
TABLES = ("iceberg", "delta")  # protocols that are sinks of their own
_MODES: dict[Mode, str] = {"Throughput": "1s", "LowLatency": "200ms"}  # with the flush interval
_STORES: tuple[Store, ...] = ("disk", "s3")
_RESOLVED = {"": 1.0, "-200ms": 0.2}  # TiKV's default, and what docs/running.md advises for low latency


@dataclass(frozen=True)
class Case:
    """One measurement.

    `shape`, `how`: as of bench/upstream.py; of a slot, as of bench/postgresql.py. `rows`: of all tables; those of a
    steady case exist before it begins and are updated, `rate` a second, for `seconds`. `core`: the run has only this
    one, and the upstream the next.
    `resolved_s`: between two resolved-ts of the upstream, where lag is measured; None: each commit is one.
    `in_suite`: it is measured when no case is named.
    """

    name: str
    kind: Kind
    shape: str = "update"
    how: How = "written"
    protocol: Protocol = "csv"
    tables: int = 2
    regions: int = 4
    rows: int = 2_000_000
    rate: float = 0.0
    seconds: float = 20.0
    flush: str = "5s"
    mode: Mode = "Throughput"
    store: Store = "disk"
    resolved_s: float | None = 1.0
    core: int | None = None
    in_suite: bool = True

    @property
    def storage(self) -> dict[str, Any]:
        """The sink's options beside its uri; of tables, see `lake`."""
        options = {
            "csv": {"csv": {"includeCommitTs": True}},
            "canal-json": {"canalJson": {"enableTidbExtension": True}},
        }
        return {"protocol": self.protocol, "flushInterval": self.flush, **options.get(self.protocol, {})}

    def lake(self, folder: Path) -> dict[str, Any]:
        """The sink of a changelog, with its data files in `folder`'s `lake`."""
        if self.protocol == "delta":
            return {"delta": {"uri": (folder / "lake").as_uri(), "flushInterval": self.flush}}
        catalog = {"uri": f"sqlite:///{folder}/catalog.db"}
        return {"iceberg": {"warehouse": (folder / "lake").as_uri(), "catalog": catalog, "flushInterval": self.flush}}

    def upstream(self, rows: int) -> list[str]:
        """The options of bench/upstream.py for so many rows in all tables."""
        options = {
            "shape": self.shape,
            "how": self.how,
            "tables": self.tables,
            "regions": self.regions,
            "rows": max(1, rows // self.tables),
        }
        return [f"--{name}={value}" for name, value in options.items()]

    def sized(self, rows: int | None, seconds: float | None) -> Case:
        """Return the case with other sizes, where they are given."""
        case = self if rows is None else replace(self, rows=rows)
        return case if seconds is None else replace(case, seconds=seconds)


def _throughput() -> list[Case]:
    """Every shape by each protocol, met by a scan and live, with one core and with all."""
    sizes = {
        "insert": (2, 2_000_000),
        "update": (2, 500_000),
        "wide": (2, 500_000),
        "kilobyte": (2, 500_000),
        "small": (2, 1_000_000),
        "thousand-tables": (1_000, 1_000_000),
    }
    hows: tuple[How, ...] = ("scan", "live")
    return [
        Case(
            name=f"{shape}-{protocol}-{how}" + ("" if core is None else "-1-core"),
            kind="throughput",
            shape="insert" if shape == "thousand-tables" else shape,
            # A history that is only served has no old values: updates are written while they are watched.
            how="written" if (shape, how) == ("update", "live") else how,
            protocol=protocol,
            tables=tables,
            regions=1 if tables == 1_000 else 4,
            rows=rows,
            core=core,
            flush="1s" if (shape, how) == ("update", "live") else "5s",  # nothing else ends its last files
            in_suite=(shape == "insert" and (core is None or protocol != "parquet"))
            or (protocol != "parquet" and core is None and (protocol == "csv" or how == "scan")),
        )
        for shape, (tables, rows) in sizes.items()
        for protocol, how, core in product(_PROTOCOLS, hows, (None, 0))
    ]


def _copies() -> list[Case]:
    """Rows that are read as of a ts, not as changes; otherwise those of insert-csv-scan."""
    return [Case(f"copy-{protocol}", "throughput", "insert", "copy", protocol) for protocol in _COPIED]


def _lag() -> list[Case]:
    """16 tables at three rates, in both modes, to disk and to S3; at the least, to Kafka and by the resolved-ts too."""
    often = product((1_000, 10_000, 100_000), _MODES.items(), _STORES, ("",))
    by_resolved = product((1_000,), _MODES.items(), ("disk", "kafka"), _RESOLVED)
    chosen = dict.fromkeys([*often, *by_resolved])
    return [
        Case(
            name=f"lag-{rate // 1000}k-{mode}-{store}{resolved}",
            kind="steady",
            tables=16,
            rows=160_000,
            rate=rate,
            flush=flush,
            mode=mode,
            store=store,
            resolved_s=_RESOLVED[resolved],
            in_suite=store != "kafka",  # a broker comes from Maven, which not everybody has
        )
        for rate, (mode, flush), store, resolved in chosen
    ]


def _slot_lag() -> list[Case]:
    """As lag-1k-LowLatency, of PostgreSQL, whose resolved-ts comes with each commit."""
    sizes: dict[str, Any] = {"tables": 16, "rows": 160_000, "rate": 1_000, "resolved_s": None}
    low: dict[str, Any] = {"mode": "LowLatency", "flush": _MODES["LowLatency"]}
    stores: tuple[Store, ...] = ("disk", "kafka")
    return [
        Case(
            f"postgresql-lag-1k-LowLatency-{store}", "slot-lag", store=store, in_suite=store != "kafka", **sizes, **low
        )
        for store in stores
    ]


CASES = {
    case.name: case
    for case in (
        *_throughput(),
        Case("insert-csv-one", "throughput", "insert", "one", tables=1, rows=5_000_000, in_suite=False),
        *_copies(),
        Case("insert-iceberg-scan", "throughput", "insert", "scan", "iceberg", in_suite=False),
        Case("insert-delta-scan", "throughput", "insert", "scan", "delta", in_suite=False),
        Case("postgresql-csv-scan", "slot", "insert", "scan", tables=1, rows=5_000_000, flush="1s"),
        Case("postgresql-csv-live", "slot", "insert", "written", tables=1, rows=5_000_000, flush="1s"),
        Case("postgresql-copy-csv", "slot", "insert", "copy", tables=1, rows=5_000_000, flush="1s"),
        *_lag(),
        *_slot_lag(),
        Case("idle-1-table", "steady", tables=1, regions=1, rows=1_000, seconds=30),
        Case("idle-64x4", "steady", tables=64, rows=64_000, seconds=30),
        Case("trickle-64x4", "steady", tables=64, rows=64_000, rate=500, flush="1s", seconds=60),
        Case("thousand-tables-trickle", "steady", tables=1_000, regions=1, rows=10_000, rate=1_000, seconds=60),
        Case("catch-up", "catch-up", tables=16, rows=1_600_000, rate=10_000, flush="1s", seconds=60),
        Case("recovery", "recovery", tables=4, rows=40_000, rate=1_000, flush="1s", seconds=0),
    )
}
