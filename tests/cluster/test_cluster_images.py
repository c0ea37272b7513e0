"""What the images hold, read from the OCI layouts that the real node runs."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cluster_images
import pytest

#: Larger layers are libraries and Java.
_OURS_BYTES = 16 << 20
pytestmark = pytest.mark.usefixtures("can_have_nodes")


@pytest.fixture(params=["operator", "spark"])
def layout(request: pytest.FixtureRequest) -> Path:
    return cluster_images.layout(request.param)


def _blob(layout: Path, described: dict[str, Any]) -> Path:
    return layout / "blobs" / described["digest"].replace(":", "/")


def _read(layout: Path, described: dict[str, Any]) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(_blob(layout, described).read_bytes())
    return content


def _image(layout: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Manifest and configuration of the image for this machine."""
    (index,) = json.loads((layout / "index.json").read_text())["manifests"]
    manifests = _read(layout, index)["manifests"]
    (described,) = [each for each in manifests if each["platform"]["architecture"] == cluster_images.host_arch()]
    manifest = _read(layout, described)
    return manifest, _read(layout, manifest["config"])


def _files(layout: Path, most_bytes: int = _OURS_BYTES) -> Iterator[tarfile.TarInfo]:
    """Yield the files of the layers up to that size."""
    manifest, _ = _image(layout)
    for layer in manifest["layers"]:
        if layer["size"] <= most_bytes:
            with tarfile.open(_blob(layout, layer), "r|gz") as tar:
                yield from tar


def test_it_says_what_it_is_and_runs_as_nobody(layout: Path) -> None:
    _, described = _image(layout)
    said = {
        name.removeprefix("org.opencontainers.image."): value for name, value in described["config"]["Labels"].items()
    }
    assert said["title"] == f"changefeed-{layout.name}"
    assert said["licenses"] == "Apache-2.0"
    assert said["version"] in (cluster_images.ROOT / "pyproject.toml").read_text()
    assert said["revision"]
    assert described["config"]["User"] == "185:185"


def test_it_holds_the_product_with_its_licence_and_no_development_cluster(layout: Path) -> None:
    names = {member.name for member in _files(layout)}
    assert {"licenses/LICENSE", "licenses/NOTICE"} <= names
    product = "opt/changefeed/product"
    assert f"{product}/changefeed/__init__.py" in names
    assert [name for name in names if name.startswith(product) and name.endswith("licenses/NOTICE")]
    assert [name for name in names if "devcluster" in name] == []


def test_every_file_is_of_one_date(layout: Path) -> None:
    """Else the same checkout would give other bytes tomorrow."""
    dates = {member.mtime for member in _files(layout)}
    assert len(dates) == 1, dates


def test_python_is_compiled_for_good(layout: Path) -> None:
    """A file that is compared with its source's time would be compiled anew at each start: times are all the same."""
    manifest, _ = _image(layout)
    compiled = 0
    for layer in manifest["layers"]:
        if layer["size"] <= _OURS_BYTES:
            with tarfile.open(_blob(layout, layer), "r|gz") as tar:
                for member in tar:
                    if member.name.startswith("opt/") and member.name.endswith(".pyc"):
                        content = tar.extractfile(member)
                        assert content is not None
                        assert content.read(8)[4:] == (1).to_bytes(4, "little"), member.name
                        compiled += 1
    assert compiled > 100
