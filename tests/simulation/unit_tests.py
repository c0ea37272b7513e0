"""Which mutations the unit tests of their part see as well: unit_tests.json, a column of bench/results/mutations.md.

unit_tests.py [WORD ...]    of the mutations whose names have one of these words, or of all

Each runs in a child of its own, on the edited code, until a test fails.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from found import UNIT_TESTS
from mutation import Mutation
from mutations import MUTATIONS

_TESTS = Path(__file__).parents[1] / "unit"
#: The tests of each part: its own, then those of all that it works with.
_OF = {
    "matcher": "puller/test_puller_matcher.py puller/test_puller_region_events.py puller eventstore",
    "range lock": "puller/test_puller_range_lock.py puller eventstore",
    "span pipeline": "puller/test_puller_span_pipeline.py puller eventstore",
    "reports": "puller/test_puller_reports.py puller",
    "event buffer": "eventstore/test_eventstore_buffer.py",
    "feed": "puller/test_puller_feed.py puller/test_puller_hold.py puller",
    "congestion": "puller/test_puller_congestion.py",
    "held history": "puller/test_puller_held_history.py puller",
    "sorter": "pipeline/test_pipeline_sorter.py",
    "sink": "sink/test_sink_storage_driver.py",
    "planner": "owner/test_owner_planner.py owner",
    "barrier": "owner/test_owner_barrier.py owner",
    "syncpoint": "owner/test_owner_syncpoints.py owner",
    "DDL": "owner/test_owner_scripts.py owner/test_owner_ddl_span.py owner/test_owner_spans.py owner",
    "log": "log/test_log_log.py log owner",
    "recovery": "log/test_log_history.py owner/test_owner_spans.py eventstore/test_eventstore_run_folder.py log owner",
    "dispatch": "owner/test_owner_dispatch.py owner",
    "owner": "owner/test_owner_scripts.py log/test_log_history.py log owner",
    "checkpoint": "owner/test_owner_barrier.py owner/test_owner_scripts.py owner",
    "spans": "owner/test_owner_spans.py owner",
    "quota": "owner/test_owner_quota.py owner",
    "memory": "owner/test_owner_memory.py owner",
    "initial copy": "owner/test_owner_copying.py puller/test_puller_initial_copy.py",
    "slot": "upstream/test_upstream_postgresql_chain.py upstream/test_upstream_postgresql_subscriptions.py "
    "upstream/test_upstream_postgresql_timelines.py",
    "Iceberg": "sink/test_sink_iceberg_lost.py sink/test_sink_iceberg_publish.py sink/test_sink_iceberg_ddl.py "
    "sink/test_sink_iceberg_maintenance.py",
}


def seen(mutation: Mutation) -> str:
    """Yes or no."""
    files = [str(_TESTS / name) for name in _OF[mutation.core].split()]
    child = os.fork()
    if child == 0:
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        mutation.apply(pytest.MonkeyPatch())
        os._exit(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *files]))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED), f"{mutation}: pytest ends with {code}"
    return "yes" if code else "no"


def main() -> int:
    words = sys.argv[1:]
    found = json.loads(UNIT_TESTS.read_text()) if UNIT_TESTS.exists() else {}
    for mutation in MUTATIONS:
        if not words or any(word in str(mutation) for word in words):
            found[str(mutation)] = seen(mutation)
            sys.stdout.write(f"{found[str(mutation)]:4} {mutation}\n")
            sys.stdout.flush()
            UNIT_TESTS.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
