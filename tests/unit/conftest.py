"""What the golden data came to, by kind: `make test-corpus`."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Generator
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
            item.user_properties.append(("golden", str(mark.args[0])))  # a plain str: it goes to another process


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A shape that the test does not know is no failure, unless the test was written for this very data."""
    report = yield
    if item.get_closest_marker("golden") is None or call.excinfo is None:
        return report
    error, vector = call.excinfo.value, item.callspec.params.get("vector", {})  # type: ignore[attr-defined]
    if golden.is_not_asked(error, vector):
        path, line, _ = report.location
        report.outcome, report.longrepr = "skipped", (path, line or 0, f"not asked: {error}")
    return report


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
        not_asked = golden.untested() + Counter({kind: counts["skipped"] for kind, counts in _outcomes.items()})
        for kind, counts in [*sorted(_outcomes.items()), ("all", total)]:
            terminalreporter.write_line(f"{kind:30} {counts['passed']:6} of {_asked(counts):6}")
        for kind, count in sorted(not_asked.items()):
            terminalreporter.write_line(f"{kind:30} {count:6} not asked")
    elif total:
        terminalreporter.write_line(f"golden data: {total['passed']} of {_asked(total)} passed")


def _asked(counts: Counter[str]) -> int:
    return counts["passed"] + counts["failed"]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """What no test asks for is not right, either, of the data that the tests were written for."""
    if session.config.option.markexpr == "golden" and golden.CORPUS == golden.OURS and golden.untested():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
