"""What a release is refused for, and what it says of itself."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from release.archives import files_below, repack, write_tar_gz
from release.commit import ReleaseRefused, commit_to_release, notes
from release.statements import bill_of_locks, digests, statement, undated, write_checksums

ROOT = Path(__file__).parents[3]
EPOCH = 1_700_000_000


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with one commit that says it is version 1.2.3."""
    chart = tmp_path / "charts" / "changefeed-operator" / "Chart.yaml"
    chart.parent.mkdir(parents=True)
    chart.write_text("version: 1.2.3\nappVersion: 1.2.3\n")
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.3"\n')
    (tmp_path / "CHANGELOG.md").write_text("# C\n\n## [Unreleased]\n\n- later\n\n## [1.2.3] - 2026-01-02\n\n- now\n")
    _git(tmp_path, "init", "--quiet")
    _commit(tmp_path)
    return tmp_path


def _git(folder: Path, *arguments: str) -> None:
    identity = {f"GIT_{who}_{what}": "a@b.c" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    subprocess.run(["git", "-C", folder, *arguments], check=True, env={**os.environ, **identity})


def _commit(folder: Path) -> None:
    _git(folder, "add", ".")
    _git(folder, "commit", "--quiet", "--message", "m")


def test_a_commit_is_released_as_it_was_committed(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    commit = commit_to_release(checkout, "1.2.3")
    (checkout / "CHANGELOG.md").write_text("later")
    source = commit.export(tmp_path_factory.mktemp("source"))
    assert notes(source, "1.2.3") == "- now\n"
    assert {path.stat().st_mode & 0o777 for path in source.rglob("*") if path.is_file()} == {0o644}


def test_what_is_not_committed_is_named(checkout: Path) -> None:
    (checkout / "new.py").touch()
    with pytest.raises(ReleaseRefused, match=r"not in it: \?\? new\.py"):
        commit_to_release(checkout, "1.2.3")


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("pyproject.toml", "pyproject.toml says 1.2.2, and VERSION is '1.2.3'"),
        ("charts/changefeed-operator/Chart.yaml", "Chart.yaml says 1.2.2"),
        ("CHANGELOG.md", r"nothing below a heading `## \[1.2.3\]`"),
    ],
)
def test_a_file_that_says_another_version_is_named(checkout: Path, file: str, said: str) -> None:
    (checkout / file).write_text((checkout / file).read_text().replace("1.2.3", "1.2.2"))
    _commit(checkout)
    with pytest.raises(ReleaseRefused, match=said):
        commit_to_release(checkout, "1.2.3")


def test_an_archive_depends_on_names_and_contents_alone(tmp_path: Path) -> None:
    made = []
    for number, names in enumerate((["b", "a/c"], ["a/c", "b"])):
        folder = tmp_path / str(number)
        for name in names:
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(name)
            file.chmod(0o600 if number else 0o664)
            os.utime(file, (number, number))
        made.append(write_tar_gz(tmp_path / f"{number}.tar.gz", files_below(folder, "top"), EPOCH))
    assert made[0].read_bytes() == made[1].read_bytes()
    with tarfile.open(made[0]) as tar:
        assert [(each.name, each.mode, each.mtime, each.uid) for each in tar] == [
            ("top/a/c", 0o644, EPOCH, 0),
            ("top/b", 0o644, EPOCH, 0),
        ]
    assert made[0].stat().st_mtime == EPOCH


def test_a_repacked_archive_forgets_when_it_was_made(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    made = []
    for mtime in (1, 2):
        file = tmp_path / f"{mtime}.tar.gz"
        with gzip.GzipFile(file, "wb", mtime=mtime) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
            os.utime(tmp_path / "a", (mtime, mtime))
            tar.add(tmp_path / "a", "a")
        made.append(repack(file, EPOCH).read_bytes())
    assert made[0] == made[1]


def test_a_bill_has_each_locked_library_once_with_its_marker(tmp_path: Path) -> None:
    lock = (
        "b==2 \\\n    --hash=sha256:00\n    # via a\nA_x[y]==1.0 ; sys_platform == 'win32' \\\n    --hash=sha256:00\n"
    )
    for name in ("one", "two"):
        (tmp_path / name).write_text(lock)
    bill = json.loads(bill_of_locks("p", "1", [tmp_path / "one", tmp_path / "two"], EPOCH))
    assert [(each["purl"], each.get("properties")) for each in bill["components"]] == [
        ("pkg:pypi/a-x@1.0", [{"name": "python:marker", "value": "sys_platform == 'win32'"}]),
        ("pkg:pypi/b@2", None),
    ]
    assert bill["metadata"]["timestamp"] == "2023-11-14T22:13:20Z"


def test_our_own_bill_has_what_is_locked() -> None:
    locks = [ROOT / "requirements" / f"{name}.txt" for name in ("dataplane", "operator")]
    names = {each["name"] for each in json.loads(bill_of_locks("p", "1", locks, EPOCH))["components"]}
    locked = {
        line.partition("==")[0].partition("[")[0]
        for lock in locks
        for line in lock.read_text().splitlines()
        if line[:1].isalnum()
    }
    assert names == locked
    assert len(names) > 40


def test_a_bill_of_syft_loses_its_number_and_its_time() -> None:
    def bill(number: int) -> str:
        document = {
            "serialNumber": f"urn:uuid:{number}",
            "metadata": {"timestamp": str(number), "component": {"name": "x"}},
        }
        return undated(document, EPOCH)

    assert bill(1) == bill(2)
    assert json.loads(bill(1))["metadata"]["component"] == {"name": "x"}


def test_the_statement_names_the_commit_and_what_was_made_of_it(checkout: Path, tmp_path: Path) -> None:
    commit = commit_to_release(checkout, "1.2.3")
    made = json.loads(statement(commit, "r.example.com/x", {"file": "00", "image": "11"}, {"lock": "22"}))
    assert made["_type"] == "https://in-toto.io/Statement/v1"
    assert {each["name"]: each["digest"]["sha256"] for each in made["subject"]} == {"file": "00", "image": "11"}
    first, lock = made["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert first["digest"] == {"gitCommit": commit.sha}
    assert lock == {"name": "lock", "digest": {"sha256": "22"}}


def test_checksums_are_read_by_sha256sum(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    assert write_checksums(tmp_path).read_text().split() == [digests(tmp_path)["a.txt"], "a.txt"]
    check = ["sha256sum", "--check", "--quiet", "SHA256SUMS"]
    assert subprocess.run(check, cwd=tmp_path, check=False).returncode == 0
    (tmp_path / "a.txt").write_text("b")
    assert subprocess.run(check, cwd=tmp_path, capture_output=True, check=False).returncode == 1
