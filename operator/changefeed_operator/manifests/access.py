"""What a changefeed's driver may do: ServiceAccount, Role, RoleBindings. Pure."""

from __future__ import annotations

from typing import Any

from changefeed_operator import api
from changefeed_operator.api import Json
from changefeed_operator.manifests import pods
from changefeed_operator.settings import Settings
from changefeed_operator.target import Target


def service_account(target: Target, owner: Json) -> dict[str, Any]:
    """Carries the clouds' annotations. Pods that need an API server token enable its mount themselves."""
    manifest = pods.own_child(api.SERVICE_ACCOUNT, target, owner)
    if annotations := target.resource.spec.spark.service_account.annotations:
        manifest["metadata"]["annotations"] = dict(annotations)
    return {**manifest, "automountServiceAccountToken": False}


def driver_binding(target: Target, settings: Settings, owner: Json) -> dict[str, Any]:
    """What every driver may do for its executors. The operator lacks these permissions, so it binds the chart's role.

    The name includes the role: another operator's differs, and a binding's roleRef is immutable.
    """
    return _binding(
        pods.child(
            api.ROLE_BINDING,
            f"{api.child_name(target.resource.metadata.name)}.{settings.driver_role}",
            target.resource.metadata.name,
            owner,
        ),
        target,
        settings.driver_role_kind,
        settings.driver_role,
    )


def role(target: Target, owner: Json) -> dict[str, Any]:
    """Permission to write the status of this changefeed, and no other."""
    return {
        **pods.own_child(api.ROLE, target, owner),
        "rules": [
            {
                "apiGroups": [api.GROUP],
                "resources": [f"{api.PLURAL}/status"],
                "resourceNames": [target.resource.metadata.name],
                "verbs": ["patch"],
            },
        ],
    }


def role_binding(target: Target, owner: Json) -> dict[str, Any]:
    name = api.child_name(target.resource.metadata.name)
    return _binding(pods.own_child(api.ROLE_BINDING, target, owner), target, api.ROLE.kind, name)


def _binding(head: dict[str, Any], target: Target, kind: str, role: str) -> dict[str, Any]:
    metadata = target.resource.metadata
    account = pods.service_account(target)
    return {
        **head,
        "roleRef": {"apiGroup": api.ROLE.group, "kind": kind, "name": role},
        "subjects": [{"kind": api.SERVICE_ACCOUNT.kind, "name": account, "namespace": metadata.namespace}],
    }
