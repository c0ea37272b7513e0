"""What the golden data came to, by kind: `make test-corpus`."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from typing import Any

import golden
import pytest

_outcomes: defaultdict[str, Counter[str]] = defaultdict(Counter)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "golden(kind): compares with golden data of this kind")
    if not golden.CORPUS.is_dir() and os.environ.get("CI") == "true":
        raise pytest.UsageError(f"there is no golden data at {golden.CORPUS}: set CHANGEFEED_CORPUS to its directory")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if (mark := item.get_closest_marker("golden")) is not None:
            item.user_properties.append(("golden", mark.args[0]))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Here and not where tests run, which is in several processes."""
    kind = dict(report.user_properties).get("golden")
    if kind is not None and (report.when == "call" or report.outcome != "passed"):
        _outcomes[str(kind)][report.outcome] += int(dict(report.user_properties).get("golden_rows", 1))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    total = sum(_outcomes.values(), Counter[str]())
    if not golden.CORPUS.is_dir():
        terminalreporter.write_line(f"golden data: none at {golden.CORPUS}")
    elif config.option.markexpr == "golden":
        terminalreporter.section("golden data")
        for kind, counts in [*sorted(_outcomes.items()), ("all", total)]:
            terminalreporter.write_line(f"{kind:30} {counts['passed']:6} of {counts.total():6}")
        for kind, count in sorted(golden.untested().items()):
            terminalreporter.write_line(f"{kind:30} {count:6} that no test asks for")
    elif total:
        terminalreporter.write_line(f"golden data: {total['passed']} of {total.total()} passed")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """What no test asks for is not right, either."""
    if session.config.option.markexpr == "golden" and golden.untested():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
