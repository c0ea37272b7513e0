"""Writes the files generated from the code: the CRD and the reference pages. `make generate` runs it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from changefeed.cli.servers_reference import servers_reference
from changefeed.metrics import METRICS, Declared
from changefeed.schema.ddl.ddls import DDLS, DdlKind, Effect
from changefeed.spec.crd import crd_yaml
from changefeed.spec.events_reference import events_reference
from changefeed.spec.reference import configuration_reference

_METRICS_HEAD = """# Metrics of a changefeed

Generated from `spark-apps/changefeed/metrics.py` by `make generate`; don't edit.

The driver serves them for all its executors at `/metrics` on port 9464; on Kubernetes, through the Service
`changefeed-<name>` (port `metrics`). Every metric has the labels `namespace` and `changefeed`.

| Metric | Kind | Extra label | Meaning |
|---|---|---|---|
"""

_DDLS_HEAD = """# DDLs

Generated from `spark-apps/changefeed/schema/ddl/ddls.py` by `make generate`; don't edit.

What readers of the files see of each TiDB DDL ([sink-files.md](../sink-files.md#ddls) shows the files), and the DDL's
name in `ignoreEvent` of an [event filter](../event-filters.md). *Type* is TiDB's action type, as schema files have it.
Any other DDL stops the changefeed, which names the statement instead of guessing its effect.

| Type | Statement | In `ignoreEvent` | What a reader sees |
|---|---|---|---|
"""
_SEEN = {
    Effect.TABLE: "the table's schema file; later rows are under its version",
    Effect.TABLES: "a schema file for each table",
    Effect.RENAMES: "a schema file for each table, under its new name",
    Effect.EXCHANGE: "a schema file for both tables, whose ids are swapped",
    Effect.TABLE_DROP: "a schema file with the statement, and no further rows",
    Effect.DATABASE: "a schema file for the database",
    Effect.DATABASE_DROP: "a schema file for the database, and no further rows of its tables",
    Effect.NOTHING: "nothing: it does not affect the files",
    Effect.UNFOLLOWABLE: "the changefeed stops: the DDL changes rows without saying how",
}


def files() -> dict[str, str]:
    """Path below the repository -> text."""
    return {
        "crds/changefeeds.yaml": crd_yaml(),
        "charts/changefeed-operator/files/changefeeds.yaml": crd_yaml(),
        "docs/reference/configuration.md": configuration_reference(),
        "docs/reference/events.md": events_reference(),
        "docs/reference/metrics.md": metrics_reference(),
        "docs/reference/ddls.md": ddl_reference(),
        "docs/reference/mysql-servers.md": servers_reference(),
    }


def metrics_reference() -> str:
    """docs/reference/metrics.md."""
    return _METRICS_HEAD + "".join(f"{line}\n" for line in map(_metric, METRICS))


def _metric(metric: Declared) -> str:
    buckets = f" Buckets: {', '.join(f'{bound:g}' for bound in metric.bounds)}." if metric.bounds else ""
    label = f"`{metric.label}`" if metric.label else ""
    return f"| `{metric.name}` | {metric.kind} | {label} | {metric.help}{buckets} |"


def ddl_reference() -> str:
    """docs/reference/ddls.md."""
    ddls = sorted(DDLS.values(), key=lambda ddl: (list(_SEEN).index(ddl.effect), ddl.action))
    return _DDLS_HEAD + "".join(f"{_ddl(ddl)}\n" for ddl in ddls)


def _ddl(ddl: DdlKind) -> str:
    name = f"`{ddl.event_type}`" if ddl.event_type else ""
    return f"| {ddl.action:d} | {ddl.statement} | {name} | {_SEEN[ddl.effect]} |"


def write(root: Path) -> Iterator[Path]:
    """Every file, below `root`; gives their paths."""
    for name, text in files().items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        yield path


if __name__ == "__main__":
    for written in write(Path(sys.argv[1])):
        sys.stdout.write(f"{written}\n")
