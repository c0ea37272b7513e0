"""What `make images` takes and refuses before it builds anything."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("images_build", ROOT / "images" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its dataclass looks for its types
    spec.loader.exec_module(module)
    return module


def test_a_base_without_its_digest_is_refused(build: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        build.main(["--base", "debian:bookworm-slim"])
    assert ended.value.code == 2
    assert "allowed: an image with its digest" in capsys.readouterr().err


def test_the_date_can_be_told(build: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    assert build.epoch() == 1_700_000_000


def test_without_a_history_the_date_must_be_told(build: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    monkeypatch.setattr(build, "git", lambda *_: "")
    with pytest.raises(build.BuildFailed, match="set SOURCE_DATE_EPOCH"):
        build.epoch()
    assert build.revision() == "unknown"


def test_it_reads_version_and_release_where_they_stand(build: ModuleType) -> None:
    assert build.version().count(".") == 2
    assert build.debian_release() == "bookworm"
    for target in ("operator", "spark", "spark-runtime"):
        assert f" AS {target}\n" in (ROOT / "Dockerfile").read_text()


def test_a_command_that_fails_is_named(build: ModuleType) -> None:
    with pytest.raises(build.BuildFailed, match=r"`ls /nowhere` failed: .*No such file"):
        build.run(["ls", "/nowhere"])
