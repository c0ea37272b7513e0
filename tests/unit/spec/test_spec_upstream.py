"""The upstream of a resource: two forms of TiKV that are one, and PostgreSQL's own defaults and refusals."""

from __future__ import annotations

import json
from typing import Any

import pytest
from changefeed.spec.model import Changefeed
from changefeed.spec.parse import effective, from_effective, given, parse
from changefeed.spec.problem import InvalidResource
from changefeed.spec.upstream_address import upstream_address

TIKV = {
    "pdAddresses": ["https://pd-0:2379", "https://pd-1:2379/"],
    "clusterId": "7",
    "tls": {"secretRef": {"name": "tidb-client"}, "allowedCommonNames": ["tidb"]},
    "scanRate": "64Mi",
}
POSTGRESQL = {"host": "db.shop.svc", "database": "shop", "credentials": {"secretRef": {"name": "shop-reader"}}}
CSV = {"storage": {"uri": "s3://lake/orders", "protocol": "csv"}}


def made(upstream: dict[str, Any], **spec: Any) -> Changefeed:
    resource = {
        "apiVersion": "changefeed.dev/v1alpha1",
        "kind": "Changefeed",
        "metadata": {"name": "orders"},
        "spec": {"upstream": upstream, "sink": CSV, **spec},
    }
    return parse(json.dumps(resource))


def test_both_forms_of_tikv_are_one_changefeed() -> None:
    flat, nested = made({**TIKV, "safepointTtl": "1h"}), made({"tikv": TIKV, "safepointTtl": "1h"})
    assert nested == flat
    assert json.dumps(effective(nested)) == json.dumps(effective(flat)), "the log and the hash are the same text"
    assert json.dumps(given(nested)) == json.dumps(given(flat)), "an older driver reads it"
    assert "tikv" not in effective(nested)["spec"]["upstream"]
    assert nested.spec.upstream.server == "PD"
    assert nested.spec.upstream.cluster_id == 7
    assert list(nested.spec.upstream.servers()) == ["https://pd-0:2379", "https://pd-1:2379"]


def test_what_is_wrong_below_tikv_is_named_there() -> None:
    with pytest.raises(InvalidResource) as caught:
        made({"tikv": {"pdAddresses": ["pd"], "scanRates": 1}})
    assert [problem.field for problem in caught.value.problems] == [
        "spec.upstream.tikv.pdAddresses[0]",
        "spec.upstream.tikv.scanRates",
    ]
    assert "did you mean scanRate?" in caught.value.problems[1].line


def test_postgresql_has_one_puller_without_a_word() -> None:
    changefeed = made({"postgresql": POSTGRESQL})
    upstream = changefeed.spec.upstream
    assert changefeed.spec.spark.pullers.count == 1
    assert made({"postgresql": POSTGRESQL}, spark={"pullers": {"memoryQuota": "64Mi"}}).spec.spark.pullers.count == 1
    assert made(TIKV).spec.spark.pullers.count == 2
    assert upstream.server == "PostgreSQL"
    assert upstream.address == "postgresql://db.shop.svc:5432/shop"
    assert list(upstream.servers()) == [upstream.address]
    assert upstream.postgresql is not None
    assert (upstream.postgresql.publication, upstream.postgresql.slot) == ("changefeed", None)


@pytest.mark.parametrize("upstream", [{"postgresql": POSTGRESQL}, {"tikv": TIKV}, TIKV], ids=["pg", "tikv", "flat"])
def test_what_is_stored_is_read_back(upstream: dict[str, Any]) -> None:
    changefeed = made(upstream)
    assert from_effective(effective(changefeed)) == changefeed
    assert from_effective(given(changefeed)) == changefeed
    assert upstream_address({"upstream": upstream}).rstrip("/") == changefeed.spec.upstream.address


@pytest.mark.parametrize(
    "upstream", [None, 7, {}, {"postgresql": None}, {"tikv": {"pdAddresses": 7}}, {"pdAddresses": "a"}]
)
def test_a_resource_that_is_wrong_has_no_address(upstream: Any) -> None:
    assert upstream_address({"upstream": upstream}) == ""


def test_an_address_of_digits_is_in_brackets() -> None:
    upstream = {"postgresql": {**POSTGRESQL, "host": "fd00::1", "port": 6432}}
    assert made(upstream).spec.upstream.address == upstream_address({"upstream": upstream})
    assert made(upstream).spec.upstream.address == "postgresql://[fd00::1]:6432/shop"
