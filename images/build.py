"""Builds the images as OCI layouts, byte-for-byte reproducible from a checkout and a Debian archive: `make images`.

Writes a layout each for `operator` and `spark` below --out, with an index of all architectures, and beside it a
CycloneDX SBOM for each. Needs root on Debian with the packages buildah and mmdebstrap; building for a foreign
architecture runs its programs, which also needs qemu-user-static and arch-test.
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
#: Dockerfile stages. Tagging them keeps them cached, so that only what changed is rebuilt.
_STAGES = ("product", "operator-libraries", "spark-libraries", "spark-runtime")
#: The inputs of the layers below our code. Files in the images are dated by the last change to these.
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
    """Builds images with buildah.

    `out`: where the layouts go. `store`: buildah's storage folder. `base`: an image by digest; "": build one.

    `sources`: an apt sources file for the Debian archive. `epoch`: the date of every file, in seconds.
    """

    out: Path
    store: Path
    archs: tuple[str, ...]
    base: str
    sources: Path
    epoch: int

    def build(self, sboms: bool) -> list[Path]:
        """Returns the layouts."""
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
        """Build the base image of the Dockerfile from Debian packages, and delete those with other dates."""
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
            # buildah mounts this file while it runs a step, and by default leaves it in some layers but not in others.
            mark = Path(scratch, ".containerenv")
            mark.touch()
            self.buildah("add", container, str(mark), "/run/.containerenv")
            self.buildah("config", "--arch", arch, "--cmd", "bash", container)
            self.buildah("commit", "--rm", "--timestamp", str(self.epoch), container, name)
        for other in self._names():
            if other.startswith(f"{named}:") and other != name:
                self.buildah("rmi", "--force", other)  # with containers that a build which was killed has left
        return name

    def _names(self) -> list[str]:
        """Names of the images in the store."""
        return [name for image in json.loads(self.buildah("images", "--json")) for name in image.get("names") or ()]

    def _bud(self, target: str, arch: str, base: str) -> None:
        options = ["--isolation", "chroot", "--network", "host", "--layers", "--format", "oci", "--arch", arch]
        # The class archive is only reproducible at fixed addresses, which the default seccomp profile does not allow.
        options += ["--security-opt", "seccomp=unconfined"]
        options += ["--pull" if self.base else "--pull-never", "--timestamp", str(self.epoch)]
        arguments = {"BASE": base, "SOURCE_DATE_EPOCH": str(self.epoch)}
        if target in IMAGES:
            arguments |= {"VERSION": version(), "REVISION": revision()}
        for name, value in arguments.items():
            options += ["--build-arg", f"{name}={value}"]
        # This machine's access to its package registries. None of it stays in the image.
        for ours, theirs in ((os.environ.get("SSL_CERT_FILE", ""), _CERTIFICATES), ("/etc/pip.conf", "/etc/pip.conf")):
            options += ["--volume", f"{ours}:{theirs}:ro"] if ours and Path(ours).exists() else []
        options += ["--tag", image_name(target, arch), "--target", target, "--file", str(ROOT / "Dockerfile")]
        self.buildah("bud", *options, str(ROOT))

    def _write_layout(self, image: str) -> Path:
        """Write an index of the image's architectures, tagged with the version."""
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
            # List packages, not their files.
            settings = {"SYFT_CHECK_FOR_APP_UPDATE": "false", "SYFT_FILE_METADATA_SELECTION": "none"}
            run([str(_syft()), *scan, "--output", f"cyclonedx-json={written}"], settings)
        finally:
            self.buildah("rm", container)

    def buildah(self, *arguments: str) -> str:
        """Run buildah with a store of our own, in which anything unused can be deleted."""
        store = ["--root", str(self.store), "--runroot", "/run/changefeed-buildah"]
        return run(["buildah", *store, *arguments])


def image_name(target: str, arch: str) -> str:
    """The name of an image or cached stage in buildah's store."""
    return f"localhost/{'changefeed-' if target in IMAGES else ''}{target}:{arch}"


def debian_release() -> str:
    """The Debian release of the Dockerfile's base image."""
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    return next(line for line in lines if line.startswith("ARG BASE=debian:")).rpartition(":")[2].removesuffix("-slim")


def version() -> str:
    lines = (ROOT / "pyproject.toml").read_text().splitlines()
    return next(line for line in lines if line.startswith("version = ")).split('"')[1]


def revision() -> str:
    """The commit being built; "unknown" outside a git checkout, such as in a source archive."""
    commit = git("rev-parse", "HEAD")
    if not commit:
        return "unknown"
    return f"{commit}-dirty" if git("status", "--porcelain") else commit


def epoch() -> int:
    """SOURCE_DATE_EPOCH, the date of every file in the images: when the inputs of the libraries last changed.

    Not the last commit: this way layers with unchanged libraries stay identical and don't have to be pulled again.
    """
    said = os.environ.get("SOURCE_DATE_EPOCH") or git("log", "-1", "--format=%ct", "--", *_LIBRARIES)
    if not said:
        raise BuildFailed("no git history to take a date from: set SOURCE_DATE_EPOCH")
    return int(said)


def git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def host_arch() -> str:
    return next(arch for arch, processor in _PROCESSORS.items() if processor == os.uname().machine)


def _can_run(arch: str) -> None:
    """Register qemu with the kernel to run programs of a foreign architecture."""
    emulator = _BINFMT / f"qemu-{_PROCESSORS[arch]}"
    if arch == host_arch() or emulator.exists():
        return
    if not (_BINFMT / "register").exists():
        run(["mount", "-t", "binfmt_misc", "binfmt_misc", str(_BINFMT)])
    described = Path("/usr/lib/binfmt.d") / f"{emulator.name}.conf"
    if not described.exists() or shutil.which("arch-test") is None:
        raise BuildFailed(
            f"building for {arch} on this machine requires qemu: apt-get install qemu-user-static arch-test"
        )
    if not emulator.exists():
        (_BINFMT / "register").write_text(described.read_text().strip())


def _syft() -> Path:
    """syft from PATH, or built once into the cache."""
    if found := shutil.which("syft"):
        return Path(found)
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "changefeed" / _SYFT.replace("/", "-")
    if not (folder / "syft").exists():
        if shutil.which("go") is None:
            raise BuildFailed("SBOMs require syft, or go to build it: install either, or pass --no-sboms")
        run(["go", "install", _SYFT], {"GOBIN": str(folder), "CGO_ENABLED": "0"})
    return folder / "syft"


def run(command: Sequence[str], environment: dict[str, str] | None = None) -> str:
    """Returns its stdout. Raises BuildFailed."""
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
    parser.add_argument("--store", type=Path, help="buildah storage folder (default: beside --out)")
    parser.add_argument("--arch", action="append", choices=sorted(_PROCESSORS), help="may be repeated (default: all)")
    parser.add_argument("--base", default="", help="base image, as NAME@sha256:... (default: build one)")
    parser.add_argument(
        "--sources", type=Path, default=_SOURCES, help="apt sources file for the base image (default: %(default)s)"
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
