"""How a PostgreSQL database is reached: folders instead of secrets, and a slot of the changefeed's own."""

from __future__ import annotations

import json
import pickle
import re
import socket
from pathlib import Path
from typing import Any

import pytest
from changefeed.errors import InvalidSpec, Refused, Unavailable
from changefeed.spec.model import Changefeed
from changefeed.spec.parse import parse
from changefeed.upstream.choice import access_of
from changefeed.upstream.postgresql.access import PostgresqlAccess, own_slot

PASSWORD = "hunter2"
POSTGRESQL = {"host": "127.0.0.1", "database": "shop", "credentials": {"secretRef": {"name": "reader"}}}


def made(metadata: dict[str, Any] | None = None, state: dict[str, Any] | None = None, **members: Any) -> Changefeed:
    resource = {
        "apiVersion": "changefeed.dev/v1alpha1",
        "kind": "Changefeed",
        "metadata": {"name": "orders", "namespace": "shop", "uid": "0a-1b", **(metadata or {})},
        "spec": {
            "upstream": {"postgresql": {**POSTGRESQL, **members}},
            "state": state or {},
            "sink": {"blackhole": {}},
        },
    }
    return parse(json.dumps(resource))


def reached(secrets: Path, **members: Any) -> PostgresqlAccess:
    access = access_of(made(**members), secrets)
    assert isinstance(access, PostgresqlAccess)
    return access


def secret(folder: Path, name: str = "reader", **files: str) -> Path:
    (folder / name).mkdir()
    for file, content in (files or {"username": "reader\n", "password": f"{PASSWORD}\n"}).items():
        (folder / name / file).write_text(content)
    return folder


def test_it_has_where_the_secrets_are_and_none_of_them(tmp_path: Path) -> None:
    access = reached(secret(tmp_path), slot="orders", tls={"secretRef": {"name": "ca"}})
    assert (access.slot, access.publication, access.port) == ("orders", "changefeed", 5432)
    assert (access.secret, access.tls) == (tmp_path / "reader", tmp_path / "ca")
    assert access.address == "postgresql://127.0.0.1:5432/shop"
    pickled = pickle.dumps(access)
    assert pickle.loads(pickled) == access
    assert PASSWORD not in f"{access!r}{pickled!r}"
    assert access.of_cluster(7).cluster_id == 7


def test_without_the_folder_of_secrets_nothing_is_tried() -> None:
    with pytest.raises(InvalidSpec, match=r"--secrets-dir: missing; spec\.upstream\.postgresql\.credentials names"):
        access_of(made())


async def test_a_secret_that_lacks_a_key_is_named(tmp_path: Path) -> None:
    access = reached(secret(tmp_path, username="reader"))
    with pytest.raises(Refused, match="Secret reader has no password"):
        await access.connect()


async def test_where_nobody_is_there_the_address_is_named_and_no_password(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = int(taken.getsockname()[1])
    with pytest.raises(Unavailable, match=f"postgresql://127.0.0.1:{port}/shop: ") as caught:
        await reached(secret(tmp_path), port=port).connect(0.0)
    assert PASSWORD not in str(caught.value)


def test_a_slot_is_the_changefeeds_own() -> None:
    here = own_slot(made())
    assert here == own_slot(made(slot="other")), "it does not depend on what the resource names"
    assert here.startswith("changefeed_shop_orders_")
    others = [
        made({"uid": "0a-1c"}),
        made({"name": "sales"}),
        made({"namespace": "bank"}),
        made(state={"uri": "s3://state/a"}),
        made(state={"id": "orders"}),
        made(state={"id": "orders", "uri": "s3://state/a"}),
        made(state={"id": "orders", "uri": "s3://state/b"}),
    ]
    assert len({here, *map(own_slot, others)}) == 1 + len(others)
    moved = made({"name": "sales", "uid": "0a-1c"}, {"id": "orders", "uri": "s3://state/a/"})
    assert own_slot(moved) == own_slot(others[5]), "a state id goes with its state"


@pytest.mark.parametrize(("name", "namespace"), [("a", "a"), ("a" * 45, "a" * 63), ("a-b-c", "x-y")])
def test_a_server_takes_its_name(name: str, namespace: str) -> None:
    assert re.fullmatch("[a-z0-9_]{1,63}", own_slot(made({"name": name, "namespace": namespace})))
