"""What `make generate` writes: every file, complete, where it says."""

from __future__ import annotations

from pathlib import Path

from changefeed.cli.generated import files, metrics_reference, write
from changefeed.metrics import METRICS

ROOT = Path(__file__).parents[3]


def test_every_file_is_written_below_the_folder(tmp_path: Path) -> None:
    written = list(write(tmp_path))
    assert {str(path.relative_to(tmp_path)): path.read_text() for path in written} == files()
    assert {"crds/changefeeds.yaml", "docs/reference/configuration.md", "docs/reference/metrics.md"} <= files().keys()


def test_the_checked_in_files_are_these() -> None:
    stale = [name for name, text in files().items() if (ROOT / name).read_text() != text]
    assert stale == [], "run make generate"


def test_the_metrics_page_has_every_metric_once() -> None:
    rows = [line.split("`")[1] for line in metrics_reference().splitlines() if line.startswith("| `")]
    assert rows == [metric.name for metric in METRICS]
    assert "Buckets: 0.001, 0.005, " in metrics_reference()
