"""The MySQL and the Kafka sink against servers that are started for it: a table of each goes to the file that is named.

bench/database_sinks.py --out bench/results/database_sinks.txt
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from changefeed.sink.kafka.topics import create_topic
from measured import ROOT

sys.path.insert(0, str(ROOT / "tests" / "integration" / "support"))
from integration_kafka_broker import running as broker_running
from integration_mariadb import running as mariadb_running

_PARTITIONS = 8


def _said(script: str, *arguments: str) -> str:
    command = [sys.executable, str(Path(__file__).with_name(script)), *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=200_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="changefeed-bench-") as folder, mariadb_running(Path(folder)) as database:
        found = _said("mysql_sink.py", f"--port={database.port}", f"--rows={given.rows}")
        found += _said("mysql_conflicts.py", f"--port={database.port}", f"--rows={given.rows // 4}")
        found += _said("mysql_definitions.py", f"--port={database.port}")
    with tempfile.TemporaryDirectory(prefix="changefeed-bench-") as folder, broker_running(Path(folder)) as broker:
        create_topic(broker.cluster, "bench", _PARTITIONS, 1)
        where = (f"--brokers={broker.cluster.brokers}", "--topic=bench")
        found += _said("kafka_sink.py", f"--rows={2 * given.rows}", *where)
    given.out.write_text(found)
    sys.stdout.write(found)


if __name__ == "__main__":
    main()
