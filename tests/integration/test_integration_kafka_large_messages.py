"""Messages that are too large for a topic, kept in a bucket that only a Secret of its own opens."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from changefeed.errors import NeedsHuman
from changefeed.objectstore.open import open_store
from changefeed.owner.driver import RunOptions
from changefeed_devcluster.tidb.schema import NewColumn
from integration_inprocess import InProcessExecution, Run, new_world
from integration_kafka_broker import consumed
from integration_kafka_broker import running as running_broker
from integration_s3_servers import running as running_store
from integration_s3_servers import write_secret

TEXT = "large " * 500


async def test_a_claim_check_is_written_with_credentials_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    secrets = tmp_path / "secrets"
    secret = write_secret(secrets, "claims")
    with (
        running_broker(tmp_path / "kafka") as broker,
        running_store("ministack", tmp_path / "server" / "data") as store,
        new_world(tmp_path) as world,
    ):
        notes = world.tidb.create_table("shop", "notes", (NewColumn("id", "bigint"), NewColumn("note", "text")))
        with world.tidb.begin() as txn:
            txn.insert(notes, {"id": 1, "note": "small"})
            txn.insert(notes, {"id": 2, "note": TEXT})
        kafka = {
            "uri": f"kafka://{broker.cluster.brokers}/notes",
            "protocol": "canal-json",
            "maxMessageBytes": "1Ki",
            "canalJson": {"enableTidbExtension": True},
            "largeMessages": {
                "option": "claim-check",
                "claimCheckUri": store.uri("claims"),
                "credentials": {"secretRef": {"name": "claims"}},
            },
        }
        changefeed = world.changefeed(sink={"kafka": kafka}, targetTs=str(txn.commit_ts))

        key = secret / "access-key-id"
        right = key.read_text()
        key.write_text("wrong")
        run = Run(changefeed, InProcessExecution(), RunOptions(metrics_port=0, secrets_dir=secrets)).start()
        await run.until(lambda: any(store.uri("claims") in shown.message for shown in run.view.progress), "it waits")
        key.write_text(right)
        assert (await run.outcome()).state == "finished"
        messages = [json.loads(value) for _, _, value in consumed(broker.cluster, "notes")]
        (large,) = [each for each in messages if "claimCheckLocation" in each.get("_tidb", {})]
        assert [each["data"][0]["note"] for each in messages if each["type"] == "INSERT" and each != large] == ["small"]
        name = large["_tidb"]["claimCheckLocation"].rsplit("/", 1)[1]
        kept = json.loads(open_store(store.uri("claims"), secret=secret).get(name).body)
        assert json.loads(base64.b64decode(kept["value"]))["data"][0]["note"] == TEXT


async def test_a_large_message_gets_the_way_that_the_refusal_tells_of(tmp_path: Path) -> None:
    """Also of rows that were planned before the way was chosen."""
    with running_broker(tmp_path / "kafka") as broker, new_world(tmp_path) as world:
        notes = world.tidb.create_table("shop", "notes", (NewColumn("id", "bigint"), NewColumn("note", "text")))
        with world.tidb.begin() as txn:
            txn.insert(notes, {"id": 1, "note": TEXT})
        kafka: dict[str, Any] = {
            "uri": f"kafka://{broker.cluster.brokers}/notes",
            "protocol": "canal-json",
            "maxMessageBytes": "1Ki",
            "canalJson": {"enableTidbExtension": True},
        }

        def start() -> Run:
            changefeed = world.changefeed(sink={"kafka": kafka}, targetTs=str(txn.commit_ts))
            return Run(changefeed, InProcessExecution(), RunOptions(metrics_port=0)).start()

        with pytest.raises(NeedsHuman, match="makes a message of") as refused:
            await start().outcome()
        assert "or choose handle-key-only or claim-check for large messages" in refused.value.next_step
        kafka["largeMessages"] = {"option": "handle-key-only"}
        assert (await start().outcome()).state == "finished"
        (row,) = (
            said for _, _, value in consumed(broker.cluster, "notes") if (said := json.loads(value))["type"] == "INSERT"
        )
        assert row["data"] == [{"id": "1"}]
        assert row["_tidb"]["onlyHandleKey"]
