"""Makes a release of HEAD in dist/, and with a registry pushes and signs it: docs/releasing.md."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from cluster_programs import SetupFailed

from release.commit import ReleaseRefused, commit_to_release
from release.files import write_files
from release.images import check_revisions, layouts
from release.publication import publish

ROOT = Path(__file__).resolve().parents[1]
#: Where `make images` writes.
IMAGES = ROOT / "build" / "images"


def release(version: str, registry: str, key: str, out: Path) -> list[str]:
    """Make the release; returns what is in the registry, by digest. Without one, no image is built."""
    if bool(registry) != bool(key):
        raise ReleaseRefused("what is pushed is signed: REGISTRY and KEY (a file, or `keyless`) go together")
    commit = commit_to_release(ROOT, version)
    images = []
    if registry:
        subprocess.run(["make", "images"], cwd=ROOT, check=True)
        images = layouts(IMAGES)
        check_revisions(images, commit)
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as folder:
        source = commit.export(Path(folder))
        write_files(commit, source, out, registry, images)
        return publish(commit, source, out, registry, key, images) if registry else []


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make release", description=__doc__)
    parser.add_argument("--version", required=True)
    parser.add_argument("--registry", default="", help="HOST/PATH of the images and the chart (default: push nothing)")
    parser.add_argument("--key", default="", help="a private key of cosign's, or `keyless`")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    given = parser.parse_args(arguments)
    try:
        pushed = release(given.version, given.registry, given.key, given.out)
    except (ReleaseRefused, SetupFailed) as refused:
        sys.stderr.write(f"{refused}\n")
        return 1
    except subprocess.CalledProcessError as failed:
        return failed.returncode  # it has said why
    sys.stdout.write("".join(f"{line}\n" for line in [f"wrote {given.out}", *pushed]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
