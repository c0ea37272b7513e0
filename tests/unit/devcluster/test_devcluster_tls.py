"""The development cluster with TLS: who gets in, and a rotation of its certificates while it runs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from changefeed.wire import pdpb_pb2 as pdpb
from changefeed_devcluster.certificates import Certificates, client_channel, retire, rotate
from changefeed_devcluster.cli import main
from changefeed_devcluster.server import DevCluster

_DEADLINE_S = 10.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "tls"


@pytest.fixture
def cluster(folder: Path) -> Iterator[DevCluster]:
    with DevCluster(stores=1, certificates=Certificates(folder, ["127.0.0.1"])) as cluster:
        yield cluster


def _members(channel: grpc.Channel) -> pdpb.GetMembersResponse:
    call: grpc.UnaryUnaryMultiCallable[pdpb.GetMembersRequest, pdpb.GetMembersResponse] = channel.unary_unary(
        "/pdpb.PD/GetMembers",
        request_serializer=pdpb.GetMembersRequest.SerializeToString,
        response_deserializer=pdpb.GetMembersResponse.FromString,
    )
    with channel:
        return call(pdpb.GetMembersRequest(), timeout=_DEADLINE_S)


def _refused(channel: grpc.Channel) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as caught:
        _members(channel)
    code: grpc.StatusCode = caught.value.code()
    return code


def test_only_a_client_with_a_certificate_gets_in(cluster: DevCluster, folder: Path) -> None:
    assert list(_members(client_channel(folder, cluster.pd_address)).leader.client_urls) == [
        f"https://{cluster.pd_address}"
    ]
    server_only = grpc.ssl_channel_credentials((folder / "ca.crt").read_bytes())
    for address in (cluster.pd_address, cluster.store_addresses[1]):
        assert _refused(grpc.insecure_channel(address)) is grpc.StatusCode.UNAVAILABLE
        assert _refused(grpc.secure_channel(address, server_only)) is grpc.StatusCode.UNAVAILABLE


def test_an_old_certificate_is_taken_after_a_rotation_until_its_ca_is_retired(
    cluster: DevCluster, folder: Path, tmp_path: Path
) -> None:
    def left_behind() -> grpc.Channel:
        """A client that knows the CAs of today and still has its first certificate."""
        shutil.copy(folder / "ca.crt", tmp_path / "old" / "client")
        return client_channel(tmp_path / "old", cluster.pd_address)

    shutil.copytree(folder / "client", tmp_path / "old" / "client")
    rotate(folder)
    assert _members(left_behind()).header.cluster_id == cluster.cluster_id
    assert _members(client_channel(folder, cluster.pd_address)).header.cluster_id == cluster.cluster_id
    retire(folder)
    assert _refused(left_behind()) is grpc.StatusCode.UNAVAILABLE
    assert _members(client_channel(folder, cluster.pd_address)).header.cluster_id == cluster.cluster_id


@pytest.mark.parametrize("name", ["changefeed", "somebody"])
def test_a_common_name_lets_in(name: str, folder: Path) -> None:
    certificates = Certificates(folder, ["127.0.0.1"])
    with DevCluster(stores=1, certificates=certificates, common_names=[name]) as cluster:
        channel = client_channel(folder, cluster.pd_address)
        if name == "changefeed":
            assert _members(channel).header.cluster_id == cluster.cluster_id
        else:
            assert _refused(channel) is grpc.StatusCode.UNAUTHENTICATED


def test_harm_and_rotation_by_command(cluster: DevCluster, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (folder / "client" / "tls.crt").read_bytes()
    for command in ("rotate", "retire"):
        main(["tls", command, str(folder)])
        assert json.loads(capsys.readouterr().out) == {"tls": str(folder)}
    assert (folder / "client" / "tls.crt").read_bytes() != before
    main(["harm", "regions", "--pd", cluster.pd_address, "--tls", str(folder)])
    assert json.loads(capsys.readouterr().out)["regions"]


def test_a_folder_without_certificates_can_not_be_rotated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["tls", "rotate", str(tmp_path)])
    assert ended.value.code == 2
    assert "no folder that `start --tls` made" in capsys.readouterr().err
