"""PostgreSQL as the upstream of a changefeed on a real node, from `kubectl apply` to `kubectl delete`.

The server wants TLS with certificates of both sides, the store is an S3 server, and NetworkPolicies are enforced. One
changefeed lives through all of these tests, in their order; after each, its files are held against the database.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cluster_postgresql
import pytest
import yaml
from cluster_api import Namespace
from cluster_node import Node
from cluster_postgresql import OTHER_PORT, Shop
from cluster_processes import wait_until
from cluster_product import LATE_S, Demo, Resource, Store

pytestmark = pytest.mark.timeout(1800)
#: Words of the other upstream, which no user of this one should have to know. `region` is the store's, too.
_OF_TIKV = re.compile(r"TiKV|TiDB|TiCDC|\bPD\b|\bregions?\b(?!=)|\bGC\b|garbage")


@pytest.fixture(scope="module")
def shop(real_node: Node) -> Iterator[Shop]:
    with cluster_postgresql.running(real_node) as running:
        yield running


@pytest.fixture(scope="module")
def demo(real_node: Node, product: Store, shop: Shop, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """With an id for its state, so that another resource of the name may go on with it."""
    folder = tmp_path_factory.mktemp("shop")
    example = cluster_postgresql.example(shop)
    state = {
        "uri": product.uri("cdc-state"),
        "id": "shop-orders",
        "credentials": {"secretRef": {"name": "lake-writer"}},
    }
    more = {"initialCopy": True, "state": state}
    made = Demo(real_node, product, Namespace(real_node.cluster.api, "shop"), folder, more, example)
    yield made
    made.kubectl("delete", "cf", made.name, "--ignore-not-found", "--wait=false")


def test_what_the_documentation_has_becomes_ready_and_rows_of_before_are_copied(
    demo: Demo, shop: Shop, tmp_path: Path
) -> None:
    """The server was told what docs/postgresql.md says, and nothing else."""
    said = cluster_postgresql.follow_documentation(demo, tmp_path / "newcomer")

    assert f"changefeed.changefeed.dev/{demo.name} condition met" in said
    ((name, is_read),) = shop.slots()
    assert name.startswith("changefeed_shop_orders_")
    assert is_read
    _is_whole(demo)


def test_changes_and_an_altered_table_come_with_their_rows(demo: Demo, shop: Shop) -> None:
    shop.trade()
    shop.sql("ALTER TABLE orders ADD COLUMN note text")
    shop.sql("UPDATE orders SET note = 'checked' WHERE id % 4 = 0")
    shop.trade()

    def is_told(found: Resource) -> bool:
        return "note" in found["status"].get("lastDdl", {}).get("statement", "")

    demo.wait_for(is_told, "the status has the new column")
    _is_whole(demo)


@pytest.mark.parametrize("role", ["executor", "driver"])
def test_a_killed_pod_is_replaced_and_no_row_is_lost_or_double(demo: Demo, shop: Shop, role: str) -> None:
    victim = demo.pods(role)[0]["metadata"]
    shop.trade()

    demo.kubectl("delete", "pod", victim["name"], "--grace-period=0", "--force")

    shop.trade()
    _is_whole(demo)
    assert victim["uid"] not in {pod["metadata"]["uid"] for pod in demo.pods(role)}


def test_it_says_what_its_slot_keeps_in_the_words_of_its_upstream(demo: Demo) -> None:
    held = demo.wait_for(lambda found: "keptBytes" in found["status"].get("hold", {}), "it says what is kept")
    assert held["status"]["hold"]["walStatus"] == "reserved"
    assert _history(held)["status"] == "True"
    name, where = demo.name, ("-n", demo.namespace.name)
    said = demo.kubectl("describe", "cf", name), demo.cli("describe", name, *where), demo.cli("get", *where)
    assert [line for text in said for line in text.splitlines() if _OF_TIKV.search(line)] == []


def test_while_it_is_paused_a_job_tells_what_the_slot_keeps(demo: Demo, shop: Shop) -> None:
    demo.edit({"paused": True})
    before = demo.wait_for(lambda found: found["status"]["state"] == "Stopped", "it is paused")["status"]["hold"]
    assert demo.pods("driver") + demo.pods("executor") == []
    assert [is_read for _, is_read in shop.slots()] == [False]
    shop.trade(5000)

    demo.kubectl("create", "job", "hold-now", f"--from=cronjob/changefeed-{demo.name}-hold")

    def is_told(found: Resource) -> bool:
        hold = found["status"]["hold"]
        return bool(hold["until"] > before["until"] and hold["keptBytes"] > before["keptBytes"])

    found = demo.wait_for(is_told, "a Job has looked at the slot")
    assert (_history(found)["status"], found["status"]["hold"]["walStatus"]) == ("True", "reserved")


def test_it_goes_on_with_a_server_that_has_moved(demo: Demo, shop: Shop) -> None:
    """Its policy, too: pods may leave by the new port."""
    shop.restart(OTHER_PORT)

    demo.edit({"paused": False, "upstream": {"postgresql": {"port": OTHER_PORT}}})

    _is_whole(demo)


def test_one_that_is_retained_keeps_its_slot_for_another_of_its_state(demo: Demo, shop: Shop) -> None:
    slots = [name for name, _ in shop.slots()]
    demo.edit({"deletionPolicy": "Retain"})

    demo.kubectl("delete", "cf", demo.name)

    wait_until(lambda: not demo.kubectl("get", "pods", "-o", "name").split(), "its pods are gone", LATE_S)
    assert shop.slots() == [[name, False] for name in slots]
    shop.trade()
    shop.restart()  # where the file says
    demo.kubectl("apply", "-k", demo.kustomization)
    _is_whole(demo)
    assert [name for name, _ in shop.slots()] == slots


def test_one_that_is_deleted_takes_its_slot_along(demo: Demo, shop: Shop) -> None:
    demo.kubectl("delete", "cf", demo.name)  # waits for it

    assert shop.slots() == []
    events = demo.namespace.api.items(demo.namespace.core("events"))
    assert "Closed" in {each["reason"] for each in events}
    assert [each["message"] for each in events if _OF_TIKV.search(each["message"])] == []


def test_one_whose_slot_is_lost_stops_and_says_so_and_is_deleted_all_the_same(demo: Demo, shop: Shop) -> None:
    anew = yaml.safe_load(demo.kubectl("kustomize", demo.kustomization))
    anew["spec"]["state"]["id"] = "shop-lost"
    anew["spec"]["sink"]["storage"]["uri"] = demo.store.uri(f"lake/{demo.namespace.name}-lost")
    demo.node.cluster.kubectl("apply", "-f", "-", text=json.dumps(anew))
    demo.wait_until_ready()

    shop.lose_history()

    found = demo.wait_for(lambda found: found["status"]["state"] == "Failed", "it has failed")
    assert "its WAL is removed" in found["status"]["message"]
    demo.kubectl("create", "job", "hold-lost", f"--from=cronjob/changefeed-{demo.name}-hold")
    found = demo.wait_for(lambda found: _history(found)["status"] == "False", "a Job has looked at the slot")
    assert _history(found)["reason"] == "SnapshotLostByGC", found["status"]
    demo.kubectl("delete", "cf", demo.name)
    assert shop.slots() == []


def _is_whole(demo: Demo) -> None:
    """All that is committed by now is written, once."""
    demo.wait_until_past(demo.now())
    found = demo.verify()
    assert found["ok"], found


def _history(found: Resource) -> dict[str, Any]:
    condition: dict[str, Any]
    (condition,) = (each for each in found["status"]["conditions"] if each["type"] == "HistoryHeld")
    return condition
