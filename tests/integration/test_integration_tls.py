"""A changefeed whose upstream demands TLS goes on through a rotation of all certificates.

What a start is refused for: tests/unit/cli/test_cli_tls.py.
"""

from __future__ import annotations

import asyncio
import json
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


def _log(folder: Path) -> list[str]:
    records = [record.read_text() for record in folder.rglob("log/*.json")]
    assert records
    return records


def _holds_no_key(certificates: Path, texts: list[str]) -> None:
    key = (certificates / SECRET / "tls.key").read_text().splitlines()[1]
    assert [text for text in texts if key in text or "PRIVATE KEY" in text] == []


def _upstream(cluster: DevCluster) -> dict[str, Any]:
    """Of the resource."""
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
    await written(range(100, 200), "what is open stays open")
    retire(certificates)
    await asyncio.to_thread(world.cluster.cut)
    await written(range(200, 300), "it has connected anew")
    await run.drained()
