"""The commit that is released: what it must say of itself, and its files without anything else of the checkout."""

from __future__ import annotations

import io
import re
import subprocess
import tarfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

import yaml


class ReleaseRefused(Exception):
    """The release can't be made of what is there; the message says what to change."""


@dataclass(frozen=True)
class Commit:
    """`epoch`: the commit's date, in seconds since 1970, which everything that is made of it is dated by."""

    repository: Path
    version: str
    sha: str
    epoch: int

    def export(self, folder: Path) -> Path:
        """`folder`, with the commit's files as git has them, whatever this user's umask is."""
        archive = _git(self.repository, "-c", "tar.umask=0022", "archive", "--format=tar", self.sha)
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(folder, filter="data")
        return folder


def commit_to_release(repository: Path, version: str) -> Commit:
    """HEAD. Raises ReleaseRefused unless all of it is committed, and its files say that it is this version."""
    changed = _git(repository, "status", "--porcelain").decode().splitlines()
    if changed:
        raise ReleaseRefused(f"a release is made of a commit, and these files are not in it: {', '.join(changed[:5])}")
    for file, found in _versions(repository).items():
        if found != version:
            raise ReleaseRefused(f"{file} says {found}, and VERSION is {version!r}: they must be the same")
    notes(repository, version)
    sha, epoch = _git(repository, "log", "-1", "--format=%H %ct").decode().split()
    return Commit(repository, version, sha, int(epoch))


def _versions(repository: Path) -> dict[str, str]:
    """What each file says that is not made from another."""
    chart = yaml.safe_load((repository / "charts/changefeed-operator/Chart.yaml").read_text())
    return {
        "pyproject.toml": tomllib.loads((repository / "pyproject.toml").read_text())["project"]["version"],
        "version in Chart.yaml": chart["version"],
        "appVersion in Chart.yaml": chart["appVersion"],
    }


def notes(source: Path, version: str) -> str:
    """The version's section of CHANGELOG.md, without its heading. Raises ReleaseRefused when there is none."""
    text = (source / "CHANGELOG.md").read_text()
    found = re.search(rf"^## \[{re.escape(version)}\][^\n]*\n(.*?)(?=^## \[|\Z)", text, re.MULTILINE | re.DOTALL)
    if not (found and found[1].strip()):
        raise ReleaseRefused(f"CHANGELOG.md has nothing below a heading `## [{version}]`: write the notes there")
    return found[1].strip() + "\n"


def _git(repository: Path, *arguments: str) -> bytes:
    done = subprocess.run(["git", "-C", str(repository), *arguments], capture_output=True, check=False)
    if done.returncode:
        raise ReleaseRefused(f"`git {' '.join(arguments)}` in {repository} failed: {done.stderr.decode().strip()}")
    return done.stdout
