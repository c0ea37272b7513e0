"""The children of a changefeed that outlive its attempts. Pure."""

from __future__ import annotations

from typing import Any

from changefeed_operator import api
from changefeed_operator.api import Json
from changefeed_operator.manifests import access, jobs, network, pods
from changefeed_operator.manifests.network_policy import network_policy
from changefeed_operator.settings import Settings
from changefeed_operator.target import CONFIG_KEY, Target


def children(
    target: Target, settings: Settings, owner: Json, hold: bool, protects: bool = True
) -> list[dict[str, Any]]:
    """Manifests of all children except the SparkApplication, each with its `applied` hash.

    `hold`: include the CronJob that renews the upstream's safepoint. `protects`: evict pods one at a time.
    """
    manifests = [
        access.driver_binding(target, settings, owner),
        access.role(target, owner),
        access.role_binding(target, owner),
        _config_map(target, owner),
        network.service(target, owner),
    ]
    if not target.resource.spec.spark.service_account.name:
        manifests.insert(0, access.service_account(target, owner))
    if settings.disruption_budget:
        manifests.append(network.budget(target, owner, protects))
    if settings.network:
        manifests.append(network_policy(target, settings.network, owner))
    if hold:
        manifests.append(jobs.hold_cron_job(target, settings, owner))
    return [pods.sealed(manifest) for manifest in manifests]


def _config_map(target: Target, owner: Json) -> dict[str, Any]:
    """Immutable, and a new one for each spec: a pod's config never changes underneath it."""
    manifest = pods.child(api.CONFIG_MAP, target.config_map_name, target.resource.metadata.name, owner)
    return {**manifest, "immutable": True, "data": {CONFIG_KEY: target.config_text}}
