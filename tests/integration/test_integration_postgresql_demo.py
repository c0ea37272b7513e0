"""`make demo UPSTREAM=postgresql`, from a folder of its own: it verifies what it has written."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
DEADLINE_S = 170


def test_the_demo_of_postgresql_verifies_its_files(tmp_path: Path) -> None:
    (tmp_path / "examples").mkdir()
    for name in ("demo_postgresql.py", "demo-postgresql.yaml"):
        shutil.copy(EXAMPLES / name, tmp_path / "examples" / name)
    command = [sys.executable, tmp_path / "examples" / "demo_postgresql.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "lead to the tables, row by row" in done.stdout
