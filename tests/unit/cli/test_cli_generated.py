"""What `make generate` writes: every file, complete, where it says."""

from __future__ import annotations

from pathlib import Path

from changefeed.cli.generated import files, metrics_reference, write
from changefeed.cli.servers_reference import EXAMPLES, servers_reference
from changefeed.metrics import METRICS
from changefeed.schema.ddl.actions import Action
from changefeed.schema.ddl.ddls import DDLS, Effect

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


def test_the_page_of_servers_has_every_ddl_that_changes_a_definition() -> None:
    """But for old types of jobs, and those that a restore or a repair makes of the same statements."""
    shown = {example.job.type for examples in EXAMPLES.values() for example in examples}
    left_out = {
        Action.ADD_COLUMNS, Action.DROP_COLUMNS, Action.CREATE_TABLES, Action.REPAIR_TABLE, Action.ALTER_TABLE_MODE,
        Action.MODIFY_ENGINE_ATTRIBUTE, Action.MODIFY_SCHEMA_READ_ONLY,
    }  # fmt: skip
    changing = {action for action, ddl in DDLS.items() if ddl.effect not in (Effect.NOTHING, Effect.UNFOLLOWABLE)}
    assert changing - shown == left_out


def test_the_page_of_servers_tells_of_a_ddl_what_each_gets() -> None:
    rows = {line.split(" | ")[0]: line.split(" | ")[1:] for line in servers_reference().splitlines()}
    runs = ["runs"] * 5
    assert rows["| DROP COLUMN"] == [*runs, "runs |"]
    assert rows["| JSON"] == ["`LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin` for `JSON`", *runs[1:], "runs |"]
    assert rows["| a column that is computed, STORED"][0] == "refused: knows no generated columns, such as c"
    assert rows["| CREATE TABLE … AUTO_RANDOM"] == [*runs, "with `AUTO_RANDOM(5)`; with `CLUSTERED` |"]
    assert rows["| ALTER INDEX … INVISIBLE"][3] == "nothing is executed"
    assert rows["| EXCHANGE PARTITION … WITHOUT VALIDATION"][0] == "without `WITHOUT VALIDATION`"
    assert rows["| RENAME INDEX"][0] == "`` DROP KEY `k`, ADD KEY `l` (`a`) `` for `` RENAME KEY `k` TO `l` ``"
