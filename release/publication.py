"""What a release puts into a registry, and the signatures on it and on its files.

That is the images, the OLM bundle as an image, and the chart, each known by its digest.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import yaml

from release import signing
from release.archives import files_below, tar
from release.commit import Commit
from release.images import Layout
from release.installation import NAME
from release.statements import CHECKSUMS
from release.tools import run


def publish(commit: Commit, source: Path, out: Path, registry: str, key: str, images: Sequence[Layout]) -> list[str]:
    """Push and sign, after `write_files`; returns what is in the registry, by digest."""
    named = f"{NAME}-{commit.version}"
    pushed = [push_image(each, registry, commit.version) for each in images]
    architectures = sorted({architecture for each in images for architecture in each.revisions})
    pushed.append(push_bundle(source / "deploy" / "bundle", registry, commit, architectures))
    pushed.append(push_chart(out / f"{named}.tgz", registry, commit.version))
    for each in pushed:
        signing.sign_image(key, each)
    signing.sign_statement(key, out / f"{named}.provenance.json", out / f"{named}.intoto.jsonl")
    signing.sign_file(key, out / CHECKSUMS, out / f"{CHECKSUMS}.sigstore.json")
    return pushed


def push_image(layout: Layout, registry: str, version: str) -> str:
    """All architectures, tagged with the version."""
    repository = f"{registry}/{layout.repository}"
    run("crane", "push", layout.folder, f"{repository}:{version}")
    return f"{repository}@{layout.digest}"


def push_chart(chart: Path, registry: str, version: str) -> str:
    """The packaged chart, for `helm install oci://REGISTRY/charts/changefeed-operator`."""
    run("helm", "push", chart, f"oci://{registry}/charts", *(["--plain-http"] if _is_here(registry) else []))
    return _by_digest(f"{registry}/charts/{NAME}", version)


def push_bundle(bundle: Path, registry: str, commit: Commit, architectures: Sequence[str]) -> str:
    """The folder of the OLM bundle as images of its files, with the labels that OLM looks for.

    They differ in the architecture alone that they say: OLM has a node pull the bundle, and a node pulls its own only.
    """
    repository = f"{registry}/{NAME}-bundle"
    labels = yaml.safe_load((bundle / "metadata" / "annotations.yaml").read_text())["annotations"]
    settings = [part for name, value in sorted(labels.items()) for part in ("--label", f"{name}={value}")]
    files = {**files_below(bundle / "manifests", "manifests"), **files_below(bundle / "metadata", "metadata")}
    tagged = f"{repository}:{commit.version}"
    with tempfile.TemporaryDirectory() as folder:
        layer = Path(folder, "layer.tar")
        layer.write_bytes(tar(files, commit.epoch))
        run("crane", "append", "--oci-empty-base", "--new_layer", layer, "--new_tag", tagged)
    images = []
    for each in architectures:
        platform = ("--set-platform", f"linux/{each}")
        images += ["--manifest", run("crane", "mutate", tagged, "--repo", repository, *platform, *settings).strip()]
    run("crane", "index", "append", *images, "--tag", tagged)
    return _by_digest(repository, commit.version)


def _by_digest(repository: str, version: str) -> str:
    return f"{repository}@{run('crane', 'digest', f'{repository}:{version}').strip()}"


def _is_here(registry: str) -> bool:
    """Whether it is a registry of this machine, which crane and cosign speak to without TLS, too."""
    return registry.partition("/")[0].partition(":")[0] in ("127.0.0.1", "localhost")
