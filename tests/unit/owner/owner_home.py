"""A changefeed's folder, and the drivers' starts in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from changefeed.owner.preparation.prepare import open_state_and_sink, prepare
from changefeed.owner.preparation.prepared import Prepared
from changefeed.spec.model import Changefeed
from changefeed.spec.parse import parse
from changefeed.upstream.tikv.client.pd import PdClient
from changefeed.upstream.tikv.cluster import TikvCluster
from changefeed_devcluster.server import DevCluster
from changefeed_devcluster.tidb.schema import NewColumn

COLUMNS = (NewColumn("id", "bigint"), NewColumn("name", "varchar(64)", nullable=True))


class Home:
    """A changefeed's folder and the takings-over in it, one after the other."""

    def __init__(self, folder: Path, cluster: DevCluster, pd: PdClient) -> None:
        self.folder = folder
        self.cluster = cluster
        self.pd = pd

    @property
    def log(self) -> Path:
        return self.folder / "state" / "default" / "test" / "local" / "log"

    @property
    def lake(self) -> Path:
        return self.folder / "lake"

    def changefeed(self, **spec: Any) -> Changefeed:
        members = {
            "upstream": {"pdAddresses": [f"http://{self.cluster.pd_address}"]},
            "filter": {"rules": ["shop.*"]},
            "state": {"uri": (self.folder / "state").as_uri()},
            "sink": {"storage": {"uri": self.lake.as_uri(), "protocol": "csv"}},
        }
        resource = {"apiVersion": "changefeed.dev/v1alpha1", "kind": "Changefeed", "metadata": {"name": "test"}}
        return parse(json.dumps(resource | {"spec": members | spec}))

    async def prepare(self, attempt: int = 0, **spec: Any) -> Prepared:
        changefeed = self.changefeed(**spec)
        state, sink = open_state_and_sink(changefeed)
        try:
            return await prepare(changefeed, TikvCluster(self.pd), state, sink, attempt=attempt)
        finally:
            state.release()
            sink.release()

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text()) for path in sorted(self.log.glob("*.json"))]

    def kinds(self) -> list[str]:
        return [record["kind"] for record in self.records()]
