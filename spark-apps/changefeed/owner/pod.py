"""What the operator tells a driver about its pod, and what a changefeed must satisfy to run in one.

On a laptop there is no pod, and none of this applies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from changefeed.errors import Fenced, InvalidSpec, NeedsHuman
from changefeed.owner.locations import STATE_FIELD
from changefeed.spec.field.location import in_bucket
from changefeed.spec.model import Changefeed

#: Where tasks find the owner; the operator's Service and NetworkPolicy name it.
OWNER_PORT = 7400


@dataclass(frozen=True)
class Pod:
    """The resource that the pod is of, as it was when the pod was made, and the pod's address."""

    namespace: str
    name: str
    uid: str
    ip: str

    @property
    def every_address(self) -> str:
        """To listen at."""
        return "::" if ":" in self.ip else "0.0.0.0"


def pod_of(environment: Mapping[str, str]) -> Pod | None:
    """None when CHANGEFEED_UID is not set: then this is no driver pod. Raises NeedsHuman for half of it."""
    if "CHANGEFEED_UID" not in environment:
        return None
    names = ("CHANGEFEED_NAMESPACE", "CHANGEFEED_NAME", "CHANGEFEED_UID", "POD_IP")
    if missing := [name for name in names if not environment.get(name)]:
        raise NeedsHuman(
            f"The driver's pod lacks {', '.join(missing)} in its environment.",
            "The operator sets them: check its version, and what else modifies its pods.",
        )
    return Pod(*(environment[name] for name in names))


def check_pod(pod: Pod, changefeed: Changefeed) -> None:
    """Raises Fenced when the resource is not the pod's any more, InvalidSpec when it can't run in a pod."""
    metadata = changefeed.metadata
    if (metadata.namespace, metadata.name, metadata.uid) != (pod.namespace, pod.name, pod.uid):
        raise Fenced(
            f"This pod is of changefeed {pod.namespace}/{pod.name}, uid {pod.uid}; its file is of "
            f"{changefeed.name}, uid {metadata.uid}.",
            "The resource was deleted and recreated: leave it to the new one's driver.",
        )
    for field, uri in ((STATE_FIELD, changefeed.spec.state.uri), *changefeed.spec.sink.section.folders()):
        if uri is None or not in_bucket(uri):
            raise InvalidSpec(
                field,
                f"{uri or 'none'}: a folder of one machine can't be shared by pods",
                "Name an object store that all pods reach, such as s3://bucket/folder.",
            )
