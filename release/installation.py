"""What the operator is installed with: the chart, and the CRD, the kustomize base and the OLM bundle made from it.

All name the images of this release: in its registry, by digest.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from cluster_programs import program

from release.archives import files_below, repack, write_tar_gz
from release.commit import Commit, ReleaseRefused
from release.tools import run

NAME = "changefeed-operator"
#: Values of the chart that name an image, and the image's name in this repository.
_IMAGES = {"image": "operator", "sparkImage": "spark"}


def pin_images(source: Path, registry: str, digests: Mapping[str, str]) -> None:
    """Set the chart's defaults in the exported commit `source` to the images of this release, by name -> digest."""
    values = source / "charts" / NAME / "values.yaml"
    text = values.read_text()
    for section, image in _IMAGES.items():
        for key, value in (("registry", registry), ("digest", digests[image])):
            text = _set(text, section, key, value)
    values.write_text(text)


def _set(text: str, section: str, key: str, value: str) -> str:
    """A default that is "" in the chart, set without touching the comments beside it."""
    empty = re.compile(rf'(^{section}:\n(?:[ #][^\n]*\n)*?  {key}: )""$', re.MULTILINE)
    changed, times = empty.subn(rf'\g<1>"{value}"', text)
    if times != 1:
        raise ReleaseRefused(f'values.yaml has no `{section}.{key}: ""` to set to {value}')
    return changed


def write_installation(source: Path, out: Path, commit: Commit) -> None:
    """Write all of it, rendered anew: what is checked in names images without a registry."""
    named = f"{NAME}-{commit.version}"
    _make_manifests(source)
    run("helm", "package", source / "charts" / NAME, "--destination", out)
    repack(out / f"{named}.tgz", commit.epoch)  # helm dates the files by the time of packing
    shutil.copyfile(source / "crds" / "changefeeds.yaml", out / "crds.yaml")
    base = files_below(source / "deploy" / "kustomize" / "base", f"{named}/deploy/kustomize/base")
    crds = files_below(source / "crds", f"{named}/crds")
    write_tar_gz(out / f"{named}-kustomize.tar.gz", {**base, **crds}, commit.epoch)
    bundle = files_below(source / "deploy" / "bundle", f"{named}-bundle")
    write_tar_gz(out / f"{named}-bundle.tar.gz", bundle, commit.epoch)


def _make_manifests(source: Path) -> None:
    command = [sys.executable, str(source / "deploy" / "manifests.py"), "--helm", str(program("helm"))]
    done = subprocess.run(command, capture_output=True, text=True, umask=0o022, check=False)
    if done.returncode:
        raise ReleaseRefused(f"`{' '.join(command)}` failed: {done.stderr[-3000:]}")
