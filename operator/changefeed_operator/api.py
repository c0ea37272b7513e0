"""Names shared by the operator's modules, and accessors for objects from the API server.

An object is plain JSON as the server returned it: anything may be missing or have an unexpected type, and reading it
never raises. Does no I/O.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from changefeed.kube.kind import CHANGEFEED as CHANGEFEED
from changefeed.kube.kind import CONFIG_MAP as CONFIG_MAP
from changefeed.kube.kind import POD as POD
from changefeed.kube.kind import Kind as Kind
from changefeed.spec import names

Json = Mapping[str, Any]

GROUP: Final = names.GROUP
API_VERSION: Final = names.API_VERSION
PLURAL: Final = names.PLURAL

FIELD_MANAGER: Final = "changefeed-operator"
DRIVER_FIELD_MANAGER: Final = "changefeed-driver"

MANAGED_BY: Final = "app.kubernetes.io/managed-by"
OPERATOR: Final = "changefeed-operator"
NAME_LABEL: Final = f"{GROUP}/name"
ATTEMPT_LABEL: Final = f"{GROUP}/attempt"
SPEC_HASH_LABEL: Final = f"{GROUP}/spec-hash"
APPLIED: Final = f"{GROUP}/applied"  # annotation: the hash of the applied manifest
DEFAULTED: Final = f"{GROUP}/defaulted"  # annotation in a config: fields of spec.spark that the operator set
RESOURCE: Final = f"{GROUP}/resource"  # annotation of a Job's pod: the effective resource
JOB_LABEL: Final = f"{GROUP}/job"  # hold | close
FINALIZER: Final = f"{GROUP}/close"
RECONCILE: Final = f"{GROUP}/reconcile"  # annotation: "paused" pauses reconciliation
ROLE_LABEL: Final = "spark-role"  # Spark's own: driver | executor
DRIVER_CONTAINER: Final = "spark-kubernetes-driver"
EXECUTOR_CONTAINER: Final = "spark-kubernetes-executor"


#: Of every Spark operator; the API group depends on which one it is (`Settings.spark`).
APPLICATION: Final = "SparkApplication"

SERVICE_ACCOUNT: Final = Kind("v1", "ServiceAccount", "serviceaccounts")
SERVICE: Final = Kind("v1", "Service", "services")
ROLE: Final = Kind("rbac.authorization.k8s.io/v1", "Role", "roles")
ROLE_BINDING: Final = Kind("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings")
BUDGET: Final = Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")
NETWORK_POLICY: Final = Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
CRON_JOB: Final = Kind("batch/v1", "CronJob", "cronjobs")
JOB: Final = Kind("batch/v1", "Job", "jobs")

#: The kinds that belong to a changefeed besides `APPLICATION`, listed by `NAME_LABEL`.
CHILD_KINDS: Final = (
    POD,
    CONFIG_MAP,
    SERVICE_ACCOUNT,
    ROLE,
    ROLE_BINDING,
    SERVICE,
    BUDGET,
    NETWORK_POLICY,
    CRON_JOB,
    JOB,
)
KINDS: Final = {kind.kind: kind for kind in (CHANGEFEED, *CHILD_KINDS)}

_CRON_JOB_NAME_MAX = 52  # the API server's limit: a Job's name adds 11 characters


def child_name(name: str) -> str:
    """The name of nearly all children of changefeed `name`."""
    return f"changefeed-{name}"


def config_map_name(name: str, digest: str) -> str:
    """Name of the ConfigMap whose config has that digest; "" for older versions, which had one for all specs."""
    return f"{child_name(name)}-{digest}" if digest else child_name(name)


def driver_pod_name(name: str) -> str:
    return f"changefeed-{name}-driver"


def close_job_name(name: str) -> str:
    return f"changefeed-{name}-close"


def hold_cron_job_name(name: str) -> str:
    """`changefeed-X-hold`; an X longer than 36 characters is cut and hashed: a CronJob's name has at most 52."""
    plain = f"changefeed-{name}-hold"
    if len(plain) <= _CRON_JOB_NAME_MAX:
        return plain
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"changefeed-{name[:26]}-{digest}-hold"


def last_log_name(name: str) -> str:
    """The ConfigMap with the log of the last attempt that failed."""
    return f"changefeed-{name}-last-log"


def labels(name: str) -> dict[str, str]:
    """The labels of every child of changefeed `name`."""
    return {MANAGED_BY: OPERATOR, NAME_LABEL: name}


def canonical(value: object) -> str:
    """JSON that is equal for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def digest(value: object) -> str:
    """16 hex digits that tell JSON values apart; fits a label."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:16]


def time_text(seconds: float) -> str:
    """RFC 3339, as Kubernetes writes times: whole seconds, UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str) -> float | None:
    """Unix seconds of an RFC 3339 text; None if it isn't one, or the year is out of range."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment.timestamp() if moment.tzinfo and 1970 < moment.year < 9999 else None


def mapping_at(raw: object, *path: str) -> Json:
    """The mapping at `path`, or an empty one."""
    value = _at(raw, path)
    return value if isinstance(value, Mapping) else {}


def list_at(raw: object, *path: str) -> Sequence[Any]:
    """The list at `path`, or an empty one."""
    value = _at(raw, path)
    return value if isinstance(value, list | tuple) else ()


def text_at(raw: object, *path: str) -> str:
    """The text at `path`, or ""."""
    value = _at(raw, path)
    return value if isinstance(value, str) else ""


def whole_at(raw: object, *path: str) -> int:
    """The integer at `path`, or 0; booleans don't count."""
    value = _at(raw, path)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def time_at(raw: object, *path: str) -> float | None:
    """Unix seconds of the RFC 3339 text at `path`; None when there is none."""
    return parse_time(text_at(raw, *path))


def _at(raw: object, path: Sequence[str]) -> object:
    value = raw
    for part in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(part)
    return value


def lean(raw: Json) -> Json:
    """The object with only manager and time of its managed fields: the rest is most of an object and never used."""
    kept = [
        {name: entry[name] for name in ("manager", "time") if name in entry}
        for entry in list_at(raw, "metadata", "managedFields")
        if isinstance(entry, Mapping)
    ]
    return {**raw, "metadata": {**mapping_at(raw, "metadata"), "managedFields": kept}}


def name_of(raw: Json) -> str:
    return text_at(raw, "metadata", "name")


def uid_of(raw: Json) -> str:
    return text_at(raw, "metadata", "uid")


def kind_of(raw: Json) -> str:
    return text_at(raw, "kind")


def label_of(raw: Json, label: str) -> str:
    return text_at(raw, "metadata", "labels", label)


def is_hands_off(changefeed: Json) -> bool:
    """Tell whether reconciliation is paused by annotation."""
    return text_at(changefeed, "metadata", "annotations", RECONCILE) == "paused"


def annotation_of(raw: Json, annotation: str) -> str:
    return text_at(raw, "metadata", "annotations", annotation)


def is_deleting(raw: Json) -> bool:
    return "deletionTimestamp" in mapping_at(raw, "metadata")


def owner_uids(raw: Json) -> set[str]:
    return {text_at(owner, "uid") for owner in list_at(raw, "metadata", "ownerReferences")}
