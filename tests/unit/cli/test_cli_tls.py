"""What `changefeed` says of an upstream with TLS: each trouble with its next step, before Spark is needed."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from changefeed.cli.main import main
from changefeed.spark.launch import Launch
from changefeed_devcluster.certificates import Certificates
from changefeed_devcluster.pd.safepoints import GC_WORKER
from changefeed_devcluster.server import DevCluster

SECRET = "client"
FAILED, BAD_INPUT = 1, 2


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of them, which is a folder of Secrets at the same time."""
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
def cluster(certificates: Path) -> Iterator[DevCluster]:
    with DevCluster(stores=1, certificates=Certificates(certificates, ["127.0.0.1"])) as cluster:
        yield cluster


@pytest.fixture
def upstream(cluster: DevCluster) -> dict[str, Any]:
    """The upstream of the resource."""
    tls = {"secretRef": {"name": SECRET}, "allowedCommonNames": ["devcluster"]}
    return {"pdAddresses": [f"https://{cluster.pd_address}"], "tls": tls}


def _file(folder: Path, upstream: dict[str, Any]) -> Path:
    spec = {
        "upstream": upstream,
        "startTs": "1",
        "state": {"uri": (folder / "state").as_uri()},
        "sink": {"storage": {"uri": (folder / "lake").as_uri(), "protocol": "csv"}},
    }
    resource = {"apiVersion": "changefeed.dev/v1alpha1", "kind": "Changefeed", "metadata": {"name": "test"}}
    (folder / "changefeed.json").write_text(json.dumps({**resource, "spec": spec}))
    return folder / "changefeed.json"


def _said(printed: Any, as_json: bool, words: tuple[str, ...]) -> None:
    out, err = printed
    shown = " ".join(json.loads(out)["error"].values()) if as_json else err
    assert [each for each in words if each not in shown] == [], shown
    assert "Traceback" not in shown


# What a start is refused for: each spoils the resource's upstream or a Secret of its own.

Spoil = Callable[[dict[str, Any], Path, Path], None]


def _another_ca(upstream: dict[str, Any], secret: Path, folder: Path) -> None:
    Certificates(folder / "another", ["127.0.0.1"])
    shutil.copy(folder / "another" / "ca.crt", secret)


def _no_certificate(upstream: dict[str, Any], secret: Path, folder: Path) -> None:
    (secret / "tls.crt").unlink()
    (secret / "tls.key").unlink()


def _another_name(upstream: dict[str, Any], secret: Path, folder: Path) -> None:
    upstream["tls"]["allowedCommonNames"] = ["tidb"]


def _another_cluster(upstream: dict[str, Any], secret: Path, folder: Path) -> None:
    upstream["clusterId"] = "5"


def _no_secret(upstream: dict[str, Any], secret: Path, folder: Path) -> None:
    shutil.rmtree(secret)


@pytest.mark.parametrize(
    ("spoil", "code", "said"),
    [
        (_another_ca, FAILED, ("is not trusted", "Put the CA that signed it into ca.crt of Secret client")),
        (_no_certificate, FAILED, ("wants a client certificate", "Add tls.crt and tls.key")),
        (_another_name, FAILED, ("common name devcluster; allowed: tidb", "spec.upstream.tls.allowedCommonNames")),
        (_another_cluster, BAD_INPUT, ("spec.upstream.clusterId: 5 is wanted", "Point spec.upstream at the right")),
        (_no_secret, FAILED, ("ca.crt can't be read: No such file", "for mutual TLS tls.crt and tls.key too")),
    ],
)
def test_a_start_is_refused(
    spoil: Spoil,
    code: int,
    said: tuple[str, ...],
    upstream: dict[str, Any],
    certificates: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def context(_: Launch) -> None:
        pytest.fail("the run is not refused")

    monkeypatch.setattr(Launch, "begin", lambda _: None)
    monkeypatch.setattr(Launch, "context", context)
    secret = Path(shutil.copytree(certificates / SECRET, tmp_path / "secrets" / SECRET))
    spoil(upstream, secret, tmp_path)
    for mode in ([], ["--json"]):
        arguments = ["run", "-f", str(_file(tmp_path, upstream)), "--secrets-dir", str(secret.parent), *mode]
        assert main(arguments) == code
        _said(capfd.readouterr(), bool(mode), said)
    assert not list(tmp_path.rglob("log/*.json"))


@pytest.mark.parametrize(
    ("at", "names", "said"),
    [
        (
            "TiKV",
            {"common_names": ["tidb"], "pd_common_names": ["changefeed"]},
            ("Store 1 at", "x509_common_name from peer is changefeed", "security.cert-allowed-cn of TiKV"),
        ),
        (
            "PD",
            {"pd_common_names": ["tidb"]},
            ("PD at", "does not accept the client certificate", "security.cert-allowed-cn", "this one's is changefeed"),
        ),
    ],
)
def test_a_start_is_refused_by_common_name_and_leaves_no_hold(
    at: str,
    names: dict[str, list[str]],
    said: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(Launch, "begin", lambda _: None)
    with DevCluster(stores=1, certificates=Certificates(tmp_path / "tls", ["127.0.0.1"]), **names) as cluster:
        upstream = {"pdAddresses": [f"https://{cluster.pd_address}"], "tls": {"secretRef": {"name": SECRET}}}
        arguments = ["run", "-f", str(_file(tmp_path, upstream)), "--secrets-dir", str(tmp_path / "tls"), "--json"]
        assert main(arguments) == FAILED, at
        _said(capfd.readouterr(), True, said)
        assert [each.service_id for each in cluster.safepoints.living(int(time.time()))] == [GC_WORKER]
    assert not list(tmp_path.rglob("log/*.json"))


def test_commands_without_a_driver_speak_tls(
    upstream: dict[str, Any], certificates: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = _file(tmp_path, upstream)
    for command in (["tso", "now"], ["hold"], ["close"]):
        arguments = [*command, "-f", str(file), "--json"]
        assert main(arguments) == BAD_INPUT
        _said(capfd.readouterr(), True, ("--secrets-dir", "Secret client", "DIR/<secretRef.name>/ca.crt"))
        assert main([*arguments, "--secrets-dir", str(certificates)]) == 0, capfd.readouterr()
        capfd.readouterr()
