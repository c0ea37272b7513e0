"""The files of a release, all but its signatures: the same bytes whenever the same commit is released."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from release import installation, statements
from release.archives import repack
from release.commit import Commit, ReleaseRefused, notes
from release.images import Layout, write_image_files

#: Lock files of the libraries that users install, and of those and what builds the release.
_LOCKS = ("dataplane", "operator")
_ALL_LOCKS = ("build", "dev", *_LOCKS)
#: PEP 517's two hooks, called as a build frontend does that is told not to isolate the build.
_BUILD = "import sys; from setuptools import build_meta as b; o = sys.argv[1]; b.build_sdist(o); b.build_wheel(o)"


def write_files(commit: Commit, source: Path, out: Path, registry: str, images: Sequence[Layout]) -> None:
    """Write the files of a release of the exported commit `source` into the folder `out`, down to their checksums.

    `images`: what the chart pins, as images of `registry`. Without any, it names images by the version alone.
    """
    named = f"{installation.NAME}-{commit.version}"
    locks = [source / "requirements" / f"{name}.txt" for name in _LOCKS]
    (out / f"{named}.cdx.json").write_text(
        statements.bill_of_locks(installation.NAME, commit.version, locks, commit.epoch)
    )
    (out / "notes.md").write_text(notes(source, commit.version))
    _write_distributions(source, out, commit.epoch)
    if images:
        installation.pin_images(source, registry, {each.name: each.digest for each in images})
        write_image_files(images, out, registry, commit)
    installation.write_installation(source, out, commit)
    subjects = statements.digests(out)
    subjects |= {f"{registry}/{each.repository}": each.digest.removeprefix("sha256:") for each in images}
    fixed = [f"requirements/{name}.txt" for name in _ALL_LOCKS]
    hashed = {name: hashlib.sha256((source / name).read_bytes()).hexdigest() for name in fixed}
    (out / f"{named}.provenance.json").write_text(statements.statement(commit, registry, subjects, hashed))
    statements.write_checksums(out)


def _write_distributions(source: Path, out: Path, epoch: int) -> None:
    """Write a wheel and a source archive of the exported commit `source`, which gets build files in it."""
    done = subprocess.run(
        [sys.executable, "-c", _BUILD, str(out)],
        cwd=source,
        env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch), "PYTHONHASHSEED": "0"},
        umask=0o022,  # a wheel records the modes of its files
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ReleaseRefused(f"the Python distributions can't be built: {done.stderr[-3000:]}")
    (archive,) = out.glob("*.tar.gz")
    repack(archive, epoch)
