"""The Service that finds a changefeed's driver, and the PodDisruptionBudget for its pods. Pure."""

from __future__ import annotations

from typing import Any

from changefeed_operator import api
from changefeed_operator.api import Json
from changefeed_operator.manifests import pods
from changefeed_operator.target import Target


def service(target: Target, owner: Json) -> dict[str, Any]:
    """Headless: the driver is a single pod, and metrics and plans come from that pod."""
    ports = (("metrics", pods.METRICS_PORT), ("owner", pods.OWNER_PORT))
    return {
        **pods.own_child(api.SERVICE, target, owner),
        "spec": {
            "type": "ClusterIP",
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {api.NAME_LABEL: target.resource.metadata.name, api.ROLE_LABEL: "driver"},
            "ports": [{"name": name, "port": port, "targetPort": port, "protocol": "TCP"} for name, port in ports],
        },
    }


def budget(target: Target, owner: Json, protects: bool) -> dict[str, Any]:
    """One pod at a time may be evicted; any if `protects` is false, so that a node drain never waits for capacity.

    `minAvailable` is a number: percentages need a controller with a scale subresource.
    """
    return {
        **pods.own_child(api.BUDGET, target, owner),
        "spec": {
            "minAvailable": target.resource.spec.spark.executor.instances if protects else 0,
            "selector": pods.spark_pods(target),
        },
    }
