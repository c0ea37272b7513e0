"""The container images of the real node. Needs root and Debian.

Ours are what `make images` writes: OCI layouts, here of this machine's processor only. All images stand in a registry
of our own, in the cache; what has not changed is neither built nor stored again.
`python tests/cluster/cluster_images.py` builds them.
"""

from __future__ import annotations

import io
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from cluster_changefeed_operator import ROOT
from cluster_programs import SetupFailed, cache_folder, module_folder, program
from cluster_registry import Registry, Store

PAUSE = "localhost/pause:test"
OPERATOR = "localhost/changefeed-operator:test"
SPARK = "localhost/changefeed-spark:test"
_PACKAGES = {
    "containerd": "containerd",
    "runc": "runc",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "buildah": "buildah",
    "mmdebstrap": "mmdebstrap",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "nsenter": "util-linux",
    "ip": "iproute2",
}
_SOURCES = Path("/etc/apt/sources.list.d/debian.sources")
_BUILD_S = 3600.0


def node_unsupported() -> str:
    """Why there can be no real node on this machine; empty when there can."""
    if reason := _cannot_be():
        return reason
    if missing := _missing():
        return f"a real node needs programs that are not here: apt-get install {' '.join(missing)}"
    return ""


def _cannot_be() -> str:
    if os.geteuid():
        return "a real node needs root: containers, network namespaces and mounts are made"
    if not _SOURCES.exists():
        return f"a real node's images are made of Debian's packages, and {_SOURCES} is not here"
    return ""


def install_packages() -> None:
    """What of Debian's packages is missing."""
    if missing := _missing():
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        _run(["apt-get", "update", "--quiet"], environment)
        _run(["apt-get", "install", "--yes", "--quiet", "--no-install-recommends", *missing], environment)


def _missing() -> list[str]:
    return [package for tool, package in _PACKAGES.items() if shutil.which(tool) is None]


def build() -> list[str]:
    """The names of the images, which are built and in the registry."""
    _write_layouts()
    _build_spark_operator()
    _buildah("rm", "--all")  # what a build that was killed has left would keep images in use
    _buildah("rmi", "--prune")
    name = spark_operator_image()
    with Registry(_registry()) as registry:
        _buildah("push", "--quiet", "--tls-verify=false", name, f"docker://{registry.address}/{name}")
    store = Store(_registry())
    store.take(layout("spark"), SPARK)
    store.take(layout("operator"), OPERATOR)
    _add_pause(store)
    store.forget_others([SPARK, OPERATOR, name, PAUSE])
    return store.images()


def layout(image: str) -> Path:
    """The OCI layout of `operator` or `spark` that the node runs."""
    return cache_folder() / "images" / image


def _write_layouts() -> None:
    command = [sys.executable, str(ROOT / "images" / "build.py"), "--out", str(cache_folder() / "images")]
    command += ["--store", str(_store()), "--arch", host_arch(), "--no-sboms"]
    _run(command)


def built() -> Registry:
    """A registry of them, to be entered; it never builds, because a test has no time for that."""
    if PAUSE not in Store(_registry()).images():
        raise SetupFailed("the images of the real node are not built: run `make test-cluster`, which builds them")
    return Registry(_registry())


def _registry() -> Path:
    return cache_folder() / "registry"


def spark_operator_image() -> str:
    """What the Spark operator's unmodified chart asks for; ours is on our data plane's Spark."""
    chart = module_folder("spark-operator") / "charts" / "spark-operator-chart"
    image = yaml.safe_load((chart / "values.yaml").read_text())["image"]
    version = yaml.safe_load((chart / "Chart.yaml").read_text())["appVersion"]
    return f"{image['registry']}/{image['repository']}:{image['tag'] or version}"


def _build_spark_operator() -> None:
    """The image of the Spark operator as its own Dockerfile makes it, on the Spark of our data plane's image."""
    with tempfile.TemporaryDirectory(dir=cache_folder(), prefix=".context-") as scratch:
        context = Path(scratch)
        shutil.copy(program("spark-operator"), context)
        entrypoint = shutil.copy(module_folder("spark-operator") / "entrypoint.sh", context)
        os.chmod(entrypoint, 0o755)
        for file in context.iterdir():
            os.utime(file, (0, 0))  # the layer's cache looks at times too
        options = ["--isolation", "chroot", "--network", "host", "--pull-never", "--layers", "--format", "oci"]
        options += ["--build-arg", f"BASE=localhost/spark-runtime:{host_arch()}", "--tag", spark_operator_image()]
        dockerfile = Path(__file__).with_name("programs") / "spark-operator.Dockerfile"
        _buildah("bud", *options, "--file", str(dockerfile), str(context))


def host_arch() -> str:
    """This machine's processor, as images call it."""
    return {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]


def _add_pause(store: Store) -> None:
    """The image that holds a pod's namespaces: one program of ours in a layer."""
    files = io.BytesIO()
    with tarfile.open(fileobj=files, mode="w") as tar:
        tar.add(program("pause"), "pause")
    kind = "application/vnd.oci.image"
    layer = _add_blob(store, f"{kind}.layer.v1.tar", files.getvalue())
    config = {
        "architecture": host_arch(),
        "os": "linux",
        "config": {"Entrypoint": ["/pause"], "User": "65535:65535"},
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
    }
    described = _add_blob(store, f"{kind}.config.v1+json", json.dumps(config).encode())
    manifest = {"schemaVersion": 2, "mediaType": f"{kind}.manifest.v1+json", "config": described, "layers": [layer]}
    store.tag(PAUSE, store.add(json.dumps(manifest).encode()))


def _add_blob(store: Store, media_type: str, content: bytes) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": store.add(content), "size": len(content)}


def _buildah(*arguments: str) -> str:
    """In a store of our own, from which all can be deleted that nobody needs any more."""
    return _run(["buildah", "--root", str(_store()), "--runroot", "/run/changefeed-buildah", *arguments])


def _store() -> Path:
    return cache_folder() / "buildah"


def _run(command: Sequence[str], environment: dict[str, str] | None = None) -> str:
    whole = ["nice", "-n", "10", *command]
    done = subprocess.run(whole, capture_output=True, text=True, timeout=_BUILD_S, check=False, env=environment)
    if done.returncode:
        raise SetupFailed(f"`{' '.join(command)}` failed: {(done.stderr or done.stdout)[-3000:]}")
    return done.stdout


def main() -> int:
    try:
        if not _cannot_be():
            install_packages()
        if reason := node_unsupported():
            sys.stderr.write(f"The tests on a real node do not run: {reason}.\n")
            return 1 if os.environ.get("CI") == "true" else 0
        sys.stdout.write(f"images: {', '.join(build())}\n")
    except SetupFailed as failed:
        sys.stderr.write(f"{failed}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
