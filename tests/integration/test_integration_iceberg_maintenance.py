"""Maintenance by Spark beside a changefeed that runs and is killed: it goes on, or says what to do and then goes on.
And the statements of docs/iceberg.md, as they stand there.

`CHANGEFEED_EVIDENCE=FILE`: 50 actions and 20 kills in each mode instead of 4 and 1, and what was counted goes there;
`CHANGEFEED_SEED=123` draws the same actions again.
"""

from __future__ import annotations

import json
import os
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from changefeed_devcluster.workload.bank import Bank
from conftest import Upstream
from integration_iceberg import local
from integration_java import FETCH_S
from integration_maintained import fed, writing
from integration_maintenance import ACTIONS, Maintained, NotYet, Stops, as_parquet, forgotten
from integration_spark_sql import ICEBERG, SPARK, START_S, SparkFailed, SparkSql, running
from integration_story import Story

EVIDENCE = os.environ.get("CHANGEFEED_EVIDENCE")
ACTS, KILLS, BETWEEN_CHECKS = (50, 20, 5) if EVIDENCE else (4, 1, 2)

PAGE = (Path(__file__).parents[2] / "docs" / "iceberg.md").read_text()
SECTION = PAGE.partition("\n## Maintenance\n")[2].partition("\n## ")[0]

pytestmark = pytest.mark.timeout(2 * FETCH_S + START_S + (7200 if EVIDENCE else 300))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSql]:
    with running(tmp_path_factory.mktemp("spark")) as spark:
        yield spark


def drawn(rng: random.Random) -> Iterator[Callable[[Maintained], Stops | None]]:
    """Without end; none comes again before all others."""
    while True:
        yield from rng.sample(ACTIONS, len(ACTIONS))


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_maintenance_beside_a_changefeed_that_is_killed(
    upstream: Upstream, spark: SparkSql, tmp_path: Path, mode: str
) -> None:
    story = Story()
    rng = random.Random(story.seed)
    bank = Bank(upstream.tidb, 2, 2, 40, seed=story.seed)
    bank.create()
    done, actions = Counter[str](), drawn(rng)
    with fed(upstream, tmp_path, mode, spark) as changefeed, ThreadPoolExecutor(1) as beside:
        bank.load(Event())
        changefeed.start()
        changefeed.wait_until_passed()
        deadly = set(rng.sample(range(ACTS), KILLS))
        with writing(bank, changefeed.quiet):
            while (number := done.total()) < ACTS:
                action, at = next(actions), changefeed.at(rng.choice(bank.tables).info.name, rng)
                story.say(f"{number} {action.__name__} {at.name} {'and a kill' if number in deadly else ''}")
                acting = beside.submit(action, at)
                if number in deadly:
                    time.sleep(rng.uniform(0, 1.5))  # a random moment is what is wanted
                    changefeed.kill()
                try:
                    stops = acting.result()
                except NotYet as why:
                    story.say(str(why))
                    continue
                done[action.__name__] += 1
                if stops is not None:
                    changefeed.mend(at, stops)
                if done.total() % BETWEEN_CHECKS == 0:
                    with changefeed.quiet:
                        changefeed.check(bank)
        changefeed.check(bank)
        for table in bank.tables:
            as_parquet(changefeed.at(table.info.name, rng))
        verdict = changefeed.verified()
    assert (verdict.ok, verdict.notes) == (True, []), verdict
    if EVIDENCE:
        said = {"seed": story.seed, "mode": mode, "actions": done, **changefeed.counts, "rows": verdict.rows}
        with Path(EVIDENCE).open("a") as file:
            file.write(json.dumps(said) + "\n")


def printed(pattern: str) -> list[str]:
    """Code of the page's section, of which each must be there."""
    found = re.findall(pattern, SECTION, re.MULTILINE)
    assert found, pattern
    return found


def test_the_pages_statements(upstream: Upstream, spark: SparkSql, tmp_path: Path) -> None:
    """Each compacts, expires or removes what the page says, of tables that equality deletes made hard to read."""
    assert f"Spark {SPARK} and Iceberg {ICEBERG}" in SECTION
    rng = random.Random(1)
    bank = Bank(upstream.tidb, 1, 1, 40)
    bank.create()
    with fed(upstream, tmp_path, "upsert", spark) as changefeed:
        at = changefeed.at("accounts_0", rng)
        days = {
            "2026-11-26 00:00:00": datetime.now(UTC) + timedelta(days=1),
            "2026-11-22 00:00:00": datetime.now(UTC) - timedelta(days=2),
        }

        def run(statement: str) -> list[list[Any]]:
            for day, moment in days.items():
                statement = statement.replace(day, moment.strftime("%F %T"))
            return at.sql(statement.replace("lake.", f"{at.lake}.").replace("shop.orders", at.qualified))

        bank.load(Event())
        changefeed.start()
        for _ in range(12):
            bank.step()
            changefeed.wait_until_passed()
        with pytest.raises(ValueError, match="equality deletes"):
            at.table().scan().to_arrow()
        compact, manifests, expire, orphans = printed(r"^(CALL .*);$")
        assert run(compact)[0][-1] > 0  # removed_delete_files_count
        (mark,) = printed(r"`(ALTER TABLE [^`]* TAG [^`]*)`")
        run(mark)
        changefeed.check(bank)
        rows = at.table().scan().to_arrow()
        snapshot, checkpoint = at.table().current_snapshot(), "changefeed.checkpoint-ts"
        assert snapshot is not None
        assert snapshot.summary is not None
        assert snapshot.summary[checkpoint] is None
        assert checkpoint in at.table().properties
        run(manifests)
        assert len(at.table().snapshots()) > 10
        run(expire)
        assert len(at.table().snapshots()) == 10
        orphan = forgotten(at)
        assert [local(row[0]) for row in run(orphans)] == [orphan]
        for refused in printed(r"`(now\(\) - INTERVAL[^`]*)`"):
            with pytest.raises(SparkFailed, match="number of args and params must match after binding"):
                at.sql(expire.replace("TIMESTAMP '2026-11-26 00:00:00'", refused).replace("lake.", f"{at.lake}."))
        bank.step()
        changefeed.check(bank)
        table = at.table()
        tagged = table.snapshot_by_name("compacted")
        assert tagged is not None
        assert table.scan(snapshot_id=tagged.snapshot_id).to_arrow().sort_by("id") == rows.sort_by("id")
        (expire_here,) = printed(r"`(table\.maintenance[^`]*)`")
        exec(expire_here, {"table": table, "moment": datetime.now(UTC) + timedelta(days=1)})
        assert {each.snapshot_id for each in at.table().snapshots()} == {
            tagged.snapshot_id,
            at.table().current_snapshot().snapshot_id,
        }
        changefeed.check(bank)
        assert changefeed.verified().ok
