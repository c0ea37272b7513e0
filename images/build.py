"""The product's images as OCI layouts, the same bytes from the same checkout and archive: `make images`.

Each of `operator` and `spark` becomes a layout below --out, with an index of all its architectures, and beside it an
SBOM (CycloneDX) for each. Needs root, Debian and its packages buildah and mmdebstrap; for the architecture of another
processor qemu-user-static and arch-test as well: its programs are run.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ("operator", "spark")
#: Of the Dockerfile: with a name they are kept, and nothing is built again that has not changed.
_STAGES = ("product", "operator-libraries", "spark-libraries", "spark-runtime")
#: What of a checkout decides the layers below our code: their files bear the date of its last change.
_LIBRARIES = ("Dockerfile", "images", "requirements")
_SOURCES = Path("/etc/apt/sources.list.d/debian.sources")
_CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
_PROCESSORS = {"amd64": "x86_64", "arm64": "aarch64"}
_BINFMT = Path("/proc/sys/fs/binfmt_misc")
_SYFT = "github.com/anchore/syft/cmd/syft@v1.57.1"
_RUN_S = 7200.0


class BuildFailed(Exception):
    """The message says what to do."""


@dataclass(frozen=True)
class Builder:
    """`out`: where the layouts go. `store`: buildah's, a folder. `base`: an image with its digest; "": one is made.

    `sources`: Debian's archive, as apt's sources. `epoch`: the date of every file, in seconds.
    """

    out: Path
    store: Path
    archs: tuple[str, ...]
    base: str
    sources: Path
    epoch: int

    def build(self, sboms: bool) -> list[Path]:
        """The layouts."""
        for arch in self.archs:
            _can_run(arch)
            base = self.base or self._make_base(arch)
            for target in (*_STAGES, *IMAGES):
                self._bud(target, arch, base)
        layouts = [self._write_layout(image) for image in IMAGES]
        if sboms:
            for image in IMAGES:
                for arch in self.archs:
                    self._write_sbom(image, arch)
        return layouts

    def _make_base(self, arch: str) -> str:
        """The image that the Dockerfile begins with, of Debian's packages; those of earlier dates are forgotten."""
        release = debian_release()
        named = f"localhost/debian-{release}-{arch}"
        name = f"{named}:{self.epoch}"
        if name in self._names():
            return name
        with tempfile.TemporaryDirectory(dir=self.store.parent, prefix=".base-") as scratch:
            files = Path(scratch, "base.tar")
            options = ["--variant=minbase", f"--architectures={arch}", "--include=ca-certificates"]
            options += ["--aptopt=Apt::Install-Recommends false"]
            options += ["--dpkgopt=path-exclude=/usr/share/{doc,man,locale,info}/*"]
            options += ["--dpkgopt=path-include=/usr/share/doc/*/copyright"]
            environment = {"SOURCE_DATE_EPOCH": str(self.epoch)}
            run(["mmdebstrap", *options, release, str(files), str(self.sources)], environment)
            container = self.buildah("from", "--arch", arch, "scratch").strip()
            self.buildah("add", container, str(files), "/")
            # buildah mounts a file there while it runs a step. Left to itself it keeps it in some layers only.
            mark = Path(scratch, ".containerenv")
            mark.touch()
            self.buildah("add", container, str(mark), "/run/.containerenv")
            self.buildah("config", "--arch", arch, "--cmd", "bash", container)
            self.buildah("commit", "--rm", "--timestamp", str(self.epoch), container, name)
        for other in self._names():
            if other.startswith(f"{named}:") and other != name:
                self.buildah("rmi", other)
        return name

    def _names(self) -> list[str]:
        """Of the images in the store."""
        return [name for image in json.loads(self.buildah("images", "--json")) for name in image.get("names") or ()]

    def _bud(self, target: str, arch: str, base: str) -> None:
        options = ["--isolation", "chroot", "--network", "host", "--layers", "--format", "oci", "--arch", arch]
        # The class archive is the same each time only at addresses that are, which the usual profile forbids.
        options += ["--security-opt", "seccomp=unconfined"]
        options += ["--pull" if self.base else "--pull-never", "--timestamp", str(self.epoch)]
        arguments = {"BASE": base, "SOURCE_DATE_EPOCH": str(self.epoch)}
        if target in IMAGES:
            arguments |= {"VERSION": version(), "REVISION": revision()}
        for name, value in arguments.items():
            options += ["--build-arg", f"{name}={value}"]
        # How this machine reaches its package registries; nothing of it stays in the image.
        for ours, theirs in ((os.environ.get("SSL_CERT_FILE", ""), _CERTIFICATES), ("/etc/pip.conf", "/etc/pip.conf")):
            options += ["--volume", f"{ours}:{theirs}:ro"] if ours and Path(ours).exists() else []
        options += ["--tag", image_name(target, arch), "--target", target, "--file", str(ROOT / "Dockerfile")]
        self.buildah("bud", *options, str(ROOT))

    def _write_layout(self, image: str) -> Path:
        """An index of the image for each architecture, tagged with the version."""
        layout, index = self.out / image, f"localhost/changefeed-{image}:index"
        shutil.rmtree(layout, ignore_errors=True)
        layout.parent.mkdir(parents=True, exist_ok=True)
        if index in self._names():
            self.buildah("manifest", "rm", index)
        self.buildah("manifest", "create", index)
        for arch in self.archs:
            self.buildah("manifest", "add", index, image_name(image, arch))
        self.buildah("manifest", "push", "--all", "--format", "oci", index, f"oci:{layout}:{version()}")
        return layout

    def _write_sbom(self, image: str, arch: str) -> None:
        container = self.buildah("from", "--pull-never", image_name(image, arch)).strip()
        try:
            files = self.buildah("mount", container).strip()
            named = ["--source-name", f"changefeed-{image}", "--source-version", version()]
            written = self.out / f"{image}-{arch}.cdx.json"
            scan = ["scan", f"dir:{files}", "--override-default-catalogers", "image", "--quiet", *named]
            # Packages, not each of their files.
            settings = {"SYFT_CHECK_FOR_APP_UPDATE": "false", "SYFT_FILE_METADATA_SELECTION": "none"}
            run([str(_syft()), *scan, "--output", f"cyclonedx-json={written}"], settings)
        finally:
            self.buildah("rm", container)

    def buildah(self, *arguments: str) -> str:
        """In a store of our own, from which all can be deleted that nobody needs any more."""
        store = ["--root", str(self.store), "--runroot", "/run/changefeed-buildah"]
        return run(["buildah", *store, *arguments])


def image_name(target: str, arch: str) -> str:
    """In buildah's store: an image of ours, or a stage that is kept."""
    return f"localhost/{'changefeed-' if target in IMAGES else ''}{target}:{arch}"


def debian_release() -> str:
    """Of the image that the Dockerfile begins with."""
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    return next(line for line in lines if line.startswith("ARG BASE=debian:")).rpartition(":")[2].removesuffix("-slim")


def version() -> str:
    lines = (ROOT / "pyproject.toml").read_text().splitlines()
    return next(line for line in lines if line.startswith("version = ")).split('"')[1]


def revision() -> str:
    """The commit that is built; "unknown" without one, such as in a source archive."""
    commit = _git("rev-parse", "HEAD")
    if not commit:
        return "unknown"
    return f"{commit}-dirty" if _git("status", "--porcelain") else commit


def epoch() -> int:
    """The date of every file in the images, SOURCE_DATE_EPOCH: of the last change of what the libraries come from.

    Not of the last commit: layers that hold the same libraries are the same then, and nobody pulls them again.
    """
    said = os.environ.get("SOURCE_DATE_EPOCH") or _git("log", "-1", "--format=%ct", "--", *_LIBRARIES)
    if not said:
        raise BuildFailed("there is no git history to take a date from: set SOURCE_DATE_EPOCH")
    return int(said)


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def host_arch() -> str:
    return next(arch for arch, processor in _PROCESSORS.items() if processor == os.uname().machine)


def _can_run(arch: str) -> None:
    """Programs of another processor are run by qemu, once the kernel knows it."""
    emulator = _BINFMT / f"qemu-{_PROCESSORS[arch]}"
    if arch == host_arch() or emulator.exists():
        return
    if not (_BINFMT / "register").exists():
        run(["mount", "-t", "binfmt_misc", "binfmt_misc", str(_BINFMT)])
    described = Path("/usr/lib/binfmt.d") / f"{emulator.name}.conf"
    if not described.exists() or shutil.which("arch-test") is None:
        raise BuildFailed(
            f"for {arch} qemu must run that processor's programs: apt-get install qemu-user-static arch-test"
        )
    if not emulator.exists():
        (_BINFMT / "register").write_text(described.read_text().strip())


def _syft() -> Path:
    """The one in PATH; else built once into the cache."""
    if found := shutil.which("syft"):
        return Path(found)
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "changefeed" / _SYFT.replace("/", "-")
    if not (folder / "syft").exists():
        if shutil.which("go") is None:
            raise BuildFailed("an SBOM is made by syft, which is built with go: install either, or pass --no-sboms")
        run(["go", "install", _SYFT], {"GOBIN": str(folder), "CGO_ENABLED": "0"})
    return folder / "syft"


def run(command: Sequence[str], environment: dict[str, str] | None = None) -> str:
    """What it printed. Raises BuildFailed."""
    whole = ["nice", "-n", "10", *command]
    done = subprocess.run(
        whole, capture_output=True, text=True, timeout=_RUN_S, check=False, env={**os.environ, **(environment or {})}
    )
    if done.returncode:
        raise BuildFailed(f"`{' '.join(command)}` failed: {(done.stderr or done.stdout)[-3000:]}")
    return done.stdout


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "images")
    parser.add_argument("--store", type=Path, help="buildah's store (default: beside --out)")
    parser.add_argument("--arch", action="append", choices=sorted(_PROCESSORS), help="may be repeated (default: all)")
    parser.add_argument("--base", default="", help="begin with this image, as NAME@sha256:... (default: one is made)")
    parser.add_argument(
        "--sources", type=Path, default=_SOURCES, help="apt's sources for the base (default: %(default)s)"
    )
    parser.add_argument("--no-sboms", action="store_true")
    given = parser.parse_args(arguments)
    if given.base and "@sha256:" not in given.base:
        parser.error(f"--base {given.base}: allowed: an image with its digest, NAME@sha256:...")
    out = given.out.resolve()
    store = (given.store or out.parent / "buildah").resolve()
    store.mkdir(parents=True, exist_ok=True)
    try:
        builder = Builder(out, store, tuple(given.arch or _PROCESSORS), given.base, given.sources, epoch())
        for layout in builder.build(sboms=not given.no_sboms):
            digest = json.loads((layout / "index.json").read_text())["manifests"][0]["digest"]
            sys.stdout.write(f"{layout} {digest}\n")
    except BuildFailed as failed:
        sys.stderr.write(f"{failed}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
