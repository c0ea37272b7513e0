"""Kinds of objects and their API paths. Does no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from changefeed.spec import names


@dataclass(frozen=True)
class Kind:
    """A kind of object, for instance `Kind("batch/v1", "Job", "jobs")`."""

    api_version: str
    kind: str
    plural: str

    @property
    def group(self) -> str:
        """ "" for the core group."""
        return self.api_version.rpartition("/")[0]


CHANGEFEED: Final = Kind(names.API_VERSION, names.KIND, names.PLURAL)
POD: Final = Kind("v1", "Pod", "pods")
CONFIG_MAP: Final = Kind("v1", "ConfigMap", "configmaps")
SECRET: Final = Kind("v1", "Secret", "secrets")
EVENT: Final = Kind("v1", "Event", "events")
NAMESPACE: Final = Kind("v1", "Namespace", "namespaces")
LEASE: Final = Kind("coordination.k8s.io/v1", "Lease", "leases")


def path_of(kind: Kind, namespace: str = "", name: str = "", subresource: str = "") -> str:
    """The URL path of an object, or of a kind in one namespace or in all (`""`)."""
    parts = ["apis" if kind.group else "api", *kind.api_version.split("/")]
    parts += ["namespaces", namespace] if namespace else []
    parts += [kind.plural, *filter(None, (name, subresource))]
    return "/" + "/".join(quote(part, safe="") for part in parts)
