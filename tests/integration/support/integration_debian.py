"""Programs of Debian's packages: from PATH; where they are not, and we may, the package is installed."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest


def program(name: str, package: str) -> str:
    """Its path; fails the test, and says what to do, when it can't be had."""
    if os.geteuid() == 0 and shutil.which("apt-get"):
        with (Path(tempfile.gettempdir()) / f"changefeed-{package}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # tests run side by side, and a package half installed has its programs
            for arguments in (["update"], ["install", "-y", "--no-install-recommends", package]):
                if _found(name) is None:
                    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
                    subprocess.run(["apt-get", "-q", *arguments], env=environment, capture_output=True, check=False)
    found = _found(name)
    if found is None:
        pytest.fail(f"{name} is not installed: apt-get install --no-install-recommends {package}")
    return found


def _found(name: str) -> str | None:
    """PostgreSQL's server stands in a folder of its version, the newest first."""
    versions = sorted(
        Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: int(folder.parent.name), reverse=True
    )
    folders = ["/usr/sbin", "/usr/local/sbin", *map(str, versions)]
    return shutil.which(name, path=os.pathsep.join([os.environ["PATH"], *folders]))
