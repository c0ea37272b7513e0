"""The development cluster with TLS: who gets in, and a rotation of its certificates while it runs."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
from changefeed.wire import kvrpcpb_pb2 as kvrpcpb
from changefeed.wire import pdpb_pb2 as pdpb
from changefeed_devcluster.certificates import Certificates, client_channel, retire, rotate
from changefeed_devcluster.cli import main
from changefeed_devcluster.server import DevCluster
from devcluster_feed import failure, until

_DEADLINE_S = 10.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "tls"


@pytest.fixture
def cluster(folder: Path) -> Iterator[DevCluster]:
    with DevCluster(stores=1, certificates=Certificates(folder, ["127.0.0.1"])) as cluster:
        yield cluster


def _answers(folder: Path, cluster: DevCluster) -> bool:
    with suppress(grpc.RpcError):
        return bool(_members(client_channel(folder, cluster.pd_address)).header.cluster_id)
    return False


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


def _get(channel: grpc.Channel) -> kvrpcpb.GetResponse:
    """A call to a store."""
    call: grpc.UnaryUnaryMultiCallable[kvrpcpb.GetRequest, kvrpcpb.GetResponse] = channel.unary_unary(
        "/tikvpb.Tikv/KvGet",
        request_serializer=kvrpcpb.GetRequest.SerializeToString,
        response_deserializer=kvrpcpb.GetResponse.FromString,
    )
    with channel:
        return call(kvrpcpb.GetRequest(key=b"k", version=5), timeout=_DEADLINE_S)


def _alert(address: str, secret: Path) -> str:
    """What the server's refusal of the secret's certificate is called in TLS."""
    context = ssl.create_default_context(cafile=secret / "ca.crt")
    context.load_cert_chain(secret / "tls.crt", secret / "tls.key")
    host, _, port = address.rpartition(":")
    with (
        pytest.raises(ssl.SSLError) as caught,
        socket.create_connection((host, int(port)), _DEADLINE_S) as plain,
        context.wrap_socket(plain, server_hostname=host) as tls,
    ):
        tls.recv(1)
    return str(caught.value.reason)


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
    cluster.restart_pd()
    assert _members(left_behind()).header.cluster_id == cluster.cluster_id
    retire(folder)
    assert _members(left_behind()).header.cluster_id == cluster.cluster_id, "PD has not read its CAs again"
    assert _members(client_channel(folder, cluster.pd_address)).header.cluster_id == cluster.cluster_id
    cluster.restart_pd()
    assert _refused(left_behind()) is grpc.StatusCode.UNAVAILABLE
    assert _members(client_channel(folder, cluster.pd_address)).header.cluster_id == cluster.cluster_id


# --- cert-allowed-cn ---


def test_pd_and_stores_let_in_who_bears_an_allowed_name(folder: Path) -> None:
    certificates = Certificates(folder, ["127.0.0.1"])
    with DevCluster(stores=1, certificates=certificates, common_names=["changefeed"]) as cluster:
        assert _members(client_channel(folder, cluster.pd_address)).header.cluster_id == cluster.cluster_id
        assert _get(client_channel(folder, cluster.store_addresses[1])).region_error.HasField("store_not_match")


def test_a_store_refuses_each_call_of_another_name_after_the_handshake(folder: Path) -> None:
    certificates = Certificates(folder, ["127.0.0.1"])
    names = {"common_names": ["tikv", "tidb"], "pd_common_names": ["changefeed"]}
    with DevCluster(stores=1, certificates=certificates, **names) as cluster:
        assert _members(client_channel(folder, cluster.pd_address)).header.cluster_id == cluster.cluster_id
        grpc.channel_ready_future(client_channel(folder, cluster.store_addresses[1])).result(_DEADLINE_S)
        for _ in range(2):
            code, details = failure(lambda: _get(client_channel(folder, cluster.store_addresses[1])))
            assert code is grpc.StatusCode.UNAUTHENTICATED
            assert details == (
                "Common name check fail, reason: x509_common_name from peer is changefeed, "
                'cert_allowed_cn: {"tidb", "tikv"}'
            )


def test_pd_refuses_another_name_in_the_handshake(folder: Path) -> None:
    certificates = Certificates(folder, ["127.0.0.1"])
    with DevCluster(stores=1, certificates=certificates, pd_common_names=["tidb"]) as cluster:
        code, details = failure(lambda: _members(client_channel(folder, cluster.pd_address)))
        assert code is grpc.StatusCode.UNAVAILABLE
        assert "Common name" not in details
        assert _alert(cluster.pd_address, folder / "client") == "SSLV3_ALERT_BAD_CERTIFICATE"
        assert _get(client_channel(folder, cluster.store_addresses[1])).region_error.HasField("store_not_match")


def test_a_foreign_certificate_is_refused_as_one_whatever_its_name(folder: Path, tmp_path: Path) -> None:
    certificates = Certificates(folder, ["127.0.0.1"])
    Certificates(tmp_path / "another", ["127.0.0.1"])
    shutil.copy(folder / "ca.crt", tmp_path / "another" / "client")
    with DevCluster(stores=1, certificates=certificates, pd_common_names=["tidb"]) as cluster:
        assert _alert(cluster.pd_address, tmp_path / "another" / "client") == "TLSV1_ALERT_UNKNOWN_CA"


def test_a_pd_that_looks_at_names_serves_much_at_once(folder: Path) -> None:
    """Timestamps by stream and large answers go through what does its handshakes."""
    certificates = Certificates(folder, ["127.0.0.1"])
    with DevCluster(stores=1, certificates=certificates, common_names=["changefeed"]) as cluster:
        for number in range(300):
            cluster.split(b"%06d" % number)
        header = pdpb.RequestHeader(cluster_id=cluster.cluster_id)
        with client_channel(folder, cluster.pd_address) as channel:
            scan: grpc.UnaryUnaryMultiCallable[pdpb.ScanRegionsRequest, pdpb.ScanRegionsResponse] = channel.unary_unary(
                "/pdpb.PD/ScanRegions",
                request_serializer=pdpb.ScanRegionsRequest.SerializeToString,
                response_deserializer=pdpb.ScanRegionsResponse.FromString,
            )
            assert len(scan(pdpb.ScanRegionsRequest(header=header), timeout=_DEADLINE_S).regions) == 303
        with client_channel(folder, cluster.pd_address) as channel:
            tso: grpc.StreamStreamMultiCallable[pdpb.TsoRequest, pdpb.TsoResponse] = channel.stream_stream(
                "/pdpb.PD/Tso",
                request_serializer=pdpb.TsoRequest.SerializeToString,
                response_deserializer=pdpb.TsoResponse.FromString,
            )
            requests = (pdpb.TsoRequest(header=header, count=1) for _ in range(300))
            assert len(list(tso(requests, timeout=_DEADLINE_S))) == 300


# --- rotation ---


def test_pd_reads_the_cas_of_its_clients_when_it_starts(cluster: DevCluster, folder: Path) -> None:
    rotate(folder)
    retire(folder)
    assert _refused(client_channel(folder, cluster.pd_address)) is grpc.StatusCode.UNAVAILABLE
    assert _get(client_channel(folder, cluster.store_addresses[1])).region_error.HasField("store_not_match")
    cluster.restart_pd()
    assert _members(client_channel(folder, cluster.pd_address)).header.cluster_id == cluster.cluster_id


def test_harm_and_rotation_by_command(cluster: DevCluster, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (folder / "client" / "tls.crt").read_bytes()
    at = ["--pd", cluster.pd_address, "--tls", str(folder)]
    for command in ("rotate", "retire"):
        main(["tls", command, str(folder)])
        assert json.loads(capsys.readouterr().out) == {"tls": str(folder)}
        servers = cluster.ports.servers[0]
        main(["harm", "restart-pd", *at])
        assert json.loads(capsys.readouterr().out) == {}
        until(lambda servers=servers: cluster.ports.servers.get(0) not in (None, servers))  # type: ignore[misc]
        until(lambda: _answers(folder, cluster))  # the one before it may still close connections
    assert (folder / "client" / "tls.crt").read_bytes() != before
    main(["harm", "regions", *at])
    assert json.loads(capsys.readouterr().out)["regions"]


def test_a_folder_without_certificates_can_not_be_rotated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["tls", "rotate", str(tmp_path)])
    assert ended.value.code == 2
    assert "no folder that `start --tls` made" in capsys.readouterr().err
