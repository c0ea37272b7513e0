"""TLS to PD and TiKV, against a cluster that speaks it: who is let in, who is trusted, and what a rotation does."""

from __future__ import annotations

import asyncio
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from changefeed.errors import InvalidSpec, NeedsHuman, Refused, Transient, Unavailable
from changefeed.upstream.tikv.client import channels, leader
from changefeed.upstream.tikv.client.kv import Snapshot
from changefeed.upstream.tikv.client.pd import PdClient
from changefeed.upstream.tikv.client.tls import UpstreamTls
from changefeed.verify.upstream.history import Collected, read_history
from changefeed.wire import pdpb_pb2
from changefeed_devcluster.certificates import Certificates, retire, rotate
from changefeed_devcluster.server import DevCluster

HOST = "127.0.0.1"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    Certificates(folder, [HOST])
    return folder


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[DevCluster]:
    with DevCluster(stores=1, certificates=Certificates(folder, [HOST])) as cluster:
        yield cluster


@pytest.fixture
def secret(folder: Path, tmp_path: Path) -> Path:
    """The client's, to be spoilt."""
    return Path(shutil.copytree(folder / "client", tmp_path / "tidb-client"))


async def _connect(
    cluster: DevCluster, tls: UpstreamTls | None, cluster_id: int = 0, scheme: str = "https"
) -> PdClient:
    return await PdClient.connect([f"{scheme}://{cluster.pd_address}"], 2.0, tls, cluster_id)


async def _refused(cluster: DevCluster, tls: UpstreamTls) -> Refused:
    with pytest.raises(Refused) as caught:
        await _connect(cluster, tls)
    for file in tls.folder.iterdir():
        assert file.read_text(errors="replace").strip() not in str(caught.value) + repr(tls)
    return caught.value


@pytest.mark.parametrize("names", [(), ("tidb", "devcluster")])
async def test_every_channel_speaks_tls(cluster: DevCluster, secret: Path, names: tuple[str, ...]) -> None:
    pd = await _connect(cluster, UpstreamTls(secret, names))
    assert pd.cluster_id == cluster.cluster_id
    assert await Snapshot(pd, await pd.tso(), patience=5.0).get(b"k") is None
    await pd.close()


async def test_another_ca(cluster: DevCluster, secret: Path, tmp_path: Path) -> None:
    Certificates(tmp_path / "another", [HOST])
    shutil.copy(tmp_path / "another" / "ca.crt", secret)
    error = await _refused(cluster, UpstreamTls(secret))
    assert error.message.startswith(f"PD at https://{cluster.pd_address} shows a certificate that is not trusted: ")
    assert error.next_step == (
        "Put the CA that signed it into ca.crt of Secret tidb-client, if it is a server of the upstream."
    )


async def test_no_client_certificate(cluster: DevCluster, secret: Path) -> None:
    (secret / "tls.crt").unlink()
    (secret / "tls.key").unlink()
    error = await _refused(cluster, UpstreamTls(secret))
    assert f"PD at https://{cluster.pd_address} wants a client certificate, and Secret tidb-client" in error.message
    assert error.next_step == "Add tls.crt and tls.key to it."


async def test_a_client_certificate_of_another_ca(cluster: DevCluster, secret: Path, tmp_path: Path) -> None:
    Certificates(tmp_path / "another", [HOST])
    for name in ("tls.crt", "tls.key"):
        shutil.copy(tmp_path / "another" / "client" / name, secret)
    error = await _refused(cluster, UpstreamTls(secret))
    assert "does not accept the client certificate of Secret tidb-client" in error.message
    assert "of a CA that the cluster trusts" in error.next_step
    assert "security.cert-allowed-cn allows, where the cluster sets it; this one's is changefeed." in error.next_step


async def test_a_common_name_that_is_not_allowed(cluster: DevCluster, secret: Path) -> None:
    error = await _refused(cluster, UpstreamTls(secret, ("tidb", "tikv")))
    assert "shows a certificate with the common name devcluster; allowed: tidb, tikv." in error.message
    assert "spec.upstream.tls.allowedCommonNames" in error.next_step


async def test_with_common_names_no_other_certificate_of_the_same_ca_is_trusted(
    folder: Path, secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handshake that read the name and gRPC's own are two: it may show another certificate in the second."""
    certificates = Certificates(folder, [HOST])
    with DevCluster(stores=1, certificates=certificates) as cluster:
        checked = channels.handshake

        async def another_one_then(*arguments: object) -> object:
            peer = await checked(*arguments)  # type: ignore[arg-type]
            Certificates(folder, [HOST])  # issues the server a new one, of the same CA and name
            return peer

        monkeypatch.setattr(channels, "handshake", another_one_then)
        with pytest.raises(Unavailable, match="its certificate is another one than a moment ago"):
            await _connect(cluster, UpstreamTls(secret, ("devcluster",)))
        monkeypatch.undo()
        pd = await _connect(cluster, UpstreamTls(secret, ("devcluster",)))
        await pd.close()


async def test_a_host_name_that_the_certificate_does_not_bear(folder: Path, secret: Path, tmp_path: Path) -> None:
    other = tmp_path / "another-name"
    with DevCluster(stores=1, certificates=Certificates(other, ["pd.example"])) as cluster:
        error = await _refused(cluster, UpstreamTls(other / "client"))
    assert "IP address mismatch" in error.message
    assert "subject alternative name" in error.next_step


async def test_pd_keeps_us_out_by_our_common_name(folder: Path, secret: Path) -> None:
    """In the handshake, as it does a certificate that it does not trust: nobody can tell which of the two it is."""
    with DevCluster(stores=1, certificates=Certificates(folder, [HOST]), pd_common_names=["tidb"]) as cluster:
        error = await _refused(cluster, UpstreamTls(secret))
    assert "does not accept the client certificate of Secret tidb-client (sslv3 alert bad certificate)" in error.message
    assert "of a CA that the cluster trusts" in error.next_step
    assert "security.cert-allowed-cn allows, where the cluster sets it; this one's is changefeed." in error.next_step


async def test_a_store_keeps_us_out_by_our_common_name(folder: Path, secret: Path) -> None:
    """PD does not, and the handshake succeeds: each call fails. So do verify's own."""
    certificates, names = Certificates(folder, [HOST]), {"common_names": ["tidb"], "pd_common_names": ["changefeed"]}
    with DevCluster(stores=1, certificates=certificates, **names) as cluster:
        pd = await _connect(cluster, UpstreamTls(secret))
        for reading in (
            Snapshot(pd, await pd.tso()).get(b"k"),
            read_history(pd, b"a", b"z", 1, await pd.tso(), Collected()),
        ):
            with pytest.raises(Refused) as caught:
                await reading
            assert "does not let us in: Common name check fail, reason: x509_common_name from peer is changefeed, " in (
                caught.value.message
            )
            assert "security.cert-allowed-cn of TiKV" in caught.value.next_step
        await pd.close()


async def test_a_cluster_without_tls(secret: Path) -> None:
    with DevCluster(stores=1) as cluster:
        error = await _refused(cluster, UpstreamTls(secret))
    assert "does not speak TLS" in error.message


async def test_a_cluster_with_tls_and_an_address_without(cluster: DevCluster) -> None:
    with pytest.raises(Unavailable, match=r"as a PD does that wants TLS \(spec\.upstream\.tls\)"):
        await _connect(cluster, None, scheme="http")
    with pytest.raises(InvalidSpec, match=r"spec\.upstream\.tls: missing") as caught:
        await _connect(cluster, None)
    assert "--secrets-dir" in caught.value.next_step


async def test_nobody_there_is_no_matter_of_certificates(secret: Path) -> None:
    with socket.socket() as unused:
        unused.bind((HOST, 0))
        address = f"https://{HOST}:{unused.getsockname()[1]}"
        with pytest.raises(Unavailable, match="does not answer: connection refused"):
            await PdClient.connect([address], 0.2, UpstreamTls(secret))
    with pytest.raises(Unavailable, match="its host name is not known"):
        await PdClient.connect(["https://pd.invalid:2379"], 0.2, UpstreamTls(secret))


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("ca.crt", None, "ca.crt can't be read: No such file"),
        ("ca.crt", "hello", "ca.crt holds no certificate in PEM"),
        ("ca.crt", "\N{SNOWMAN}", "ca.crt holds no certificate in PEM"),
        ("tls.key", None, "tls.key can't be read: No such file"),
        ("tls.crt", None, "tls.crt can't be read: No such file"),
        ("tls.key", "hello", "tls.key is no key in PEM without a password"),
    ],
)
def test_files_that_are_of_no_use(secret: Path, file: str, content: str | None, said: str) -> None:
    (secret / file).unlink()
    if content is not None:
        (secret / file).write_text(content)
    with pytest.raises(Refused, match=said) as caught:
        UpstreamTls(secret).read()
    assert caught.value.next_step == "It needs ca.crt, and for mutual TLS tls.crt and tls.key too, in PEM."


def test_a_key_of_another_certificate(folder: Path, secret: Path) -> None:
    shutil.copy(folder / "ca.key", secret / "tls.key")
    with pytest.raises(Refused, match=r"tls\.key is not the key of tls\.crt"):
        UpstreamTls(secret).read()


def test_a_secret_that_kubernetes_replaces_while_it_is_read(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are links through `..data`, which is turned to a new folder at once."""
    mounted = tmp_path / "tidb-client"
    mounted.mkdir()
    Certificates(tmp_path / "another", [HOST])
    shutil.copytree(folder / "client", mounted / "..first")
    shutil.copytree(tmp_path / "another" / "client", mounted / "..second")
    (mounted / "..data").symlink_to("..first")
    for name in ("ca.crt", "tls.crt", "tls.key"):
        (mounted / name).symlink_to(f"..data/{name}")
    read_bytes = Path.read_bytes

    def read_and_turn(path: Path) -> bytes:
        content = read_bytes(path)
        (mounted / "..new").symlink_to("..second")
        (mounted / "..new").replace(mounted / "..data")
        return content

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", read_and_turn)
        first = UpstreamTls(mounted).read()
    assert (first.ca, first.certificate, first.key) == tuple(
        (folder / "client" / name).read_bytes() for name in ("ca.crt", "tls.crt", "tls.key")
    )
    assert UpstreamTls(mounted).read().ca == (tmp_path / "another" / "ca.crt").read_bytes()


async def test_rotated_certificates_are_used_for_new_connections_without_a_restart(tmp_path: Path) -> None:
    folder = tmp_path / "rotated"
    with DevCluster(stores=1, certificates=Certificates(folder, [HOST])) as cluster:
        pd = await _connect(cluster, UpstreamTls(folder / "client"))
        snapshot = Snapshot(pd, await pd.tso(), patience=10.0)
        assert await snapshot.get(b"k") is None
        rotate(folder)
        cluster.restart_pd(heartbeat_s=0)
        retire(folder)
        assert await snapshot.get(b"k") is None  # what is open stays open
        cluster.restart_pd(heartbeat_s=0)  # from now on the first certificate is refused
        assert await pd.tso()
        cluster.cut(1)
        assert await snapshot.get(b"k") is None
        await pd.close()


async def test_a_stream_outlives_any_number_of_rotations(tmp_path: Path) -> None:
    """Its channel is replaced whenever another call has failed; closed under it, it would end as though cancelled."""
    folder = tmp_path / "rotated"
    with DevCluster(stores=1, certificates=Certificates(folder, [HOST])) as cluster:
        pd = await _connect(cluster, UpstreamTls(folder / "client"))
        stream = pd.leader.channel().stream_stream(
            "/pdpb.PD/Tso",
            request_serializer=pdpb_pb2.TsoRequest.SerializeToString,
            response_deserializer=pdpb_pb2.TsoResponse.FromString,
        )()
        answer = asyncio.ensure_future(stream.read())
        for _ in range(3):
            (folder / "client" / "tls.crt").unlink()
            Certificates(folder, [HOST])  # issues another one of the same CA: PD knows no other before it restarts
            await pd.leader.find()
        await stream.write(pdpb_pb2.TsoRequest(header=pdpb_pb2.RequestHeader(cluster_id=pd.cluster_id), count=1))
        async with asyncio.timeout(10):
            assert (await answer).count == 1
        stream.cancel()
        await pd.close()


async def test_a_store_that_is_not_trusted_any_more_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "rotated"
    with DevCluster(stores=1, certificates=Certificates(folder, [HOST])) as cluster:
        stale = Path(shutil.copytree(folder / "client", tmp_path / "tidb-client"))
        pd = await _connect(cluster, UpstreamTls(stale))
        await pd.store_address(1)
        rotate(folder)
        pd.forget_store(1)
        with pytest.raises(Refused, match=r"Store 1 at 127\.0\.0\.1:\d+ shows a certificate that is not trusted"):
            await pd.store_address(1)
        await pd.close()


async def test_a_run_waits_for_a_pd_that_refuses_it(tmp_path: Path) -> None:
    """It may be mended meanwhile, unlike at the start."""
    folder, data = tmp_path / "rotated", tmp_path / "data"
    with DevCluster(stores=1, data_dir=data, certificates=Certificates(folder, [HOST])) as cluster:
        stale = Path(shutil.copytree(folder / "client", tmp_path / "tidb-client"))
        pd = await _connect(cluster, UpstreamTls(stale))
        port = int(cluster.pd_address.rpartition(":")[2])
    rotate(folder)
    with DevCluster(stores=1, data_dir=data, pd_port=port, certificates=Certificates(folder, [HOST])):
        with pytest.raises(Transient, match=r"is not trusted: .* Put the CA that signed it into ca\.crt"):
            async with asyncio.timeout(leader.PATIENCE / 2):  # said at once
                await pd.gc_safepoint()
        shutil.copytree(folder / "client", stale, dirs_exist_ok=True)
        assert await pd.gc_safepoint() == 0
        await pd.close()


async def test_the_pd_of_another_cluster_is_refused(cluster: DevCluster, secret: Path) -> None:
    with pytest.raises(NeedsHuman, match=f"belongs to cluster {cluster.cluster_id}, not to 5"):
        await _connect(cluster, UpstreamTls(secret), cluster_id=5)
