"""A release of clones of this checkout, pushed to a real registry, and verified by who has only the public key."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from cluster_chart_tools import ROOT, run
from cluster_programs import program
from cluster_release import Keys, clone, cosign, new_keys, registry, verifies, write_layouts

from release.commit import Commit, ReleaseRefused, commit_to_release
from release.files import write_files
from release.images import check_revisions, layouts
from release.installation import pin_images
from release.publication import publish

VERSION = str(yaml.safe_load((ROOT / "charts" / "changefeed-operator" / "Chart.yaml").read_text())["version"])
NAMED = f"changefeed-operator-{VERSION}"
WORKFLOWS = ROOT / ".github" / "workflows"


@dataclass(frozen=True)
class Released:
    """A release that was pushed. `pushed`: its references in the registry, by digest."""

    commit: Commit
    registry: str
    files: Path
    pushed: list[str]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with registry(tmp_path_factory.mktemp("registry")) as started:
        yield started


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return new_keys(tmp_path_factory.mktemp("keys") / "ours")


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return new_keys(tmp_path_factory.mktemp("keys") / "others")


def _release(folder: Path, address: str, keys: Keys) -> Released:
    """As `python -m release` does, but for the images, which would take half an hour."""
    os.environ["COSIGN_PASSWORD"] = ""
    commit = commit_to_release(clone(folder / "clone"), VERSION)
    images = layouts(write_layouts(folder / "images", commit.sha))
    check_revisions(images, commit)
    files = folder / "dist"
    files.mkdir()
    source = commit.export(folder / "source")
    write_files(commit, source, files, address, images)
    return Released(commit, address, files, publish(commit, source, files, address, str(keys.private), images))


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory, address: str, keys: Keys) -> Released:
    return _release(tmp_path_factory.mktemp("release"), address, keys)


def test_two_clones_of_a_commit_give_the_same_bytes(tmp_path: Path) -> None:
    """By the command itself. The clones differ in path, umask, time zone, and the times of their files."""
    made = []
    for name, umask, zone in (("one", 0o022, "UTC"), ("another-day", 0o077, "Asia/Tokyo")):
        previous = os.umask(umask)
        try:
            folder = clone(tmp_path / name)
        finally:
            os.umask(previous)
        for file in folder.rglob("*"):
            os.utime(file, (len(name), len(name)))
        command = [sys.executable, "-m", "release", "--version", VERSION, "--out", tmp_path / f"{name}-dist"]
        environment = {**os.environ, "PYTHONPATH": str(folder / "tests" / "cluster"), "TZ": zone}
        subprocess.run(command, cwd=folder, env=environment, umask=umask, check=True)
        made.append({file.name: file.read_bytes() for file in (tmp_path / f"{name}-dist").iterdir()})
    first, second = made
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []
    wheel = f"{NAMED.replace('-operator', '_operator')}-py3-none-any.whl"
    assert {"SHA256SUMS", "crds.yaml", "notes.md", wheel, f"{NAMED}.tgz"} <= first.keys()


def test_a_second_release_has_the_digests_of_the_first(
    tmp_path: Path, address: str, others: Keys, released: Released
) -> None:
    """All but the signatures: two of one thing differ."""
    again = _release(tmp_path, address, others)
    assert again.pushed == released.pushed
    signatures = {"SHA256SUMS.sigstore.json", f"{NAMED}.intoto.jsonl"}
    differ = {
        file.name for file in again.files.iterdir() if file.read_bytes() != (released.files / file.name).read_bytes()
    }
    assert differ == signatures


def test_its_checksums_are_of_all_its_files_but_the_signatures(released: Released) -> None:
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=released.files, check=True)
    listed = {line.split()[1] for line in (released.files / "SHA256SUMS").read_text().splitlines()}
    beside = {file.name for file in released.files.iterdir()} - listed
    assert beside == {"SHA256SUMS", "SHA256SUMS.sigstore.json", f"{NAMED}.intoto.jsonl"}


def test_its_wheel_has_the_product_with_its_data(released: Released) -> None:
    (wheel,) = released.files.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {"changefeed/__init__.py", "changefeed/filter/weights.parquet", "changefeed_operator/__main__.py"} <= {
        *names
    }
    (archive,) = [file for file in released.files.glob("*.tar.gz") if file.name.startswith("changefeed_operator")]
    with tarfile.open(archive) as tar:
        assert f"changefeed_operator-{VERSION}/pyproject.toml" in tar.getnames()


def test_everything_that_installs_it_names_its_images_by_digest(released: Released, tmp_path: Path) -> None:
    wanted = {line.replace(f":{VERSION}@", "@") for line in (released.files / "images.txt").read_text().split()}
    assert len(wanted) == 2
    rendered = run([program("helm"), "template", "x", released.files / f"{NAMED}.tgz", "--kube-version", "1.35.0"])
    assert rendered.returncode == 0, rendered.stderr
    for archive in ("kustomize", "bundle"):
        with tarfile.open(released.files / f"{NAMED}-{archive}.tar.gz") as tar:
            tar.extractall(tmp_path, filter="data")
    base = run([program("kubectl"), "kustomize", tmp_path / NAMED / "deploy" / "kustomize" / "base"])
    assert base.returncode == 0, base.stderr
    assert "kind: CustomResourceDefinition" in base.stdout
    (csv,) = (tmp_path / f"{NAMED}-bundle" / "manifests").glob("*.clusterserviceversion.yaml")
    assert {each["image"] for each in yaml.safe_load(csv.read_text())["spec"]["relatedImages"]} == wanted
    for text in (rendered.stdout, base.stdout):
        assert [image for image in wanted if image not in text] == []


def test_its_images_have_both_architectures_and_the_bundle_its_labels(released: Released) -> None:
    operator, spark, bundle, _ = released.pushed
    for each in (operator, spark, bundle):
        index = json.loads(run([program("crane"), "manifest", each]).stdout)
        assert [image["platform"]["architecture"] for image in index["manifests"]] == ["amd64", "arm64"]
    annotations = yaml.safe_load((ROOT / "deploy" / "bundle" / "metadata" / "annotations.yaml").read_text())
    for architecture in ("amd64", "arm64"):
        command = [program("crane"), "config", "--platform", f"linux/{architecture}", bundle]
        config = json.loads(run(command).stdout)
        assert (config["architecture"], config["config"]["Labels"]) == (architecture, annotations["annotations"])


def test_the_chart_is_pulled_from_the_registry(released: Released, tmp_path: Path) -> None:
    chart = f"oci://{released.registry}/charts/changefeed-operator"
    pulled = run([program("helm"), "pull", chart, "--version", VERSION, "--plain-http", "--destination", tmp_path])
    assert pulled.returncode == 0, pulled.stderr
    assert (tmp_path / f"{NAMED}.tgz").read_bytes() == (released.files / f"{NAMED}.tgz").read_bytes()


def test_what_is_in_the_registry_verifies_with_its_key_and_no_other(
    released: Released, keys: Keys, tmp_path: Path
) -> None:
    stranger = new_keys(tmp_path / "stranger")
    for each in released.pushed:
        assert verifies(keys, "verify", each), each
        assert not verifies(stranger, "verify", each), each
    refused = cosign("verify", "--key", stranger.public, "--insecure-ignore-tlog", released.pushed[0])
    assert "no matching signatures" in refused.stderr or "failed to verify" in refused.stderr, refused.stderr


def test_each_image_of_an_index_is_signed(released: Released, keys: Keys) -> None:
    operator = released.pushed[0]
    for image in json.loads(run([program("crane"), "manifest", operator]).stdout)["manifests"]:
        assert verifies(keys, "verify", f"{operator.partition('@')[0]}@{image['digest']}")


def test_its_checksums_verify_until_somebody_edits_them(
    released: Released, keys: Keys, others: Keys, tmp_path: Path
) -> None:
    bundle = ("--bundle", released.files / "SHA256SUMS.sigstore.json")
    assert verifies(keys, "verify-blob", *bundle, released.files / "SHA256SUMS")
    assert not verifies(others, "verify-blob", *bundle, released.files / "SHA256SUMS")
    edited = Path(shutil.copy(released.files / "SHA256SUMS", tmp_path))
    edited.write_text(edited.read_text().replace("a", "b", 1))
    assert not verifies(keys, "verify-blob", *bundle, edited)


def test_its_provenance_verifies_for_what_it_was_made_of_alone(released: Released, keys: Keys, others: Keys) -> None:
    attested = ("--bundle", released.files / f"{NAMED}.intoto.jsonl", "--type", "slsaprovenance1")
    chart = released.files / f"{NAMED}.tgz"
    assert verifies(keys, "verify-blob-attestation", *attested, chart)
    assert not verifies(others, "verify-blob-attestation", *attested, chart)
    assert not verifies(keys, "verify-blob-attestation", *attested, ROOT / "README.md")
    image = released.pushed[0].partition("sha256:")[2]
    assert verifies(keys, "verify-blob-attestation", *attested, "--digest", image, "--digestAlg", "sha256")
    statement = json.loads((released.files / f"{NAMED}.provenance.json").read_text())
    depends = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert {"gitCommit": released.commit.sha} in [each["digest"] for each in depends]


def test_images_of_another_commit_are_not_released(released: Released, tmp_path: Path) -> None:
    images = layouts(write_layouts(tmp_path, "0" * 40))
    with pytest.raises(ReleaseRefused, match="operator image for amd64 was built of 0000"):
        check_revisions(images, released.commit)


def test_a_chart_whose_images_are_set_already_is_not_pinned_again(released: Released, tmp_path: Path) -> None:
    source = released.commit.export(tmp_path)
    digests = {"operator": "sha256:1", "spark": "sha256:2"}
    pin_images(source, "r.example.com", digests)
    values = yaml.safe_load((source / "charts" / "changefeed-operator" / "values.yaml").read_text())
    assert [(values[each]["registry"], values[each]["digest"]) for each in ("image", "sparkImage")] == [
        ("r.example.com", "sha256:1"),
        ("r.example.com", "sha256:2"),
    ]
    with pytest.raises(ReleaseRefused, match=r"no `image\.registry"):
        pin_images(source, "r.example.com", digests)


def test_workflows_are_well_formed_and_run_what_is_run_by_hand(tmp_path: Path) -> None:
    done = run([program("actionlint"), "-no-color", *sorted(WORKFLOWS.glob("*.yaml"))])
    assert done.returncode == 0, done.stdout
    said = {file.stem: yaml.safe_load(file.read_text()) for file in WORKFLOWS.glob("*.yaml")}
    steps = {
        name: [step.get("run", "") for job in each["jobs"].values() for step in job["steps"]]
        for name, each in said.items()
    }
    assert ".ci/run" in steps["ci"]
    assert [line for line in steps["release"] if line.startswith("make release ")]
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text((WORKFLOWS / "ci.yaml").read_text().replace("github.ref", "github.reff"))
    assert run([program("actionlint"), "-no-color", wrong]).returncode == 1
