"""The krew plugin: its archive is the same for the same wheel, and its script sets itself up once."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
TOOL = ROOT / "deploy" / "krew.py"
WHEEL = "changefeed_operator-0.1.0-py3-none-any.whl"


def _run(*words: str | Path) -> str:
    command = [sys.executable, str(TOOL), *map(str, words)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """With a command that says its arguments."""
    file = tmp_path / WHEEL
    about = "changefeed_operator-0.1.0.dist-info"
    with zipfile.ZipFile(file, "w") as made:
        made.writestr("said.py", "import sys\n\n\ndef main():\n    print('said', *sys.argv[1:])\n")
        made.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: changefeed-operator\nVersion: 0.1.0\n")
        made.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        made.writestr(f"{about}/entry_points.txt", "[console_scripts]\nkubectl-changefeed = said:main\n")
        made.writestr(f"{about}/RECORD", "")
    return file


@pytest.fixture
def archive(wheel: Path, tmp_path: Path) -> Path:
    out = tmp_path / "build" / "plugin.tar.gz"
    _run("archive", "--wheel", wheel, "--out", out)
    return out


def test_the_archive_has_what_the_plugin_needs_and_is_reproducible(archive: Path, wheel: Path, tmp_path: Path) -> None:
    with tarfile.open(archive) as found:
        modes = {each.name: each.mode for each in found.getmembers()}
    assert modes == {"LICENSE": 0o644, WHEEL: 0o644, "kubectl-changefeed": 0o755, "requirements.txt": 0o644}
    wheel.touch()
    again = tmp_path / "again.tar.gz"
    _run("archive", "--wheel", wheel, "--out", again)
    assert again.read_bytes() == archive.read_bytes()


def test_the_manifest_names_the_archive_and_its_hash(archive: Path) -> None:
    uri, homepage = "https://example.com/v0.1.0/plugin.tar.gz", "https://example.com"
    text = _run("manifest", "--version", "0.1.0", "--homepage", homepage, "--uri", uri, "--archive", archive)
    found = yaml.safe_load(text)
    assert "$" not in text
    assert (found["apiVersion"], found["kind"]) == ("krew.googlecontainertools.github.com/v1alpha2", "Plugin")
    assert found["metadata"] == {"name": "changefeed"}
    assert (found["spec"]["version"], found["spec"]["homepage"]) == ("v0.1.0", homepage)
    assert len(found["spec"]["shortDescription"]) <= 50, "krew's limit"
    (platform,) = found["spec"]["platforms"]
    assert platform["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()
    assert platform["uri"] == uri
    with tarfile.open(archive) as packed:
        assert platform["bin"] in packed.getnames()


def test_the_plugin_sets_itself_up_with_the_first_call_and_is_found_by_a_link(archive: Path, tmp_path: Path) -> None:
    store = tmp_path / "store with blanks"
    with tarfile.open(archive) as packed:
        packed.extractall(store, filter="data")
    (store / "requirements.txt").write_text("")  # nothing from an index
    link = tmp_path / "kubectl-changefeed"
    link.symlink_to(store / "kubectl-changefeed")

    def call(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        changed = {**os.environ, "CHANGEFEED_PYTHON": sys.executable, **environment}
        return subprocess.run([link, *words], capture_output=True, text=True, env=changed, check=False, timeout=90)

    missing = call("get", CHANGEFEED_PYTHON="no-such-python")
    assert missing.returncode == 1
    assert "needs Python 3.11 or newer" in missing.stderr
    first = call("get", "orders", "-n", "shop")
    assert (first.returncode, first.stdout) == (0, "said get orders -n shop\n"), first.stderr
    assert "set up" in first.stderr
    again = call("describe", "two words")
    assert (again.stdout, again.stderr) == ("said describe two words\n", "")
