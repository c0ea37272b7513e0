"""The images of a release, as `make images` writes them: an OCI layout each, with an index of all architectures."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from release.commit import Commit, ReleaseRefused
from release.statements import undated

NAMES = ("operator", "spark")
_REVISION = "org.opencontainers.image.revision"


@dataclass(frozen=True)
class Layout:
    """An image below the folder of `make images`. `digest`: of its index. `revisions`: architecture -> its commit."""

    name: str
    folder: Path
    digest: str
    revisions: Mapping[str, str]

    @property
    def repository(self) -> str:
        """Its name in a registry."""
        return f"changefeed-{self.name}"


def layouts(folder: Path) -> list[Layout]:
    """Both images."""
    return [_layout(name, folder / name) for name in NAMES]


def _layout(name: str, folder: Path) -> Layout:
    (index,) = json.loads((folder / "index.json").read_text())["manifests"]
    revisions = {}
    for described in _read(folder, index["digest"])["manifests"]:
        image = _read(folder, _read(folder, described["digest"])["config"]["digest"])
        revisions[image["architecture"]] = image["config"].get("Labels", {}).get(_REVISION, "unknown")
    return Layout(name, folder, index["digest"], revisions)


def _read(folder: Path, digest: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "blobs" / digest.replace(":", "/")).read_bytes())
    return content


def check_revisions(found: Sequence[Layout], commit: Commit) -> None:
    """Raise ReleaseRefused for an image that was built of anything but this commit."""
    for each in found:
        for architecture, revision in each.revisions.items():
            if revision != commit.sha:
                raise ReleaseRefused(
                    f"the {each.name} image for {architecture} was built of {revision}, and {commit.sha} is released: "
                    "run `make clean` and this again"
                )


def write_image_files(found: Sequence[Layout], out: Path, registry: str, commit: Commit) -> None:
    """Write the names of the images with their digests, and the SBOM of each for each of its architectures."""
    lines = [f"{registry}/{each.repository}:{commit.version}@{each.digest}" for each in found]
    (out / "images.txt").write_text("".join(f"{line}\n" for line in lines))
    for each in found:
        for architecture in each.revisions:
            bom = json.loads((each.folder.parent / f"{each.name}-{architecture}.cdx.json").read_text())
            file = out / f"{each.repository}-{commit.version}-{architecture}.cdx.json"
            file.write_text(undated(bom, commit.epoch))
