"""Programs of Debian's packages: from PATH; where they are not, and we may, the package is installed."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from integration_tools import needs_tool


def program(name: str, package: str) -> str:
    """Return its path; the test is skipped where it can't be had (`needs_tool`)."""
    if os.geteuid() == 0 and shutil.which("apt-get"):
        with (Path(tempfile.gettempdir()) / f"changefeed-{package}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # tests run side by side, and a package half installed has its programs
            for arguments in (["update"], ["install", "-y", "--no-install-recommends", package]):
                if _found(name) is None:
                    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
                    subprocess.run(["apt-get", "-q", *arguments], env=environment, capture_output=True, check=False)
    return needs_tool(name, package, _folders())


def _found(name: str) -> str | None:
    return shutil.which(name, path=os.pathsep.join([os.environ["PATH"], *_folders()]))


def _folders() -> list[str]:
    """Give the folders of servers, which are not in everybody's PATH; each version of PostgreSQL has one of its own."""
    versions = sorted(
        Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: int(folder.parent.name), reverse=True
    )
    return ["/usr/sbin", "/usr/local/sbin", *map(str, versions)]
