"""What releases are tested with: a real registry on 127.0.0.1, keys of cosign's, and images small enough for a test."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import cluster_images
from cluster_chart_tools import ROOT
from cluster_processes import Processes, free_ports
from cluster_programs import program

#: Keys of tests are encrypted with no password.
_COSIGN = {"COSIGN_PASSWORD": ""}
_KIND = "application/vnd.oci.image"
_RUN_S = 300.0


@contextlib.contextmanager
def registry(folder: Path) -> Iterator[str]:
    """The address of a running registry, whose blobs are below `folder`."""
    (port,) = free_ports(1)
    config = folder / "registry.json"
    storage = {"filesystem": {"rootdirectory": str(folder / "registry")}, "delete": {"enabled": True}}
    settings = {"version": 0.1, "log": {"level": "warn"}, "storage": storage, "http": {"addr": f"127.0.0.1:{port}"}}
    config.write_text(json.dumps(settings))
    processes = Processes(folder)
    processes.start("registry", [program("registry"), "serve", config], {"OTEL_TRACES_EXPORTER": "none"})
    try:
        processes.wait_until(lambda: _answers(port), "the registry answers")
        yield f"127.0.0.1:{port}"
    finally:
        processes.stop_all()


def _answers(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/v2/") as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@dataclass(frozen=True)
class Keys:
    """A new pair of keys: two files."""

    private: Path
    public: Path


def new_keys(folder: Path) -> Keys:
    folder.mkdir()
    done = cosign("generate-key-pair", "--output-key-prefix", folder / "cosign")
    assert done.returncode == 0, done.stderr
    return Keys(folder / "cosign.key", folder / "cosign.pub")


def cosign(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """The ended command, which had no home and no terminal."""
    command = [str(part) for part in (program("cosign"), *arguments)]
    environment = {**os.environ, **_COSIGN, "HOME": "/nonexistent"}
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_RUN_S,
        check=False,
        env=environment,
    )


def verifies(keys: Keys, *arguments: str | Path) -> bool:
    """Whether `cosign verify…` says so with the public key alone, offline."""
    command, *rest = arguments
    return cosign(command, "--key", keys.public, "--insecure-ignore-tlog", *rest).returncode == 0


def clone(folder: Path) -> Path:
    """HEAD of this checkout, cloned."""
    subprocess.run(["git", "clone", "--quiet", ROOT, folder], check=True)
    return folder


def with_bills(folder: Path) -> Path:
    """A folder as `make images` writes it, of the images of test clusters: of this machine's processor only."""
    folder.mkdir()
    for name in ("operator", "spark"):
        (folder / name).symlink_to(cluster_images.layout(name))
        bill = {"bomFormat": "CycloneDX", "metadata": {}, "components": []}  # test clusters' images have none
        (folder / f"{name}-{cluster_images.host_arch()}.cdx.json").write_text(json.dumps(bill))
    return folder


def write_layouts(folder: Path, revision: str, architectures: Sequence[str] = ("amd64", "arm64")) -> Path:
    """Write what `make images` writes, of images that hold one small file each."""
    for name in ("operator", "spark"):
        shutil.rmtree(folder / name, ignore_errors=True)
        (folder / name / "blobs" / "sha256").mkdir(parents=True)
        manifests = [_image(folder / name, name, architecture, revision) for architecture in architectures]
        index = _add(folder / name, f"{_KIND}.index.v1+json", _indexed(manifests))
        (folder / name / "index.json").write_bytes(_indexed([index]))
        (folder / name / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        for architecture in architectures:
            bill = {"bomFormat": "CycloneDX", "serialNumber": os.urandom(8).hex(), "metadata": {}, "components": []}
            (folder / f"{name}-{architecture}.cdx.json").write_text(json.dumps(bill))
    return folder


def _image(layout: Path, name: str, architecture: str, revision: str) -> dict[str, Any]:
    files = io.BytesIO()
    with tarfile.open(fileobj=files, mode="w") as tar:
        content = f"{name} for {architecture}".encode()
        member = tarfile.TarInfo("about")
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
    layer = _add(layout, f"{_KIND}.layer.v1.tar", files.getvalue())
    config = {
        "architecture": architecture,
        "os": "linux",
        "config": {"Labels": {"org.opencontainers.image.revision": revision}},
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
    }
    described = _add(layout, f"{_KIND}.config.v1+json", json.dumps(config).encode())
    manifest = {"schemaVersion": 2, "mediaType": f"{_KIND}.manifest.v1+json", "config": described, "layers": [layer]}
    added = _add(layout, f"{_KIND}.manifest.v1+json", json.dumps(manifest).encode())
    return {**added, "platform": {"architecture": architecture, "os": "linux"}}


def _indexed(manifests: Sequence[dict[str, Any]]) -> bytes:
    described = {"schemaVersion": 2, "mediaType": f"{_KIND}.index.v1+json", "manifests": manifests}
    return json.dumps(described).encode()


def _add(layout: Path, media_type: str, content: bytes) -> dict[str, Any]:
    digest = hashlib.sha256(content).hexdigest()
    (layout / "blobs" / "sha256" / digest).write_bytes(content)
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}
