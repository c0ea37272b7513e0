"""What a machine without go, npm or mvn is told: tests that need one are skipped, and named; in CI they fail."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from integration_tools import needs_tool, pytest_terminal_summary


@pytest.fixture(autouse=True)
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with an empty PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CI", raising=False)
    return tmp_path


def test_a_test_without_its_tool_is_skipped_and_in_ci_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(pytest.skip.Exception, match=r"for lack of mvn: apt-get install maven"):
        needs_tool("mvn")
    with pytest.raises(pytest.skip.Exception, match=r"for lack of mariadbd: apt-get install .* mariadb-server"):
        needs_tool("mariadbd", "mariadb-server")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match=r"for lack of go: install Go"):
        needs_tool("go")


def test_a_tool_is_found_in_its_folders_too(bare: Path) -> None:
    assert needs_tool(Path(sys.executable).name, folders=[str(Path(sys.executable).parent)]) == sys.executable
    (bare / "go").touch(0o755)
    assert needs_tool("go") == str(bare / "go")


def test_the_summary_names_each_missing_tool_once() -> None:
    lines: list[str] = []
    skipped = [
        SimpleNamespace(longrepr=("a.py", 1, "Skipped: not run for lack of go: install Go 1.26 or newer")),
        SimpleNamespace(longrepr=("b.py", 1, "Skipped: not run for lack of go: install Go 1.26 or newer")),
        SimpleNamespace(longrepr=("c.py", 1, "Skipped: not run for lack of npm: apt-get install npm")),
        SimpleNamespace(longrepr=("d.py", 1, "Skipped: this system has no IPv6")),
    ]
    reporter = SimpleNamespace(
        stats={"skipped": skipped}, section=lambda title, **_: lines.append(title), line=lines.append
    )
    list(pytest_terminal_summary(reporter))
    assert lines == [
        "tests that did not run for lack of a tool",
        "go (tests: 2): install Go 1.26 or newer",
        "npm (tests: 1): apt-get install npm",
    ]
