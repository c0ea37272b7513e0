"""Writes the files that are made from the code: the CRD and the reference pages. `make generate` runs it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from changefeed.metrics import METRICS, Declared
from changefeed.spec.crd import crd_yaml
from changefeed.spec.reference import configuration_reference

_METRICS_HEAD = """# Metrics of a changefeed

Made from `spark-apps/changefeed/metrics.py` by `make generate`; don't edit.

The driver serves them for all its executors: `/metrics`, port 9464, on Kubernetes behind the Service
`changefeed-<name>` (port `metrics`). Every one has the labels `namespace` and `changefeed`.

| Metric | Kind | Further label | Meaning |
|---|---|---|---|
"""


def files() -> dict[str, str]:
    """Path below the repository -> text."""
    return {
        "crds/changefeeds.yaml": crd_yaml(),
        "charts/changefeed-operator/files/changefeeds.yaml": crd_yaml(),
        "docs/reference/configuration.md": configuration_reference(),
        "docs/reference/metrics.md": metrics_reference(),
    }


def metrics_reference() -> str:
    """docs/reference/metrics.md."""
    return _METRICS_HEAD + "".join(f"{line}\n" for line in map(_metric, METRICS))


def _metric(metric: Declared) -> str:
    buckets = f" Buckets: {', '.join(f'{bound:g}' for bound in metric.bounds)}." if metric.bounds else ""
    label = f"`{metric.label}`" if metric.label else ""
    return f"| `{metric.name}` | {metric.kind} | {label} | {metric.help}{buckets} |"


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
