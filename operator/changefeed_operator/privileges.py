"""Finds what in a user's pod template asks for power over its node.

What is allowed is listed, so that what a newer Kubernetes adds to a security context, or as a kind of volume, is
refused until somebody has looked at it. The lists hold what the baseline Pod Security Standard leaves
(https://kubernetes.io/docs/concepts/security/pod-security-standards/), without any added capability, and of volumes
those of the restricted one. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any


class _Value(Enum):
    ANY = ""
    NONE = "false or none"  # also what is empty


@dataclass(frozen=True)
class _Only:
    """A mapping that has no other members."""

    members: Mapping[str, _Rule]


@dataclass(frozen=True)
class _Each:
    """A list; `key` names its members."""

    key: str
    rule: _Rule


#: A set: one of these texts. A plain mapping: what it does not name may be anything.
_Rule = _Value | frozenset[str] | Mapping[str, "_Rule"] | _Only | _Each

_PROFILE = _Only({"type": frozenset({"RuntimeDefault", "Localhost"}), "localhostProfile": _Value.ANY})
_SELINUX = _Only({
    "type": frozenset({"container_t", "container_init_t", "container_kvm_t", "container_engine_t"}),
    "level": _Value.ANY,
})  # fmt: skip
_WINDOWS = _Only({
    "hostProcess": _Value.NONE,
    "gmsaCredentialSpec": _Value.ANY,
    "gmsaCredentialSpecName": _Value.ANY,
    "runAsUserName": _Value.ANY,
})  # fmt: skip
_CONTEXT: Mapping[str, _Rule] = {
    "runAsUser": _Value.ANY,
    "runAsGroup": _Value.ANY,
    "runAsNonRoot": _Value.ANY,
    "seccompProfile": _PROFILE,
    "appArmorProfile": _PROFILE,
    "seLinuxOptions": _SELINUX,
    "windowsOptions": _WINDOWS,
}
_SYSCTLS = frozenset({
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_syncookies",
})  # fmt: skip
_ACTION: _Rule = {"httpGet": {"host": _Value.NONE}, "tcpSocket": {"host": _Value.NONE}}
_CONTAINER: _Rule = {
    "securityContext": _Only({
        **_CONTEXT,
        "privileged": _Value.NONE,
        "allowPrivilegeEscalation": _Value.NONE,
        "capabilities": _Only({"drop": _Value.ANY, "add": _Value.NONE}),
        "procMount": frozenset({"Default"}),
        "readOnlyRootFilesystem": _Value.ANY,
    }),
    "ports": _Each("name", {"hostPort": _Value.NONE}),
    "livenessProbe": _ACTION,
    "readinessProbe": _ACTION,
    "startupProbe": _ACTION,
    "lifecycle": {"postStart": _ACTION, "preStop": _ACTION},
}  # fmt: skip
_VOLUMES = (
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
)
_POD: _Rule = {
    "hostNetwork": _Value.NONE,
    "hostPID": _Value.NONE,
    "hostIPC": _Value.NONE,
    "securityContext": _Only({
        **_CONTEXT,
        "fsGroup": _Value.ANY,
        "fsGroupChangePolicy": _Value.ANY,
        "seLinuxChangePolicy": _Value.ANY,
        "supplementalGroups": _Value.ANY,
        "supplementalGroupsPolicy": _Value.ANY,
        "sysctls": _Each("name", {"name": _SYSCTLS}),
    }),
    "volumes": _Each("name", _Only(dict.fromkeys(("name", *_VOLUMES), _Value.ANY))),
    "containers": _Each("name", _CONTAINER),
    "initContainers": _Each("name", _CONTAINER),
    "ephemeralContainers": _Each("name", _CONTAINER),
}  # fmt: skip
_APPARMOR = "container.apparmor.security.beta.kubernetes.io/"


def privilege_problem(template: Mapping[str, Any]) -> str:
    """What in a well-formed template asks for power over the node, starting with the path; "" if nothing does."""
    annotations = (template.get("metadata") or {}).get("annotations") or {}
    for name, value in annotations.items():
        if name.startswith(_APPARMOR) and value != "runtime/default" and not str(value).startswith("localhost/"):
            return _refused(f".metadata.annotations[{name}]", value, "runtime/default or localhost/…")
    return next(_problems(template.get("spec"), _POD, ".spec"), "")


def _problems(value: object, rule: _Rule, path: str) -> Iterator[str]:
    if not value or rule is _Value.ANY:
        return
    match rule:
        case _Value():
            yield _refused(path, value, rule.value)
        case frozenset():
            if not isinstance(value, str) or value not in rule:
                yield _refused(path, value, ", ".join(sorted(rule)))
        case _Each():
            items = value if isinstance(value, list) else [value]
            for item in items:
                name = item.get(rule.key) if isinstance(item, Mapping) else None
                yield from _problems(item, rule.rule, f"{path}[{name}]")
        case _ if not isinstance(value, Mapping):
            yield _refused(path, value, "a mapping")
        case _Only():
            for name, member in value.items():
                if name not in rule.members and member is not None:
                    yield _refused(f"{path}.{name}", member, f"of this kind {', '.join(rule.members)}")
            yield from _problems(value, rule.members, path)
        case _:
            for name, member in rule.items():
                yield from _problems(value.get(name), member, f"{path}.{name}")


def _refused(path: str, value: object, allowed: str) -> str:
    shown = "true" if value is True else "set"
    return f"{path}: {shown}; allowed: {allowed}, unless the chart sets allowPrivilegedTemplates"
