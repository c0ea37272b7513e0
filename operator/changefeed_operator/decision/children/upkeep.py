"""The children that outlive attempts: created, repaired, deleted. Pure.

A child that differs from its manifest is restored, whoever changed it, and an event reports it. Changes by the operator
itself, after a new spec or an upgrade, get no event: the manifest's hash differs then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from changefeed.spec.reasons import Reason

from changefeed_operator import api
from changefeed_operator.actions import Action, Apply, DeleteObject, EmitEvent
from changefeed_operator.api import Json
from changefeed_operator.decision.children.drift import changed_by_others, differences
from changefeed_operator.observe import Observed
from changefeed_operator.spark_operator.choice import KNOWN

#: Seconds between two repairs of one object, in case something else, such as an admission webhook, keeps changing it.
REPAIR_EVERY_S = 30.0


@dataclass
class Upkeep:
    """What keeps the children as they should be.

    `standing`: what exists, or exists again after this pass, as "Role/changefeed-orders", sorted.
    `in_the_way`: what must be gone before an attempt can start. `look_again_at`: Unix seconds."""

    actions: list[Action] = field(default_factory=list)
    events: list[EmitEvent] = field(default_factory=list)
    standing: list[str] = field(default_factory=list)
    in_the_way: str = ""
    look_again_at: float | None = None


def look_after(observed: Observed, manifests: Sequence[Json], stood: Sequence[str]) -> Upkeep:
    """Create, repair and recreate children.

    `manifests`: everything that should exist. `stood`: what existed before, as in `standing`.
    """
    upkeep = Upkeep()
    for manifest in manifests:
        kind, name = api.kind_of(manifest), api.name_of(manifest)
        found = observed.child(api.KINDS[kind], name)
        if f"{kind}/{name}" in stood:
            upkeep.standing.append(f"{kind}/{name}")
        if found is None:
            upkeep.actions.append(Apply(manifest))
            if f"{kind}/{name}" in stood:
                upkeep.events.append(_repaired(f"{kind} {name} was deleted and has been recreated."))
        elif api.is_deleting(found) or _is_of_another(manifest, found):
            upkeep.in_the_way = f"{kind} {name}"  # garbage collection takes it away
        else:
            _mend(upkeep, observed, manifest, found)
    upkeep.standing = sorted(set(upkeep.standing))
    return upkeep


def _mend(upkeep: Upkeep, observed: Observed, manifest: Json, found: Json) -> None:
    kind, name = api.kind_of(manifest), api.name_of(manifest)
    different = differences(manifest, found)
    is_own_change = api.annotation_of(found, api.APPLIED) != api.annotation_of(manifest, api.APPLIED)
    if not different and not is_own_change:
        upkeep.standing.append(f"{kind}/{name}")
        return
    rested_at = _written_at(found) + REPAIR_EVERY_S
    if not is_own_change and observed.now < rested_at <= observed.now + REPAIR_EVERY_S:
        upkeep.look_again_at = min(rested_at, upkeep.look_again_at or rested_at)
        return
    is_made_anew = any(each.needs_new for each in different)
    if is_made_anew:
        upkeep.in_the_way = f"{kind} {name}"
        upkeep.actions.append(DeleteObject(kind, name, api.uid_of(found)))
        upkeep.standing = [each for each in upkeep.standing if each != f"{kind}/{name}"]
    else:
        upkeep.actions.append(Apply(manifest))
    if not is_own_change:
        how = "recreated" if is_made_anew else "restored"
        changed = changed_by_others(manifest, found)
        upkeep.events.append(_repaired(f"{kind} {name} was modified ({changed}) and has been {how}."))


def superfluous(
    observed: Observed, manifests: Sequence[Json], optional: Sequence[tuple[api.Kind, str]], accepted: str
) -> list[Action]:
    """Deletes what is no longer needed: `optional` children, and ConfigMaps that no attempt reads.

    `accepted`: the digest of the last valid spec, whose ConfigMap stays.
    """
    named = {(api.kind_of(manifest), api.name_of(manifest)) for manifest in manifests}
    kept = {api.config_map_name(observed.name, accepted), *_mounted(observed)}
    uid = api.uid_of(observed.changefeed or {})
    actions: list[Action] = []
    for child in observed.children:
        kind, name = api.kind_of(child), api.name_of(child)
        is_old_config = (
            kind == api.CONFIG_MAP.kind
            and name not in kept
            and name.startswith(api.child_name(observed.name))
            and uid in api.owner_uids(child)
        )
        is_optional = any((kind, name) == (each.kind, known) for each, known in optional)
        if (is_old_config or is_optional) and (kind, name) not in named and not api.is_deleting(child):
            actions.append(DeleteObject(kind, name, api.uid_of(child)))
    return actions


#: Where the volumes are.
_POD_SPECS: Mapping[str, tuple[str, ...]] = {
    api.POD.kind: ("spec",),
    api.JOB.kind: ("spec", "template", "spec"),
    api.CRON_JOB.kind: ("spec", "jobTemplate", "spec", "template", "spec"),
}


def _mounted(observed: Observed) -> Iterator[str]:
    """Names of the ConfigMaps that an application, a pod or a job reads."""
    for child in observed.children:
        kind = api.kind_of(child)
        # Of either Spark operator: the cluster's may just have been replaced.
        templates = [each.driver_template(child) for each in KNOWN] if kind == api.APPLICATION else [child]
        path = _POD_SPECS.get(kind, ("spec",))
        for volume in (each for template in templates for each in api.list_at(template, *path, "volumes")):
            yield api.text_at(volume, "configMap", "name")


def _is_of_another(manifest: Json, found: Json) -> bool:
    """Left over from an earlier Changefeed of the same name; the API server would reject a second controller."""
    mine = api.owner_uids(manifest)
    return any(
        api.text_at(owner, "kind") == api.CHANGEFEED.kind and api.text_at(owner, "uid") not in mine
        for owner in api.list_at(found, "metadata", "ownerReferences")
    )


def _written_at(found: Json) -> float:
    """Unix seconds of the operator's last write."""
    fields: Any = api.list_at(found, "metadata", "managedFields")
    mine = (each for each in fields if api.text_at(each, "manager") == api.FIELD_MANAGER)
    return max((api.time_at(each, "time") or 0.0 for each in mine), default=0.0)


def _repaired(text: str) -> EmitEvent:
    return EmitEvent(Reason.CHILD_REPAIRED, f"{text} Find out who did it.")
