"""A changefeed whose upstream demands TLS goes on through a rotation of all certificates.

What a start is refused for: tests/unit/cli/test_cli_tls.py.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from changefeed.cli.main import main
from changefeed.owner.driver import RunOptions
from changefeed_devcluster.certificates import Certificates, retire, rotate
from changefeed_devcluster.server import DevCluster
from integration_inprocess import InProcessExecution, Run, World, resource

SECRET = "client"


async def test_a_run_goes_on_through_a_rotation_of_all_certificates(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """In the end nothing is left of the old ones: neither side takes them, and every connection was made anew."""
    certificates = tmp_path / "tls"  # and a folder of Secrets at the same time
    secure = Certificates(certificates, ["127.0.0.1"])
    with DevCluster(stores=2, min_ts_interval=0.05, certificates=secure, common_names=["changefeed"]) as cluster:
        await _rotate_under(World(cluster, tmp_path), certificates)
        file = tmp_path / "changefeed.json"
        file.write_text(json.dumps(resource("unused", 0, tmp_path, upstream=_upstream(cluster))))
        arguments = ["verify", "-f", str(file), "--secrets-dir", str(certificates), "--json"]
        code = await asyncio.to_thread(main, arguments)
    out, err = capfd.readouterr()
    verdict = json.loads(out)
    assert (code, verdict["rows"], verdict["missing"], verdict["duplicate"]) == (0, 300, 0, 0), verdict
    _holds_no_key(certificates, [out, err, *_log(tmp_path)])


@pytest.mark.parametrize("by", ["another CA", "common name"])
async def test_stores_that_stop_trusting_a_run_are_named_until_they_trust_it_again(tmp_path: Path, by: str) -> None:
    """Only the stores are asked anew: PD's connection stays, and says nothing of it."""
    certificates, secrets = tmp_path / "tls", tmp_path / "secrets"
    secure, names = Certificates(certificates, ["127.0.0.1"]), ["changefeed"]
    mounted = shutil.copytree(certificates / SECRET, secrets / SECRET)
    Certificates(tmp_path / "another", ["127.0.0.1"])
    with DevCluster(stores=2, min_ts_interval=0.05, certificates=secure, common_names=names) as cluster:
        world = World(cluster, tmp_path)
        options = RunOptions(metrics_port=0, secrets_dir=secrets)
        run = Run(world.changefeed(upstream=_upstream(cluster)), InProcessExecution(), options).start()
        first = world.insert(range(100))
        await run.until(lambda: world.checkpoint() >= first, "rows are written")
        if by == "another CA":
            said = f"does not accept the client certificate of Secret {SECRET}"
            for name in ("tls.crt", "tls.key"):
                shutil.copy(tmp_path / "another" / "client" / name, mounted)
        else:
            said = "Common name check fail, reason: x509_common_name from peer is changefeed"
            names[:] = ["tidb"]  # read by each store when it restarts
        await asyncio.to_thread(cluster.cut)
        second = world.insert(range(100, 200))
        async with asyncio.timeout(20):
            await run.until(lambda: said in _status(run)[1], "it is named")
        state, message, error = _status(run)
        assert (state, error) == ("Warning", "TikvRefuses")
        assert "Store " in message
        shutil.copytree(certificates / SECRET, mounted, dirs_exist_ok=True)
        names[:] = ["changefeed"]
        if by == "common name":
            await asyncio.to_thread(cluster.cut)
        await run.until(lambda: world.checkpoint() >= second, "it has gone on")
        await run.until(lambda: _status(run)[0] == "Normal", "nothing is said of it any more")
        await run.drained()


async def test_a_pd_that_stops_allowing_a_runs_name_is_named_until_it_allows_it_again(tmp_path: Path) -> None:
    certificates, names = tmp_path / "tls", ["changefeed"]
    secure = Certificates(certificates, ["127.0.0.1"])
    with DevCluster(stores=2, min_ts_interval=0.05, certificates=secure, pd_common_names=names) as cluster:
        world = World(cluster, tmp_path)
        options = RunOptions(metrics_port=0, secrets_dir=certificates)
        run = Run(world.changefeed(upstream=_upstream(cluster)), InProcessExecution(), options).start()
        first = world.insert(range(100))
        await run.until(lambda: world.checkpoint() >= first, "rows are written")
        names[:] = ["tidb"]  # read when PD restarts
        await asyncio.to_thread(cluster.restart_pd, 0.0)
        async with asyncio.timeout(20):
            await run.until(lambda: "security.cert-allowed-cn" in _status(run)[1], "it is named")
        state, message, error = _status(run)
        assert (state, error) == ("Warning", "PdUnavailable")
        assert f"PD at https://{cluster.pd_address} does not accept the client certificate" in message
        names[:] = ["changefeed"]
        await asyncio.to_thread(cluster.restart_pd, 0.0)
        second = world.insert(range(100, 200))
        await run.until(lambda: world.checkpoint() >= second, "it has gone on")
        await run.until(lambda: _status(run)[0] == "Normal", "nothing is said of it any more")
        await run.drained()


def _status(run: Run) -> tuple[str, str, str]:
    """What `/status` answers: the state, a sentence, the kind of the last error."""
    assert run.driver is not None
    status = json.loads(run.driver.status())
    return status["state"], status["message"], (status["lastError"] or {}).get("kind", "")


def _log(folder: Path) -> list[str]:
    records = [record.read_text() for record in folder.rglob("log/*.json")]
    assert records
    return records


def _holds_no_key(certificates: Path, texts: list[str]) -> None:
    key = (certificates / SECRET / "tls.key").read_text().splitlines()[1]
    assert [text for text in texts if key in text or "PRIVATE KEY" in text] == []


def _upstream(cluster: DevCluster) -> dict[str, Any]:
    """Return the upstream of the resource."""
    tls = {"secretRef": {"name": SECRET}, "allowedCommonNames": ["devcluster"]}
    return {"pdAddresses": [f"https://{cluster.pd_address}"], "tls": tls}


async def _rotate_under(world: World, certificates: Path) -> None:
    options = RunOptions(metrics_port=0, secrets_dir=certificates)
    run = Run(world.changefeed(upstream=_upstream(world.cluster)), InProcessExecution(), options).start()

    async def written(ids: range, what: str) -> None:
        ts = world.insert(ids)
        await run.until(lambda: world.checkpoint() >= ts, what)

    await written(range(100), "rows over mutual TLS are written")
    rotate(certificates)
    await asyncio.to_thread(world.cluster.restart_pd, 0.0)  # it reads CAs when it starts only
    await written(range(100, 200), "what is open stays open")
    retire(certificates)
    await asyncio.to_thread(world.cluster.restart_pd, 0.0)
    await asyncio.to_thread(world.cluster.cut)
    await written(range(200, 300), "it has connected anew")
    await run.drained()
