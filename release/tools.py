"""Other people's programs that a release runs, built from pinned Go modules (tests/cluster/cluster_programs.py)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from cluster_programs import program

from release.commit import ReleaseRefused


def run(name: str, *arguments: str | Path, environment: Mapping[str, str] | None = None) -> str:
    """Run `helm`, `crane` or `cosign`, and return what it wrote to its standard output."""
    command = [str(program(name)), *map(str, arguments)]
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "TZ": "UTC", **(environment or {})},
        umask=0o022,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ReleaseRefused(f"`{name} {' '.join(command[1:])}` failed: {done.stderr[-3000:]}")
    return done.stdout
