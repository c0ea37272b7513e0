"""The programs of a Kubernetes cluster, built once from their Go modules into the cache.

Every version is fixed here and is part of a program's path; Go checks each module against its checksum database.
`python tests/cluster/cluster_programs.py [NAME ...]` builds what is missing (default: all), in the order below.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

_MINOR = "35"
_KUBERNETES = f"v1.{_MINOR}.4"
SPARK_OPERATOR = "v2.5.2"
#: Only its CRDs are used: nothing of it is built.
_OLM = ("github.com/operator-framework/api", "v0.30.0")
#: Built in one module graph, that of Kubernetes, so that what they share is compiled once: versions of one minor
#: version of its libraries.
_TOGETHER = {
    "k8s.io/kubernetes": _KUBERNETES,
    "helm.sh/helm/v3": "v3.20.2",
    "github.com/helm-unittest/helm-unittest": "v1.0.3",
    "github.com/coredns/coredns": "v1.14.7",
}
_CRANE = "github.com/google/go-containerregistry"
_COSIGN = "github.com/sigstore/cosign/v3"
_REGISTRY = "github.com/distribution/distribution/v3"
_ACTIONLINT = "github.com/rhysd/actionlint"
_STAMP = "k8s.io/component-base/version"


class SetupFailed(Exception):
    """A program can't be built or an installed one is missing; the message says what to do."""


@dataclass(frozen=True)
class GoProgram:
    """`package` of `module` at `version`; or `source`, a file of programs/, which may use the module.

    `local_version`: of what the module replaces by folders of its own repository.
    """

    module: str
    version: str
    package: str
    local_version: str = ""
    stamp: tuple[tuple[str, str], ...] = ()
    source: str = ""

    @property
    def flags(self) -> str:
        return " ".join(["-s -w", *(f"-X {name}={value}" for name, value in self.stamp)])


def _kubernetes(name: str) -> GoProgram:
    # Without the stamp it calls itself v0.0.0, and charts with a `kubeVersion` refuse it.
    stamp = {
        "gitVersion": _KUBERNETES,
        "gitMajor": "1",
        "gitMinor": _MINOR,
        "gitCommit": "unknown",
        "gitTreeState": "clean",
        "buildDate": "2026-01-01T00:00:00Z",
    }
    return GoProgram(
        "k8s.io/kubernetes",
        _KUBERNETES,
        f"k8s.io/kubernetes/cmd/{name}",
        local_version=_KUBERNETES.replace("v1.", "v0."),
        stamp=tuple((f"{_STAMP}.{field}", value) for field, value in stamp.items()),
    )


def _together(module: str, package: str = "", source: str = "") -> GoProgram:
    return GoProgram(module, _TOGETHER[module], f"{module}/{package}" if package else ".", source=source)


PROGRAMS = {
    "etcd": GoProgram("go.etcd.io/etcd/server/v3", "v3.6.14", "go.etcd.io/etcd/server/v3"),
    "kube-apiserver": _kubernetes("kube-apiserver"),
    "kubectl": _kubernetes("kubectl"),
    "kube-controller-manager": _kubernetes("kube-controller-manager"),
    "helm": _together("helm.sh/helm/v3", "cmd/helm"),
    "helm-unittest": _together("github.com/helm-unittest/helm-unittest", "cmd/helm-unittest"),
    # The Lua that Argo CD itself runs health checks and actions with.
    "glua": GoProgram("github.com/yuin/gopher-lua", "v1.1.1", "github.com/yuin/gopher-lua/cmd/glua"),
    "spark-operator": GoProgram(
        "github.com/kubeflow/spark-operator/v2",
        SPARK_OPERATOR,
        "github.com/kubeflow/spark-operator/v2/cmd/operator",
    ),
    # Of the real node.
    "kube-scheduler": _kubernetes("kube-scheduler"),
    "kubelet": _kubernetes("kubelet"),
    "kube-proxy": _kubernetes("kube-proxy"),
    "versitygw": GoProgram("github.com/versity/versitygw", "v1.8.0", "github.com/versity/versitygw/cmd/versitygw"),
    "coredns": _together("github.com/coredns/coredns", source="coredns.go"),
    "pause": GoProgram("", "v1", ".", source="pause.go"),
    # For releases (release/): they are pushed by crane, signed by cosign, in tests to a registry; and CI's workflows.
    "crane": GoProgram(_CRANE, "v0.22.1", f"{_CRANE}/cmd/crane"),
    "cosign": GoProgram(_COSIGN, "v3.1.3", f"{_COSIGN}/cmd/cosign"),
    "registry": GoProgram(_REGISTRY, "v3.1.2", ".", source="registry.go"),
    "actionlint": GoProgram(_ACTIONLINT, "v1.7.12", f"{_ACTIONLINT}/cmd/actionlint"),
}


def unsupported() -> str:
    """Why there can be no test cluster on this machine; empty when there can."""
    if sys.platform != "linux":
        return f"the test cluster runs on Linux only; this is {platform.system()}"
    if shutil.which("go") is None:
        return "the test cluster's programs are built with go, which is not in PATH: install Go 1.26 or newer"
    if shutil.which("setpriv") is None:
        return "the test cluster's processes are started with setpriv, which is not in PATH: install util-linux"
    return ""


def program(name: str) -> Path:
    """The path of an installed program; it never builds, because a test has no time for that."""
    path = _path(name)
    if not path.exists():
        raise SetupFailed(f"{name} is not built: run `make test-cluster`, which builds it")
    return path


def module_folder(name: str) -> Path:
    """The unpacked module of a program: charts and CRDs come from it, read only."""
    return Path(_module(PROGRAMS[name].module, PROGRAMS[name].version)["Dir"])


def crd_of_module(file: str) -> Path:
    """A CRD of the Operator Lifecycle Manager."""
    return Path(_module(*_OLM)["Dir"]) / "crds" / file


def install(name: str) -> Path:
    """Builds the program unless it is there; one process builds it, others wait for that."""
    path = _path(name)
    if path.exists():
        return path
    if reason := unsupported():
        raise SetupFailed(reason)
    path.parent.mkdir(parents=True, exist_ok=True)
    with (path.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():
            return path
        with tempfile.TemporaryDirectory(dir=cache_folder(), prefix=".build-") as scratch:
            _build(name, Path(scratch)).rename(path)
    return path


def _build(name: str, folder: Path) -> Path:
    """`folder/name`, built by a module of our own: `go install` refuses a module that replaces others, as these do."""
    wanted = PROGRAMS[name]
    modules = [wanted] if wanted.module not in _TOGETHER else [p for p in PROGRAMS.values() if p.module in _TOGETHER]
    lines = ["module changefeed.dev/cluster", *(_required(modules, folder) if wanted.module else ["go 1.25.0"])]
    (folder / "go.mod").write_text("\n".join(lines) + "\n")
    if wanted.source:
        shutil.copy(Path(__file__).with_name("programs") / wanted.source, folder)
    # Without inlining a fifth of the compiler's time is saved; no test waits for what these programs compute.
    compiled = ["-p", "2", "-trimpath", "-gcflags=all=-l", "-ldflags", wanted.flags]
    _go(["build", *compiled, "-o", name, wanted.package], folder)
    return folder / name


def _required(programs: Sequence[GoProgram], folder: Path) -> list[str]:
    """What a go.mod says to have the modules of these programs as they are when they are built by themselves."""
    lines: dict[str, None] = {}
    go = "1.25.0"
    for wanted in programs:
        module = _module(wanted.module, wanted.version)
        described = json.loads(_go(["mod", "edit", "-json", module["GoMod"]], folder))
        go = max(go, described["Go"], key=lambda version: [int(number) for number in version.split(".")])
        lines[f"require {wanted.module} {wanted.version}"] = None
        settings = described.get("Godebug") or ()
        lines |= {f"godebug {setting['Key']}={setting['Value']}": None for setting in settings}
        replaced = described.get("Replace") or ()
        lines |= {line: None for each in replaced if (line := _replacement(each, wanted))}
    return [f"go {go}", *lines]


def _replacement(replaced: dict[str, Any], wanted: GoProgram) -> str:
    """A module's `replace` said again, since Go follows those of the main module only; a folder becomes its version."""
    old, new = replaced["Old"]["Path"], replaced["New"]
    if new.get("Version"):
        return f"replace {old} => {new['Path']} {new['Version']}"
    return f"replace {old} => {old} {wanted.local_version}" if wanted.local_version else ""


@cache
def _module(module: str, version: str) -> dict[str, str]:
    described: dict[str, str] = json.loads(_go(["mod", "download", "-json", f"{module}@{version}"], Path("/")))
    return described


def _go(arguments: Sequence[str], folder: Path) -> str:
    environment = {
        **os.environ,
        "CGO_ENABLED": "0",
        "GOFLAGS": "-buildvcs=false -mod=mod",
        # A cache of its own: kubelet and the others share most packages, and nobody else empties it meanwhile.
        "GOCACHE": str(cache_folder() / "go-build"),
    }
    done = subprocess.run(
        ["nice", "-n", "10", "go", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        said = done.stderr or done.stdout
        raise SetupFailed(f"`go {' '.join(arguments)}` failed: {said[-2000:]}\nThe network may be needed: try again")
    return done.stdout


def _path(name: str) -> Path:
    return cache_folder() / f"{name}-{PROGRAMS[name].version}" / name


def cache_folder() -> Path:
    """Where all that is built for test clusters stays."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "changefeed" / "cluster"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def main(names: Sequence[str]) -> int:
    if reason := unsupported():
        sys.stderr.write(f"test-cluster does not run: {reason}.\n")
        return 1 if os.environ.get("CI") == "true" else 0
    try:
        for name in names or PROGRAMS:
            started = time.monotonic()
            there = _path(name).exists()
            install(name)
            if not there:
                sys.stdout.write(f"built {name} {PROGRAMS[name].version} in {time.monotonic() - started:.0f} s\n")
                sys.stdout.flush()
    except SetupFailed as failed:
        sys.stderr.write(f"{failed}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
