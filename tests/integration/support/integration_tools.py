"""Tools that some tests need and this project does not bring: where they are, and what did not run without them.

Without its tool a test is skipped, and the summary names the tool and how to get it. With CI=true it fails instead.
The tool is asked for only when the cache lacks what it makes.
"""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

_REMEDIES = {
    "go": "install Go 1.26 or newer",
    "java": "apt-get install openjdk-17-jre-headless",
    "javac": "apt-get install openjdk-17-jdk-headless",
    "mvn": "apt-get install maven",
    "npm": "apt-get install npm",
}
_PREFIX = "not run for lack of "


def needs_tool(name: str, package: str = "", folders: Sequence[str] = ()) -> str:
    """Return the tool's path, from `folders` or else from PATH; skip the test without it, or fail it in CI.

    `package`: Debian's that has it, for a tool of which nothing else is known here.
    """
    found = shutil.which(name, path=os.pathsep.join(folders)) or shutil.which(name)
    if found is None:
        remedy = f"apt-get install --no-install-recommends {package}" if package else _REMEDIES[name]
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(f"{_PREFIX}{name}: {remedy}")
    return found


@pytest.hookimpl(wrapper=True, tryfirst=True)  # behind the list of what was skipped
def pytest_terminal_summary(terminalreporter: Any) -> Iterator[None]:
    """Name each missing tool, how to get it, and how many tests did not run without it."""
    yield
    missing: defaultdict[str, int] = defaultdict(int)
    for report in terminalreporter.stats.get("skipped", ()):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
        if _PREFIX in reason:
            missing[reason.partition(_PREFIX)[2]] += 1
    if missing:
        terminalreporter.section("tests that did not run for lack of a tool", yellow=True)
        for reason, count in sorted(missing.items()):
            tool, _, remedy = reason.partition(": ")
            terminalreporter.line(f"{tool} (tests: {count}): {remedy}")
